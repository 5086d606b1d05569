"""Messages and starts where ranks share no board: MPI's own, with a plain time limit; the dtype travels in the tag."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from course_lib.collectives import explain
from course_lib.collectives.calls import DTYPES
from course_lib.collectives.errors import MismatchError
from course_lib.collectives.mailbox import ANY, Message

KINDS = 64  # more than there are dtypes


class Direct:
    """A request of MPI: the part of a `pending.Step` that a wait without a board calls."""

    def __init__(self, members: tuple[int, ...], request: MPI.Request, what: str):
        self.members, self.request, self.what, self.error = members, request, what, None
        self.status = MPI.Status()
        self.message: Message | None = None

    def step(self) -> bool:
        return self.error is not None or self.request.Test(self.status)

    def say(self) -> str:
        return self.what


class Received(Direct):
    """A receive, which says what does not fit."""

    def __init__(self, group, source: int, tag: int, array: np.ndarray, what: str):
        wanted = MPI.ANY_TAG if tag == ANY else tag * KINDS + array.dtype.num
        self.array, self._place = array, explain.where()
        super().__init__(group.members, group.mpi.Irecv(array, source, wanted), what)
        self._ranks = group.members

    def step(self) -> bool:
        try:
            if not super().step():
                return False
        except MPI.Exception as error:  # more came than there is room for
            self.error = MismatchError(f"{self.what} ({self._place}): the message does not fit, {error}")
            return True
        tag, dtype = divmod(self.status.tag, KINDS)
        count = self.status.Get_count(MPI.BYTE) // np.dtype(DTYPES[dtype]).itemsize
        self.message = Message(self._ranks[self.status.source], 0, 0, 0, tag, dtype, count)
        if (dtype, count) != (self.array.dtype.num, self.array.size):
            self.error = MismatchError(explain.unfit(self.array, self.message, self._place))
        return True
