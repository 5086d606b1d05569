"""Checks of ring attention (part 23)."""

from course_lib.check.attention.kernels import MergeAndZigzagCheck, peak_memory_by_length
from course_lib.check.attention.ring_attention import RingAttentionCheck

__all__ = ["MergeAndZigzagCheck", "RingAttentionCheck", "peak_memory_by_length"]
