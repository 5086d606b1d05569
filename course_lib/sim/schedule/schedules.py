"""Orders of a pipeline's work, drawn as if a forward took one unit of time, a backward two, and messages none."""

from __future__ import annotations

from collections.abc import Callable

from course_lib.plots.figures import ACTIVITY_COLORS, INK, PALE, Picture, ink_on
from course_lib.plots.pipeline import ACTIVITY_NAMES

WorkOrder = list[tuple[str, int]]


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
        For each rank: "F" or "B", the micro-batch, begin and end, as drawn by `plots.timeline`.

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


def draw(texts: dict[str, list[str]]) -> Picture:
    """Draw orders below each other, with their bubble fraction: the part of the ranks' time without work.

    Parameters
    ----------
    texts : dict of str to list of str
        Work of each rank, by name of the order, see `parse_work`.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    orders = {name: [parse_work(text) for text in each] for name, each in texts.items()}
    heights = [len(order) for order in orders.values()]
    figure = Figure(figsize=(9.6, 0.34 * sum(heights) + 0.6 * len(orders) + 0.4), layout="constrained")
    axes = figure.subplots(len(orders), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    said = []
    for axis, (name, order) in zip(axes, orders.items(), strict=True):
        starts = start_times(order)
        end = max(
            s + (1 if kind == "forward" else 2) for rank, each in enumerate(order) for s, (kind, _) in zip(starts[rank], each, strict=True)
        )
        for rank, each in enumerate(order):
            for start, (kind, k) in zip(starts[rank], each, strict=True):
                width = 1 if kind == "forward" else 2
                axis.add_patch(Rectangle((start, rank - 0.42), width, 0.84, facecolor=ACTIVITY_COLORS[kind], edgecolor="white"))
                axis.text(start + width / 2, rank, k, ha="center", va="center", fontsize=8, color=ink_on(ACTIVITY_COLORS[kind]))
        bubble = 1 - sum(1 if kind == "forward" else 2 for each in order for kind, _ in each) / (end * len(order))
        said.append(
            f"{name}: T = {end:g} units of time, bubble fraction {bubble:.1%}, "
            f"at most {most_in_flight(order[0])} micro-batches in flight on rank 0"
        )
        axis.set_title(said[-1], fontsize=10, color=INK)
        axis.set(ylim=(len(order) - 0.5, -0.5), yticks=range(len(order)), xlim=(0, end), facecolor=PALE)
        axis.set_yticklabels([f"rank {r}" for r in range(len(order))], fontsize=8)
    axes[-1].set_xlabel("units of time")
    handles = [Patch(color=ACTIVITY_COLORS[kind], label=kind) for kind in ("forward", "backward")]
    axes[0].legend(
        handles=[*handles, Patch(facecolor=PALE, edgecolor="#BBBBBB", label="idle")],
        fontsize=8,
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
    )
    return Picture(figure, "; ".join(said))


def most_in_flight(work: WorkOrder) -> int:
    """Largest number of micro-batches that have gone forward but not yet backward."""
    now = most = 0
    for kind, _ in work:
        now += 1 if kind == "forward" else -1
        most = max(most, now)
    return most
