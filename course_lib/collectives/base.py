"""The world that collectives stand on, and how MPI makes a communicator of some of its ranks.

MPI makes one in a call that nothing can end. So interrupts wait meanwhile, see `interrupts`.
"""

from __future__ import annotations

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
