"""Calls on another group than the one that a function was given: worth a word when a check fails."""

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
    """MPI's world, which says what is called on it."""


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
    """Look meanwhile at the first call of each collective on each group; the list has a sentence for each that went astray."""
    world, found = MPI.COMM_WORLD, _found
    found.clear()
    traffic.on_first_call, traffic.on_proc_null_message, MPI.COMM_WORLD = _look, _nobody, _World(world)
    try:
        yield found
    finally:
        traffic.on_first_call, traffic.on_proc_null_message, MPI.COMM_WORLD = None, None, world


def hints_for_error(error: BaseException) -> list[str]:
    """The same about the call that raised an error: it has not been counted."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame, called in itertools.pairwise(frames):
        comm = diagnostics.frame_locals(called).get("self")
        if frame.f_code.co_filename.startswith(diagnostics.CELL_FILE_PREFIXES) and isinstance(comm, Communicator):
            return _sentence(frame, comm.ranks, called.f_code.co_name)
    return []


def _look(ranks: tuple[int, ...], operation: str) -> None:
    """Find the student's function that makes this call."""
    if frame := _students():
        _found.extend(_sentence(frame, ranks, operation))


def _nobody(what: str) -> None:
    """Note a message of a student's function to or from MPI.PROC_NULL, which is -1."""
    if not _found and (frame := _students()):
        place = f"{frame.f_code.co_filename}, line {frame.f_lineno}"
        _found.append(f"{what} was -1 ({place}), which is MPI.PROC_NULL: no message goes or comes there")


def _students() -> FrameType | None:
    """The innermost frame of a cell."""
    frame = sys._getframe(2)
    while frame and not frame.f_code.co_filename.startswith(diagnostics.CELL_FILE_PREFIXES):
        frame = frame.f_back
    return frame


def _sentence(frame: FrameType, ranks: tuple[int, ...], operation: str) -> list[str]:
    """Return a sentence when the function was given another group."""
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
