"""Checks of the sharded layer and its optimizer (parts 08 and 09)."""

from course_lib.check.zero.adam import AdamCheck, train
from course_lib.check.zero.layer import ShardCheck, backward, forward, make, partition

__all__ = ["AdamCheck", "ShardCheck", "backward", "forward", "make", "partition", "train"]
