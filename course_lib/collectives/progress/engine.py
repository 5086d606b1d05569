"""Progress engine: every wait advances all of this rank's operations, can be interrupted, and ends in an error rather than hanging.

A wait has two phases. `wait` first spins on its one operation. After `SPIN_SECONDS` a `_LongWait` takes over: it advances all operations in
flight, shows on the status board what this rank waits for, and asks the deadlock detector whether the wait can still end.
"""

from __future__ import annotations

import os
import time

from course_lib.collectives import diagnostics
from course_lib.collectives.deadlock import detector
from course_lib.collectives.deadlock.board import Board, open_board
from course_lib.collectives.deadlock.detector import Detector
from course_lib.collectives.deadlock.layout import ROUND, STATE, TARGETS
from course_lib.collectives.errors import DeadlockError
from course_lib.collectives.progress.operations import Operation, progress, progress_state, raise_interrupt
from course_lib.collectives.snapshot import COMPUTING, DEADLOCK_RAISING, DEADLOCKED, FINISHED, GONE, LOST, RAISED, SILENT, WAITING

SPIN_SECONDS = 0.02  # seconds until a wait is shown on the board and starts to sleep, which leaves the core to ranks that compute
MIN_SLEEP_SECONDS, MAX_SLEEP_SECONDS = 5e-5, 2e-3  # seconds between polls in a long wait
MAX_IDLE_SLEEP_SECONDS, SLEEP_SHARE = 2e-2, 0.01  # in a wait of seconds, as of an idle server: a hundredth of the time so far
ABANDONED_TRANSFER_SECONDS = 2.0  # seconds for a transfer to complete after one of its ranks has failed
FINISHED_PEER_SECONDS = 30.0  # the same after one has left the call, its own part done: on a busy machine, this rank may just be slow
SNAPSHOT_SECONDS = 2e-3  # seconds between snapshots with 8 ranks; n ranks that read n rows of n words cost O(n³)
MAX_SNAPSHOT_SECONDS, MIN_REMOTE_SNAPSHOT_SECONDS = 0.1, 0.02  # upper bound of that; lower bound if other machines are asked
sched_yield = getattr(os, "sched_yield", lambda: time.sleep(0))


def poll_messages() -> bool:
    """Receive the envelopes of all messages that have arrived, in all groups; return whether there were any.

    A rank that sends many messages here depends on it, whatever this rank waits for.
    """
    found = False
    for poll in progress_state.poll_hooks:
        while poll():
            found = True
    return found


def wait(operation: Operation, spins: int) -> None:
    """Block until an operation is complete; interrupts are raised between two polls, never within one.

    Parameters
    ----------
    operation : Operation
    spins : int
        Number of polls before the first `sched_yield`.

    Raises
    ------
    DeadlockError
        The operation can no longer complete.
    Exception
        The operation's own error.
    """
    advance, left, since = operation.advance, spins, 0.0
    progress_state.deferrals += 1
    try:
        while not advance():
            left -= 1
            if progress_state.interrupt_pending:
                raise_interrupt()
            if left < 0:
                sched_yield()
                if left % 64 == 0:  # a poll takes long if many ranks share a core, so look at the clock as well
                    since = since or time.monotonic()
                    if time.monotonic() - since > SPIN_SECONDS:
                        _LongWait(operation).run()
                        break
                    if progress_state.in_flight:
                        progress()
        if operation.error is not None:
            raise operation.error
    except BaseException:
        progress_state.abandoned.append((progress_state.epoch, operation))
        operation.cancel()
        raise
    finally:
        progress_state.in_flight.pop(operation, None)
        progress_state.deferrals -= 1


