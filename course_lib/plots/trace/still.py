"""Pictures of traces, and the table of one: the ranks' time, one row per rank (see `lanes`)."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.plots.figures import INK, MISSING, Picture, min_font_size, on_slides, slide_width
from course_lib.plots.trace.lanes import Lanes, plain
from course_lib.trace.timeline import Trace
from course_lib.utils import wording


def draw(trace: Trace) -> Picture:
    """Draw a trace; its title and its text name the straggler."""
    picture = timeline({"": trace}, "\n".join(filter(None, (trace.title, held_up(trace)))))
    return Picture(picture.figure, describe(trace))


def timeline(traces: Mapping[str, Trace], title: str, unit: str = "", summary: bool = True) -> Picture:
    """Draw traces one below the other, all to the same scale and in the same colours.

    Parameters
    ----------
    traces : mapping of str to Trace
        By name; measured or simulated.
    title : str
        Title of the figure.
    unit : str, optional
        What a second of the traces stands for.
    summary : bool
        Whether each panel shows not only its name, but also its duration, and the share of the time in which its ranks computed.

    Raises
    ------
    ValueError
        There are no traces.
    """
    from matplotlib.figure import Figure

    if not traces:
        raise ValueError(f"plots.timeline: there is no trace to draw for {title!r}. While a hand-in is graded, nothing is recorded.")
    several, ranks = len(traces) > 1, [len(trace.ranks) for trace in traces.values()]
    row = 0.62 if not several else 0.5 if max(ranks) <= 8 else 0.3
    height = 1.1 + sum(row * n for n in ranks) + 0.4 * len(ranks)
    figure = Figure(figsize=(slide_width(9.6, height), height), layout="constrained")
    figure.suptitle(plain(title), fontsize=12, color=INK)
    panels = figure.subplots(len(traces), 1, squeeze=False, sharex=True, height_ratios=ranks)[:, 0]
    lanes, said = Lanes([*traces.values()], max(8.0, min_font_size(figure)), unit), []
    for axes, (name, trace) in zip(panels, traces.items(), strict=True):
        lanes.draw(axes, trace)
        took = f"{trace.seconds:g} {unit}" if unit else wording.seconds(_rounded(trace.seconds))
        said.append(f"{name}: {took}, ranks compute {trace.computing:.0%} of the time" if summary else name)
        if several or name:
            axes.set_title(plain(said[-1]), fontsize=10, color=INK)
    panels[-1].set_xlabel(lanes.unit)
    add_legend(figure, lanes)
    return Picture(figure, f"{title}{'. ' * bool(title)}{'; '.join(said)}.")


def add_legend(figure, lanes: Lanes) -> None:
    """Explain the colours of lanes below a figure."""
    from matplotlib.patches import Patch

    handles = []
    for color, text, hatched in lanes.legend():
        look = {"facecolor": "white", "edgecolor": color, "hatch": MISSING} if hatched else {"facecolor": color}
        handles.append(Patch(**look, label=text))
    lines = -(-len(handles) // (3 if on_slides() else 5)) or 1
    columns = -(-len(handles) // lines) or 1
    figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside lower center", ncols=columns, labelcolor=INK)


def describe(trace: Trace) -> str:
    """Say in words what a trace shows: how long it took, who kept the others waiting, and what is missing."""
    said = f"{trace.title}: {wording.seconds(_rounded(trace.seconds))} on {wording.ranks(r.rank for r in trace.ranks)}."
    said += f" {blamed}" if (blamed := held_up(trace)) else ""
    if trace.dropped:
        said += f" The first {trace.dropped:,} events are missing: a rank keeps the latest only."
    return said


def held_up(trace: Trace) -> str:
    """Name the straggler in a sentence; empty if nobody waited."""
    found = trace.straggler()
    return f"Rank {found[0]} held the others up longest: {wording.seconds(_rounded(found[1]))} in all." if found else ""


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.3g}")


def rows(trace: Trace) -> list[list[str]]:
    """Return the table of a trace, with its heading: for each rank its time by kind, whom it waited for, its bytes, its overlap."""
    table = [["rank", "computing", "waiting", "transferring", "waited for", "sent", "overlap, of possible"]]
    for summary in trace.summaries():
        longest = sorted(summary.waited_for.items(), key=lambda item: -item[1])[:2]
        told = [f"rank {rank}: {wording.seconds(_rounded(seconds))}" for rank, seconds in longest if seconds > 0.01 * trace.seconds]
        table.append(
            [
                str(summary.rank),
                *(wording.seconds(_rounded(summary.seconds[state])) for state in summary.seconds),
                ", ".join(told) or "–",
                wording.size(summary.sent),
                "–" if summary.overlap is None else f"{summary.overlap:.0%}",
            ]
        )
    return table


class Table:
    """The table of a trace, which displays itself."""

    def __init__(self, trace: Trace):
        self._rows = rows(trace)

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self._rows, strict=True)]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in self._rows)

    def _repr_html_(self) -> str:
        head, *body = ("".join(f"<{tag}>{cell}</{tag}>" for cell in row) for row, tag in self._tagged())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in body)}</tbody></table>"

    def _tagged(self) -> list[tuple[list[str], str]]:
        return [(row, "th" if i == 0 else "td") for i, row in enumerate(self._rows)]
