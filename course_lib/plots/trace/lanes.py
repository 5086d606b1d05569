"""Lanes of a trace: a row per rank, drawn in the same way for what was measured and for what was simulated.

Computing is grey; operations are darker, and work with a colour of its own (spans named "forward", "backward" and so on) has that colour,
with the number of its micro-batch or block. A call has a colour for its group, the same for all groups along an axis of a grid: hatched
while the rank waits for others, solid while data is transferred. Nonblocking calls in flight are thin bars under the row, other spans thin
bars above it, and messages arrows from the sender to the receiver.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from course_lib.plots.figures import COLORS, INK, MISSING, SPAN_COLOR, WORK_COLORS, ink_on
from course_lib.plots.figures import COMPUTING as COMPUTING_COLOR
from course_lib.trace.recorder import Event
from course_lib.trace.timeline import COMPUTING, TRANSFERRING, WAITING, Flight, RankTrace, Segment, Trace, common, union
from course_lib.utils import wording

OPERATION_COLOR = "#B0B0B0"
MAX_ARROWS, MAX_TEXTS, MAX_GROUPS = 200, 600, 8  # more only blacken the picture, or fill the legend
MAX_RANKS = 16  # with more, rows are too low for text


class Style(NamedTuple):
    """Colours of a box's face and edge, the edge's width in points, the level on which it is drawn, and its hatch."""

    face: str
    edge: str
    line: float
    level: float
    hatch: str | None = None


class Lanes:
    """Rows of some traces, all to the same scale and in the same colours.

    Parameters
    ----------
    traces : sequence of Trace
    type_size : float
        Points, of the numbers inside the rows.
    unit : str, optional
        What a second of the traces stands for; by default times are shown in s, ms or µs.
    row : str
        What a row is.
    names : mapping of tuple of int to str, optional
        Names of groups for the legend; by default their ranks.
    """

    def __init__(
        self, traces: Sequence[Trace], type_size: float = 8.0, unit: str = "", row: str = "rank", names: Mapping[tuple, str] | None = None
    ):
        self.traces, self.type_size, self.row, self.names = list(traces), type_size, row, names or {}
        self.seconds = max((trace.seconds for trace in traces), default=0.0) or 1e-6
        self.scale, self.unit = (1.0, unit) if unit else time_scale(self.seconds)
        self.colors = group_colors(traces)
        ranks = [r for trace in traces for r in trace.ranks]
        self.named = any(has_name(e) for r in ranks for e in r.events)
        self.top = 0.22 if self.named else 0.4
        self.bottom = 0.22 if any(trace.flights[r.rank] for trace in traces for r in trace.ranks) else self.top

    def draw(self, axes, trace: Trace, every: int = 1) -> None:
        """Draw the rows of a trace, with the names of every so many ranks."""
        from matplotlib.collections import PolyCollection

        n, rows = len(trace.ranks), {r.rank: i for i, r in enumerate(trace.ranks)}
        bars: dict[Style, list] = {}
        texts: list[tuple] = []
        for i, r in enumerate(trace.ranks):
            self._add_bars(bars, trace, r, i)
            texts += self._texts(trace, r, i) if n <= MAX_RANKS else []
        for look, boxes in bars.items():
            style = dict(facecolors=look.face, edgecolors=look.edge, hatch=look.hatch, linewidths=look.line, zorder=look.level)
            axes.add_collection(PolyCollection(boxes, **style), autolim=False)
        inside = {"ha": "center", "color": INK, "in_layout": False}
        for x, y, text, style in texts if len(texts) <= MAX_TEXTS else ():
            axes.text(x * self.scale, y, text, **inside | style)
        arrows = trace.arrows()
        for a in arrows if len(arrows) <= MAX_ARROWS and n <= MAX_RANKS else ():
            down = rows[a.dest] > rows[a.source]
            begin = a.sent * self.scale, rows[a.source] + (self.bottom if down else -self.top)
            end = a.received * self.scale, rows[a.dest] + (-self.top if down else self.bottom)
            style = {"arrowstyle": "->", "color": INK, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", xy=end, xytext=begin, arrowprops=style, in_layout=False)
        axes.set_yticks(range(0, n, every), [f"{self.row} {r.rank}" for r in trace.ranks[::every]], fontsize=9)
        axes.set(ylim=(n - 0.45, -0.55), xlim=(0, self.seconds * self.scale))
        axes.spines[["top", "right"]].set_visible(False)

    def legend(self) -> list[tuple[str, str, bool]]:
        """Return what the legend explains: colour, text, and whether it is hatched."""
        kinds: set[tuple] = set()
        for trace in self.traces:
            for r in trace.ranks:
                segments = _merged(trace.segments[r.rank], self.seconds)
                kinds |= {(s.state, s.event.ranks) for s in segments if s.state != COMPUTING}
                kinds |= {("in flight", f.event.ranks) for f in trace.flights[r.rank]}
                work = [e for e in r.events if is_work(e)]
                kinds |= {("work", e.name) for e in work}
                computed = [(s.begin, s.end) for s in segments if s.state == COMPUTING]
                other = sum(end - begin for begin, end in computed) - common(computed, union((e.begin, e.end) for e in work))
                kinds |= {(COMPUTING, ())} if other > self.seconds / 50 else set()
                alone = (e for e, depth, in_work in operations(r) if not depth and not in_work)
                kinds |= {("operation", ()) for e in alone if e.end - e.begin >= self.seconds / 400}
        found = [(COMPUTING_COLOR, "computing", False)] if (COMPUTING, ()) in kinds else []
        found += [(OPERATION_COLOR, "one operation", False)] if ("operation", ()) in kinds else []
        found += [(color, name, False) for name, color in WORK_COLORS.items() if ("work", name) in kinds]
        found += [(SPAN_COLOR, "waiting for others", True)] if any(kind == WAITING for kind, _ in kinds) else []
        found += [(SPAN_COLOR, "other transfers", False)] if (TRANSFERRING, ()) in kinds else []
        axes: dict[tuple[int, ...], list] = {}
        for ranks in self.colors:
            if any(kind != "work" and ranks == other for kind, other in kinds):
                axes.setdefault(_steps(ranks), []).append(ranks)
        most = max(len(trace.ranks) for trace in self.traces)
        shown = []
        for g, *some in axes.values():
            thin = " (thin bar: in the background)" * any(("in flight", ranks) in kinds for ranks in (g, *some))
            shown.append((g, self.names.get(g) or group_name(g, most) + " and the like" * bool(some), thin))
        return found + [(self.colors[ranks], f"transfer, {name}{thin}", False) for ranks, name, thin in shown[:MAX_GROUPS]]

    def _add_bars(self, bars: dict[Style, list], trace: Trace, r: RankTrace, row: int) -> None:
        """Add a rank's boxes by style; all boxes of a style are drawn at once."""
        work = [e for e in r.events if is_work(e)]
        line = 0.4 if len(work) < 80 else 0.0

        def add(style: Style, part: Segment | Flight | Event, top: float, bottom: float, least: float = self.seconds / 4000) -> None:
            if part.end - part.begin >= least:
                left, right = part.begin * self.scale, part.end * self.scale
                bars.setdefault(style, []).append([(left, row + top), (right, row + top), (right, row + bottom), (left, row + bottom)])

        for s in _merged(trace.segments[r.rank], self.seconds):
            add(_style(s, self.colors, line), s, -self.top, self.bottom, 0.0)
        for e in work:
            add(Style(WORK_COLORS[e.name], "white", line, 1.1), e, -self.top, self.bottom)
        for e in (e for e, depth, in_work in operations(r) if not depth and not in_work):
            add(Style(OPERATION_COLOR, "white", 0.3, 1.2), e, 0.04 - self.top, self.bottom - 0.04, self.seconds / 400)
        for flight in trace.flights[r.rank]:
            edge = 0.3 if len(trace.flights[r.rank]) < 80 else 0.0
            add(Style(self.colors[flight.event.ranks], "white", edge, 1.4), flight, self.bottom + 0.03, self.bottom + 0.13)
        for e in (e for e in r.events if has_name(e)):
            add(Style(WORK_COLORS.get(e.name, SPAN_COLOR), "white", 0.4, 1.4), e, -self.top - 0.07, -self.top - 0.02)

    def _texts(self, trace: Trace, r: RankTrace, row: int) -> list[tuple[float, float, str, dict]]:
        """Return the texts of a row, with their places: whom it waits for, numbers of micro-batches or blocks, names of spans."""
        found = []
        for s in _merged(trace.segments[r.rank], self.seconds):
            said = f"for rank {s.culprit}"
            if s.state == WAITING and s.culprit is not None and (s.end - s.begin) / self.seconds > 0.0085 * len(said) * self.type_size / 8:
                ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
                middle = row + (self.bottom - self.top) / 2
                found.append(((s.begin + s.end) / 2, middle, said, {"va": "center", "fontsize": self.type_size, "bbox": ground}))
        computing = [s for s in trace.segments[r.rank] if s.state == COMPUTING]
        begins = [s.begin for s in computing]
        for e in (e for e in r.events if e.kind == "span"):
            number, begin, end = e.label if is_work(e) else "", e.begin, e.end
            if number:  # where no call is drawn over the work
                first, last = max(bisect.bisect_right(begins, begin) - 1, 0), bisect.bisect_left(begins, end)
                pieces = [(max(s.begin, begin), min(s.end, end)) for s in computing[first:last]]
                begin, end = max(pieces, key=lambda piece: piece[1] - piece[0], default=(begin, begin))
            middle, share = (begin + end) / 2, (end - begin) / self.seconds
            if number and share > (0.011 * len(number) + 0.004) * self.type_size / 8:
                style = {"va": "center", "fontsize": self.type_size, "color": ink_on(WORK_COLORS[e.name])}
                found.append((middle, row + (self.bottom - self.top) / 2, number, style))
            elif has_name(e) and share > 0.009 * len(span_text(e)) * self.type_size / 8:
                found.append((middle, row - self.top - 0.09, plain(span_text(e)), {"va": "bottom", "fontsize": self.type_size - 1}))
        return found


