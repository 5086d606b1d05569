"""Arrays whose mean over the ranks can be taken: in memory that all ranks see, where they are on one machine; by messages elsewhere.

In shared memory nothing is sent: each rank sums its own part of all ranks' arrays, and writes the mean into all of
them. It is the reduce-scatter and the all-gather of an all-reduce in one pass.
"""

from __future__ import annotations

import mmap

import numpy as np
from mpi4py import MPI

from course_lib import memory
from course_lib.autograd.tensor import array_namespace
from course_lib.collectives import shared_memory
from course_lib.collectives.calls import BARRIER, IALLREDUCE, SUM, Call
from course_lib.collectives.progress.operations import deferred_interrupts, progress_state
from course_lib.collectives.transport import isolated
from course_lib.collectives.transport.mpi import POST_FUNCTIONS
from course_lib.traffic import counters

CHUNK_ELEMENTS = 1 << 15  # elements at a time, which stay in the core's own cache
SHARED_ALLREDUCE = "Allreduce in shared memory"  # as `traffic` has it: nothing is sent
MEAN_DETAIL = 1 << 30  # in a call's detail: not an all-reduce of MPI


class AveragedBuffer:
    """An array, and the exchange that makes it the mean of the ranks' arrays.

    Parameters
    ----------
    comm : Communicator
    array : numpy.ndarray or cupy.ndarray
        This rank's, one-dimensional. May be written to until `start`, and again after `wait`.
    """

    def __init__(self, comm, array):
        self.comm, self.array = comm, array

    def start(self) -> None:
        """Begin; all ranks of the group must come."""
        self._request = self.comm.Iallreduce(MPI.IN_PLACE, self.array)

    def wait(self) -> None:
        """End: the array holds the mean."""
        self._request.Wait()
        self.array *= self.array.dtype.type(1 / self.comm.Get_size())

    def after_interruption(self) -> AveragedBuffer:
        """One to go on with when an exchange was broken off: MPI may still write into the old array."""
        return AveragedBuffer(self.comm, self.array.copy())


class SharedAveragedBuffer(AveragedBuffer):
    """The same in shared memory.

    Parameters
    ----------
    arrays : list of numpy.ndarray
        All ranks'.
    """

    def __init__(self, comm, arrays: list[np.ndarray]):
        super().__init__(comm, arrays[comm.Get_rank()])
        self.arrays = arrays

    def start(self) -> None:
        self.comm.check_usable()
        transport, traffic = self.comm.transport, counters(self.comm.ranks)[SHARED_ALLREDUCE]
        call = Call(IALLREDUCE, self.array.dtype.num, self.array.size, MEAN_DETAIL + SUM)
        with deferred_interrupts:
            self._arrived = transport.start(call, POST_FUNCTIONS[BARRIER])  # once it ends, all see what the others have written
            progress_state.in_flight[self._arrived] = None
        traffic[0] += 1
        traffic[1] += self.array.nbytes
        if memory.active_account is not None:
            memory.active_account.exchanged(self.array)

    def wait(self) -> None:
        transport, n, rank = self.comm.transport, len(self.arrays), self.comm.Get_rank()
        transport.wait(self._arrived)
        part, size = self.array.dtype.type(1 / n), self.array.size
        total = np.empty(min(CHUNK_ELEMENTS, size), self.array.dtype)
        for begin in range(rank * size // n, (rank + 1) * size // n, CHUNK_ELEMENTS):
            chunk = slice(begin, min(begin + CHUNK_ELEMENTS, (rank + 1) * size // n))
            mean = total[: chunk.stop - begin]
            np.multiply(self.arrays[0][chunk], part, out=mean)
            for other in self.arrays[1:]:
                mean += other[chunk] * part
            for array in self.arrays:
                array[chunk] = mean
        self.comm.run_collective(transport, Call(BARRIER), "the mean in shared memory")

    def after_interruption(self) -> AveragedBuffer:
        return self


def averaged_buffer(comm, like, count: int, shared: bool = True) -> AveragedBuffer:
    """An array of `count` zeros whose mean can be taken; all ranks of `comm` make this call.

    Parameters
    ----------
    comm : Communicator
    like : numpy.ndarray or cupy.ndarray
        Its dtype and kind are taken.
    count : int
    shared : bool
        Whether it may lie in shared memory.
    """
    if shared and type(like) is np.ndarray and comm.Get_size() > 1 and isolated.connection is None:
        arrays = _shared(comm, count, like.dtype)
        if arrays:
            return SharedAveragedBuffer(comm, arrays)
    return AveragedBuffer(comm, array_namespace(like).zeros(count, like.dtype))


def _shared(comm, count: int, dtype: np.dtype) -> list[np.ndarray] | None:
    """An array of each rank, in memory that all see; None where there is no room for it."""
    n, nbytes = comm.Get_size(), -(-count * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
    mapped = shared_memory.allocate(comm, n * nbytes)
    return mapped and [np.frombuffer(mapped, dtype, count, r * nbytes) for r in range(n)]
