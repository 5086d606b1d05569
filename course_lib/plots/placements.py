"""Figures of an array's placement on an axis: whole on each rank, a part, or a summand; see `placement`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.placement import OPERATORS, GatherFirst, Kind, Operator, product
from course_lib.plots.figures import INK, MISSING, PALE, Picture, color, new_figure

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
            axes.add_patch(Rectangle((left, y), SIDE, SIDE, facecolor="white", edgecolor=color(r), hatch=MISSING, linewidth=0))
            axes.text(left + SIDE / 2, y + SIDE / 2, "+", ha="center", va="center", fontsize=13, color=INK, fontweight="bold")
        else:
            axes.add_patch(Rectangle((left, y), SIDE, SIDE, facecolor=color(r), edgecolor="none"))
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


def operators(
    table: Sequence[Operator] = OPERATORS,
    title: str = "Conjugate operators, forward and backward",
    ranks: int = 3,
    *,
    rows: bool = True,
    passes: Sequence[str] = ("forward", "backward"),
    ask: str = "",
) -> Picture:
    """Draw the placements of an array before and after each operator, and of its gradient in backward.

    Parameters
    ----------
    table : sequence of Operator
    title : str
        Title of the figure.
    ranks : int
        Number of ranks to draw.
    rows : bool
        Whether a sharded array is drawn as split by rows; otherwise by columns.
    passes : sequence of str
        Which of "forward" and "backward" to draw.
    ask : str
        "forward" or "backward": show a question mark in place of that collective.
    """
    wide, row = ranks * (SIDE + GAP), 1.95
    first = 8.6
    second = first + wide + 4.4
    block = row * len(passes) + 0.3
    width, height = second + wide + 0.4, block * len(table)
    figure, (axes,) = new_figure(0.36 * width, 0.36 * height + 0.4, title)
    _bare_axes(axes, width, height)
    said = []
    for i, op in enumerate(table):
        top = block * i + 0.2
        axes.text(0.1, top + SIDE / 2, op.name, ha="left", va="center", fontsize=10, color=INK)
        steps = {"forward": (op.before, op.forward, op.after, "->"), "backward": (op.grad_before, op.backward, op.grad_after, "<-")}
        for k, name in enumerate(passes):
            left, does, right, arrow = steps[name]
            does, y = "?" if name == ask else does, top + row * k
            if k:
                axes.text(0.1, y + SIDE / 2, "its gradient", ha="left", va="center", fontsize=10, color=INK)
            axes.text(first - 0.3, y + SIDE / 2, name, ha="right", va="center", fontsize=9, color="#555555")
            end = _glyph(axes, first, y, left, ranks, rows)
            _glyph(axes, second, y, right, ranks, rows)
            axes.annotate("", (second - 0.2, y + 0.7), (end + 0.2, y + 0.7), arrowprops=dict(arrowstyle=arrow, color=INK))
            axes.text((end + second) / 2, y + 0.3, does, ha="center", va="center", fontsize=9, color=INK)
            for at, kind in ((first, left), (second, right)):
                axes.text(at, y + SIDE + 0.42, kind.name, ha="left", va="center", fontsize=9, color=INK)
            start, stop = (left, right) if arrow == "->" else (right, left)
            said.append(f"{'gradient' if name == 'backward' else op.name + ':'} {start.name} to {stop.name} by {does}")
    return Picture(figure, f"{title}. {'; '.join(said)}.")


def products(cases: Mapping[str, tuple[Kind, Kind]], title: str, ranks: int = 4) -> Picture:
    """Draw what the ranks have of two matrices, and what their own products are; see `placement.product`.

    Parameters
    ----------
    cases : mapping of str to (Kind, Kind)
        Placements of A and B, by the name of the case.
    title : str
        Title of the figure.
    ranks : int
        Number of ranks to draw.
    """
    wide, row, first = ranks * (SIDE + GAP), 2.0, 5.4
    columns = [first, first + wide + 1.5, first + 2 * (wide + 1.5)]
    width, height = columns[-1] + wide + 0.4, row * len(cases) + 0.9
    figure, (axes,) = new_figure(0.34 * width, 0.34 * height + 0.4, title)
    _bare_axes(axes, width, height)
    for x, name in zip(columns, ("A", "B", "the ranks' own products"), strict=True):
        axes.text(x, 0.35, name, ha="left", va="center", fontsize=10, color=INK)
    said = []
    for i, (name, pair) in enumerate(cases.items()):
        y = 0.9 + row * i
        axes.text(0.1, y + SIDE / 2, name, ha="left", va="center", fontsize=10, color=INK)
        for x, kind in zip(columns, pair, strict=False):
            _glyph(axes, x, y, kind, ranks, not kind.dim)
            axes.text(x, y + SIDE + 0.42, _short_name(kind), ha="left", va="center", fontsize=9, color=INK)
        axes.text(columns[1] - 0.9, y + SIDE / 2, "@", ha="center", va="center", fontsize=12, color=INK)
        try:
            found: Kind | None = product(*pair)
            result = _short_name(found)
            _glyph(axes, columns[2], y, found, ranks, not found.dim)
            axes.text(columns[2], y + SIDE + 0.42, result, ha="left", va="center", fontsize=9, color=INK)
        except GatherFirst:
            result = "no placement of C: gather first"
            axes.text(columns[2], y + SIDE / 2, result, ha="left", va="center", fontsize=10, color=INK)
        axes.text(columns[2] - 0.9, y + SIDE / 2, "=", ha="center", va="center", fontsize=12, color=INK)
        said.append(f"{name}: A {_short_name(pair[0])}, B {_short_name(pair[1])}: {result}")
    return Picture(figure, f"{title}. {'; '.join(said)}.")


def _short_name(kind: Kind) -> str:
    """Name of a matrix's placement, with rows or columns."""
    return {None: kind.name, 0: "sharded by rows", 1: "sharded by columns"}[kind.dim]


def _bare_axes(axes, width: float, height: float) -> None:
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.axis("off")
