"""Orders of a pipeline's work, drawn as if a forward took one unit of time, a backward two, and messages none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course_lib import plots
from course_lib.trace.recorder import Event
from course_lib.trace.timeline import RankTrace, Trace

ACTIVITY_NAMES = {"F": "forward", "B": "backward"}
WorkOrder = list[tuple[str, int]]
TimedWork = Sequence[tuple[str, int, float, float]]


def parse_work(text: str) -> WorkOrder:
    """Parse a rank's work: F and B for forward and backward, with the number of the micro-batch.

    >>> parse_work("F0 F1 B0")
    [('forward', 0), ('forward', 1), ('backward', 0)]
    """
    return [(ACTIVITY_NAMES[word[0]], int(word[1:])) for word in text.split()]


def start_times(order: list[WorkOrder]) -> list[list[float]]:
    """Compute the earliest start of each piece of work; `order` holds each rank's work.

    >>> start_times([parse_work("F0 B0"), parse_work("F0 B0")])
    [[0.0, 4.0], [1.0, 2.0]]
    """
    done = schedule_times(order, lambda rank, kind: 1.0 if kind == "forward" else 2.0)
    return [[start for _, _, start, _ in each] for each in done]


def schedule_times(
    order: list[WorkOrder], seconds: Callable[[int, str], float], message: float = 0.0
) -> list[list[tuple[str, int, float, float]]]:
    """Compute begin and end of each piece of work, each starting as soon as its inputs are there.

    Parameters
    ----------
    order : list of WorkOrder
        Work of each rank.
    seconds : callable
        Duration in seconds, given a rank and "forward" or "backward".
    message : float
        Seconds from the end of a piece of work until the next rank has its result.

    Returns
    -------
    list of list
        For each rank: "F" or "B", the micro-batch, begin and end; see `as_trace`.

    Raises
    ------
    ValueError
        The ranks wait for each other.

    Examples
    --------
    >>> schedule_times([parse_work("F0 B0"), parse_work("F0 B0")], lambda rank, kind: 1.0, message=0.5)
    [[('F', 0, 0.0, 1.0), ('B', 0, 4.0, 5.0)], [('F', 0, 1.5, 2.5), ('B', 0, 2.5, 3.5)]]
    """
    last, ended, done = len(order) - 1, {}, [[] for _ in order]
    free, todo = [0.0] * len(order), [list(each) for each in order]
    while any(todo):
        before_turn = sum(map(len, todo))
        for rank, left in enumerate(todo):
            while left:
                kind, k = left[0]
                before = (kind, rank - 1, k) if kind == "forward" else (kind, rank + 1, k)
                if before[1] in range(last + 1) and before not in ended:
                    break
                start = max(free[rank], ended[before] + message if before in ended else 0.0)
                free[rank] = ended[kind, rank, k] = start + seconds(rank, kind)
                done[rank].append((kind[0].upper(), k, start, free[rank]))
                left.pop(0)
        if sum(map(len, todo)) == before_turn:
            raise ValueError(f"in this order the ranks wait for each other: {[left[0] for left in todo if left]} cannot begin.")
    return done


def as_trace(done: Sequence[TimedWork], title: str, message: float = 0.0) -> Trace:
    """Return what `schedule_times` has computed as a trace.

    Parameters
    ----------
    done : sequence of TimedWork
        For each rank: "F" or "B", the micro-batch, begin and end.
    title : str
    message : float
        As for `schedule_times`.
    """
    everyone, last, ranks = tuple(range(len(done))) if message else (), len(done) - 1, []
    for rank, work in enumerate(done):
        events, free = [], 0.0
        for kind, k, begin, end in work:
            source, dest = (rank - 1, rank + 1) if kind == "F" else (rank + 1, rank - 1)
            tag = "FB".index(kind)
            if source in range(last + 1):
                number = k if message else -1  # messages that take no time have no arrows
                events.append(Event("receive", "receive", free, begin, everyone, number, 0, source, tag))
            events.append(Event("span", ACTIVITY_NAMES[kind], begin, end, of=f"micro batch {k}"))
            if message and dest in range(last + 1):
                events.append(Event("started send", "send", end, end + message, everyone, k, 0, dest, tag))
            free = end
        ranks.append(RankTrace(rank, 0.0, free, events))
    return Trace(ranks, title)


def draw(texts: dict[str, list[str]]) -> plots.Picture:
    """Draw orders below each other, with their bubble fraction: the part of the ranks' time without work.

    Parameters
    ----------
    texts : dict of str to list of str
        Work of each rank, by name of the order, see `parse_work`.
    """
    panels = {}
    for name, each in texts.items():
        order = [parse_work(text) for text in each]
        trace = as_trace(schedule_times(order, lambda rank, kind: 1.0 if kind == "forward" else 2.0), name)
        said = f"{name}: T = {trace.seconds:g} units of time, bubble fraction {1 - trace.computing:.1%}, "
        panels[said + f"at most {most_in_flight(order[0])} micro-batches in flight on rank 0"] = trace
    return plots.timeline(panels, "", unit="units of time", summary=False)


def most_in_flight(work: WorkOrder) -> int:
    """Largest number of micro-batches that have gone forward but not yet backward."""
    now = most = 0
    for kind, _ in work:
        now += 1 if kind == "forward" else -1
        most = max(most, now)
    return most
