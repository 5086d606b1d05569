"""NCCL transport, for CuPy arrays with one GPU per rank; ``collectives.init("nccl")`` creates it.

It relies on an `MpiTransport` of the same ranks: MPI distributes NCCL's unique id, and the rendezvous before each transfer verifies that
all ranks make the same call, so that NCCL never hangs. Point-to-point messages are staged through host memory.
"""

from __future__ import annotations

import importlib
import zlib

import numpy as np
from mpi4py import MPI

from course_lib.collectives import buffers, calls
from course_lib.collectives.calls import BLOCKING_FORM, Call
from course_lib.collectives.progress.operations import Operation, progress_state
from course_lib.collectives.progress.point_to_point import ReceiveOperation
from course_lib.collectives.transport import IncomingMessage, OutgoingMessage
from course_lib.collectives.transport.mpi import POST_FUNCTIONS, MpiTransport
from course_lib.utils import host, wording
from course_lib.utils.interrupts import defer_interrupts

_DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
_OPS = {"SUM": MPI.SUM, "PROD": MPI.PROD, "MAX": MPI.MAX, "MIN": MPI.MIN}
_ID_BYTES = 128
NO_CUPY, NO_NCCL = -1, -2
FALLBACK_HINT = "Without GPUs, init() returns a communicator over MPI."


def gpu_transport(everybody: MpiTransport) -> NcclTransport:
    """Create a transport for the same ranks, and select a GPU for each; collective.

    Raises
    ------
    RuntimeError
        CuPy or NCCL is missing, or a machine has fewer GPUs than ranks; all ranks raise the same message.
    """
    mine = np.array([zlib.crc32(host.name().encode()), _gpus()], np.int64)
    everyone = np.empty((len(everybody.members), 2), np.int64)
    everybody.run(Call(calls.ALLGATHER, mine.dtype.num, mine.size, 0, mine, everyone))
    for missing, what in ((NO_CUPY, "CuPy is not installed"), (NO_NCCL, "CuPy finds no NCCL")):
        lacking = np.flatnonzero(everyone[:, 1] == missing).tolist()
        if lacking:
            raise RuntimeError(f"init(backend='nccl'): {what} on {wording.ranks(lacking)}. Try: pip install -e '.[gpu]'. {FALLBACK_HINT}")
    for machine in np.unique(everyone[:, 0]):
        here = np.flatnonzero(everyone[:, 0] == machine).tolist()
        gpus = int(everyone[here[0], 1])
        if gpus < len(here):
            raise RuntimeError(
                f"init(backend='nccl') needs one GPU per rank: {wording.ranks(here)} run on a machine where CuPy sees {gpus}. "
                f"Start as many ranks as there are GPUs. {FALLBACK_HINT}"
            )
    before = everyone[: everybody.rank, 0]
    _cupy().cuda.Device(int(np.sum(before == mine[0]))).use()
    return NcclTransport(everybody)


def _cupy():
    return importlib.import_module("cupy")


def _nccl():
    return importlib.import_module("cupy.cuda.nccl")  # `import cupy` does not load this module


def _gpus() -> int:
    """Count the GPUs of this rank's machine; NO_CUPY or NO_NCCL if that is missing."""
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


