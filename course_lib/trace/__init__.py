"""Traces: what each rank did and when, recorded on the ranks and compared in the notebook.

`recorder` records on a rank, and `collectives.instrumentation` adds the communicator's calls. `timeline` puts the ranks' records on one
clock and finds who waited for whom. `perfetto` exports them, and `plots.trace` draws them.
"""

from course_lib.trace.recorder import Recorder, operation, span

__all__ = ["Recorder", "operation", "span"]
