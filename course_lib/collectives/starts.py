"""The start of a collective that does not block: its transfer begins once all ranks of the group have left notice of the same call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from course_lib import wording
from course_lib.collectives import board as status
from course_lib.collectives import explain, pending
from course_lib.collectives.calls import OPERATIONS
from course_lib.collectives.errors import DeadlockError, MismatchError
from course_lib.collectives.slots import sched_yield

if TYPE_CHECKING:
    from mpi4py import MPI


def begin_all(group) -> None:
    """Have all begin that was started in a group before a call to which all its ranks have come: MPI wants the same order on all.

    All have started it, then; but where one is on another machine, its notice may come after word of that call.

    Raises
    ------
    DeadlockError
        No notice comes.
    """
    deadline = time.monotonic() + pending.DONE
    while True:
        for started in list(group.unstarted):
            started.step()
        if not group.unstarted:
            return
        pending.go_on()  # what has ended makes room for further notices
        if time.monotonic() > deadline:
            raise DeadlockError(explain.left_alone(group.board.rank, group.unstarted[0].say()))
        sched_yield()


class Starting:
    """A collective that has been started; see `pending.Step`.

    Parameters
    ----------
    group : meeting.Group
        With a board.
    call : tuple of int
        Operation, dtype, count and detail.
    begin : callable
        Given MPI's communicator, begins the transfer and returns its request.
    empty : bool
        Whether a rank gets nothing, and so may have ended before all have begun.
    """

    collective = True

    def __init__(self, group, call: tuple[int, int, int, int], begin: Callable, empty: bool = False):
        self.group, self.call, self._begin, self.members = group, call, begin, group.members
        self.key, self.request, self.error = group.next_key(), None, None
        self._place: int | None = None
        self._all_begun: MPI.Request | None = None
        self._empty = empty
        self._beginning = False
        group.unstarted.append(self)

    def step(self) -> bool:
        if self.request is None and self.error is None and not self._beginning:
            self._beginning = True  # what it waits for drives on all that is open, this included
            try:
                self._try()
            finally:
                self._beginning = False
        if self.error is not None:
            return True
        if self.request is not None and self.request.Test() and (self._all_begun is None or self._all_begun.Test()):
            self.drop()  # all ranks have begun, so all have seen it
            return True
        return False

    def _try(self) -> None:
        """Begin the transfer, if all have come and those before it in this group have begun."""
        group, notices = self.group, self.group.board.notices
        if self._place is None:
            self._place = notices.start(self.key, self.call)
        while group.unstarted and group.unstarted[0] is not self:
            before = group.unstarted[0]
            before.step()
            if group.unstarted and group.unstarted[0] is before:
                return
        if self._place is None or self.missing():
            return
        if any(notices.found(r, self.key) != self.call for r in self.members):
            self.fail()
            return
        group.fresh()
        group.board.goes_on()
        self.request, self._all_begun = self._begin(group.mpi), group.mpi.Ibarrier() if self._empty else None
        group.unstarted.remove(self)

    def missing(self) -> list[int]:
        """The ranks that have not come yet; one that makes another call instead is an error."""
        board, missing = self.group.board, []
        for r in self.members:
            if r != board.rank and board.notices.found(r, self.key) is None:
                if board.rows[r][status.KEY] == self.key:
                    self.fail()
                    return []
                missing.append(r)
        return missing

    def fail(self) -> None:
        """The ranks make different calls."""
        self.error = MismatchError(self.group.different(self.key))
        if self in self.group.unstarted:
            self.group.unstarted.remove(self)

    def begun(self) -> bool:
        return self.request is not None

    def drop(self) -> None:
        """Take its notice away, and its place in the group."""
        if self._place is not None:
            self.group.board.notices.over(self._place)
            self._place = None
        if self in self.group.unstarted:
            self.group.unstarted.remove(self)

    def needs(self) -> tuple[int, int, int]:
        first = self._first()
        return self.call[0], sum(1 << r for r in (first.missing() or self.missing())), self.key

    def _first(self) -> Starting:
        """What must begin before this, or this."""
        return self.group.unstarted[0] if self.group.unstarted else self

    def say(self) -> str:
        number = self.key % (1 << explain.NUMBER_BITS)
        first = self._first()
        behind = ""
        if first is not self and (missing := first.missing()):
            behind = f"; {wording.ranks(missing)} did not begin the {OPERATIONS[first.call[0]]} before it"
        return f"{OPERATIONS[self.call[0]]} #{number} on {self.group} ({explain.where()}{behind})"
