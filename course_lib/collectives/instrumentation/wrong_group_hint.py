"""Detect calls on a communicator other than the one passed to a student's function, as a hint for when a check fails."""

from __future__ import annotations

import contextlib
import itertools
import sys
import traceback
from collections.abc import Iterator
from types import FrameType

from mpi4py import MPI

from course_lib import traffic
from course_lib.collectives import diagnostics
from course_lib.collectives.calls import OPERATIONS
from course_lib.collectives.communicator import Communicator

COMMUNICATION_METHODS = {*OPERATIONS[1:], "Reduce"} - {"Split"}


class _World(MPI.Intracomm):
    """The world communicator, instrumented: it reports the calls made on it."""


def _noted(name: str):
    def method(self, *args, **kwargs):
        _look(tuple(range(self.Get_size())), f"MPI.COMM_WORLD.{name}")
        return getattr(MPI.Intracomm, name)(self, *args, **kwargs)

    return method


for _name in (*COMMUNICATION_METHODS, *map(str.lower, COMMUNICATION_METHODS)):
    if hasattr(MPI.Intracomm, _name):
        setattr(_World, _name, _noted(_name))

_found: list[str] = []


@contextlib.contextmanager
def record_wrong_groups() -> Iterator[list[str]]:
    """Record calls on the wrong communicator within the ``with`` block.

    Only the first call of each operation on each group is looked at.

    Yields
    ------
    list of str
        One sentence for each call on another group than the function was given.
    """
    world, found = MPI.COMM_WORLD, _found
    found.clear()
    traffic.on_first_call, traffic.on_proc_null_message, MPI.COMM_WORLD = _look, _nobody, _World(world)
    try:
        yield found
    finally:
        traffic.on_first_call, traffic.on_proc_null_message, MPI.COMM_WORLD = None, None, world


def hints_for_error(error: BaseException) -> list[str]:
    """Return the hint about the call that raised `error`: `record_wrong_groups` has not seen it, as only completed calls are counted."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame, called in itertools.pairwise(frames):
        comm = diagnostics.frame_locals(called).get("self")
        if frame.f_code.co_filename.startswith(diagnostics.CELL_FILE_PREFIXES) and isinstance(comm, Communicator):
            return _sentence(frame, comm.ranks, called.f_code.co_name)
    return []


def _look(ranks: tuple[int, ...], operation: str) -> None:
    """Record a call if the student's function that makes it was given another group; the callback of `traffic.on_first_call`."""
    if frame := _students():
        _found.extend(_sentence(frame, ranks, operation))


def _nobody(what: str) -> None:
    """Record a message of a student's function to or from MPI.PROC_NULL, which is -1."""
    if not _found and (frame := _students()):
        place = f"{frame.f_code.co_filename}, line {frame.f_lineno}"
        _found.append(f"{what} was -1 ({place}), which is MPI.PROC_NULL: no message is sent or received")


def _students() -> FrameType | None:
    """Return the innermost frame of a notebook cell, if there is one."""
    frame = sys._getframe(2)
    while frame and not frame.f_code.co_filename.startswith(diagnostics.CELL_FILE_PREFIXES):
        frame = frame.f_back
    return frame


def _sentence(frame: FrameType, ranks: tuple[int, ...], operation: str) -> list[str]:
    """Return one sentence if the function was given a communicator of another group, else an empty list."""
    code, size = frame.f_code, MPI.COMM_WORLD.Get_size()
    names = diagnostics.frame_locals(frame)
    given = {name: names.get(name) for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
    if hasattr(given.get("self"), "__dict__"):
        given |= {f"self.{name}": value for name, value in vars(given["self"]).items()}
    groups = {name: value.ranks for name, value in given.items() if isinstance(value, Communicator)}
    if not groups or ranks in groups.values():
        return []
    name, meant = next(iter(groups.items()))
    what = "attribute" if "." in name else "argument"
    place, called = f"{code.co_filename}, line {frame.f_lineno}", diagnostics.group_name(ranks, size)
    return [f"{operation} was called on {called} ({place}); the {what} {name} is {diagnostics.group_name(meant, size)}"]
