"""Statistics of a run: time, memory, utilisation, order, bubbles; and the check that it was a training step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from course_lib.sim.core.errors import OutOfMemory, SimulationError
from course_lib.sim.core.values import iter_bits
from course_lib.utils import wording

COMPUTE_KINDS = frozenset(("forward", "recompute", "backward", "update"))
COMMUNICATION_KINDS = frozenset(("all_reduce", "all_gather", "reduce_scatter", "send", "receive"))
_BOOKKEEPING_KINDS = frozenset(("hold", "drop", "add", "final", "call"))


class RankEvent(NamedTuple):
    """An operation of a rank.

    Attributes
    ----------
    rank : int
    kind : str
        "forward", "recompute" (the same forward again), "backward", "update", "input", "loss", or a communication.
    layer : int
    start, end : float
        Virtual seconds.
    mask : int
        Its samples, as the bits of an integer; 0 if there are none.
    waited : (float, float) or None
        For a communication, the time span in which the rank was blocked by it.
    """

    rank: int
    kind: str
    layer: int
    start: float
    end: float
    mask: int
    waited: tuple[float, float] | None = None

    @property
    def samples(self) -> list[int]:
        """Samples of the operation."""
        return list(iter_bits(self.mask))


def events(model) -> list[RankEvent]:
    """List the operations of a rank, in the order of its loop."""
    found, seen, rank = [], set(), model.rank
    for row in model.rows:
        kind = row[0]
        if kind in ("forward", "backward", "update", "input", "loss"):
            mask = row[6] or 0
            if kind == "forward":
                if (row[1], mask) in seen:
                    kind = "recompute"
                seen.add((row[1], mask))
            found.append(RankEvent(rank, kind, row[1], row[2], row[3], mask))
        elif kind in COMMUNICATION_KINDS:
            exchange = row[6]
            found.append(RankEvent(rank, kind, row[1], exchange.start, exchange.end, exchange.mask, (row[2], row[3])))
    return found


def memory_profile(model) -> tuple[np.ndarray, np.ndarray]:
    """Compute the bytes that a rank holds: its storage, and values in variables that a later operation uses.

    Loaded values come from the previous step, so they count from the beginning until they are freed, by an update or from the storage, or
    else to the end. A sent value stays in its buffer until the receiver asks for it.

    Returns
    -------
    times : numpy.ndarray
        End of each operation in seconds, ``(n,)``.
    nbytes : numpy.ndarray
        Bytes held until then, since the previous operation, ``(n,)``.
    """
    rows, end = model.rows, len(model.rows) - 1
    last, born = np.array(model.last, int), np.array(model.born, int)
    moves, settled, operations, ends, sent = {}, set(), [], [], []
    for i, row in enumerate(rows):  # once, as most of its time goes into fetching the rows from memory
        kind = row[0]
        if kind == "hold" or kind == "drop":
            moves[row[1]] = kind  # the last move, in or out, of each stored value
        elif kind not in _BOOKKEEPING_KINDS:
            operations.append(i)
            ends.append(row[3])
            if kind == "update":
                settled.update(row[4])
            elif kind == "send":
                sent.append((row[4][0], row[6]))
    last[[number for number, move in moves.items() if move == "hold"]] = end
    settled.update(moves)
    last[[number for *_, number in loaded_values(model) if number not in settled]] = end
    times = np.array(ends)
    sent += [(p.value.id, p.exchange) for p in model.pending.values() if p.exchange.kind == "send"]
    for number, exchange in sent:
        if exchange.asked > exchange.end:  # not received yet: it is in the sender's buffer
            place = np.searchsorted(times, exchange.asked)
            last[number] = max(last[number], operations[place] if place < len(operations) else end)
    change = np.bincount(born, model.sizes, len(rows) + 2) - np.bincount(np.maximum(last + 1, born), model.sizes, len(rows) + 2)
    held = np.cumsum(change)[: len(rows)]
    return times, held[operations]


def loaded_values(model) -> list[tuple[str, int, int, int, int]]:
    """List the values that a rank began with: those it loaded and then stored or used.

    Returns
    -------
    list of (str, int, int, int, int)
        "weight" or "optimizer state", layer, shard, number of shards, and the value's number.
    """
    names, last = ("weight", "optimizer state"), model.last
    found = [(name, row[1], *row[6], number) for row in model.loads for name, number in zip(names, row[5], strict=True)]
    if all(last[one[-1]] >= 0 for one in found):
        return found
    stored = {row[1] for row in model.rows if row[0] == "hold"}
    return [one for one in found if last[one[-1]] >= 0 or one[-1] in stored]


def peak_memory(model) -> float:
    """Peak bytes of a rank."""
    return float(np.max(memory_profile(model)[1], initial=0.0))


def get_model_theoretical_best_time(model) -> float:
    """Seconds of the step if all devices did nothing but its forward and backward FLOP at their peak rate."""
    layer, hardware, samples = model.dist.layer, model.dist.hardware, model.global_batch_size
    flop = model.num_layers * (layer.forward_flop(samples) + layer.backward_flop(samples))
    return flop / (hardware.flops * model.world_size)


def get_training_stats(models: Sequence) -> tuple[float, float, int]:
    """Return time, peak memory, and the rank with the largest peak.

    Returns
    -------
    time : float
        Seconds until the last rank is done.
    memory : float
        Peak bytes of the rank that held most.
    rank : int
        The rank that held most.

    Raises
    ------
    SimulationError
        It was not a complete training step, see `verify`.
    OutOfMemory
        A rank exceeded its device's memory, and `Dist` has a memory limit.
    """
    models = _ordered(models)
    verify(models)
    peaks = [peak_memory(m) for m in models]
    worst = int(np.argmax(peaks))
    hardware = models[0].dist.hardware
    if peaks[worst] > hardware.memory and models[0].dist.memory_limit:
        raise OutOfMemory(
            f"out of memory: {wording.memory(peaks[worst])}, but {hardware.name} has {wording.memory(hardware.memory)}. Some of it was in "
            "variables that a later operation used.",
            rank=worst,
        )
    return max(m.time for m in models), peaks[worst], worst


def over_capacity_text(model) -> str:
    """Describe how far a rank exceeded its device's memory; empty if it did not."""
    peak, hardware = peak_memory(model), model.dist.hardware
    if peak <= hardware.memory:
        return ""
    return f"more than the device has: {wording.memory(peak)} of {wording.memory(hardware.memory)}"


