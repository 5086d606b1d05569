"""Checks of tensor and sequence parallelism (parts 21 and 22)."""

from course_lib.check.tensor.sequence_parallel import SequenceParallelCheck
from course_lib.check.tensor.tensor_parallel import TensorParallelCheck

__all__ = ["SequenceParallelCheck", "TensorParallelCheck"]
