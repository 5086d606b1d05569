"""Have this rank fall silent: it stands still at a call that would send something. See `cluster.ranks.Ranks.silence`.

For the time of a cell that has silences, the methods of `Communicator` and `Messenger` that send are replaced, so that calls cost nothing
more without any.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mpi4py import MPI

from course_lib.collectives.communicator import Communicator
from course_lib.collectives.deadlock.board import open_board
from course_lib.collectives.progress.operations import progress
from course_lib.collectives.transport import isolated
from course_lib.collectives.transport.messenger import Messenger
from course_lib.trace.recorder import span

PAUSE_SECONDS = 5e-3  # between two polls, by which what has been sent arrives
PROBES = 50  # in each of them: a probe takes in a message
_SENDING = {Communicator: ("run_collective", "begin", "Split", "_outgoing"), Messenger: ("send",)}


@contextmanager
def silences(plan: list[tuple[int, float]]) -> Iterator[dict]:
    """Have this rank fall silent inside a ``with`` block.

    Parameters
    ----------
    plan : list of (int, float)
        For each silence, in order: how many sends come before it, and its seconds.

    Yields
    ------
    dict
        "sends": how many there have been; "left": the silences that have not begun.
    """
    if isolated.connection:  # there, the broker does it
        yield {}
        return
    state = {"sends": 0, "left": list(plan)}
    before = {(kind, name): getattr(kind, name) for kind, names in _SENDING.items() for name in names}
    try:
        for (kind, name), original in before.items():
            setattr(kind, name, _silent_before(original, state))
        yield state
    finally:
        for (kind, name), original in before.items():
            setattr(kind, name, original)


def _silent_before(original: Callable, state: dict) -> Callable:
    @functools.wraps(original)
    def call(*args: object, **kwargs: object) -> object:
        while state["left"] and state["sends"] >= state["left"][0][0]:
            _stand_still(state["left"].pop(0)[1])
        state["sends"] += 1
        return original(*args, **kwargs)

    return call


def _stand_still(seconds: float) -> None:
    """Do nothing for a while, except let what has been sent arrive; an interrupt ends it.

    The probes let MPI take in messages that nobody receives yet. Without them, some hundred messages would use up the buffers that the
    other ranks also need for messages to each other.
    """
    board, end = open_board(), time.monotonic() + seconds
    board.fall_silent(True)
    try:
        with span("silent"):
            while time.monotonic() < end:
                progress()
                for _ in range(PROBES):
                    MPI.COMM_WORLD.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
                time.sleep(PAUSE_SECONDS)
    finally:
        board.fall_silent(False)
