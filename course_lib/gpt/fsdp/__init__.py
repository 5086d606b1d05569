"""Support for fully sharded data parallel: flat buffers, units, and the profile of a step."""

from course_lib.gpt.fsdp.flat_buffer import Flat
from course_lib.gpt.fsdp.wrapping import Hooked, Tell, hook, units

__all__ = ["Flat", "Hooked", "Tell", "hook", "units"]
