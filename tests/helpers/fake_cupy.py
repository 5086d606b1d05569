"""Stands for CuPy on a machine without a GPU: arrays in ordinary memory, and an NCCL that notes each call and does it by MPI.

`install(gpus)` puts it where ``import cupy`` finds it. What it notes is in ``cuda.nccl.calls``.
"""

import ctypes
import sys
import types

import numpy as np
from mpi4py import MPI


class ndarray(np.ndarray):
    """An array with a pointer, as CuPy's have."""

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.ctypes.data)

    def get(self):
        return np.array(self)

    def set(self, array):
        calls.append(("set", array.size))
        self[...] = array

    @property
    def __cuda_array_interface__(self):
        return self.__array_interface__


class Event:
    """An event that comes a few questions late, and after the transfers that were posted before it."""

    def __init__(self, transfers=()):
        self.questions, self._buffers = 0, [buffer for _, buffer in transfers]
        self._requests = [request for request, _ in transfers]

    @property
    def done(self):
        self.questions += 1
        return MPI.Request.Testall(self._requests) and self.questions > 3


class Stream:
    """A stream; its number is its pointer."""

    made = 0

    def __init__(self, non_blocking=False):
        Stream.made += 1
        self.ptr, self.waited = Stream.made, 0

    def record(self):
        found, _posted[:] = Event(_posted), []
        return found

    def wait_event(self, event):
        self.waited += 1

    def synchronize(self):
        calls.append(("synchronize", self.ptr))


calls = []
_NAMES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
_TYPES = dict(enumerate(_NAMES))
_OPS = [MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN]


def _view(pointer, count, kind):
    dtype = np.dtype(_TYPES[kind])
    return np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(pointer), dtype)


class NcclCommunicator:
    """Takes what NCCL's takes, and keeps to its rules."""

    def __init__(self, size, unique_id, rank):
        assert type(unique_id) is bytes and len(unique_id) == 128  # bytes since CuPy 14
        self.size, self.rank = size, rank
        self.comm = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.Get_group().Incl(_members(unique_id[0], size, rank)))
        assert self.comm.Get_rank() == rank
        calls.append(("init", size, rank))

    def allReduce(self, send, recv, count, kind, op, stream):
        calls.append(("allReduce", count, _TYPES[kind], op, stream))
        sent = _view(send, count, kind).copy()
        self._post(self.comm.Iallreduce(sent, _view(recv, count, kind), _OPS[op]), sent)

    def allGather(self, send, recv, count, kind, stream):
        calls.append(("allGather", count, _TYPES[kind], stream))
        sent = _view(send, count, kind).copy()
        self._post(self.comm.Iallgather(sent, _view(recv, count * self.size, kind)), sent)

    def reduceScatter(self, send, recv, count, kind, op, stream):
        calls.append(("reduceScatter", count, _TYPES[kind], op, stream))
        sent = _view(send, count * self.size, kind).copy()
        self._post(self.comm.Ireduce_scatter_block(sent, _view(recv, count, kind), _OPS[op]), sent)

    def reduce(self, send, recv, count, kind, op, root, stream):
        calls.append(("reduce", count, _TYPES[kind], op, root, stream))
        sent, result = _view(send, count, kind).copy(), _view(recv, count, kind) if self.rank == root else None
        self._post(self.comm.Ireduce(sent, result, _OPS[op], root), sent)

    def bcast(self, pointer, count, kind, root, stream):
        calls.append(("bcast", count, _TYPES[kind], root, stream))
        self._post(self.comm.Ibcast(_view(pointer, count, kind), root))

    def send(self, pointer, count, kind, peer, stream):
        calls.append(("send", count, _TYPES[kind], peer, stream))
        sent = _view(pointer, count, kind).copy()
        self._post(self.comm.Isend(sent, peer), sent)

    def recv(self, pointer, count, kind, peer, stream):
        calls.append(("recv", count, _TYPES[kind], peer, stream))
        self._post(self.comm.Irecv(_view(pointer, count, kind), peer))

    def abort(self):
        calls.append(("abort",))

    @staticmethod
    def _post(request, buffer=None):
        """As NCCL does, return at once: the transfer goes on beside the program."""
        assert _depth[0] == 1
        _posted.append((request, buffer))


_posted = []  # since the last event
_depth = [0]


def _start():
    _depth[0] += 1


def _end():
    _depth[0] -= 1


def _unique_id():
    """The first bytes name the root; as a real one, it means something only to those who have it."""
    return bytes([MPI.COMM_WORLD.Get_rank(), *range(127, 254)])


def _members(root, size, rank):
    """The ranks that have the same id, in order: all of them tell its maker."""
    world, tag = MPI.COMM_WORLD, 77
    told = world.isend((rank, world.Get_rank()), root, tag)
    if world.Get_rank() == root:
        found = [member for _, member in sorted(world.recv(None, MPI.ANY_SOURCE, tag) for _ in range(size))]
        answers = [world.isend(found, member, tag + 1) for member in found]
    members = world.recv(None, root, tag + 1)
    MPI.Request.waitall([told, *(answers if world.Get_rank() == root else ())])
    return members


class OnGpu:
    """NumPy as a program has it that computes on a GPU: what makes an array makes one of `ndarray`."""

    def __getattr__(self, name):
        found = getattr(np, name)
        if isinstance(found, type) or not callable(found):
            return found

        def called(*arguments, **named):
            made = found(*arguments, **named)
            return made.view(ndarray) if type(made) is np.ndarray else made

        return called


def install(gpus=8, nccl_there=True):
    """Make ``import cupy`` find this."""
    calls.clear()
    current = Stream()
    nccl = types.ModuleType("cupy.cuda.nccl")  # loaded by an import of its own, as CuPy's since 14
    nccl.__dict__.update(available=nccl_there, calls=calls, get_unique_id=_unique_id, NcclCommunicator=NcclCommunicator)
    nccl.groupStart, nccl.groupEnd = _start, _end
    for number, name in _TYPES.items():
        setattr(nccl, f"NCCL_{name.upper()}", number)
    for number, name in enumerate(("SUM", "PROD", "MAX", "MIN")):
        setattr(nccl, f"NCCL_{name}", number)
    used = []
    runtime = types.SimpleNamespace(getDeviceCount=lambda: gpus)
    device = lambda number: types.SimpleNamespace(use=lambda: used.append(number))  # noqa: E731
    cuda = types.ModuleType("cupy.cuda")
    cuda.__dict__.update(Stream=Stream, get_current_stream=lambda: current, runtime=runtime, Device=device, used=used)
    module = types.ModuleType("cupy")
    module.__dict__.update(cuda=cuda, ndarray=ndarray, asarray=lambda a: np.array(a).view(ndarray), get_array_module=lambda a: np)
    sys.modules |= {"cupy": module, "cupy.cuda": cuda, "cupy.cuda.nccl": nccl}
    return module
