"""Timeline of a run: the activity of each rank over time, with its memory below."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from course_lib.plots.animation import Animation
from course_lib.plots.figures import INK, Picture, color, min_font_size, slide_width
from course_lib.plots.trace.lanes import Lanes
from course_lib.plots.trace.still import add_legend
from course_lib.sim.schedule import stats
from course_lib.sim.schedule.trace import as_trace, boxes
from course_lib.utils import wording

MAX_FRAMES = 60


def animate(models: Sequence, title: str | None = None, batches: Sequence[Sequence[int]] | None = None) -> Animation:
    """Animate the timeline; parameters as for `draw`."""
    ends = sorted({end for model in models for _, _, end, _ in boxes(model)})
    times = [0.0, *ends[:: -(-len(ends) // MAX_FRAMES) or 1], math.inf]
    return Animation(lambda frame: draw(models, title, batches, times[frame]), len(times), draw(models, title, batches))


def draw(models: Sequence, title: str | None = None, batches: Sequence[Sequence[int]] | None = None, until: float = math.inf) -> Picture:
    """Draw the ranks over time, like a trace of real ranks, with numbered micro-batches; below, the memory.

    Parameters
    ----------
    models : sequence of Model
    title : str, optional
    batches : sequence of sequence of int, optional
        Micro-batches that number the boxes; by default those that the ranks worked on.
    until : float
        Virtual seconds; work that ends later is omitted.

    Returns
    -------
    figures.Picture
    """
    from matplotlib.figure import Figure

    models = sorted(models, key=lambda m: m.rank)
    n, total = len(models), max(m.time for m in models) or 1.0
    summary = f"T = {wording.seconds(total)}, MFU {stats.utilisation(models):.1%}, bubble fraction {stats.bubble_fraction(models):.1%}"
    over = stats.over_capacity_text(max(models, key=stats.peak_memory))
    title = (f"{title}: {summary}" if title else summary) + (f"; {over}" if over else "")
    row = 0.5 if n <= 8 else max(0.09, min(0.34, 5.5 / n))
    height = row * n + 2.6
    figure = Figure(figsize=(slide_width(9.6, height), height), layout="constrained")
    figure.suptitle(title, fontsize=12, color=INK)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[row * n, 1.3])
    type_size = max(8 if n <= 8 else 6, min_font_size(figure))
    lanes = Lanes([as_trace(models, title, batches)], type_size)
    step = 1 if n <= 16 else 4 if n <= 32 else 8
    step *= 1 + int(1.2 * type_size > 72 * row * step)
    lanes.draw(axes, as_trace(models, title, batches, until) if until < total else lanes.traces[0], step)
    add_legend(figure, lanes)
    peak = _memory(below, models, total, lanes.scale)
    if until < total:
        below.axvspan(until * lanes.scale, total * lanes.scale, color="white", zorder=3)
    below.set_xlabel(f"virtual time, {lanes.unit}")
    return Picture(figure, f"{title}. {peak}")


def _memory(axes, models: Sequence, total: float, scale: float) -> str:
    """Draw bytes over time: a line per rank if there are few, otherwise the range and the rank that holds most."""
    profiles = {m.rank: stats.memory_profile(m) for m in models}
    peaks = {rank: float(np.max(nbytes, initial=0)) for rank, (_, nbytes) in profiles.items()}
    worst = max(peaks, key=peaks.get)
    few = len(models) <= 8
    grid = np.linspace(0, total, 1200)
    lines = {rank: _at(grid, *profile) for rank, profile in profiles.items()}
    if all(np.array_equal(line, lines[worst]) for line in lines.values()):
        axes.plot(grid * scale, lines[worst], color=INK, linewidth=1.2, label="each rank")
    elif few:
        for rank, line in lines.items():
            axes.plot(grid * scale, line, color=color(rank), linewidth=1.2, label=f"rank {rank}")
    else:
        every = np.array(list(lines.values()))
        axes.fill_between(grid * scale, every.min(axis=0), every.max(axis=0), color="#CCCCCC", linewidth=0, label="all ranks")
        axes.plot(grid * scale, lines[worst], color=INK, linewidth=1.2, label=f"rank {worst}")
    capacity = models[0].dist.hardware.memory
    if capacity < 3 * peaks[worst]:
        axes.axhline(capacity, color=INK, linestyle=":", linewidth=1, label=f"device, {wording.memory(capacity)}")
    top = max(peaks[worst], capacity if capacity < 3 * peaks[worst] else 0) * 1.15 or 1.0
    step, unit = next((s, u) for s, u in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")) if top >= s)
    ticks = _ticks(top / step)
    axes.set(ylim=(0, top), yticks=[t * step for t in ticks])
    axes.set_yticklabels([f"{t:g} {unit}" for t in ticks], fontsize=8)
    axes.set_ylabel("memory", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), ncols=1 if len(models) <= 4 else 2)
    return f"Memory at most {wording.memory(peaks[worst])}, on rank {worst}"


def _at(grid: np.ndarray, times: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
    """Maximum bytes held in each step of the grid."""
    if not len(times):
        return np.zeros(len(grid))
    place = np.minimum(np.searchsorted(grid, times), len(grid) - 1)
    most = np.full(len(grid), -1.0)
    np.maximum.at(most, place, nbytes)
    held = nbytes[np.minimum(np.searchsorted(times, grid), len(nbytes) - 1)]
    return np.maximum(most, held)


def _ticks(top: float) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    return [t for t in MaxNLocator(4).tick_values(0, top) if t <= top]
