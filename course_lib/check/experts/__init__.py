"""Checks of a mixture of experts (part 24)."""

from course_lib.check.experts.check import ExpertsCheck
from course_lib.check.experts.reference import softmax

__all__ = ["ExpertsCheck", "softmax"]
