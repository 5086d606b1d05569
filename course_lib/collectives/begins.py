"""What a group begins without waiting for its end: messages, and collectives that do not block."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from course_lib.collectives import calls as known
from course_lib.collectives import direct, lanes, mailbox, pending, starts


class Begins:
    """The part of `meeting.Group` that begins steps."""

    def sending(self, dest: int, tag: int, array: np.ndarray, what: str) -> pending.Step:
        """A message to a world rank."""
        if self.board:
            return mailbox.Sending(mailbox.open_box(self.board), dest, self._hash, tag, array, what)
        request = self.mpi.Isend(array, self.members.index(dest), tag * direct.KINDS + array.dtype.num)
        return direct.Direct(self.members, request, f"{what} to rank {dest}")

    def lane(self, dest: int, source: int, tag: int) -> lanes.Exchange:
        """The fast way to send to a world rank and receive from one at once."""
        return lanes.lane(mailbox.open_box(self.board), dest, source, self._hash, tag, self._eager_tests)

    def receiving(self, sources: tuple[int, ...], tag: int, array: np.ndarray, what: str) -> pending.Step:
        """A message from one of these world ranks."""
        if self.board:
            return mailbox.Receiving(mailbox.open_box(self.board), sources, self._hash, tag, array, what)
        source = self.members.index(sources[0]) if len(sources) == 1 else MPI.ANY_SOURCE
        return direct.Received(self, source, tag, array, what)

    def starting(self, call: tuple[int, int, int, int], begin: Callable, empty: bool = False) -> pending.Step:
        """A collective that does not block."""
        if self.board:
            return starts.Starting(self, call, begin, empty)
        self.fresh()
        return direct.Direct(self.members, begin(self.mpi), f"{known.OPERATIONS[call[0]]} on {self}")

    def test(self, step: pending.Step) -> bool:
        """Whether a step has ended."""
        return step.step()

    def wait(self, step: pending.Step) -> None:
        """Wait until a step has ended."""
        pending.wait(step, self.board, self._eager_tests, self.limit)
