"""Schedulers on a simulated clock: static batching, drawn arrivals, and what a step costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from course_lib.gpt.serving.model import Text


class StaticScheduler:
    """Static batching: a batch begins with the texts that wait, and the next one when all of them are done.

    Parameters
    ----------
    cache : PagedCache
    most : int
        Most texts in a batch.
    """

    def __init__(self, cache: object, most: int):
        self.cache, self.most = cache, most
        self.waiting: list[Text] = []
        self.running: list[Text] = []

    def add(self, text: Text) -> None:
        """Let a text wait for the next batch."""
        self.waiting.append(text)

    def next_batch(self) -> tuple[list[Text], list[Text]]:
        """Return the texts to prefill and those to decode in the next step."""
        going_on = [text for text in self.running if not text.done]
        if going_on:
            for text in going_on:
                self.cache.append(text.number)
            return [], going_on
        for text in self.running:
            self.cache.free(text.number)
        self.running, reserved = [], 0
        self.waiting = [text for text in self.waiting if not text.done]
        while self.waiting and len(self.running) < self.most:
            text = self.waiting[0]
            reserved += -(-(text.prompt + text.limit) // self.cache.block_size)  # for all that it may become
            if reserved > self.cache.blocks:
                break
            self.cache.allocate(text.number, len(text.tokens))
            self.running.append(self.waiting.pop(0))
        return list(self.running), []


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step: something for each step, and for each token that it prefills or decodes.

    >>> StepCost(0.01, 0.001, 0.002)([30], 4)
    0.048
    """

    step: float = 0.004
    prefill: float = 0.00005
    decode: float = 0.0002

    def __call__(self, prompts: Sequence[int], decoded: int) -> float:
        return round(self.step + self.prefill * sum(prompts) + self.decode * decoded, 9)


COST = StepCost()
FREE, KEPT = -1, -2  # instead of the text that has a block


def arrivals(random: np.random.Generator, count: int, rate: float, prompts: tuple[int, int] = (4, 40)) -> list[tuple[float, Text]]:
    """Draw texts that arrive independently of each other: most are short, some long; each with the second of its arrival.

    Parameters
    ----------
    random : numpy.random.Generator
    count : int
    rate : float
        Texts a second.
    prompts : (int, int)
        Least and most tokens of a prompt.
    """
    times = np.cumsum(random.exponential(1 / rate, count))
    lengths = random.integers(prompts[0], prompts[1] + 1, count)
    limits = np.clip(random.lognormal(2.5, 0.8, count), 2, 80).astype(int)
    texts = (Text(i, [0] * int(n), int(limit)) for i, (n, limit) in enumerate(zip(lengths, limits, strict=True)))
    return list(zip(times.tolist(), texts, strict=True))


def simulate(scheduler: object, coming: Sequence[tuple[float, Text]], cost: StepCost = COST, *, watch: bool = False) -> dict:
    """Run a scheduler on a simulated clock; no model computes anything.

    Parameters
    ----------
    scheduler : object
        Has `add`, `next_batch` and `cache`.
    coming : list of (float, Text)
        Texts and when they arrive, in order.
    cost : StepCost
    watch : bool
        Whether to note who has which block, which takes time.

    Returns
    -------
    dict
        "arrived", "first", "ended": for each text the second of its arrival, of its first token and of its last; "spans": (text, "prefill"
        or "decode", begin, end); "rate": tokens a second; "times" and "owners": for each step its begin and for each block the text that
        has it; `FREE`, or `KEPT` by one that is done.

    Raises
    ------
    RuntimeError
        The scheduler returns nothing to do, although a text waits.
    """
    now, left, alive, spans, times, owners, first, ended = 0.0, list(coming), {}, [], [], [], {}, {}
    while left or alive:
        now = max(now, left[0][0]) if not alive else now
        while left and left[0][0] <= now:
            text = left.pop(0)[1]
            alive[text.number] = text
            scheduler.add(text)
        prefill, decode = scheduler.next_batch()
        if not prefill and not decode:
            raise RuntimeError(f"next_batch returned no text, although {len(alive)} are not done: {sorted(alive)[:5]}.")
        end = now + cost([len(text.tokens) for text in prefill], len(decode))
        times.append(now)
        owners += [_owners(scheduler.cache, [text for _, text in coming])] if watch else []
        for kind, texts in (("prefill", prefill), ("decode", decode)):
            for text in texts:
                spans.append((text.number, kind, now, end))
                first.setdefault(text.number, end)
                text.tokens.append(0)
                if text.done:
                    ended[text.number] = end
                    del alive[text.number]
        now = end
    by_text = [text.number for _, text in coming]
    return {
        "arrived": [at for at, _ in coming],
        "first": [first[k] for k in by_text],
        "ended": [ended[k] for k in by_text],
        "spans": spans,
        "rate": len(spans) / now,
        "times": np.array(times),
        "owners": np.array(owners),
    }


def _owners(cache: object, texts: Iterable[Text]) -> np.ndarray:
    """The text that has each block."""
    found = np.full(cache.blocks, FREE)
    for text in texts:
        found[np.unique(np.asarray(cache.slots(text.number), int) // cache.block_size)] = KEPT if text.done else text.number
    return found


def compare(scheduler: Callable, make_cache: Callable[[], object], loads: Sequence[float], most: int = 8) -> tuple[dict, dict]:
    """Simulate a scheduler and static batching, each on a cache of its own.

    Parameters
    ----------
    scheduler : callable
        Makes a scheduler with continuous batching from a cache and `most`.
    make_cache : callable
    loads : sequence of float
        Texts a second.

    Returns
    -------
    runs : dict of str to dict
        By the scheduler's name, what `simulate` gives for 40 texts at the largest load.
    latency : dict of str to list of float
        For each load the mean seconds from arrival to last token, of 150 texts.
    """

    def run(kind: Callable, count: int, rate: float, **how: bool) -> dict:
        return simulate(kind(make_cache(), most), arrivals(np.random.default_rng(3), count, rate), **how)

    kinds = {"static": StaticScheduler, "continuous": scheduler}
    runs = {name: run(kind, 40, max(loads), watch=True) for name, kind in kinds.items()}
    latency = {}
    for name, kind in kinds.items():
        found = [run(kind, 150, rate) for rate in loads]
        latency[name] = [float(np.mean(np.subtract(one["ended"], one["arrived"]))) for one in found]
    return runs, latency