def is_work(event: Event) -> bool:
    """Return whether an event is a span whose name has a colour of its own."""
    return event.kind == "span" and event.name in WORK_COLORS


def has_name(event: Event) -> bool:
    """Return whether an event is a span whose name stands above the row: work without labels is known by its colour."""
    return event.kind == "span" and not (is_work(event) and (event.label or not event.of))


def group_colors(traces: Sequence[Trace]) -> dict[tuple[int, ...], str]:
    """Colour of each group of some traces: one for the groups along an axis of a grid, and none that also stands for work."""
    used = {WORK_COLORS[e.name] for trace in traces for r in trace.ranks for e in r.events if is_work(e)}
    left = [color for color in COLORS if color not in used]
    groups = list(dict.fromkeys(ranks for trace in traces for ranks in trace.groups))
    axes = list(dict.fromkeys(_steps(ranks) for ranks in groups))
    return {ranks: left[axes.index(_steps(ranks)) % len(left)] for ranks in groups}


def _steps(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distances of a group's ranks from its first one: equal for the groups along an axis."""
    return tuple(r - ranks[0] for r in ranks)


def time_scale(seconds: float) -> tuple[float, str]:
    """Factor and unit in which times up to this one are easy to read."""
    return next((s, unit) for s, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")) if seconds * s >= 1 or unit == "µs")


def plain(text: str) -> str:
    """Have matplotlib show dollar signs as they are, instead of a formula."""
    return text.replace("$", r"\$")


def operations(rank: RankTrace) -> list[tuple[Event, int, bool]]:
    """Return a rank's operations in the order of their begin: each with the number of those that it is inside of, and whether of work."""
    work, found, ends = sorted((e.begin, e.end) for e in rank.events if is_work(e)), [], []
    for event in sorted((e for e in rank.events if e.kind == "operation"), key=lambda e: (e.begin, -e.end)):
        ends = [end for end in ends if end > event.begin]
        i = bisect.bisect_right(work, (event.begin, float("inf"))) - 1
        found.append((event, len(ends), i >= 0 and event.end <= work[i][1]))
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


def group_name(ranks: tuple[int, ...], n: int) -> str:
    """Name a group of n ranks or fewer in a legend."""
    return "all ranks" if len(ranks) == n > 2 else wording.ranks(ranks)


def _style(segment: Segment, colors: dict, line: float) -> Style:
    """Return a segment's style: calls are drawn over computing, also over work that they are inside of."""
    if segment.state == COMPUTING:
        return Style(COMPUTING_COLOR, "none", 0.0, 1.0)
    color = colors[segment.event.ranks] if segment.event.ranks else SPAN_COLOR
    return Style("white", color, line, 1.3, MISSING) if segment.state == WAITING else Style(color, color, min(line, 0.3), 1.3)


def _merged(segments: Sequence[Segment], seconds: float) -> list[Segment]:
    """Merge neighbours that are too short to be seen into one, as the longest of them; a picture has some 2,000 columns."""
    found, short = [], []
    for segment in segments:
        short.append(segment)
        if segment.end - short[0].begin >= seconds / 4000:
            found.append(max(short, key=lambda s: s.end - s.begin)._replace(begin=short[0].begin, end=segment.end))
            short = []
    return found
