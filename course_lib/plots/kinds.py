"""Pictures of which kind an array is on an axis: whole on each rank, a part, or a summand; see `placement`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.placement import OPERATORS, Kind, Operator
from course_lib.plots.figures import INK, PALE, Picture, color, new_figure

SIDE, GAP = 1.0, 0.3


def _glyph(axes, x: float, y: float, kind: Kind, ranks: int) -> float:
    """A square for each rank, filled where the rank holds something; where it ends on the right."""
    from matplotlib.patches import Rectangle

    for r in range(ranks):
        left = x + r * (SIDE + GAP)
        axes.add_patch(Rectangle((left, y), SIDE, SIDE, facecolor=PALE, edgecolor="none"))
        if kind.name == "sharded":
            part = SIDE / ranks
            place = (left + r * part, y) if kind.dim else (left, y + r * part)
            size = (part, SIDE) if kind.dim else (SIDE, part)
            axes.add_patch(Rectangle(place, *size, facecolor=color(r), edgecolor="none"))
        elif kind.name == "partial":
            axes.add_patch(Rectangle((left, y), SIDE, SIDE, facecolor="white", edgecolor=color(r), hatch="////", linewidth=0))
            axes.text(left + SIDE / 2, y + SIDE / 2, "+", ha="center", va="center", fontsize=13, color=INK, fontweight="bold")
        else:
            axes.add_patch(Rectangle((left, y), SIDE, SIDE, facecolor=color(0), edgecolor="none"))
        axes.add_patch(Rectangle((left, y), SIDE, SIDE, fill=False, edgecolor=INK, linewidth=1.0))
    return x + ranks * (SIDE + GAP) - GAP


def kinds(arrays: Mapping[str, Mapping[str, Kind]], sizes: Mapping[str, int], title: str) -> Picture:
    """What arrays are, on each axis of a grid.

    Parameters
    ----------
    arrays : mapping of str to mapping of str to Kind
        For each array, by axis.
    sizes : mapping of str to int
        How many ranks there are along each axis: ``mesh.shape``.
    title : str
        What the picture shows.
    """
    columns = {axis: max(4.2, n * (SIDE + GAP) + 0.8) for axis, n in sizes.items()}
    width, height = 5.2 + sum(columns.values()), 1.9 * len(arrays) + 0.8
    figure, (axes,) = new_figure(0.42 * width, 0.42 * height + 0.4, title)
    _empty(axes, width, height)
    x = 5.2
    for axis, step in columns.items():
        axes.text(x, 0.35, f"on axis {axis}", ha="left", va="center", fontsize=10, color=INK)
        for row, (_, on) in enumerate(arrays.items()):
            if axis in on:
                y = 0.8 + 1.9 * row
                _glyph(axes, x, y, on[axis], sizes[axis])
                axes.text(x, y + SIDE + 0.3, str(on[axis]), ha="left", va="center", fontsize=8.5, color=INK)
        x += step
    for row, name in enumerate(arrays):
        axes.text(4.9, 0.8 + 1.9 * row + SIDE / 2, name, ha="right", va="center", fontsize=10, color=INK)
    said = "; ".join(f"{name}: " + ", ".join(f"{kind} on {axis}" for axis, kind in on.items()) for name, on in arrays.items())
    return Picture(figure, f"{title}: {said}.")


def operators(table: Sequence[Operator] = OPERATORS, title: str = "Conjugate operators, forward and backward", ranks: int = 3) -> Picture:
    """What operators make of an array on the way forward, and of its gradient on the way back.

    Parameters
    ----------
    table : sequence of Operator
    title : str
        What the picture shows.
    ranks : int
        How many ranks are drawn.
    """
    wide = ranks * (SIDE + GAP)
    first, second = 5.6, 5.6 + 2 * wide + 5.2
    width, height = second + 2 * wide + 4.2, 1.9 * len(table) + 1.0
    figure, (axes,) = new_figure(0.36 * width, 0.36 * height + 0.4, title)
    _empty(axes, width, height)
    middle = wide + 1.7
    for x, name in ((first + middle, "forward: the array"), (second + middle, "backward: its gradient")):
        axes.text(x, 0.3, name, ha="center", va="center", fontsize=10, color=INK)
    for row, op in enumerate(table):
        y = 0.9 + 1.9 * row
        axes.text(first - 0.4, y + SIDE / 2, op.name, ha="right", va="center", fontsize=9.5, color=INK)
        steps = ((first, op.before, op.forward, op.after, "->"), (second, op.grad_before, op.backward, op.grad_after, "<-"))
        for x, left, does, right, arrow in steps:
            end = _glyph(axes, x, y, left, ranks)
            begin = end + 3.7
            _glyph(axes, begin, y, right, ranks)
            axes.annotate("", (begin - 0.2, y + SIDE / 2), (end + 0.2, y + SIDE / 2), arrowprops=dict(arrowstyle=arrow, color=INK))
            axes.text((end + begin) / 2, y + SIDE / 2 - 0.35, does, ha="center", va="center", fontsize=8.5, color=INK)
            for at, kind in ((x, left), (begin, right)):
                axes.text(at, y + SIDE + 0.28, kind.name, ha="left", va="center", fontsize=8, color=INK)
    forth = [f"{op.name}: {op.before.name} to {op.after.name} by {op.forward}" for op in table]
    back = [f"gradient {op.grad_after.name} to {op.grad_before.name} by {op.backward}" for op in table]
    said = "; ".join(f"{one}, {other}" for one, other in zip(forth, back, strict=True))
    return Picture(figure, f"{title}. {said}.")


def _empty(axes, width: float, height: float) -> None:
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.axis("off")
