"""What this rank has begun and not ended: messages, and collectives that do not block. All waits drive them on, and end with a sentence.

A step is tried again and again until it says that it has ended. While it cannot go on without other ranks, it says which ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from course_lib.collectives import base, explain
from course_lib.collectives import board as status
from course_lib.collectives.board import COMPUTING, WAITING, Board
from course_lib.collectives.errors import DeadlockError
from course_lib.collectives.slots import sched_yield
from course_lib.collectives.watch import Watch

SPINS = 2000  # turns without a pause; a long wait then leaves the core to ranks that compute
BREATH = 5e-5  # seconds between looks at many steps, in a long wait: ranks that only yield leave little of a core to those that must work
PATIENCE = 0.02  # seconds until a wait is shown on the board
LEFT = 2.0  # seconds for a transfer to end after one of its ranks has left in the middle
DONE = 30.0  # and after one has done its part, as it is no more in this call: on a busy machine this rank may take its time
LIMIT = 60.0  # seconds of a wait, where ranks do not see each other


@dataclass
class State:
    """Of this process.

    Attributes
    ----------
    epoch : int
        Grows when what was left behind must not meet what comes now.
    open : dict
        The steps that have not ended, as keys, in the order in which they began.
    left_behind : list
        Steps and requests of MPI that nobody waits for any more, and their epoch: MPI may still write to their buffers.
    used : bool
        Whether this rank has sent or received a message in this epoch.
    stale : bool
        Whether there were messages in a cell that failed, or in a call: what is on its way must not meet what comes next.
    requests : int
        How many have been given out and not been waited for.
    serial : int
        Counts the waits.
    attend : callable
        Reads what has been sent to this rank, if anything was: whoever sends much waits for that, whatever this rank waits for.
    """

    epoch: int = 0
    open: dict[Step, None] = field(default_factory=dict)
    left_behind: list = field(default_factory=list)
    used: bool = False
    stale: bool = False
    requests: int = 0
    serial: int = 0
    attend: Callable[[], bool] = lambda: False


now = State()


class Step(Protocol):
    """Something that has begun.

    Attributes
    ----------
    members : tuple of int
        The world ranks that take part.
    request : MPI.Request or None
        Its transfer, once that has begun.
    error : CollectiveError or None
        Why it has ended without success.
    """

    members: tuple[int, ...]
    request: object
    error: Exception | None

    def step(self) -> bool:
        """Go on as far as can be, without waiting; whether it has ended."""

    def begun(self) -> bool:
        """Whether only the transfer is left: nothing that another rank must call first."""

    def needs(self) -> tuple[int, int, int]:
        """What it waits for before its transfer can begin: operation, a bit mask of ranks, and a detail for the board."""

    def say(self) -> str:
        """What more there is to say of it while it waits."""


def renew(epoch: int) -> None:
    """Let go of what was begun, when `epoch` is new; all groups take a fresh MPI communicator at their next call."""
    if epoch != now.epoch:
        now.left_behind += [(now.epoch, step) for step in now.open]
        for _, left in now.left_behind:
            if hasattr(left, "drop"):
                left.drop()
        now.epoch, now.open, now.used, now.stale = epoch, {}, False, False


def ended(stale: bool) -> None:
    """A cell has ended, or a call; `stale`: nothing that is on its way from there may meet what comes."""
    now.stale |= stale and (now.used or bool(now.open))


def abandoned() -> bool:
    """Whether something was left behind since the last `renew`: also a collective that others have not begun when the cell has ended."""
    alone = any(getattr(step, "collective", False) and not step.begun() for step in now.open)
    return now.stale or alone or any(epoch == now.epoch for epoch, _ in now.left_behind)


def go_on() -> bool:
    """Drive on all that is open; whether there is anything."""
    behind = set()  # groups in which a start waits for ranks, and so all later ones do: with hundreds, to look at each takes long
    for step in list(now.open):
        if step not in now.open:  # it ended while one before it waited, and so drove on all
            continue
        unbegun = getattr(step, "collective", False) and not step.begun()
        if unbegun and step.group in behind:
            continue
        if step.step():
            now.open.pop(step, None)
        elif unbegun and not step.begun():
            behind.add(step.group)
    return bool(now.open)


def add(step: Step) -> None:
    """Begin a step; it is driven on from now on."""
    if not step.step():
        now.open[step] = None


def wait(step: Step, board: Board | None, eager: int, limit: float = LIMIT) -> None:
    """Wait until a step has ended.

    Raises
    ------
    DeadlockError
        It cannot end any more.
    """
    trying, left, since = step.step, eager, 0.0
    try:
        while not trying():
            left -= 1
            if left < 0:
                sched_yield()
                if left % 64 == 0:  # turns are long where many ranks share a core
                    since = since or time.monotonic()
                    if left % SPINS == 0 or time.monotonic() - since > PATIENCE:
                        _wait_long(step, board, limit)
                        break
        if step.error is not None:
            raise step.error
    except BaseException:
        now.left_behind.append((now.epoch, step))
        raise
    finally:
        now.open.pop(step, None)


def _wait_long(step: Step, board: Board | None, limit: float) -> None:
    watch, began, pause, leaving = Watch(board) if board else None, time.monotonic(), 5e-5, None
    now.serial += 1
    while True:
        if watch:
            watch.listen()
        if step.step():
            break
        busy = len(now.open) > (step in now.open) and go_on()
        if board is None:
            if time.monotonic() - began > limit:
                raise DeadlockError(explain.too_late(base.world()[0], step.say(), limit))
        elif step.begun():  # only the transfer is left
            board.mine[status.STATE] = COMPUTING
            seconds = someone_left(board, step.members)
            leaving = (leaving or time.monotonic() + seconds) if seconds else None
            if leaving and time.monotonic() > leaving:
                raise DeadlockError(explain.left_alone(board.rank, step.say()))
            time.sleep(BREATH) if busy else sched_yield()
            continue
        else:
            pause = 5e-5 if now.attend() else pause
            _show(step, board)
            if said := watch.nobody_comes():
                raise DeadlockError(said)
        if busy:
            time.sleep(BREATH)
        else:
            time.sleep(pause)
            pause = min(pause * 1.5, 2e-3)
    if board:
        board.mine[status.STATE] = COMPUTING


def _show(step: Step, board: Board) -> None:
    """Put on the board what a step waits for."""
    operation, mask, detail = step.needs()
    mine = board.mine
    board.last = None  # this rank's row shows no group any more
    members = [r for r in range(board.size) if mask >> r & 1 or r == board.rank]
    mine[status.MEMBERS], mine[status.OPERATION], mine[status.DETAIL] = status.mask(members), operation, detail
    mine[status.DTYPE], mine[status.COUNT] = -1, 0
    mine[status.KEY] = -(now.serial * status.MAX_RANKS + board.rank + 1)
    board.say(step.say())
    mine[status.STATE] = WAITING


def someone_left(board: Board, members: tuple[int, ...]) -> float:
    """Seconds that this rank still waits when another one has left a transfer, in the middle or with its part done; 0 if none has."""
    rows, round_ = board.rows, board.mine[status.ROUND]
    states = {board.state(r) for r in members if r != board.rank and rows[r][status.ROUND] >= round_}
    if states & {status.RAISED, status.GONE, status.GIVES_UP, status.GAVE_UP, status.LOST}:
        return LEFT
    return DONE if states & {status.FINISHED, WAITING} else 0.0


def drain(board: Board) -> None:
    """After a cell: drive on what is open while other ranks are still in it, which may wait for that."""
    mine, rows = board.mine, board.rows
    while go_on():
        others = [r for r in range(board.size) if r != board.rank and mine[status.TARGETS] >> r & 1 and board.state(r) != status.LOST]
        on = (COMPUTING, WAITING, status.GIVES_UP)
        if not any(rows[r][status.ROUND] < mine[status.ROUND] or rows[r][status.STATE] in on for r in others):
            return
        time.sleep(1e-4)
