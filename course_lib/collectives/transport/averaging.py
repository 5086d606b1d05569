"""Arrays whose mean over the ranks can be computed: in shared memory if all ranks are on one machine, else by an all-reduce.

In shared memory, nothing is sent: each rank averages its own part of all ranks' arrays, and writes the mean into all of
them. This is the reduce-scatter and the all-gather of an all-reduce in one pass.
"""

from __future__ import annotations

import mmap

import numpy as np
from mpi4py import MPI

from course_lib.autograd.tensor import array_namespace
from course_lib.collectives import shared_memory
from course_lib.collectives.calls import BARRIER, IALLREDUCE, SUM, Call
from course_lib.collectives.transport import isolated
from course_lib.collectives.transport.mpi import POST_FUNCTIONS

CHUNK_ELEMENTS = 1 << 15  # elements per step, which fit the core's private cache
SHARED_ALLREDUCE = "Allreduce in shared memory"  # the operation's name in `traffic`: nothing is sent
MEAN_DETAIL = 1 << 30  # added to a call's detail, so that it does not agree with an ordinary Iallreduce


class AveragedBuffer:
    """An array, and the all-reduce that replaces it by its mean over the ranks.

    Parameters
    ----------
    comm : Communicator
    array : numpy.ndarray or cupy.ndarray
        This rank's array, shape ``(count,)``. May be written to until `start`, and again after `wait`.
    """

    def __init__(self, comm, array):
        self.comm, self.array = comm, array

    def start(self) -> None:
        """Start the all-reduce; collective."""
        self._request = self.comm.Iallreduce(MPI.IN_PLACE, self.array)

    def wait(self) -> None:
        """Block until the array holds the mean."""
        self._request.Wait()
        self.array *= self.array.dtype.type(1 / self.comm.Get_size())

    def after_interruption(self) -> AveragedBuffer:
        """Return a buffer with the same values for use after an interrupted all-reduce: MPI may still write to the old array."""
        return AveragedBuffer(self.comm, self.array.copy())


class SharedAveragedBuffer(AveragedBuffer):
    """An averaged array in shared memory.

    Parameters
    ----------
    comm : Communicator
    arrays : list of numpy.ndarray
        The array of each rank, in the group's order.
    """

    def __init__(self, comm, arrays: list[np.ndarray]):
        super().__init__(comm, arrays[comm.Get_rank()])
        self.arrays = arrays

    def start(self) -> None:
        call = Call(IALLREDUCE, self.array.dtype.num, self.array.size, MEAN_DETAIL + SUM, recv=self.array)
        # A barrier: afterwards, every rank sees what the others have written.
        self._request = self.comm.begin(call, SHARED_ALLREDUCE, self.array.nbytes, POST_FUNCTIONS[BARRIER])

    def wait(self) -> None:
        n, rank = len(self.arrays), self.comm.Get_rank()
        self._request.Wait()
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
        self.comm.run_collective(self.comm.transport, Call(BARRIER), "the mean in shared memory")

    def after_interruption(self) -> AveragedBuffer:
        return self


def averaged_buffer(comm, like, count: int, shared: bool = True) -> AveragedBuffer:
    """Allocate an array of `count` zeros whose mean over the ranks can be computed; collective.

    Parameters
    ----------
    comm : Communicator
    like : numpy.ndarray or cupy.ndarray
        Gives the dtype, and whether the array is NumPy's or CuPy's.
    count : int
        Elements.
    shared : bool
        Whether the array may be in shared memory.

    Returns
    -------
    AveragedBuffer
    """
    if shared and type(like) is np.ndarray and comm.Get_size() > 1 and isolated.connection is None:
        arrays = _shared(comm, count, like.dtype)
        if arrays:
            return SharedAveragedBuffer(comm, arrays)
    return AveragedBuffer(comm, array_namespace(like).zeros(count, like.dtype))


def _shared(comm, count: int, dtype: np.dtype) -> list[np.ndarray] | None:
    """Map an array per rank in shared memory; None if there is no room, or the ranks are on several machines."""
    n, nbytes = comm.Get_size(), -(-count * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
    mapped = shared_memory.allocate(comm, n * nbytes)
    return mapped and [np.frombuffer(mapped, dtype, count, r * nbytes) for r in range(n)]
