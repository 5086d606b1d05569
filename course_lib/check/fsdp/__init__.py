"""Checks of fully sharded data parallel (part 26)."""

from course_lib.check.fsdp.check import FsdpCheck
from course_lib.check.fsdp.flat_shard import FlatShardCheck

__all__ = ["FlatShardCheck", "FsdpCheck"]
