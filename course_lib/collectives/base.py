"""The world that collectives stand on, and how MPI makes a communicator of some of its ranks.

MPI makes one in a call that nothing can end. So interrupts wait meanwhile.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from functools import cache

from mpi4py import MPI

from course_lib.collectives import apart
from course_lib.collectives.shm import forget_files


def world() -> tuple[int, int]:
    """This process's rank, and how many there are; the first call is collective."""
    return (apart.rank, apart.size) if apart.line else (base().Get_rank(), base().Get_size())


@cache
def base() -> MPI.Comm:
    """A duplicate of the world that nobody else uses; the first call is collective."""
    forget_files()
    return MPI.COMM_WORLD.Dup()


def of_ranks(members: tuple[int, ...]) -> MPI.Comm:
    """A communicator of these world ranks, in this order; all of them make this call."""
    return base().Create_group(base().Get_group().Incl(members))


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """An interrupt that comes meanwhile is handled at the end."""
    if threading.current_thread() is not threading.main_thread():  # it gets none
        yield
        return
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(1))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
        if came:
            signal.raise_signal(signal.SIGINT)
