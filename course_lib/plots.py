"""The figures of the course: one palette, one colour a rank, a title that says what is shown.

The functions take what the ranks really hold (see `Ranks.pull` and `Ranks.call`) and return a
`Picture`, which a notebook shows. The colours are those of Okabe and Ito (2008), "Color
universal design", which people with any kind of colour vision can tell apart.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import numpy as np

from course_lib import traffic as counting
from course_lib import wording

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8A8A8A")
_DARK = {"#0072B2", "#009E73", "#D55E00", "#8A8A8A"}  # white text is readable on these
INK, PALE = "#222222", "#EEEEEE"


def color(rank: int) -> str:
    """The colour of a rank."""
    return COLORS[rank % len(COLORS)]


def ink_on(background: str) -> str:
    """The colour of text on a background."""
    return "white" if background in _DARK else INK


class Picture:
    """A drawn figure that shows itself in a notebook.

    Attributes
    ----------
    figure : matplotlib.figure.Figure
    text : str
        What it shows, in words, for those who cannot see it.
    """

    def __init__(self, figure, text: str):
        self.figure, self.text = figure, text

    def png(self, dpi: int = 130) -> bytes:
        """The figure as a PNG file."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", facecolor="white")
        return buffer.getvalue()

    def _repr_mimebundle_(self, **_) -> tuple[dict, dict]:
        data = self.png()
        width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
        size = {"width": round(width * 0.72), "height": round(height * 0.72)}
        return {"image/png": data, "text/plain": self.text}, {"image/png": size}

    def __repr__(self) -> str:
        return self.text


def _figure(width: float, height: float, title: str, columns: int = 1, **kwargs):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=12, color=INK)
    return figure, figure.subplots(1, columns, squeeze=False, **kwargs)[0]


def _cell(axes, x: float, y: float, text: object, fill: str, edge: str = "white", width: float = 1.0, line: float = 1.5):
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), width, 1, facecolor=fill, edgecolor=edge, linewidth=line))
    axes.text(x + width / 2, y + 0.5, str(text), ha="center", va="center", fontsize=10, color=ink_on(fill))


def _bare(axes, width: float, height: float, title: str = "") -> None:
    axes.set(xlim=(-0.1, width + 0.1), ylim=(height + 0.1, -0.1), aspect="equal")
    axes.axis("off")
    axes.set_title(title, fontsize=11, color=INK)


def exchange(before: Sequence, after: Sequence, title: str, prediction: tuple[int, object] | None = None) -> Picture:
    """What each rank held before a collective, and after it.

    Parameters
    ----------
    before, after : sequence of numpy.ndarray
        One array a rank; a row is drawn for each rank, in its colour.
    title : str
        What the picture shows.
    prediction : (int, array_like), optional
        A rank, and what the learner predicted that it holds after. Values that were predicted
        rightly get a dark frame, the others a red one.
    """
    before, after = ([np.ravel(a) for a in arrays] for arrays in (before, after))
    widths = [max(len(a) for a in arrays) for arrays in (before, after)]
    n = len(before)
    figure, axes = _figure(1.6 + 0.5 * sum(widths), 0.9 + 0.42 * n, title, 2, width_ratios=[w + 1 for w in widths])
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
        axes[1].set_xlabel("")
    return Picture(figure, text)


def _frame(axis, r: int, array: np.ndarray, guess: object) -> int:
    from matplotlib.patches import Rectangle

    try:
        guess = np.ravel(np.asarray(guess, float))
    except (TypeError, ValueError):
        guess = np.array([])
    right = 0
    for i, value in enumerate(array):
        good = i < len(guess) and guess[i] == value
        right += good
        frame = Rectangle((i + 0.07, r + 0.07), 0.86, 0.86, fill=False, linewidth=2, edgecolor=INK if good else "#FF0000")
        axis.add_patch(frame)
    return right


