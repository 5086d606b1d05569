"""Checks of the pipeline schedules (part 25)."""

from course_lib.former_names import load_on_use

__getattr__ = load_on_use(__name__, PipelineCheck="check")
