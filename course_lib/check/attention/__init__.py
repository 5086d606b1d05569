"""Checks of ring attention (part 23)."""

from course_lib.check.attention.kernels import PiecesCheck, most_held
from course_lib.check.attention.ring_attention import RingCheck

__all__ = ["PiecesCheck", "RingCheck", "most_held"]
