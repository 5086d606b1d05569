"""Figures of traces: rows of ranks (`lanes`), still pictures and the table (`still`), and the timeline to zoom and point at (`widget`)."""

from collections.abc import Iterable

from course_lib.plots.trace.still import Table, draw, timeline
from course_lib.plots.trace.widget import Timeline
from course_lib.trace.timeline import Trace

__all__ = ["Table", "Timeline", "draw", "show", "timeline"]


def show(traces: Iterable[Trace]) -> None:
    """Show traces below a cell, each as a timeline and a table."""
    from IPython.display import display

    for trace in traces:
        display(Timeline(trace), Table(trace))
