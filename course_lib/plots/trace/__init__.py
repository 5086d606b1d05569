"""Figures of a trace: the still picture and the table (`still`), and the timeline to zoom and point at (`widget`)."""

from course_lib.plots.trace.still import Table, draw
from course_lib.plots.trace.widget import Timeline

__all__ = ["Table", "Timeline", "draw"]
