"""Checks of saving and loading checkpoints (part 27)."""

from course_lib.check.checkpoint.check import CheckpointCheck

__all__ = ["CheckpointCheck"]
