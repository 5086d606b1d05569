"""Checks of fully sharded data parallel (part 26)."""

from course_lib.former_names import load_on_use

__getattr__ = load_on_use(__name__, FsdpCheck="check", FlatShardCheck="flat_shard")
