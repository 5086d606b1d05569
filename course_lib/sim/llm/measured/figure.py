"""Picture of the errors of all rows, table by table."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.plots.figures import INK, PALE, Picture, new_figure
from course_lib.sim.llm.measured.comparison import Comparison, summary


def errors_picture(rows: Sequence[Comparison]) -> Picture:
    """Draw the signed error of each row, grouped by source.

    Parameters
    ----------
    rows : sequence of Comparison
    """
    title = "Simulated seconds per step, relative to measured ones"
    sources = list(dict.fromkeys(row.source for row in rows))
    lines = [
        (label, row)
        for source in sources
        for label, row in [(source.split(":")[0], None), *((r.name, r) for r in rows if r.source == source)]
    ]
    figure, (axes,) = new_figure(7.6, 0.9 + 0.2 * len(lines), title)
    axes.axvspan(-5, 5, color=PALE, zorder=0)
    axes.axvline(0, color=INK, linewidth=1)
    for fitted, label in ((True, "fitted"), (False, "predicted")):
        some = [(100 * row.error, y) for y, (_, row) in enumerate(lines) if row and row.fitted == fitted]
        if some:
            fill = INK if fitted else "white"
            axes.scatter(
                *zip(*some, strict=True), marker="o" if fitted else "D", s=24, facecolor=fill, edgecolor=INK, label=label, zorder=3
            )
    axes.set_yticks(range(len(lines)), labels=[label for label, _ in lines], fontsize=8)
    for tick, (_, row) in zip(axes.get_yticklabels(), lines, strict=True):
        tick.set_fontweight("normal" if row else "bold")
    most = max(12, max(abs(100 * row.error) for row in rows) + 1)
    axes.set(xlim=(-most, most), ylim=(len(lines) - 0.5, -0.5), xlabel="error, %")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    return Picture(figure, f"{title}: {summary(rows)}. " + "; ".join(f"{row.name} {row.error:+.1%}" for row in rows))
