"""Figures of a trace: the ranks' time, one row per rank.

Computing is grey, and operations are darker. A call has its group's colour: hatched while the rank waits for others, solid while data is
transferred. Nonblocking calls in flight are thin bars under the row, named spans thin bars above it, and messages arrows from the sender to
the receiver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from course_lib.plots.figures import COLORS, INK, Picture, new_figure, slide_width
from course_lib.trace.recorder import Event
from course_lib.trace.timeline import COMPUTING, WAITING, RankTrace, Segment, Trace
from course_lib.utils import wording

COMPUTING_COLOR = "#CFCFCF"
OPERATION_COLOR = "#B0B0B0"
SPAN_COLOR = "#6E6E6E"
MAX_ARROWS, MAX_TEXTS, MAX_GROUPS = 200, 120, 8  # more only blacken the picture, or fill the legend


def group_colors(trace: Trace) -> dict[tuple[int, ...], str]:
    """Colour of each group of a trace."""
    return {ranks: COLORS[i % len(COLORS)] for i, ranks in enumerate(trace.groups)}


def time_scale(seconds: float) -> tuple[float, str]:
    """Factor and unit in which times up to this one are easy to read."""
    return next((s, unit) for s, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")) if seconds * s >= 1 or unit == "µs")


def draw(trace: Trace) -> Picture:
    """Draw a trace; its text names the straggler."""
    n = len(trace.ranks)
    scale, unit = time_scale(trace.seconds)
    height = 1.5 + 0.62 * n
    figure, (axes,) = new_figure(slide_width(9.6, height), height, _plain(trace.title))
    colors, texts = group_colors(trace), 0
    rows = {r.rank: i for i, r in enumerate(trace.ranks)}
    for i, r in enumerate(trace.ranks):
        for style, bars in _bars(trace, r, colors).items():
            above, thickness, facecolor, edgecolor, hatch, linewidth = style
            axes.broken_barh(bars, (i + above, thickness), facecolor=facecolor, edgecolor=edgecolor, hatch=hatch, linewidth=linewidth)
        for event in (e for e in r.events if e.kind == "span"):
            label = span_text(event)
            if event.end - event.begin > 0.009 * len(label) * trace.seconds and texts < MAX_TEXTS:
                texts += 1
                middle = (event.begin + event.end) / 2 * scale
                axes.text(middle, i - 0.31, _plain(label), ha="center", va="bottom", fontsize=7, color=INK, in_layout=False)
    arrows = trace.arrows()
    for a in arrows if len(arrows) <= MAX_ARROWS else ():
        ends = {"xy": (a.received * scale, rows[a.dest]), "xytext": (a.sent * scale, rows[a.source])}
        axes.annotate("", **ends, arrowprops={"arrowstyle": "->", "color": INK, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0})
    axes.set_yticks(range(n), [f"rank {r.rank}" for r in trace.ranks], fontsize=9)
    axes.set(xlabel=unit, ylim=(n - 0.45, -0.55), xlim=(0, (trace.seconds or 1e-6) * scale))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(handles=_legend(trace, colors), fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=5)
    return Picture(figure, describe(trace))


def _bars(trace: Trace, r: RankTrace, colors: dict) -> dict[tuple, list[tuple[float, float]]]:
    """Return a rank's bars, as (left, width), by style: place, thickness, colours, hatch and line width; in the order of drawing."""
    scale, found = time_scale(trace.seconds)[0], {}

    def add(style: tuple, parts: Iterable, least: float = trace.seconds / 4000) -> None:
        for part in parts:
            if part.end - part.begin >= least:
                found.setdefault(style, []).append((part.begin * scale, (part.end - part.begin) * scale))

    for segment in _merged(trace.segments[r.rank], trace.seconds):
        add((-0.22, 0.44, *_style(segment, colors)), [segment], 0.0)
    add((-0.18, 0.36, OPERATION_COLOR, "white", None, 0.3), (e for e, depth in operations(r) if not depth), trace.seconds / 400)
    for flight in trace.flights[r.rank]:
        add((0.25, 0.1, colors[flight.event.ranks], "white", None, 0.3), [flight])
    add((-0.29, 0.05, SPAN_COLOR, "white", None, 0.4), (e for e in r.events if e.kind == "span"))
    return found