def groups(mp_groups: Sequence[tuple], dp_groups: Sequence[tuple], title: str = "The two groups that each rank belongs to") -> Picture:
    """The grid of ranks: a row is a model parallel group, a column a data parallel group.

    Parameters
    ----------
    mp_groups, dp_groups : sequence of tuple of int
        The groups, as `mesh.Mesh` or the ranks' own communicators tell them.
    """
    from matplotlib.patches import FancyBboxPatch

    rows, columns, wide, high = len(mp_groups), len(dp_groups), 1.8, 1.4
    figure, (axes,) = _figure(2.6 + 1.0 * columns, 1.5 + 0.7 * rows, title)
    _bare(axes, wide * columns, high * rows)
    axes.set(xlim=(-2.4, wide * columns), ylim=(high * rows + 0.8, -0.75))
    for y, members in enumerate(mp_groups):
        style = dict(boxstyle="round,pad=0.15", fill=False, linewidth=1.8, edgecolor=INK)
        axes.add_patch(FancyBboxPatch((0, high * y), wide * (columns - 1) + 1, 1, **style))
        axes.text(-0.6, high * y + 0.5, f"mp group {y}", ha="right", va="center", fontsize=9, color=INK)
        for x, rank in enumerate(members):
            _cell(axes, wide * x, high * y, rank, color(rank))
    for x in range(columns):
        style = dict(boxstyle="round,pad=0.3", fill=False, linewidth=1.4, linestyle="--", edgecolor="#777777")
        axes.add_patch(FancyBboxPatch((wide * x, 0), 1, high * (rows - 1) + 1, **style))
        name = f"dp group {x}" if columns <= 4 else f"dp {x}"
        axes.text(wide * x + 0.5, high * rows + 0.3, name, ha="center", va="center", fontsize=9, color="#555555")
    said = f"mp groups {', '.join(map(str, mp_groups))}; dp groups {', '.join(map(str, dp_groups))}"
    return Picture(figure, f"{title}: {said}")


