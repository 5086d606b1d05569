"""Figures of an array's placement on an axis: whole on each rank, a part, or a summand; see `placement`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.placement import OPERATORS, Kind, Operator
from course_lib.plots.figures import INK, PALE, Picture, color, new_figure

SIDE, GAP = 1.0, 0.3


def _glyph(axes, x: float, y: float, kind: Kind, ranks: int, rows: bool) -> float:
    """Draw a square per rank, filled where the rank holds data, by rows or by columns; return the right end."""
    from matplotlib.patches import Rectangle

    for r in range(ranks):
        left = x + r * (SIDE + GAP)
        axes.add_patch(Rectangle((left, y), SIDE, SIDE, facecolor=PALE, edgecolor="none"))
        if kind.name == "sharded":
            part = SIDE / ranks
            place = (left, y + r * part) if rows else (left + r * part, y)
            size = (SIDE, part) if rows else (part, SIDE)
            axes.add_patch(Rectangle(place, *size, facecolor=color(r), edgecolor="none"))
        elif kind.name == "partial":
            axes.add_patch(Rectangle((left, y), SIDE, SIDE, facecolor="white", edgecolor=color(r), hatch="////", linewidth=0))
            axes.text(left + SIDE / 2, y + SIDE / 2, "+", ha="center", va="center", fontsize=13, color=INK, fontweight="bold")
        else:
            axes.add_patch(Rectangle((left, y), SIDE, SIDE, facecolor=color(0), edgecolor="none"))
        axes.add_patch(Rectangle((left, y), SIDE, SIDE, fill=False, edgecolor=INK, linewidth=1.0))
    return x + ranks * (SIDE + GAP) - GAP


def kinds(arrays: Mapping[str, Mapping[str, Kind]], sizes: Mapping[str, int], title: str) -> Picture:
    """Draw the placement of arrays on each axis of a grid.

    Parameters
    ----------
    arrays : mapping of str to mapping of str to Kind
        Placement of each array, by axis.
    sizes : mapping of str to int
        Number of ranks along each axis: ``mesh.shape``.
    title : str
        Title of the figure.
    """
    columns = {axis: max(4.2, n * (SIDE + GAP) + 0.8) for axis, n in sizes.items()}
    width, height = 5.2 + sum(columns.values()), 1.9 * len(arrays) + 0.8
    figure, (axes,) = new_figure(0.42 * width, 0.42 * height + 0.4, title)
    _bare_axes(axes, width, height)
    x = 5.2
    for axis, step in columns.items():
        axes.text(x, 0.35, f"on axis {axis}", ha="left", va="center", fontsize=10, color=INK)
        for row, (_, on) in enumerate(arrays.items()):
            if axis in on:
                y = 0.8 + 1.9 * row
                _glyph(axes, x, y, on[axis], sizes[axis], not on[axis].dim)
                axes.text(x, y + SIDE + 0.3, str(on[axis]), ha="left", va="center", fontsize=8.5, color=INK)
        x += step
    for row, name in enumerate(arrays):
        axes.text(4.9, 0.8 + 1.9 * row + SIDE / 2, name, ha="right", va="center", fontsize=10, color=INK)
    said = "; ".join(f"{name}: " + ", ".join(f"{kind} on {axis}" for axis, kind in on.items()) for name, on in arrays.items())
    return Picture(figure, f"{title}: {said}.")


def operators(table: Sequence[Operator] = OPERATORS, title: str = "Conjugate operators, forward and backward", ranks: int = 3) -> Picture:
    """Draw the placements of an array before and after each operator, and of its gradient in backward.

    Parameters
    ----------
    table : sequence of Operator
    title : str
        Title of the figure.
    ranks : int
        Number of ranks to draw.
    """
    wide, row = ranks * (SIDE + GAP), 1.95
    first = 8.6
    second = first + wide + 4.4
    width, height = second + wide + 0.4, 2 * row * len(table) + 0.3 * len(table)
    figure, (axes,) = new_figure(0.36 * width, 0.36 * height + 0.4, title)
    _bare_axes(axes, width, height)
    for i, op in enumerate(table):
        top = (2 * row + 0.3) * i + 0.2
        axes.text(0.1, top + SIDE / 2, op.name, ha="left", va="center", fontsize=10, color=INK)
        steps = (("forward", op.before, op.forward, op.after, "->"), ("backward", op.grad_before, op.backward, op.grad_after, "<-"))
        for k, (name, left, does, right, arrow) in enumerate(steps):
            y = top + row * k
            if k:
                axes.text(0.1, y + SIDE / 2, "its gradient", ha="left", va="center", fontsize=10, color=INK)
            axes.text(first - 0.3, y + SIDE / 2, name, ha="right", va="center", fontsize=9, color="#555555")
            end = _glyph(axes, first, y, left, ranks, True)
            _glyph(axes, second, y, right, ranks, True)
            axes.annotate("", (second - 0.2, y + 0.7), (end + 0.2, y + 0.7), arrowprops=dict(arrowstyle=arrow, color=INK))
            axes.text((end + second) / 2, y + 0.3, does, ha="center", va="center", fontsize=9, color=INK)
            for at, kind in ((first, left), (second, right)):
                axes.text(at, y + SIDE + 0.42, kind.name, ha="left", va="center", fontsize=9, color=INK)
    forth = [f"{op.name}: {op.before.name} to {op.after.name} by {op.forward}" for op in table]
    back = [f"gradient {op.grad_after.name} to {op.grad_before.name} by {op.backward}" for op in table]
    said = "; ".join(f"{one}, {other}" for one, other in zip(forth, back, strict=True))
    return Picture(figure, f"{title}. {said}.")


def _bare_axes(axes, width: float, height: float) -> None:
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.axis("off")
