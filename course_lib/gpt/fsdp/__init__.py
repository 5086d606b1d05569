"""Support for fully sharded data parallel: flat buffers, units, and the profile of a step."""

from course_lib.gpt.fsdp.flat_buffer import FlatBuffer
from course_lib.gpt.fsdp.flat_model import FlatModel
from course_lib.gpt.fsdp.slow_link import SlowLink
from course_lib.gpt.fsdp.wrapping import Hooked, PrintHooks, hook, units

__all__ = ["FlatBuffer", "FlatModel", "Hooked", "PrintHooks", "SlowLink", "hook", "units"]