def holdings(full: np.ndarray, pieces: Sequence[np.ndarray], title: str, names: tuple[str, str] = ("rows", "columns")) -> Picture:
    """Which part of an array each rank holds, found from the values it really has.

    Parameters
    ----------
    full : numpy.ndarray
        Shape ``(rows, columns)`` or ``(rows,)``, no value twice (``np.arange`` for example).
    pieces : sequence of numpy.ndarray
        What each rank holds.
    names : (str, str)
        What rows and columns are, such as ("samples", "features").
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
        shade = np.ones((*table.shape, 3)) * 0.92
        shade[held] = [int(color(r)[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        axis.imshow(shade, aspect="auto", interpolation="nearest")
        axis.set_title(f"rank {r}: {'x'.join(map(str, np.shape(piece)))}", fontsize=9, color=INK)
        axis.set(xticks=[], yticks=[])
        if r % columns == 0:
            axis.set_ylabel(f"{len(table)} {names[0]}", fontsize=8)
        if r // columns == lines - 1:
            axis.set_xlabel(f"{table.shape[1]} {names[1]}", fontsize=8)
        said.append(f"rank {r} {_lines(names[0], held.any(1))} of {_lines(names[1], held.any(0))}")
    for axis in list(figure.axes)[n:]:
        axis.axis("off")
    return Picture(figure, f"{title}: {'; '.join(said)}")


def _lines(name: str, held: np.ndarray) -> str:
    return f"all {name}" if held.all() else f"{name} {wording.spans(np.flatnonzero(held).tolist())}"


def _size_axis(axes, label: str) -> None:
    """Ticks in KB and MB, few enough to be read."""
    from matplotlib.ticker import MaxNLocator

    top = axes.get_xlim()[1]
    unit = next(step for step in (1024**3, 1024**2, 1024, 1) if top >= step)
    axes.set_xticks([t * unit for t in MaxNLocator(5).tick_values(0, top / unit) if t * unit <= top])
    axes.xaxis.set_major_formatter(lambda value, _: wording.size(value))
    axes.set_xlabel(label)


def traffic(
    moved: Sequence[Sequence[tuple]],
    title: str = "Bytes that each rank sent",
    labels: Sequence[str] | None = None,
    group: Callable | None = None,
) -> Picture:
    """Bytes on the wire by rank, operation and group.

    Parameters
    ----------
    moved : sequence of sequence of (str, sequence of int, int, int)
        For each rank (or each alternative, with `labels`): operation, ranks of the group, calls
        and payload in bytes, as `Ranks.call` leaves them in `Ranks.traffic`.
    labels : sequence of str, optional
        Names of the bars; "rank 0", "rank 1" and so on by default.
    group : callable, optional
        From the number of a bar and the ranks of a group to the group's name; by default its size.
    """
    labels = labels or [f"rank {r}" for r in range(len(moved))]
    group = group or (lambda _, ranks: f"group of {len(ranks)}")
    kinds: dict[str, np.ndarray] = {}
    for i, entries in enumerate(moved):
        for operation, ranks, _, payload in entries:
            sent = counting.wire_bytes(operation, len(ranks), payload)
            kinds.setdefault(f"{operation}, {group(i, ranks)}", np.zeros(len(moved)))[i] += sent
    figure, (axes,) = _figure(6.2, 0.9 + 0.34 * len(moved), title)
    left = np.zeros(len(moved))
    shades = ["#555555", "#999999", "#CCCCCC"] * 6  # no rank's colour: these are operations
    for (kind, sent), fill, hatch in zip(sorted(kinds.items()), shades, ["", "//", "..", "xx"] * 4, strict=False):
        axes.barh(labels, sent, left=left, color=fill, hatch=hatch, edgecolor="white", label=kind)
        left += sent
    for i, total in enumerate(left):
        axes.text(total, i, f" {wording.size(total)}", va="center", fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max(left.max() * 1.18, 1))
    _size_axis(axes, "bytes on the wire, ring algorithm")
    axes.spines[["top", "right"]].set_visible(False)
    if kinds:
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Picture(figure, f"{title}: " + ", ".join(f"{n} {wording.size(t)}" for n, t in zip(labels, left, strict=True)))


def bars(values: dict[str, float], title: str, unit: str = "bytes") -> Picture:
    """One bar for each name, such as memory with and without splitting.

    Parameters
    ----------
    values : dict of str to float
        In the order in which they are drawn, top first.
    title : str
        What the picture shows.
    unit : str
        Of the values; "bytes" are written with KB and MB.
    """
    figure, (axes,) = _figure(6.2, 0.9 + 0.36 * len(values), title)
    axes.barh(list(values), list(values.values()), color="#777777")
    for i, value in enumerate(values.values()):
        text = wording.size(value) if unit == "bytes" else f"{value:.3g} {unit}"
        axes.text(value, i, f" {text}", va="center", fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max(values.values()) * 1.18)
    if unit == "bytes":
        _size_axis(axes, unit)
    else:
        axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    return Picture(figure, f"{title}: " + ", ".join(f"{k} {v:g} {unit}" for k, v in values.items()))


def memory(held: dict[str, dict[str, int]], title: str = "Peak memory of a rank, by kind") -> Picture:
    """Bytes that a rank holds at its peak, by kind, for several configurations.

    Parameters
    ----------
    held : dict of str to dict of str to int
        For each bar, bytes by kind as `memory.Held.peak` has them; under "true peak", if it is
        there, what tracemalloc saw, drawn as a line.
    """
    figure, (axes,) = _figure(7.2, 0.9 + 0.36 * len(held), title)
    labels, left = list(held), np.zeros(len(held))
    kinds = [k for k in dict.fromkeys(k for h in held.values() for k in h) if k != "true peak" and any(h.get(k) for h in held.values())]
    looks = {"parameters": ("#333333", ""), "gradients": ("#777777", ""), "optimizer state": ("#777777", "xx")}
    looks |= {"activations": ("#BBBBBB", ""), "communication buffers": ("#BBBBBB", "///")}
    for kind in kinds:
        fill, hatch = looks.get(kind, ("#DDDDDD", ".."))
        sizes = np.array([h.get(kind, 0) for h in held.values()], float)
        axes.barh(labels, sizes, left=left, color=fill, hatch=hatch, edgecolor="white", label=kind)
        left += sizes
    seen = [h.get("true peak") for h in held.values()]
    if any(seen):
        axes.plot([s or np.nan for s in seen], range(len(held)), "|", color=INK, markersize=14, label="seen by tracemalloc")
    for i, total in enumerate(left):
        axes.text(max(total, seen[i] or 0), i, f"  {wording.size(total)}", va="center", fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max(left.max(), *(s or 0 for s in seen)) * 1.2)
    _size_axis(axes, "bytes")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = "; ".join(f"{n}: {', '.join(f'{k} {wording.size(h[k])}' for k in kinds if h.get(k))}" for n, h in held.items())
    return Picture(figure, f"{title}: {said}")


def losses(curves: dict[str, Sequence[float]], title: str = "Training loss") -> Picture:
    """Loss by step, one line for each run.

    Parameters
    ----------
    curves : dict of str to sequence of float
        The mean loss before each step.
    """
    figure, (axes,) = _figure(7.2, 3.2, title)
    styles = ["-", "--", ":", "-."]
    for i, (name, values) in enumerate(curves.items()):
        shade = INK if len(curves) == 1 else ["#222222", "#666666", "#AAAAAA"][i % 3]
        axes.plot(np.arange(len(values)), values, styles[i % 4], color=shade, linewidth=1.6, label=name)
    axes.set(xlabel="step", ylabel="mean loss over the batch", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    if len(curves) > 1:
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = ", ".join(f"{n} from {v[0]:.3f} to {v[-1]:.3f}" for n, v in curves.items())
    return Picture(figure, f"{title}: {said}")
