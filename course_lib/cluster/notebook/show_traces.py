"""Show traces under a cell: the picture, and the table below it."""

from __future__ import annotations

from collections.abc import Sequence

from IPython.display import display

from course_lib.trace.timeline import Trace


def show_traces(traces: Sequence[Trace]) -> None:
    """Show each trace, as a picture and a table."""
    from course_lib.plots.trace import Table, Timeline

    for trace in traces:
        display(Timeline(trace), Table(trace))
