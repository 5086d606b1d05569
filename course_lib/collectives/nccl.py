"""The second transport: NCCL, for CuPy arrays, one GPU a rank; `collectives.init` with "nccl" brings it up.

Names, checks and traffic counts are those of `Communicator`. The MPI group stays beside it: by MPI the ranks
learn NCCL's unique id, and before each transfer they see that all make the same call, so that none hangs.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from course_lib import host, wording
from course_lib.collectives import pending
from course_lib.collectives.communicator import Communicator

_DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
_OPS = {"SUM": MPI.SUM, "PROD": MPI.PROD, "MAX": MPI.MAX, "MIN": MPI.MIN}
_ID_BYTES = 128
NO_CUPY, NO_NCCL = -1, -2
WAY_OUT = "Without GPUs, init() gives a communicator over MPI."


def start() -> NcclCommunicator:
    """A communicator of all ranks, each with a GPU of its own; see `collectives.init`."""
    comm = Communicator()
    mine = np.array([zlib.crc32(host.name().encode()), _gpus()], np.int64)
    everyone = np.empty((comm.Get_size(), 2), np.int64)
    comm.Allgather(mine, everyone)  # so that all ranks raise the same sentence, or none does
    for missing, what in (
        (NO_CUPY, "CuPy is not installed"),
        (NO_NCCL, "CuPy finds no NCCL"),
    ):
        lacking = np.flatnonzero(everyone[:, 1] == missing).tolist()
        if lacking:
            raise RuntimeError(f"init(backend='nccl'): {what} on {wording.ranks(lacking)}. Try: pip install -e '.[gpu]'. {WAY_OUT}")
    for machine in np.unique(everyone[:, 0]):
        here = np.flatnonzero(everyone[:, 0] == machine).tolist()
        gpus = int(everyone[here[0], 1])
        if gpus < len(here):
            raise RuntimeError(
                f"init(backend='nccl') needs one GPU a rank: {wording.ranks(here)} run on a machine where CuPy sees {gpus}. "
                f"Start as many ranks as there are GPUs. {WAY_OUT}"
            )
    before = everyone[: comm.Get_rank(), 0]
    _cupy().cuda.Device(int(np.sum(before == mine[0]))).use()
    return NcclCommunicator()


def _cupy():
    return importlib.import_module("cupy")


def _nccl():
    return importlib.import_module("cupy.cuda.nccl")  # a module of its own, which `import cupy` does not load


def _gpus() -> int:
    """How many GPUs this rank's machine has, or what is missing."""
    try:
        cupy = _cupy()
    except ImportError:
        return NO_CUPY
    if not _nccl().available:
        return NO_NCCL
    try:
        return cupy.cuda.runtime.getDeviceCount()
    except Exception:  # CUDA's error where there is no driver
        return 0


class NcclCommunicator(Communicator):
    """A `Communicator` whose arrays are CuPy's and travel by NCCL, on a stream beside the one that computes."""

    def _join(self, ranks: tuple[int, ...], limit: float, board: bool) -> None:
        super()._join(ranks, limit, board)
        cupy, host = _cupy(), Communicator.__new__(Communicator)
        host._join(ranks, limit, board)
        name = np.zeros(_ID_BYTES, np.uint8)
        if self._rank == 0:
            name[:] = np.frombuffer(_nccl().get_unique_id(), np.uint8)
        host.Bcast(name, root=0)
        nccl = _nccl().NcclCommunicator(self._size, name.tobytes(), self._rank)
        self._group = _Group(self._host, Transport(cupy, nccl, self._rank, self._size))

    def Barrier(self) -> None:
        """Wait until every rank has come here, and its GPU has done what it was given."""
        _cupy().cuda.get_current_stream().synchronize()
        super().Barrier()

    @staticmethod
    def _ready(send: object, recv: object) -> bool:
        return False  # all arrays go through `_array`

    @staticmethod
    def _array(value: object, what: str, where: str):
        """The array, ready for NCCL; what is wrong with it otherwise."""
        if not isinstance(value, _cupy().ndarray):
            hint = " cupy.asarray(array) moves it to the GPU." if isinstance(value, np.ndarray) else ""
            raise TypeError(f"{where}: {what} must be a CuPy array; got {type(value).__name__}.{hint}")
        if value.dtype.name not in _DTYPES:
            raise TypeError(f"{where}: {what} has dtype {value.dtype}, which NCCL cannot move. It moves {', '.join(_DTYPES)}.")
        if not value.flags.c_contiguous:
            raise ValueError(f"{where}: {what} is not contiguous (shape {value.shape}). Pass cupy.ascontiguousarray({what}).")
        return value


class _Group:
    """The ranks' meeting place, with another transport in it; messages to one rank go through the host's memory."""

    shared = None  # arrays on GPUs are not added up in the host's memory

    def __init__(self, host, transport: Transport):
        self._host, self.mpi = host, transport

    def starting(self, call: tuple[int, int, int, int], begin: Callable, empty: bool = False) -> pending.Step:
        """A collective that does not block."""
        return self._host.starting(call, lambda _: begin(self.mpi), empty)

    def sending(self, dest: int, tag: int, array, what: str) -> pending.Step:
        """A message to a world rank."""
        return self._host.sending(dest, tag, _for_mpi(array.get()), what)

    def receiving(self, sources: tuple[int, ...], tag: int, array, what: str) -> pending.Step:
        """A message from one of these world ranks."""
        arrived = np.empty(array.shape, array.dtype)
        step = self._host.receiving(sources, tag, _for_mpi(arrived), what)
        step.to_gpu = lambda: array.set(arrived)
        return step

    def test(self, step: pending.Step) -> bool:
        """Drive a step on; return whether it has ended."""
        return self._host.test(step) and self._landed(step)

    def wait(self, step: pending.Step) -> None:
        """Wait until a step has ended."""
        self._host.wait(step)
        self._landed(step)

    @staticmethod
    def _landed(step: pending.Step) -> bool:
        if step.error is None and hasattr(step, "to_gpu"):
            step.to_gpu()
        return True

    def __getattr__(self, name: str):
        return getattr(self._host, name)

    def __str__(self) -> str:
        return str(self._host)


