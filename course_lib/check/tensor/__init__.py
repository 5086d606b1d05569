"""Checks of tensor and sequence parallelism (parts 21 and 22)."""

from course_lib.former_names import load_on_use

__getattr__ = load_on_use(__name__, SequenceParallelCheck="sequence_parallel", TensorParallelCheck="tensor_parallel")
