"""Charts of costs: traffic, memory, loss. Notebooks use them through `plots`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from course_lib import traffic as counting
from course_lib.plots.figures import INK, MEMORY_STYLES, MISSING, PALE, Picture, new_figure, on_slides
from course_lib.utils import wording

BYTE_FORMATTERS = {"bytes": wording.size, "memory": wording.memory}


def _size_axis(axes, label: str, kind: str = "bytes") -> None:
    """Format ticks in kB and MB, or in KiB and MiB, all in the same unit and few enough to be readable."""
    from matplotlib.ticker import MaxNLocator

    top = axes.get_xlim()[1]
    step = 1000 if kind == "bytes" else 1024
    unit = next(step**i for i in (3, 2, 1, 0) if top >= step**i)
    axes.set_xticks([t * unit for t in MaxNLocator(3 if on_slides() else 5).tick_values(0, top / unit) if t * unit <= top])
    name = BYTE_FORMATTERS[kind](unit).split()[1]
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / unit:g} {name}")
    axes.set_xlabel(label)


def traffic(
    moved: Sequence[Sequence[tuple]],
    title: str = "Bytes sent by each rank",
    labels: Sequence[str] | None = None,
    group: Callable | None = None,
) -> Picture:
    """Draw bytes on the wire by rank, operation and group.

    Parameters
    ----------
    moved : sequence of sequence of (str, sequence of int, int, int)
        For each rank (or alternative, with `labels`): operation, ranks of the group, calls and payload in bytes, as in `Ranks.traffic`
        after `Ranks.call`.
    labels : sequence of str, optional
        Labels of the bars; by default "rank 0", "rank 1" and so on.
    group : callable, optional
        Names a group, given the number of the bar and the group's ranks; by default by its size.
    """
    labels = labels or [f"rank {r}" for r in range(len(moved))]
    group = group or (lambda _, ranks: f"group of {len(ranks)}")
    kinds: dict[str, np.ndarray] = {}
    for i, entries in enumerate(moved):
        for operation, ranks, _, payload in entries:
            sent = counting.wire_bytes(operation, len(ranks), payload)
            kinds.setdefault(f"{operation}, {group(i, ranks)}", np.zeros(len(moved)))[i] += sent
    figure, (axes,) = new_figure(6.2, 0.9 + 0.34 * len(moved), title)
    left = np.zeros(len(moved))
    shades = ["#555555", "#999999", "#CCCCCC"] * 6  # not the ranks' colours, as these are operations
    for (kind, sent), fill, hatch in zip(sorted(kinds.items()), shades, ["", "..", "xx", "oo"] * 4, strict=False):
        axes.barh(labels, sent, left=left, color=fill, hatch=hatch, edgecolor="white", label=kind)
        left += sent
    for i, total in enumerate(left):
        axes.text(total, i, f" {wording.size(total)}", va="center", fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max(left.max() * 1.18, 1))
    in_rings = any(kind.startswith(("Allreduce", "Allgather", "Reduce_scatter")) for kind in kinds)
    _size_axis(axes, "bytes on the wire, ring algorithm" if in_rings else "bytes on the wire")
    axes.spines[["top", "right"]].set_visible(False)
    if kinds:
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Picture(figure, f"{title}: " + ", ".join(f"{n} {wording.size(t)}" for n, t in zip(labels, left, strict=True)))


def bars(values: dict[str, float], title: str, unit: str = "bytes") -> Picture:
    """Draw one bar per name, such as memory with and without splitting.

    Parameters
    ----------
    values : dict of str to float
        Values in drawing order, top first.
    title : str
        Title of the figure.
    unit : str
        Unit of the values; "bytes" uses kB and MB, "memory" means bytes of device memory, in MiB and GiB.
    """
    figure, (axes,) = new_figure(6.2, 0.9 + 0.36 * len(values), title)
    axes.barh(list(values), list(values.values()), color="#777777")
    texts = [BYTE_FORMATTERS[unit](value) if unit in BYTE_FORMATTERS else f"{value:.3g} {unit}" for value in values.values()]
    for i, (value, text) in enumerate(zip(values.values(), texts, strict=True)):
        axes.text(value, i, f" {text}", va="center", fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max(values.values()) * 1.18)
    if unit in BYTE_FORMATTERS:
        _size_axis(axes, "bytes", unit)
    else:
        axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    return Picture(figure, f"{title}: " + ", ".join(f"{k} {text}" for k, text in zip(values, texts, strict=True)))


def stacked(values: dict[str, dict[str, float]], title: str) -> Picture:
    """Draw bytes by kind as stacked bars, one per name.

    Parameters
    ----------
    values : dict of str to dict of str to float
        For each bar, bytes by kind.
    title : str
        Title of the figure.
    """
    figure, (axes,) = new_figure(6.6, 0.9 + 0.34 * len(values), title)
    left = np.zeros(len(values))
    kinds = list(dict.fromkeys(kind for parts in values.values() for kind in parts))
    for kind, fill, hatch in zip(kinds, ["#333333", "#777777", "#BBBBBB", "#DDDDDD"] * 4, ["", "xx", "", ".."] * 4, strict=False):
        sizes = np.array([parts.get(kind, 0.0) for parts in values.values()])
        axes.barh(list(values), sizes, left=left, color=fill, hatch=hatch, edgecolor="white", label=kind)
        left += sizes
    for i, total in enumerate(left):
        axes.text(total, i, f" {wording.size(total)}", va="center", fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max(left.max() * 1.18, 1))
    _size_axis(axes, "bytes")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = "; ".join(f"{n}: {', '.join(f'{k} {wording.size(v)}' for k, v in parts.items())}" for n, parts in values.items())
    return Picture(figure, f"{title}: {said}")


def memory(held: dict[str, dict[str, int]], title: str = "Peak memory of a rank, by kind") -> Picture:
    """Draw the peak memory of a rank by kind, for several configurations.

    Parameters
    ----------
    held : dict of str to dict of str to int
        For each bar, bytes by kind as in `memory.MemoryAccount.peak`; "true peak", if present, is the peak seen by tracemalloc,
        drawn as a line.
    """
    figure, (axes,) = new_figure(7.2, 0.9 + 0.36 * len(held), title)
    labels, left = list(held), np.zeros(len(held))
    kinds = [k for k in dict.fromkeys(k for h in held.values() for k in h) if k != "true peak" and any(h.get(k) for h in held.values())]
    for kind in kinds:
        fill, hatch = MEMORY_STYLES.get(kind, ("#DDDDDD", "oo"))
        sizes = np.array([h.get(kind, 0) for h in held.values()], float)
        axes.barh(labels, sizes, left=left, color=fill, hatch=hatch, edgecolor="white", label=kind)
        left += sizes
    seen = [h.get("true peak") for h in held.values()]
    if any(seen):
        axes.plot([s or np.nan for s in seen], range(len(held)), "|", color=INK, markersize=14, label="measured by tracemalloc")
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
    """Draw the loss by step, one line per run.

    Parameters
    ----------
    curves : dict of str to sequence of float
        Mean loss before each step.
    """
    return lines(curves, title, "step", "mean loss over the batch")


def losses_beside(runs: dict[str, Sequence[float]], right: str, title: str, columns: int = 3) -> Picture:
    """Draw the loss of each run in a panel of its own, above that of the right one, and write how far the two are apart.

    Parameters
    ----------
    runs : dict of str to sequence of float
        Mean loss before each step.
    right : str
        Name of the run that the others are compared with.
    columns : int
        Panels in a row.
    """
    others = {name: np.array(values) for name, values in runs.items() if name != right}
    rows, said = -(-len(others) // columns), []
    figure, panels = new_figure(2.6 * columns, 0.5 + 1.7 * rows, title, columns, rows, sharex=True, sharey=True)
    for axes, (name, values) in zip(panels, others.items(), strict=False):
        apart = np.abs(values - runs[right]).max()
        said.append(f"{name} at most {apart:.2f} from it")
        axes.plot(runs[right], color="#BBBBBB", linewidth=4, label=right)
        axes.plot(values, color=INK, linewidth=1.2, label=name)
        axes.set_title(f"{name}: at most {apart:.2f} apart", fontsize=9, color=INK)
        axes.set(ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(others) :]:
        axes.axis("off")
    figure.supxlabel(f"step (grey: {right})", fontsize=10, color=INK)
    figure.supylabel("mean loss over the batch", fontsize=10, color=INK)
    return Picture(figure, f"{title}. {right} from {runs[right][0]:.3f} to {runs[right][-1]:.3f}; {', '.join(said)}")


def lines(
    curves: dict[str, Sequence[float]], title: str, xlabel: str, ylabel: str, at: Sequence[float] | None = None, bottom: float = 0.0
) -> Picture:
    """Draw curves with one value per step, or at the positions `at`; `xlabel` and `ylabel` label the axes; y begins at `bottom`."""
    figure, (axes,) = new_figure(7.2, 3.2, title)
    said = _draw_lines(axes, curves, xlabel, ylabel, at)
    axes.set_ylim(bottom, None)
    return Picture(figure, f"{title}: {said}")


def memory_over_time(steps: dict[str, dict], title: str, budget: float | None = None) -> Picture:
    """Draw what a rank holds over the course of a step, one curve per way of taking it; a dotted line is the budget.

    Parameters
    ----------
    steps : dict of str to dict
        For each way, "seconds" and "held" (bytes), as in `gpt.training.activation_memory.step_memory`.
    title : str
        Title of the figure.
    budget : float, optional
        Bytes.
    """
    figure, (axes,) = new_figure(7.6, 3.4, title)
    looks = [("#AAAAAA", 3.0, "-"), (INK, 1.6, "--"), ("#CC79A7", 2.2, "-")]
    for (name, step), (shade, width, style) in zip(steps.items(), looks * len(steps), strict=False):
        held = np.array(step["held"]) / 1e6
        axes.plot(np.array(step["seconds"]) * 1e3, held, style, color=shade, linewidth=width, label=f"{name}: at most {held.max():.1f} MB")
    if budget is not None:
        axes.axhline(budget / 1e6, color=INK, linewidth=1, linestyle=":", label=f"budget: {budget / 1e6:.1f} MB")
    axes.set(xlabel="milliseconds, with memory tracing", ylabel="MB held for backward", xlim=(0, None), ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = "; ".join(f"{name} at most {wording.size(max(step['held']))}" for name, step in steps.items())
    return Picture(figure, f"{title}: {said}" + (f"; the budget is {wording.size(budget)}" if budget is not None else ""))


def drift(runs: dict[str, dict], title: str) -> Picture:
    """Draw trainings on several ranks: the loss of each step, and beside it how far the ranks' parameters are apart.

    Parameters
    ----------
    runs : dict of str to dict
        For each training, "losses" and "apart", as in `gpt.training.drift.train_blocks`.
    title : str
        Title of the figure.
    """
    figure, (left, right) = new_figure(10.4, 3.4, title, 2)
    said = _draw_lines(left, {name: run["losses"] for name, run in runs.items()}, "step", "loss", legend=False)
    apart = {name: run["apart"] for name, run in runs.items()}
    said_apart = _draw_lines(right, apart, "step", "largest difference from rank 0")
    left.set_title("what you see: the loss", fontsize=11, color=INK)
    right.set_title("what you do not see: replicated parameters", fontsize=11, color=INK)
    return Picture(figure, f"{title}: loss {said}; largest difference {said_apart}")


def _draw_lines(axes, curves: dict[str, Sequence[float]], xlabel: str, ylabel: str, at: Sequence[float] | None = None, legend=True) -> str:
    """Draw curves, and describe them in words."""
    styles = ["-", "--", ":", "-."]
    for i, (name, values) in enumerate(curves.items()):
        # Identical curves overlap: the first is wide and light, so that it shows beneath the others.
        shade, width = (INK, 1.6) if len(curves) == 1 else ("#BBBBBB", 4) if i == 0 else (("#777777", "#222222")[i % 2], 1.6)
        axes.plot(np.arange(len(values)) if at is None else at, values, styles[i % 4], color=shade, linewidth=width, label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    if len(curves) > 1 and legend:
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ", ".join(f"{n} from {v[0]:.3f} to {v[-1]:.3f}" for n, v in curves.items())


FLOAT16_SMALLEST, FLOAT16_NORMAL, FLOAT16_LARGEST = -24, -14, 16  # exponents of 2; larger ones are rounded to infinity


def magnitudes(values: dict[str, np.ndarray], title: str) -> Picture:
    """Draw how large numbers are, one histogram per name over the same powers of two, and the ranges that float16 cannot hold.

    Parameters
    ----------
    values : dict of str to numpy.ndarray
        Numbers of any shape; zeros are left out.
    title : str
        Title of the figure.
    """
    exponents = {name: np.log2(np.abs(array[array != 0].astype(float))) for name, array in values.items()}
    low = min([FLOAT16_SMALLEST - 8, *(int(np.floor(e.min())) for e in exponents.values() if e.size)])
    high = max([FLOAT16_LARGEST + 4, *(int(np.ceil(e.max())) for e in exponents.values() if e.size)])
    figure, axes = new_figure(5.4 * len(values), 3.2, title, len(values), sharey=True)
    said = []
    for axis, (name, found) in zip(axes, exponents.items(), strict=True):
        axis.hist(found, np.arange(low, high + 1), weights=np.full(found.size, 100 / max(found.size, 1)), color="#555555")
        lost = 100 * np.mean(found < FLOAT16_SMALLEST - 1) if found.size else 0.0
        coarse = 100 * np.mean((found >= FLOAT16_SMALLEST - 1) & (found < FLOAT16_NORMAL)) if found.size else 0.0
        beyond = 100 * np.mean(found >= FLOAT16_LARGEST) if found.size else 0.0
        for begin, end, hatch, words in (
            (low, FLOAT16_SMALLEST - 1, MISSING, f"0 in float16\n{lost:.0f} %"),
            (FLOAT16_SMALLEST - 1, FLOAT16_NORMAL, "", f"fewer bits\n{coarse:.0f} %"),
            (FLOAT16_LARGEST, high, MISSING, f"inf\n{beyond:.0f} %"),
        ):
            axis.axvspan(begin, end, 0, 0.8, facecolor="none" if hatch else PALE, hatch=hatch, edgecolor="#BBBBBB", linewidth=0, zorder=0)
            axis.text((begin + end) / 2, 0.98, words, transform=axis.get_xaxis_transform(), ha="center", va="top", fontsize=8, color=INK)
        axis.set_title(name, fontsize=11, color=INK)
        axis.set(xlabel="log2 of the magnitude", xlim=(low, high))
        axis.spines[["top", "right"]].set_visible(False)
        said.append(f"{name}: {lost:.0f} % are 0 in float16, {coarse:.0f} % have fewer bits, {beyond:.0f} % are infinite")
    axes[0].set_ylabel("share of the numbers, in %")
    axes[0].set_ylim(0, 1.35 * axes[0].get_ylim()[1])
    return Picture(figure, f"{title}: {'; '.join(said)}")
