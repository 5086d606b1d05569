"""Checks of saving and loading checkpoints (part 27)."""

from course_lib.former_names import load_on_use

__getattr__ = load_on_use(__name__, CheckpointCheck="check")
