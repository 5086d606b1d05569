"""Figures of ranks over time: the work of a pipeline, measured or simulated, and the gathered blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.plots.figures import ACTIVITY_COLORS, INK, PALE, Picture, ink_on, new_figure
from course_lib.utils import wording

TimedWork = Sequence[tuple[str, int, float, float]]
ACTIVITY_NAMES = {"F": "forward", "B": "backward"}


def timeline(panels: Mapping[str, Sequence[TimedWork]], title: str) -> Picture:
    """Draw the work of each rank over time, one panel under the other, all to the same scale.

    Parameters
    ----------
    panels : mapping of str to sequence
        By panel and rank: "F" or "B", the micro-batch, begin and end in seconds of a clock shared by all ranks.
    title : str
        Title of the figure; each panel shows its duration, and the share of the time in which ranks were idle.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    n = max(len(ranks) for ranks in panels.values())
    figure = Figure(figsize=(9.6, 0.9 + len(panels) * (0.55 + 0.34 * n)), layout="constrained")
    figure.suptitle(title, fontsize=12, color=INK)
    axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    spans = {name: _span(ranks) for name, ranks in panels.items()}
    most = max(end - begin for begin, end in spans.values()) or 1.0
    scale, unit = next((s, u) for s, u in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")) if most * s >= 1 or u == "µs")
    said = []
    for axis, (name, ranks) in zip(axes, panels.items(), strict=True):
        begin, end = spans[name]
        for r, work in enumerate(ranks):
            for kind, k, start, stop in work:
                left, width, fill = (start - begin) * scale, (stop - start) * scale, ACTIVITY_COLORS[ACTIVITY_NAMES[kind]]
                axis.add_patch(Rectangle((left, r - 0.42), width, 0.84, facecolor=fill, edgecolor="white"))
                if width > 0.016 * most * scale:
                    axis.text(left + width / 2, r, k, ha="center", va="center", fontsize=8, color=ink_on(fill))
        said.append(f"{name}: {wording.seconds(end - begin)}, bubbles {bubble_fraction(ranks):.0%}")
        axis.set_title(said[-1], fontsize=10, color=INK)
        axis.set(xlim=(0, most * scale), ylim=(len(ranks) - 0.5, -0.5), yticks=range(len(ranks)), facecolor=PALE)
        axis.set_yticklabels([f"rank {r}" for r in range(len(ranks))], fontsize=8)
    axes[-1].set_xlabel(f"time, {unit}")
    kinds = {kind for ranks in panels.values() for work in ranks for kind, *_ in work}
    handles = [Patch(color=ACTIVITY_COLORS[ACTIVITY_NAMES[kind]], label=ACTIVITY_NAMES[kind]) for kind in "FB" if kind in kinds]
    handles.append(Patch(facecolor=PALE, edgecolor="#BBBBBB", label="idle"))
    axes[0].legend(handles=handles, fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Picture(figure, f"{title}. {'; '.join(said)}.")


def bubble_fraction(ranks: Sequence[TimedWork]) -> float:
    """Share of the ranks' time in which they were idle, 0 to 1."""
    begin, end = _span(ranks)
    return 1 - sum(stop - start for work in ranks for *_, start, stop in work) / ((end - begin or 1.0) * len(ranks))


def _span(ranks: Sequence[TimedWork]) -> tuple[float, float]:
    times = [time for work in ranks for *_, start, stop in work for time in (start, stop)]
    return min(times, default=0.0), max(times, default=0.0)


def gathered(moments: Sequence[tuple[str, int, Sequence[bool]]], names: Sequence[str], title: str) -> Picture:
    """Draw which blocks of a model are whole on a rank while each of them runs.

    Parameters
    ----------
    moments : sequence of (str, int, sequence of bool)
        "F" or "B", the block that runs, and for each block whether its parameters are gathered, or being gathered.
    names : sequence of str
        Names of the blocks.
    title : str
        Title of the figure.
    """
    from matplotlib.patches import Patch, Rectangle

    figure, (axes,) = new_figure(9.0, 0.9 + 0.28 * len(names), title)
    for t, (kind, block, whole) in enumerate(moments):
        for i in (i for i, here in enumerate(whole) if here):
            axes.add_patch(
                Rectangle((t + 0.04, i - 0.45), 0.92, 0.9, facecolor=ACTIVITY_COLORS[ACTIVITY_NAMES[kind]] if i == block else "#BBBBBB")
            )
    axes.set(xlim=(0, len(moments)), ylim=(len(names) - 0.5, -0.5), xlabel="moments, one for each block that runs")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xticks([])
    axes.set_facecolor(PALE)
    shown = [
        Patch(color=ACTIVITY_COLORS[ACTIVITY_NAMES[kind]], label=f"runs, {ACTIVITY_NAMES[kind]}")
        for kind in "FB"
        if any(m[0] == kind for m in moments)
    ]
    shown.append(Patch(color="#BBBBBB", label="gathered, or being gathered"))
    axes.legend(handles=shown, fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    most = max(sum(map(bool, whole)) for *_, whole in moments)
    return Picture(figure, f"{title}: at most {most} of {len(names)} blocks at once")