def _plain(text: str) -> str:
    """Have matplotlib show dollar signs as they are, instead of a formula."""
    return text.replace("$", r"\$")


def describe(trace: Trace) -> str:
    """Say in words what a trace shows: how long it took, who kept the others waiting, and what is missing."""
    said = f"{trace.title}: {wording.seconds(_rounded(trace.seconds))} on {wording.ranks(r.rank for r in trace.ranks)}."
    if found := trace.straggler():
        said += f" The others waited longest for rank {found[0]}: {wording.seconds(_rounded(found[1]))} in all."
    if trace.dropped:
        said += f" The first {trace.dropped:,} events are missing: a rank keeps the latest only."
    return said


def operations(rank: RankTrace) -> list[tuple[Event, int]]:
    """Return a rank's operations in the order of their begin, each with the number of operations that it is inside of."""
    found, ends = [], []
    for event in sorted((e for e in rank.events if e.kind == "operation"), key=lambda e: (e.begin, -e.end)):
        ends = [end for end in ends if end > event.begin]
        found.append((event, len(ends)))
        ends.append(event.end)
    return found


def span_text(event: Event) -> str:
    """Return a span's name with its labels."""
    return f"{event.name}{', ' * bool(event.of)}{event.of}"


def event_text(event: Event) -> str:
    """Describe a call: its name and number, its group or peer, and its bytes."""
    number = f" #{event.number + 1}" if event.kind in ("collective", "started collective") else ""
    said = f"{event.name}{number}"
    if event.peer >= 0:
        said += f" {'from' if 'receive' in (event.kind, event.of) else 'to'} rank {event.peer}, tag {event.tag}"
    elif event.ranks:
        said += f" on {wording.ranks(event.ranks)}"
    return said + (f", {wording.size(event.nbytes)}" if event.nbytes else "")


def segment_text(segment: Segment) -> str:
    """Describe the call of a segment, and for whom the rank waits in it."""
    if segment.event is None:
        return ""
    return event_text(segment.event) + (f"\nfor rank {segment.culprit}" if segment.culprit is not None else "")


def _style(segment: Segment, colors: dict) -> tuple:
    """Return the colour of a segment's face and edge, its hatch and the line's width."""
    if segment.state == COMPUTING:
        return COMPUTING_COLOR, "none", None, 0.0
    color = colors[segment.event.ranks] if segment.event.ranks else SPAN_COLOR
    return ("white", color, "////", 0.5) if segment.state == WAITING else (color, color, None, 0.3)


def _merged(segments: Sequence[Segment], seconds: float) -> list[Segment]:
    """Merge neighbours that are too short to be seen into one, as the longest of them; a picture has some 2,000 columns."""
    found, short = [], []
    for segment in segments:
        short.append(segment)
        if segment.end - short[0].begin >= seconds / 4000:
            found.append(max(short, key=lambda s: s.end - s.begin)._replace(begin=short[0].begin, end=segment.end))
            short = []
    return found


def _legend(trace: Trace, colors: dict) -> list:
    from matplotlib.patches import Patch

    drawn = {(s.state, s.event.ranks if s.event else ()) for r in trace.ranks for s in _merged(trace.segments[r.rank], trace.seconds)}
    handles = [Patch(facecolor=COMPUTING_COLOR, label="computing")]
    if any(state == WAITING for state, _ in drawn):
        handles.append(Patch(facecolor="white", edgecolor=INK, hatch="////", label="waiting for others"))
    shown = [ranks for ranks in colors if any(ranks == other for _, other in drawn)][:MAX_GROUPS]
    return handles + [Patch(facecolor=colors[ranks], label=f"transfer, {group_name(ranks, trace)}") for ranks in shown]


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.3g}")


def group_name(ranks: tuple[int, ...], trace: Trace) -> str:
    """Name a group in a legend."""
    return "all ranks" if len(ranks) == len(trace.ranks) > 2 else wording.ranks(ranks)


def rows(trace: Trace) -> list[list[str]]:
    """Return the table of a trace, with its heading: for each rank its time by kind, whom it waited for, its bytes, its overlap."""
    table = [["rank", "computing", "waiting", "transferring", "waited for", "sent (ring)", "overlap"]]
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
