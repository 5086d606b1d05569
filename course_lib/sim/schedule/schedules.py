"""Orders of a pipeline's work, drawn as if a forward took one unit of time, a backward two, and messages none.

A backward may be divided (Qi et al., 2023, "Zero Bubble Pipeline Parallelism"): then B, the gradient of the input, and W, those of the
weights, take one unit each. And a rank may have several chunks of layers: chunk c of rank r of p is the stage c p + r.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from course_lib import plots
from course_lib.trace.recorder import Event
from course_lib.trace.timeline import RankTrace, Trace

FORWARD, BACKWARD, WEIGHT_GRADIENT = "forward", "backward", "weight grad"
ACTIVITY_NAMES = {"F": FORWARD, "B": BACKWARD, "W": WEIGHT_GRADIENT}
WorkOrder = list[tuple[str, int] | tuple[str, int, int]]
TimedWork = Sequence[tuple[str, int, float, float]]


def parse_work(text: str) -> WorkOrder:
    """Parse a rank's work: F, B and W for forward, backward and weight gradient, with the number of the micro-batch.

    >>> parse_work("F0 F1 B0")
    [('forward', 0), ('forward', 1), ('backward', 0)]
    """
    return [(ACTIVITY_NAMES[word[0]], int(word[1:])) for word in text.split()]


def units(order: Sequence[WorkOrder]) -> Callable[[int, str], float]:
    """Duration of each kind of work in these orders: one unit for all chunks of a rank, two for a backward that is not divided."""
    divided, chunks = any(kind == WEIGHT_GRADIENT for each in order for kind, *_ in each), max(map(_chunks, order))
    return lambda rank, kind: (2.0 if kind == BACKWARD and not divided else 1.0) / chunks


def start_times(order: list[WorkOrder]) -> list[list[float]]:
    """Compute the earliest start of each piece of work; `order` holds each rank's work.

    >>> start_times([parse_work("F0 B0"), parse_work("F0 B0")])
    [[0.0, 4.0], [1.0, 2.0]]
    >>> start_times([parse_work("F0 B0 W0"), parse_work("F0 B0 W0")])
    [[0.0, 3.0, 4.0], [1.0, 2.0, 3.0]]
    """
    done = schedule_times(order, units(order))
    return [[start for _, _, start, _ in each] for each in done]


def schedule_times(
    order: list[WorkOrder], seconds: Callable[[int, str], float], message: float = 0.0
) -> list[list[tuple[str, int, float, float]]]:
    """Compute begin and end of each piece of work, each starting as soon as its inputs are there.

    Parameters
    ----------
    order : list of WorkOrder
        Work of each rank: the kind, the micro-batch, and if a rank has several chunks of layers, the chunk.
    seconds : callable
        Duration in seconds, given a rank and "forward", "backward" or "weight grad".
    message : float
        Seconds from the end of a piece of work until the next rank has its result.

    Returns
    -------
    list of list
        For each rank: "F", "B" or "W", the micro-batch, begin and end; see `as_trace`.

    Raises
    ------
    ValueError
        The ranks wait for each other.

    Examples
    --------
    >>> schedule_times([parse_work("F0 B0"), parse_work("F0 B0")], lambda rank, kind: 1.0, message=0.5)
    [[('F', 0, 0.0, 1.0), ('B', 0, 4.0, 5.0)], [('F', 0, 1.5, 2.5), ('B', 0, 2.5, 3.5)]]
    """
    ended, done = {}, [[] for _ in order]
    stages = len(order) * max(map(_chunks, order))
    free, todo = [0.0] * len(order), [list(each) for each in order]
    while any(todo):
        before_turn = sum(map(len, todo))
        for rank, left in enumerate(todo):
            while left:
                kind, k, *chunk = left[0]
                stage = rank + len(order) * (chunk[0] if chunk else 0)
                before, travels = _before(kind, stage, k), message * (kind != WEIGHT_GRADIENT)
                if before[1] in range(stages) and before not in ended:
                    break
                start = max(free[rank], ended[before] + travels if before in ended else 0.0)
                free[rank] = ended[kind, stage, k] = start + seconds(rank, kind)
                done[rank].append((kind[0].upper(), k, start, free[rank]))
                left.pop(0)
        if sum(map(len, todo)) == before_turn:
            raise ValueError(f"in this order the ranks wait for each other: {[left[0] for left in todo if left]} cannot begin.")
    return done


def _chunks(work: WorkOrder) -> int:
    """Number of chunks of layers that a rank has."""
    return 1 + max((chunk[0] for _, _, *chunk in work if chunk), default=0)


def _before(kind: str, stage: int, k: int) -> tuple[str, int, int]:
    """Return the piece of work whose result a piece needs; its stage may not exist."""
    if kind == WEIGHT_GRADIENT:
        return BACKWARD, stage, k
    return kind, stage + (-1 if kind == FORWARD else 1), k


def as_trace(done: Sequence[TimedWork], title: str, message: float = 0.0) -> Trace:
    """Return what `schedule_times` has computed as a trace.

    Parameters
    ----------
    done : sequence of TimedWork
        For each rank: "F", "B" or "W", the micro-batch, begin and end.
    title : str
    message : float
        As for `schedule_times`.
    """
    everyone, last, ranks = tuple(range(len(done))) if message else (), len(done) - 1, []
    for rank, work in enumerate(done):
        events, free, chunks = [], 0.0, _chunk_numbers(work)
        for (kind, k, begin, end), chunk in zip(work, chunks, strict=True):
            source, dest = {"F": (rank - 1, rank + 1), "B": (rank + 1, rank - 1), "W": (-1, -1)}[kind]
            tag = "FBW".index(kind)
            if source not in range(last + 1) and begin > free:
                source %= last + 1  # between chunks, a micro-batch goes on from the last rank to the first, and back
            if source in range(last + 1):
                number = k if message else -1  # messages that take no time have no arrows
                events.append(Event("receive", "receive", free, begin, everyone, number, 0, source, tag))
            events.append(Event("span", ACTIVITY_NAMES[kind], begin, end, of=f"micro batch {_in_chunk(k, chunk)}"))
            if message and dest in range(last + 1):
                events.append(Event("started send", "send", end, end + message, everyone, k, 0, dest, tag))
            free = end
        ranks.append(RankTrace(rank, 0.0, free, events))
    return Trace(ranks, title)


def _in_chunk(k: int, chunk: int) -> str:
    """Number of a micro-batch, in small digits where it is not in the rank's first chunk.

    >>> _in_chunk(13, 0), _in_chunk(13, 1)
    ('13', '¹³')
    """
    return str(k).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")) if chunk else str(k)


def _chunk_numbers(work: TimedWork) -> list[int]:
    """Number of the rank's chunk of layers that each piece of work is in: forward goes through them in order, backward in reverse.

    >>> _chunk_numbers([("F", 0, 0.0, 1.0), ("F", 0, 1.0, 2.0), ("B", 0, 2.0, 3.0), ("B", 0, 3.0, 4.0)])
    [0, 1, 1, 0]
    """
    done: Counter[tuple[str, int]] = Counter()
    chunks, found = max(Counter((kind, k) for kind, k, *_ in work).values(), default=1), []
    for kind, k, *_ in work:
        number = done[kind, k]
        found.append(number if kind == "F" else chunks - 1 - number)
        done[kind, k] += 1
    return found


def draw(texts: dict[str, list[str]]) -> plots.Picture:
    """Draw orders below each other, with their bubble fraction: the part of the ranks' time without work.

    Parameters
    ----------
    texts : dict of str to list of str
        Work of each rank, by name of the order, see `parse_work`.
    """
    return draw_orders({name: [parse_work(text) for text in each] for name, each in texts.items()})


def draw_orders(orders: dict[str, list[WorkOrder]]) -> plots.Picture:
    """Draw orders below each other, as `draw` does."""
    panels = {}
    for name, order in orders.items():
        trace = as_trace(schedule_times(order, units(order)), name)
        said = f"{name}: T = {trace.seconds:g} units of time, bubble fraction {1 - trace.computing:.1%}, "
        panels[said + f"at most {most_held(order[0]):g} micro-batches in flight on rank 0"] = trace
    return plots.timeline(panels, "", unit="units of time", summary=False)


def most_held(work: WorkOrder, after_backward: float = 0.0) -> float:
    """Largest amount of activations that a rank holds, in those that one micro-batch has in all its chunks.

    Parameters
    ----------
    work : WorkOrder
        The rank's work.
    after_backward : float
        What is left of a micro-batch's activations between its backward and its weight gradient, where backward is divided.

    Examples
    --------
    >>> most_held(parse_work("F0 F1 B0 W0 B1 W1")), most_held(parse_work("F0 B0 F1 B1 W0 W1"), after_backward=0.5)
    (2.0, 1.5)
    """
    divided = any(kind == WEIGHT_GRADIENT for kind, *_ in work)
    now = most = 0.0
    left = after_backward if divided else 0.0
    for kind, *_ in work:
        now += {FORWARD: 1.0, BACKWARD: left - 1.0, WEIGHT_GRADIENT: -left}[kind] / _chunks(work)
        most = max(most, now)
    return most
