"""Figures of part 34: a model's roofline, and texts and the blocks of a cache over time."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np

from course_lib.plots.figures import COLORS, INK, MISSING, PALE, SPAN_COLOR, WORK_COLORS, Picture, color, new_figure, on_slides, slide_width

KINDS = {"prefill": WORK_COLORS["backward"], "decode": WORK_COLORS["forward"]}


def roofline(found: dict, title: str) -> Picture:
    """Draw operations a second against operations for each byte of weights, below what the machine allows.

    Parameters
    ----------
    found : dict
        As `gpt.serving.roofline.measure` returns it.
    title : str
    """
    from matplotlib.ticker import LogLocator, NullLocator

    figure, (axes,) = new_figure(6.8, 3.6, title)
    peak, bandwidth = found["peak"] / 1e9, found["bandwidth"] / 1e9
    x = np.geomspace(0.3, 2 * max(found["intensity"]), 200)
    axes.plot(x, np.minimum(peak, bandwidth * x), color="#888888", linewidth=3, label=f"possible: {bandwidth:.0f} GB/s, {peak:.0f} Gflop/s")
    said = []
    for n, intensity, rate in zip(found["tokens"], found["intensity"], found["rate"], strict=True):
        axes.plot(intensity, rate / 1e9, "o", color=KINDS["decode" if n < 16 else "prefill"], markersize=7)
        axes.annotate(str(n), (intensity, rate / 1e9), (0, -14), textcoords="offset points", ha="center", fontsize=9, color=INK)
        said.append(f"{n} tokens: {rate / 1e9:.0f} Gflop/s")
    axes.plot([], [], "o", color=KINDS["decode"], label="few tokens at once, as in decode")
    axes.plot([], [], "o", color=KINDS["prefill"], label="many, as in prefill")
    axes.set(xscale="log", yscale="log", xlabel="operations for each byte of weights", ylabel="Gflop/s")
    axes.set_ylim(bottom=0.7 * min(axes.get_ylim()[0], *(rate / 1e9 for rate in found["rate"])))  # room for the lowest point's number
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Picture(figure, f"{title}: {', '.join(said)}; possible are {peak:.0f} Gflop/s and {bandwidth:.0f} GB/s")


def serving(runs: Mapping[str, dict], title: str) -> Picture:
    """Draw texts and a cache's blocks over time, one column for each scheduler.

    Above is a row for each text: it waits, is prefilled, is decoded. Below is a row for each block: in colour while its text goes on, dark
    grey if it is done.

    Parameters
    ----------
    runs : mapping of str to dict
        By the scheduler's name, what `gpt.serving.simulation.simulate` returns.
    title : str
    """
    count, said = max(len(run["arrived"]) for run in runs.values()), []
    shared = dict(sharex=True, sharey="row", height_ratios=[3, 2])
    figure, panels = new_figure(slide_width(4.8 * len(runs), 5.6), 5.6, title, len(runs), rows=2, **shared)
    panels = panels.reshape(2, -1)
    for (above, below), (name, run) in zip(panels.T, runs.items(), strict=True):
        _draw_texts(above, run)
        share = _draw_blocks(below, run)
        titles = f"{name}: {run['rate']:.0f} tokens a second", f"{100 * share:.0f}% of the blocks have a text that goes on"
        for axes, text in zip((above, below), titles, strict=True):
            axes.set_title(textwrap.fill(text, 36) if on_slides() else text, fontsize=10, color=INK)
        below.set(xlabel="seconds", xlim=(0, max(max(one["ended"]) for one in runs.values())))
        said.append(f"{name}: {run['rate']:.0f} tokens a second, on average {100 * share:.0f}% of the blocks have a text that goes on")
    panels[0, 0].set(ylabel="text", ylim=(count - 0.5, -0.5))
    panels[1, 0].set_ylabel("block")
    for shade, what in ((color(0), "text that goes on,\neach in its color"), (SPAN_COLOR, "text that is done"), (PALE, "free")):
        panels[1, -1].bar([0], [0], color=shade, label=what)
    panels[1, -1].legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    panels[0, -1].legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Picture(figure, f"{title}: {'; '.join(said)}")


def _draw_texts(axes, run: dict) -> None:
    waiting = dict(facecolor="none", edgecolor="#999999", hatch=MISSING, linewidth=0)
    for row, (arrived, ended) in enumerate(zip(run["arrived"], run["ended"], strict=True)):
        axes.barh(row, ended - arrived, 0.8, arrived, **waiting)
    for kind, fill in KINDS.items():
        rows, begins, ends = np.reshape([(k, begin, end) for k, what, begin, end in run["spans"] if what == kind], (-1, 3)).T
        axes.barh(rows, ends - begins, 0.8, begins, color=fill, linewidth=0, label=kind)
    axes.barh([0], [0], **waiting, label="waits")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_blocks(axes, run: dict) -> float:
    """Draw the blocks of a cache over time; return the share whose text goes on."""
    shades = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (PALE, SPAN_COLOR, *COLORS[:6])])
    owners, edges = run["owners"], [*run["times"], max(run["ended"])]
    kinds = np.where(owners < 0, -1 - owners, 2 + owners % 6)
    axes.pcolormesh(edges, np.arange(owners.shape[1] + 1), shades[kinds.T] / 255)
    axes.spines[["top", "right"]].set_visible(False)
    return float(np.average((owners >= 0).mean(axis=1), weights=np.diff(edges)))
