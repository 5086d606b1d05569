"""Errors of a training loop, with rank, layer and virtual time."""

from __future__ import annotations

from course_lib.utils import wording


class SimulationError(Exception):
    """The loop did something impossible on a device or invalid in a training step; the message says where and why.

    Attributes
    ----------
    rank : int or None
        None if it concerns several ranks.
    layer : int or None
    time : float
        Virtual seconds.
    """

    def __init__(self, text: str, *, rank: int | None = None, layer: int | None = None, time: float | None = None):
        place = [] if rank is None else [f"rank {rank}"]
        place += [] if layer is None else [f"layer {layer}"]
        place += [] if time is None else [f"at {wording.seconds(time)}"]
        self.rank, self.layer, self.time = rank, layer, time
        self.text = f"{', '.join(place)}: {text}" if place else text
        super().__init__(self.text)

    def __str__(self) -> str:
        return self.text

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"]


class MissingValue(SimulationError, KeyError):
    """The storage has no value under this key."""


class OutOfMemory(SimulationError):
    """A rank holds more than its device's memory."""


class Deadlock(SimulationError):
    """No rank can continue."""


class Mismatch(SimulationError):
    """The ranks of a group did not make the same call."""
