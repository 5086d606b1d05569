"""Timeline of a trace to zoom, move and point at; the still picture where there is no kernel or no anywidget."""

from __future__ import annotations

import heapq
from functools import cache
from pathlib import Path

from course_lib.plots.figures import Picture, on_slides
from course_lib.plots.trace.lanes import (
    COMPUTING_COLOR,
    SPAN_COLOR,
    WORK_COLORS,
    Lanes,
    event_text,
    has_name,
    is_work,
    operations,
    segment_text,
    span_text,
)
from course_lib.plots.trace.still import draw
from course_lib.trace.timeline import Trace

SLIDE_SCALE = 2.2  # size of type and rows on a slide of 1080 lines, which the last row of a room reads
KINDS = "segments", "work", "operations", "flights", "spans"
MAX_PARTS = 40_000  # of all rows together, which keeps a notebook's file below 5 MB; the longest ones are kept


class Timeline:
    """A trace that displays itself.

    Parameters
    ----------
    trace : Trace
    """

    def __init__(self, trace: Trace):
        self.trace, self.still = trace, draw(trace)

    def widget(self):
        """Make the widget."""
        return _widget_class()(data=timeline_data(self.trace, self.still))

    def _repr_mimebundle_(self, **options: object) -> tuple[dict, dict]:
        data, sizes = self.still._repr_mimebundle_(**options)
        try:
            live = self.widget()._repr_mimebundle_()
            live = live[0] if isinstance(live, tuple) else live
        except ImportError:
            live = {}
        return {**(live or {}), **data}, sizes

    def __repr__(self) -> str:
        return self.still.text


@cache
def _widget_class() -> type:
    import anywidget
    import traitlets

    class TimelineWidget(anywidget.AnyWidget):
        _esm = Path(__file__).with_name("timeline.js")
        data = traitlets.Dict().tag(sync=True)

    return TimelineWidget


def timeline_data(trace: Trace, still: Picture) -> dict:
    """Return what `timeline.js` draws, as plain data; times are seconds."""
    look = Lanes([trace])
    colors, lanes, rows = look.colors, [], {r.rank: i for i, r in enumerate(trace.ranks)}
    for r in trace.ranks:
        segments = [
            [s.begin, s.end, s.state, colors[s.event.ranks] if s.event and s.event.ranks else SPAN_COLOR, segment_text(s)]
            for s in trace.segments[r.rank]
        ]
        lanes.append(
            {
                "rank": r.rank,
                "segments": segments,
                "operations": [[e.begin, e.end, e.name, depth, in_work] for e, depth, in_work in operations(r)],
                "flights": [[f.begin, f.end, colors[f.event.ranks], event_text(f.event)] for f in trace.flights[r.rank]],
                "work": [[e.begin, e.end, span_text(e), WORK_COLORS[e.name], e.label] for e in r.events if is_work(e)],
                "spans": [[e.begin, e.end, span_text(e)] for e in r.events if has_name(e)],
            }
        )
    parts = [part for lane in lanes for kind in KINDS for part in lane[kind]]
    if len(parts) > MAX_PARTS:
        shortest = heapq.nlargest(MAX_PARTS, (part[1] - part[0] for part in parts))[-1]
        for lane in lanes:
            for kind in KINDS:
                lane[kind] = [part for part in lane[kind] if part[1] - part[0] >= shortest]
    arrows = [[rows[a.source], a.sent, rows[a.dest], a.received] for a in trace.arrows()]
    return {
        "seconds": trace.seconds or 1e-6,
        "scale": SLIDE_SCALE if on_slides() else 1,
        "lanes": lanes,
        "arrows": arrows[:MAX_PARTS],
        "computing": COMPUTING_COLOR,
        "legend": look.legend(),
        "span": SPAN_COLOR,
        "text": still.text,
    }
