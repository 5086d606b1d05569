"""Checks of the pipeline schedules (part 25)."""

from course_lib.check.pipeline.check import PipelineCheck

__all__ = ["PipelineCheck"]