def verify(models: Sequence) -> None:
    """Raise SimulationError unless all communications were awaited, all layers' weights updated, and nothing loaded twice."""
    for model in models:
        _check_loaded_once(model)
        for pending in model.pending.values():
            what = f"{pending.exchange.kind} was started and never awaited."
            raise SimulationError(what, rank=model.rank, layer=pending.exchange.layer, time=model.time)
    for layer in range(models[0].num_layers):
        final = [m.final_weights[layer] for m in models if layer in m.final_weights]
        whole = {}
        for weight in final:
            whole[weight.num_shards] = whole.get(weight.num_shards, 0) | weight.shards
        if any(shards == (1 << n) - 1 for n, shards in whole.items()):
            continue
        if not whole:
            raise SimulationError("no rank has set the final weight (set_final_weight).", layer=layer)
        n, shards = max(whole.items(), key=lambda item: item[1].bit_count())
        missing = wording.spans(iter_bits((1 << n) - 1 & ~shards))
        raise SimulationError(f"the final weight is not complete: no rank has set shard {missing} of {n}.", layer=layer)


def _check_loaded_once(model) -> None:
    """Check that no part of a layer is loaded twice; initial values that were freed are gone."""
    began: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for name, layer, shard, n, _ in loaded_values(model):
        before = began.setdefault((name, layer), [])
        if any(other * n < (shard + 1) * of and shard * of < (other + 1) * n for other, of in before):
            text = f"the same part of the {name} is loaded twice: keep what is loaded, or gather it from the ranks that have it."
            raise SimulationError(text, rank=model.rank, layer=layer)
        before.append((shard, n))


def utilisation(models: Sequence) -> float:
    """Model FLOPs utilisation: the theoretical best time over the actual time (Chowdhery et al., 2022, "PaLM", section 4.1)."""
    return get_model_theoretical_best_time(models[0]) / max(m.time for m in models)


def busy_seconds(model) -> float:
    """Seconds in which a rank computed."""
    return sum(row[3] - row[2] for row in model.rows if row[0] in COMPUTE_KINDS)


def bubble_fraction(models: Sequence) -> float:
    """Fraction of the ranks' time without computation."""
    total = max(m.time for m in models) * len(models)
    return 1 - sum(busy_seconds(m) for m in models) / total if total else 0.0


def schedule(model) -> list[tuple[str, int]]:
    """Order of a rank's work: (forward or backward, samples as bits), with adjacent layers merged."""
    order = [(e.kind, e.mask) for e in events(model) if e.kind in ("forward", "backward")]
    return order[:1] + [b for a, b in pairwise(order) if a != b]


def in_flight(model) -> int:
    """Largest number of micro-batches whose forward a rank had begun and whose backward it had not finished."""
    begun: dict[int, int] = {}
    most = 0
    for event in events(model):
        if event.kind == "forward":
            begun[event.mask] = begun.get(event.mask, 0) + 1
            most = max(most, len(begun))
        elif event.kind == "backward" and event.mask in begun:
            begun[event.mask] -= 1
            if not begun[event.mask]:
                del begun[event.mask]
    return most


def batch_numbers(models: Iterable, batches: Sequence[Sequence[int]] | None = None) -> dict[int, int]:
    """Number the sets of samples: by their place among the micro-batches, or in the given list."""
    masks = {row[6] for m in models for row in m.rows if row[0] == "forward"}
    ordered = sorted(masks, key=lambda mask: mask & -mask)
    if batches is None:
        return {mask: i for i, mask in enumerate(ordered)}
    place = {sample: i for i, batch in enumerate(batches) for sample in batch}
    return {mask: place.get((mask & -mask).bit_length() - 1, 0) for mask in ordered}


def _ordered(models: Sequence) -> list:
    models = list(models)
    if not models or not all(hasattr(m, "rows") for m in models) or {m.rank for m in models} != set(range(models[0].world_size)):
        raise ValueError(
            "expected the models of all ranks: the result of asyncio.gather if each loop ends with `return model`, or the list that they "
            "were created in."
        )
    return sorted(models, key=lambda m: m.rank)
