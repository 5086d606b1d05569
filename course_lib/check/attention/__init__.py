"""Checks of ring attention (part 23)."""

from course_lib.former_names import load_on_use

__getattr__ = load_on_use(__name__, MergeAndZigzagCheck="kernels", peak_memory_by_length="kernels", RingAttentionCheck="ring_attention")