class NcclTransport:
    """Transport over NCCL for one group of ranks with a GPU each; implements `Transport`. Creating it is collective.

    Transfers run on a CUDA stream of their own, concurrently with computation.

    Parameters
    ----------
    host : MpiTransport
        The transport of the same ranks for arrays in host memory.
    """

    def __init__(self, host: MpiTransport):
        self.host, self.members, self.rank, self._cupy = host, host.members, host.rank, _cupy()
        self._create_communicator(host.message_comm)
        self._post = {
            calls.ALLREDUCE: self._allreduce,
            calls.ALLGATHER: self._allgather,
            calls.REDUCE_SCATTER: self._reduce_scatter,
            calls.BARRIER: None,
            calls.BCAST: self._bcast,
            calls.SCATTER: self._scatter,
            calls.GATHER: self._gather,
            calls.ALLTOALL: self._alltoall,
            calls.ALLTOALLV: self._alltoallv,
        }

    def __str__(self) -> str:
        return str(self.host)

    def check(self, value: object, what: str, where: str):
        """Return the array if NCCL can send it, else raise TypeError or ValueError."""
        if not isinstance(value, _cupy().ndarray):
            hint = " cupy.asarray(array) moves it to the GPU." if isinstance(value, np.ndarray) else ""
            raise TypeError(f"{where}: {what} must be a CuPy array; got {buffers.kind(value)}.{hint}")
        if value.dtype.name not in _DTYPES:
            raise TypeError(f"{where}: {what} has dtype {value.dtype}, which NCCL cannot send. It supports {', '.join(_DTYPES)}.")
        if not value.flags.c_contiguous:
            raise ValueError(f"{where}: {what} is not contiguous (shape {value.shape}). Pass cupy.ascontiguousarray({what}).")
        return value

    def _create_communicator(self, comm: MPI.Comm) -> None:
        """Create an NCCL communicator and a stream, in blocking calls: safe only where no rank of the group can be elsewhere."""
        unique_id = np.zeros(_ID_BYTES, np.uint8)
        if self.rank == 0:
            unique_id[:] = np.frombuffer(_nccl().get_unique_id(), np.uint8)
        comm.Bcast(unique_id, root=0)
        self._nccl = _nccl().NcclCommunicator(len(self.members), unique_id.tobytes(), self.rank)
        self._stream, self._epoch = self._cupy.cuda.Stream(non_blocking=True), progress_state.epoch

    def _renew_communicator(self, call: Call) -> None:
        """Before the first collective of a new epoch, replace NCCL's communicator: a transfer may wait on it for a rank that has failed."""
        if self._epoch != progress_state.epoch:
            self.host.run(call, self._replace_communicator)

    def _replace_communicator(self, comm: MPI.Comm, _: Call) -> GpuTransfer:
        with defer_interrupts():
            self._nccl.abort()
            self._create_communicator(comm)
        return GpuTransfer(self._stream.record())

    def run(self, call: Call) -> None:
        self._renew_communicator(call)
        self.host.run(call, self._begin if self._post[call.operation] else POST_FUNCTIONS[calls.BARRIER])

    def start(self, call: Call) -> Operation:
        self._renew_communicator(call)
        begins = self._post[BLOCKING_FORM[call.operation]]
        return self.host.start(call, self._begin if begins else POST_FUNCTIONS[calls.BARRIER])

    def _begin(self, _: MPI.Comm, call: Call) -> GpuTransfer:
        """Post NCCL's calls as one group, on the transport's stream, after the work queued on the current stream."""
        self._stream.wait_event(self._cupy.cuda.get_current_stream().record())
        _nccl().groupStart()
        try:
            self._post[BLOCKING_FORM.get(call.operation, call.operation)](call, self._stream.ptr)
        finally:
            _nccl().groupEnd()
        return GpuTransfer(self._stream.record())

    def exchange(self, outgoing: OutgoingMessage | None, incoming: IncomingMessage | None, call_name: str) -> tuple[int, int] | None:
        if outgoing:
            array, *where = outgoing
            outgoing = (_for_mpi(array.get()), *where)
        if incoming:
            array, *where = incoming
            arrived = np.empty(array.shape, array.dtype)
            incoming = (_for_mpi(arrived), *where)
        received = self.host.exchange(outgoing, incoming, call_name)
        if incoming:
            array.set(arrived)
        return received

    def send(self, array: object, dest: int, tag: int, call_name: str) -> Operation:
        return self.host.send(_for_mpi(array.get()), dest, tag, call_name)

    def receive(self, array: object, sources: tuple[int, ...], tag: int, call_name: str) -> Operation:
        return StagedReceive(self.host, array, sources, tag, call_name)

    def wait(self, operation: Operation) -> None:
        self.host.wait(operation)

    def test(self, operation: Operation) -> bool:
        return self.host.test(operation)

    def split(self, color: int, key: int) -> NcclTransport | None:
        part = self.host.split(color, key)
        with defer_interrupts():  # NCCL creates a communicator in a blocking call
            return None if part is None else NcclTransport(part)

    def synchronize(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()

    # The NCCL calls of each collective, on a CUDA stream.

    def _allreduce(self, call: Call, stream: int) -> None:
        recv = call.recv
        self._nccl.allReduce(call.contribution.data.ptr, recv.data.ptr, recv.size, self._type(recv), self._op(call.op), stream)

    def _allgather(self, call: Call, stream: int) -> None:
        self._nccl.allGather(call.contribution.data.ptr, call.recv.data.ptr, call.contribution.size, self._type(call.recv), stream)

    def _reduce_scatter(self, call: Call, stream: int) -> None:
        """Post NCCL's reduce-scatter if the parts are equal, else one reduction per rank."""
        send, recv, kind, operation = call.send, call.recv, self._type(call.recv), self._op(call.op)
        if len(set(call.counts)) == 1:
            self._nccl.reduceScatter(send.data.ptr, recv.data.ptr, call.counts[0], kind, operation, stream)
            return
        start = send.data.ptr
        for r, count in enumerate(call.counts):
            if count:
                self._nccl.reduce(start, recv.data.ptr if r == self.rank else start, count, kind, operation, r, stream)
            start += count * send.itemsize

    def _bcast(self, call: Call, stream: int) -> None:
        self._nccl.bcast(call.recv.data.ptr, call.recv.size, self._type(call.recv), call.root, stream)

    def _scatter(self, call: Call, stream: int) -> None:
        """Post the sends of the root, to every rank including itself, and this rank's receive."""
        send, recv = call.send, call.recv
        for r in range(len(self.members)) if send is not None else ():
            self._nccl.send(send.data.ptr + r * recv.nbytes, recv.size, self._type(recv), r, stream)
        self._nccl.recv(recv.data.ptr, recv.size, self._type(recv), call.root, stream)

    def _gather(self, call: Call, stream: int) -> None:
        """Post this rank's send, and the receives of the root, from every rank including itself."""
        send, recv = call.send, call.recv
        self._nccl.send(send.data.ptr, send.size, self._type(send), call.root, stream)
        for r in range(len(self.members)) if recv is not None else ():
            self._nccl.recv(recv.data.ptr + r * send.nbytes, send.size, self._type(send), r, stream)

    def _alltoall(self, call: Call, stream: int) -> None:
        counts = [call.send.size // len(self.members)] * len(self.members)
        starts = [r * counts[0] for r in range(len(self.members))]
        self._exchange(call, (counts, starts), (counts, starts), stream)

    def _alltoallv(self, call: Call, stream: int) -> None:
        self._exchange(call, (call.counts, call.starts), (call.recv_counts, call.recv_starts), stream)

    def _exchange(self, call: Call, outward: tuple, inward: tuple, stream: int) -> None:
        for transfer, array, (counts, starts) in ((self._nccl.send, call.send, outward), (self._nccl.recv, call.recv, inward)):
            for r, (count, start) in enumerate(zip(counts, starts, strict=True)):
                if count:
                    transfer(array.data.ptr + start * array.itemsize, count, self._type(array), r, stream)

    def _type(self, array) -> int:
        return getattr(_nccl(), f"NCCL_{array.dtype.name.upper()}")

    def _op(self, op: MPI.Op) -> int:
        for name, known in _OPS.items():
            if op == known:
                return getattr(_nccl(), f"NCCL_{name}")
        raise ValueError(f"NCCL supports the operations MPI.{', MPI.'.join(_OPS)}; got another one.")


class GpuTransfer:
    """Request of a transfer on the GPU: complete once the GPU has reached its event."""

    def __init__(self, event):
        self._event = event

    def Test(self) -> bool:
        """Return whether the transfer is complete."""
        return self._event.done


class StagedReceive(ReceiveOperation):
    """A receive into host memory, followed by a copy to the GPU."""

    def __init__(self, host: MpiTransport, array: object, *message: object):
        self._on_gpu = array
        super().__init__(host._endpoint, _for_mpi(np.empty(array.shape, array.dtype)), *message)

    def advance(self) -> bool:
        if not super().advance():
            return False
        if self._on_gpu is not None and self.error is None:
            self._on_gpu.set(self._array.view(self._on_gpu.dtype))
        self._on_gpu = None
        return True


def _for_mpi(array: np.ndarray) -> np.ndarray:
    """Return the array as MPI can send it: float16, which MPI lacks, viewed as uint16."""
    return array.view(np.uint16) if array.dtype == np.float16 else array