def _for_mpi(array: np.ndarray) -> np.ndarray:
    """The array; as integers of the same size where MPI has no such numbers."""
    return array.view(np.uint16) if array.dtype == np.float16 else array


class Transport:
    """Starts NCCL's transfers, by the names of MPI's."""

    def __init__(self, cupy, nccl, rank: int, size: int):
        self._cupy, self._nccl, self._rank, self._size = cupy, nccl, rank, size
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def Iallreduce(self, send, recv, op: MPI.Op = MPI.SUM) -> Request:
        """Start an all-reduce."""
        send = recv if send is MPI.IN_PLACE else send
        return self._start(lambda s: self._nccl.allReduce(send.data.ptr, recv.data.ptr, recv.size, self._type(recv), self._op(op), s))

    def Iallgather(self, send, recv) -> Request:
        """Start an all-gather."""
        count = recv.size // self._size
        start = recv.data.ptr + self._rank * count * recv.itemsize if send is MPI.IN_PLACE else send.data.ptr
        return self._start(lambda s: self._nccl.allGather(start, recv.data.ptr, count, self._type(recv), s))

    def Ireduce_scatter(self, send, recv, counts: list[int], op: MPI.Op = MPI.SUM) -> Request:
        """Start a reduce-scatter; NCCL has it for equal parts, for others it is one reduction for each rank."""
        kind, operation = self._type(recv), self._op(op)
        if len(set(counts)) == 1:
            return self._start(lambda s: self._nccl.reduceScatter(send.data.ptr, recv.data.ptr, counts[0], kind, operation, s))

        def reductions(stream: int) -> None:
            start = send.data.ptr
            for r, count in enumerate(counts):
                if count:
                    self._nccl.reduce(start, recv.data.ptr if r == self._rank else start, count, kind, operation, r, stream)
                start += count * send.itemsize

        return self._start(reductions)

    def Ibcast(self, array, root: int) -> Request:
        """Start a broadcast."""
        return self._start(lambda s: self._nccl.bcast(array.data.ptr, array.size, self._type(array), root, s))

    def Iscatter(self, send, recv, root: int) -> Request:
        """Start a scatter: the root sends a part to each rank, itself included."""

        def parts(stream: int) -> None:
            for r in range(self._size) if send is not None else ():
                self._nccl.send(send.data.ptr + r * recv.nbytes, recv.size, self._type(recv), r, stream)
            self._nccl.recv(recv.data.ptr, recv.size, self._type(recv), root, stream)

        return self._start(parts)

    def Igather(self, send, recv, root: int) -> Request:
        """Start a gather: the root receives a part of each rank, itself included."""

        def parts(stream: int) -> None:
            self._nccl.send(send.data.ptr, send.size, self._type(send), root, stream)
            for r in range(self._size) if recv is not None else ():
                self._nccl.recv(recv.data.ptr + r * send.nbytes, send.size, self._type(send), r, stream)

        return self._start(parts)

    def Ialltoall(self, send, recv) -> Request:
        """Start an all-to-all with equal parts."""
        counts = [send.size // self._size] * self._size
        starts = [r * counts[0] for r in range(self._size)]
        return self.Ialltoallv([send, (counts, starts)], [recv, (counts, starts)])

    def Ialltoallv(self, send: list, recv: list) -> Request:
        """Start an all-to-all: counts and displacements in elements, for each rank."""
        (source, outward), (target, inward) = send, recv

        def parts(stream: int) -> None:
            for call, array, (counts, starts) in ((self._nccl.send, source, outward), (self._nccl.recv, target, inward)):
                for r, (count, start) in enumerate(zip(counts, starts, strict=True)):
                    if count:
                        call(array.data.ptr + start * array.itemsize, count, self._type(array), r, stream)

        return self._start(parts)

    def _start(self, calls) -> Request:
        """Make the calls as one group, on the stream beside, after what the computing stream was given before."""
        self._stream.wait_event(self._cupy.cuda.get_current_stream().record())
        _nccl().groupStart()
        try:
            calls(self._stream.ptr)
        finally:
            _nccl().groupEnd()
        return Request(self._stream.record())

    def _type(self, array) -> int:
        return getattr(_nccl(), f"NCCL_{array.dtype.name.upper()}")

    def _op(self, op: MPI.Op) -> int:
        for name, known in _OPS.items():
            if op == known:
                return getattr(_nccl(), f"NCCL_{name}")
        raise ValueError(f"NCCL reduces by MPI.{', MPI.'.join(_OPS)}; got another operation.")


class Request:
    """A transfer on its way: done when the GPU has come to its event."""

    def __init__(self, event):
        self._event = event

    def Test(self) -> bool:
        """Whether it has ended."""
        return self._event.done