class _LongWait:
    """The long phase of a wait: sleep between polls, advance all operations in flight, and check for a deadlock."""

    def __init__(self, operation: Operation):
        self._operation, self._board = operation, open_board()
        self._detector, self._next_snapshot, self._grace_deadline = Detector(), 0.0, None
        self._snapshot_interval = min(SNAPSHOT_SECONDS * (self._board.size / 8) ** 2, MAX_SNAPSHOT_SECONDS)
        if self._board.machines:
            self._snapshot_interval = max(self._snapshot_interval, MIN_REMOTE_SNAPSHOT_SECONDS)
        progress_state.wait_count += 1

    def run(self) -> None:
        operation, board, pause, began = self._operation, self._board, MIN_SLEEP_SECONDS, time.monotonic()
        while not operation.advance():
            if progress_state.interrupt_pending:
                board.compute()
                raise_interrupt()
            busy = len(progress_state.in_flight) > (operation in progress_state.in_flight) and progress()
            if operation.is_matched():
                board.compute()
                self._check_peers()
                poll_messages()  # a leader can send nothing to other machines while all its buffers hold messages for this rank
                time.sleep(MIN_SLEEP_SECONDS) if busy else sched_yield()
                continue
            pause = MIN_SLEEP_SECONDS if poll_messages() else pause
            self._publish()
            if self._is_deadlocked():
                said = diagnostics.deadlock(board.snapshot())  # before the other deadlocked ranks raise and change their state
                board.give_up()
                raise DeadlockError(said)
            if busy and any(other.is_matched() for other in progress_state.in_flight):
                sched_yield()  # a transfer is in progress
            elif busy:
                time.sleep(MIN_SLEEP_SECONDS)  # ranks that merely yield leave too little of the core to those that compute
            else:
                time.sleep(pause)
                longest = max(MAX_SLEEP_SECONDS, SLEEP_SHARE * (time.monotonic() - began))
                pause = min(pause * 1.5, longest, MAX_IDLE_SLEEP_SECONDS)
        board.compute()

    def _publish(self) -> None:
        """Show on the board what this rank waits for."""
        need, board = self._operation.wait_condition(), self._board
        key = need.key or -(progress_state.wait_count * board.size + board.rank + 1)
        members = detector.rank_mask({*need.ranks, board.rank})
        board.wait(key, need.operation, members, need.detail, self._operation.describe())

    def _is_deadlocked(self) -> bool:
        """Detect the deadlock of this rank: True once it has been unable to proceed for a while; all deadlocked ranks find the same."""
        if time.monotonic() < self._next_snapshot or not self._board.refresh():
            return False
        self._next_snapshot = time.monotonic() + self._snapshot_interval
        snapshot = self._board.snapshot()
        found = detector.find_deadlocked(snapshot)
        concerned = any(view.rank == self._board.rank for view in found)
        return self._detector.is_confirmed(snapshot, found if concerned else (), time.monotonic())

    def _check_peers(self) -> None:
        """Raise DeadlockError if another rank has left the transfer and the time to complete it is over.

        So may a rank that does not take part: while it takes in none of this rank's messages, their buffers may be all that MPI has.
        """
        moment = time.monotonic()
        if self._board.machines and moment >= self._next_snapshot:
            self._next_snapshot = moment + self._snapshot_interval
            self._board.refresh()
        unread = [rank for other in progress_state.in_flight if not other.collective and not other.is_matched() for rank in other.members]
        seconds = grace_seconds(self._board, (*self._operation.members, *unread))
        self._grace_deadline = (self._grace_deadline or moment + seconds) if seconds else None
        if self._grace_deadline and moment > self._grace_deadline:
            raise DeadlockError(diagnostics.left_alone(self._board.rank, self._operation.describe(), unread))


def grace_seconds(board: Board, members: tuple[int, ...]) -> float:
    """Return the seconds for which to wait on after another rank has left a transfer, failed or with its part done; 0 if none has."""
    round_ = board.mine[ROUND]
    states = {board.state(r) for r in members if r != board.rank and board.parts[r][ROUND] >= round_}
    if states & {RAISED, GONE, DEADLOCK_RAISING, DEADLOCKED, LOST}:
        return ABANDONED_TRANSFER_SECONDS
    return FINISHED_PEER_SECONDS if states & {FINISHED, WAITING} else 0.0


def drain() -> None:
    """Advance this rank's open operations after its cell, and let its messages arrive, while other ranks, which may need them, still run.

    An interrupt ends it, and is no error: the cell of this rank is over.
    """
    board = open_board()
    mine = board.mine
    progress_state.deferrals += 1
    try:
        while (open_operations := progress()) or board.has_unread_messages():
            board.refresh()
            others = [r for r in range(board.size) if r != board.rank and mine[TARGETS] >> r & 1 and board.state(r) != LOST]
            on = (COMPUTING, WAITING, DEADLOCK_RAISING, SILENT)
            if not any(board.parts[r][ROUND] < mine[ROUND] or board.parts[r][STATE] in on for r in others):
                return
            if progress_state.interrupt_pending:
                progress_state.interrupt_pending, progress_state.stale = False, True
                return
            poll_messages()  # MPI sends on what it has had no buffers for
            time.sleep(1e-4 if open_operations and not board.machines else MAX_SLEEP_SECONDS)
    finally:
        progress_state.deferrals -= 1
