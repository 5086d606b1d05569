"""Checks of a mixture of experts (part 24)."""

from course_lib.former_names import load_on_use

__getattr__ = load_on_use(__name__, ExpertsCheck="check", softmax="reference")
