"""Figures of the course: one palette, one colour per rank, and a title that says what is shown.

The functions take the ranks' real data (see `Ranks.pull` and `Ranks.call`) and return a `Picture`, which displays itself in a
notebook.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from course_lib.mesh import Mesh
from course_lib.plots.animation import Animation, ring
from course_lib.plots.charts import bars, drift, lines, losses, losses_beside, magnitudes, memory, memory_over_time, stacked, traffic
from course_lib.plots.figures import INK, ON_COLOR, PALE, RED, Picture, color, ink_on, legend, new_figure, on_slides
from course_lib.plots.placements import kinds, operators, products
from course_lib.plots.serving import roofline, serving
from course_lib.plots.survival import membership
from course_lib.plots.trace.still import timeline
from course_lib.utils import wording

__all__ = [
    "Animation",
    "Picture",
    "bars",
    "color",
    "drift",
    "exchange",
    "groups",
    "holdings",
    "images",
    "kinds",
    "legend",
    "lines",
    "losses",
    "losses_beside",
    "magnitudes",
    "membership",
    "memory",
    "memory_over_time",
    "operators",
    "products",
    "ring",
    "roofline",
    "serving",
    "stacked",
    "timeline",
    "traffic",
]


def _cell(axes, x: float, y: float, text: object, fill: str, edge: str = "white", width: float = 1.0, line: float = 1.5):
    from matplotlib.patches import Rectangle

    inside = {"in_layout": False}  # inside the axes, so matplotlib need not measure each text
    axes.add_patch(Rectangle((x, y), width, 1, facecolor=fill, edgecolor=edge, linewidth=line, **inside))
    axes.text(x + width / 2, y + 0.5, str(text), ha="center", va="center", fontsize=10, color=ink_on(fill), **inside)


def _bare(axes, width: float, height: float, title: str = "") -> None:
    axes.set(xlim=(-0.1, width + 0.1), ylim=(height + 0.1, -0.1), aspect="equal")
    axes.axis("off")
    axes.set_title(title, fontsize=11, color=INK)


def exchange(before: Sequence, after: Sequence, title: str, prediction: tuple[int, object] | None = None) -> Picture:
    """Draw each rank's array before a collective and after it.

    Parameters
    ----------
    before, after : sequence of numpy.ndarray
        One array per rank; each rank is a row, in its colour.
    title : str
        Title of the figure.
    prediction : (int, array_like), optional
        A rank, and the learner's prediction of its array afterwards. Correct values get a dark frame, wrong ones a red one.
    """
    for name, arrays in (("before", before), ("after", after)):
        if nothing := [r for r, array in enumerate(arrays) if array is None]:
            raise ValueError(
                f"plots.exchange: there is nothing to draw, as {name} is None on {wording.ranks(nothing)}. A collective returns nothing: "
                "it fills the array that it is given, so do not assign its return value."
            )
    before, after = ([np.ravel(a) for a in arrays] for arrays in (before, after))
    widths = [max(len(a) for a in arrays) for arrays in (before, after)]
    n = len(before)
    figure, axes = new_figure(1.6 + 0.5 * sum(widths), 0.9 + 0.42 * n, title, 2, width_ratios=[w + 1.7 for w in widths])
    right = 0
    for axis, arrays, width, name in zip(axes, (before, after), widths, ("before", "after"), strict=True):
        _bare(axis, width, n, name)
        axis.set_xlim(-1.6, width + 0.1)
        for r, array in enumerate(arrays):
            axis.text(-0.2, r + 0.5, f"rank {r}", ha="right", va="center", fontsize=9, color=INK)
            for i, value in enumerate(array):
                _cell(axis, i, r, f"{value:g}", color(r))
            if name == "after" and prediction and prediction[0] == r:
                right = _frame(axis, r, array, prediction[1])
    text = title
    if prediction:
        text += f" Of your prediction for rank {prediction[0]}, {right} of {len(after[prediction[0]])} values are right."
        figure.supxlabel("red frame: not as predicted", fontsize=9, color=INK)
    return Picture(figure, text)


def _frame(axis, r: int, array: np.ndarray, guess: object) -> int:
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    light = [withStroke(linewidth=4.5, foreground=ON_COLOR[1])]  # red on a rank's orange, or in grey, is hard to see
    try:
        guess = np.ravel(np.asarray(guess, float))
    except (TypeError, ValueError):
        guess = np.array([])
    right = 0
    for i, value in enumerate(array):
        good = i < len(guess) and guess[i] == value
        right += good
        style = {"edgecolor": ON_COLOR[0]} if good else {"edgecolor": RED, "path_effects": light}
        axis.add_patch(Rectangle((i + 0.07, r + 0.07), 0.86, 0.86, fill=False, linewidth=2, **style))
    return right


def groups(grid: Mesh | Mapping[str, Sequence[tuple[int, ...]]], title: str = "The groups that each rank belongs to") -> Picture:
    """Draw a grid of ranks: the last axis horizontally, the one before it vertically, further axes as more grids side by side.

    Parameters
    ----------
    grid : Mesh, or dict of str to sequence of tuple of int
        A mesh; or the groups of two axes as reported by the ranks' own communicators: first those drawn as rows, then those drawn as
        columns.
    """
    from matplotlib.patches import FancyBboxPatch

    if isinstance(grid, Mesh):
        named = {axis: grid.groups(axis) for axis in reversed(grid.shape)}
        outer = [name for name in grid.shape][:-2]
        blocks = grid.ranks.reshape(-1, *grid.ranks.shape[-2:]) if len(grid.shape) > 1 else grid.ranks.reshape(1, 1, -1)
        wheres = [
            ", ".join(f"{axis} {i}" for axis, i in zip(outer, grid.coordinates(int(block.flat[0])), strict=False)) for block in blocks
        ]
    else:
        named, wheres = {name: list(members) for name, members in grid.items()}, [""]
        blocks = [next(iter(named.values()))]
    (across, rows), (down, columns) = [*named.items(), ("", [])][:2]
    wide, high = 1.8, 1.4
    tall, broad = len(blocks[0]), max(map(len, blocks[0]))
    figure, panels = new_figure((1.6 + 1.0 * broad) * len(blocks) + 1.0, 1.5 + 0.7 * tall, title, len(blocks))
    for axes, block, where in zip(panels, blocks, wheres, strict=True):
        _bare(axes, wide * broad, high * tall, where)
        axes.set(xlim=(-2.4, wide * broad), ylim=(high * tall + 0.8, -0.75))
        for y, members in enumerate(block):
            style = dict(boxstyle="round,pad=0.15", fill=False, linewidth=1.8, edgecolor=INK)
            axes.add_patch(FancyBboxPatch((0, high * y), wide * (broad - 1) + 1, 1, **style))
            number = y if where == "" else rows.index(tuple(members.tolist()))
            axes.text(-0.6, high * y + 0.5, f"{across} group {number}", ha="right", va="center", fontsize=9, color=INK)
            for x, rank in enumerate(members):
                _cell(axes, wide * x, high * y, rank, color(int(rank)))
        for x in range(broad if columns else 0):
            style = dict(boxstyle="round,pad=0.3", fill=False, linewidth=1.4, linestyle="--", edgecolor="#777777")
            axes.add_patch(FancyBboxPatch((wide * x, 0), 1, high * (tall - 1) + 1, **style))
            number = x if where == "" else columns.index(tuple(block[:, x].tolist()))
            name = f"{down} group {number}" if broad <= (1 if on_slides() else 4 if len(blocks) == 1 else 2) else f"{down} {number}"
            axes.text(wide * x + 0.5, high * tall + 0.3, name, ha="center", va="center", fontsize=9, color="#555555")
    said = "; ".join(f"{axis} groups {', '.join(map(str, members))}" for axis, members in named.items())
    return Picture(figure, f"{title}: {said}")


def holdings(full: np.ndarray, pieces: Sequence[np.ndarray], title: str, names: tuple[str, str] = ("rows", "columns")) -> Picture:
    """Draw the part of an array that each rank holds, located by its values.

    Parameters
    ----------
    full : numpy.ndarray
        Shape ``(rows, columns)`` or ``(rows,)``, with distinct values (``np.arange``, for example).
    pieces : sequence of numpy.ndarray
        Array of each rank.
    names : (str, str)
        Meaning of rows and columns, such as ("samples", "features"); "" for a single column, which has none.
    """
    table = full.reshape(len(full), -1)
    n, columns = len(pieces), min(4, len(pieces))
    lines = -(-n // columns)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.7 * columns + 0.4, 1.55 * lines + 0.6), layout="constrained")
    figure.suptitle(title, fontsize=12, color=INK)
    said = []
    for r, (axis, piece) in enumerate(zip(figure.subplots(lines, columns, squeeze=False).flat, pieces, strict=False)):
        held = np.isin(table, piece)
        shade = np.zeros((*table.shape, 4))  # what is not held is transparent
        shade[held] = [*(int(color(r)[i : i + 2], 16) / 255 for i in (1, 3, 5)), 1]
        axis.set_facecolor(PALE)
        axis.imshow(shade, aspect="auto", interpolation="nearest")
        axis.set_title(f"rank {r}: {'x'.join(map(str, np.shape(piece)))}", fontsize=9, color=INK)
        axis.set(xticks=[], yticks=[])
        if r % columns == 0:
            axis.set_ylabel(f"{len(table)} {names[0]}", fontsize=8)
        if r // columns == lines - 1 and (names[1] or table.shape[1] > 1):
            axis.set_xlabel(f"{table.shape[1]} {names[1]}", fontsize=8)
        said.append(f"rank {r} {_lines(names[0], held.any(1))} of {_lines(names[1], held.any(0))}")
    for axis in list(figure.axes)[n:]:
        axis.axis("off")
    return Picture(figure, f"{title}: {'; '.join(said)}")


def images(x: np.ndarray, names: Sequence[str], title: str) -> Picture:
    """Draw images in a row or two.

    Parameters
    ----------
    x : numpy.ndarray
        ``(n, height, width, 3)``, any range.
    names : sequence of str
        Name of each image.
    """
    columns = min(len(x), 5)
    from matplotlib.figure import Figure

    lines = -(-len(x) // columns)
    figure = Figure(figsize=(1.35 * columns, 1.5 * lines + 0.5), layout="constrained")
    figure.suptitle(title, fontsize=12, color=INK)
    for axis, image, name in zip(figure.subplots(lines, columns, squeeze=False).flat, x, names, strict=False):
        axis.imshow((image - image.min()) / max(np.ptp(image), 1e-9), interpolation="nearest")
        axis.set_title(name, fontsize=9, color=INK)
        axis.axis("off")
    return Picture(figure, f"{title}: {', '.join(names)}")


def _lines(name: str, held: np.ndarray) -> str:
    return f"all {name}" if held.all() else f"{name} {wording.spans(np.flatnonzero(held).tolist())}"
