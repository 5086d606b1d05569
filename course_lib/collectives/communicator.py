"""The one door to MPI: a communicator that checks before it calls, counts, and never hangs.

It bears mpi4py's names and argument order, so what runs here also runs on a bare `MPI.Comm`.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from course_lib import memory
from course_lib.collectives import apart, base, buffers, meeting
from course_lib.collectives.alltoall import AllToAll
from course_lib.collectives.calls import ALLGATHER, ALLREDUCE, BARRIER, OPERATIONS, REDUCE_SCATTER, SPLIT, reduction_code
from course_lib.collectives.messages import Messages
from course_lib.collectives.nonblocking import NonBlocking
from course_lib.collectives.rooted import Rooted

ndarray, may_share_memory, SUM, IN_PLACE = np.ndarray, np.may_share_memory, MPI.SUM, MPI.IN_PLACE  # names found fast


class Communicator(AllToAll, Messages, NonBlocking, Rooted):
    """A group of ranks that can call collectives together.

    Parameters
    ----------
    comm : MPI.Comm, optional
        The ranks; all ranks by default. Making the first communicator is collective.
    limit : float
        Seconds that a wait may last where ranks are on several machines. On one machine no
        such limit is needed: the status board tells a slow rank from one that cannot come.
    board : bool
        Whether to use the status board where there is one.

    Examples
    --------
    >>> comm = Communicator(MPI.COMM_SELF)
    >>> total = np.empty(2)
    >>> comm.Allreduce(np.array([1.0, 2.0]), total)
    >>> total.tolist(), comm.Get_rank(), comm.Get_size()
    ([1.0, 2.0], 0, 1)
    """

    def __init__(self, comm: MPI.Comm | None = None, *, limit: float = 60.0, board: bool = True):
        if comm is None or comm == MPI.COMM_WORLD:
            ranks = tuple(range(base.world()[1]))
        elif isinstance(comm, MPI.Comm) and apart.line:
            ranks = (apart.rank,)  # MPI knows of no other
        elif isinstance(comm, MPI.Comm):
            inside = comm.Get_group()
            ranks = tuple(inside.Translate_ranks(None, MPI.COMM_WORLD.Get_group()))
        else:
            raise TypeError(f"Communicator(comm): comm must be an MPI communicator such as MPI.COMM_WORLD; got {comm!r}.")
        self._join(ranks, limit, board)

    def _join(self, ranks: tuple[int, ...], limit: float, board: bool) -> None:
        me, _ = base.world()
        self._group = self._host = meeting.group(ranks, board, limit)
        self._settings, self._lanes = (limit, board), {}
        self.ranks = ranks
        self._rank, self._size = ranks.index(me), len(ranks)

    def __repr__(self) -> str:
        return f"<Communicator {self._group}, rank {self._rank} of {self._size}>"

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        big = {n.lower(): n for n in OPERATIONS[1:]}
        if name == "split":
            raise AttributeError("Communicator has no split: in mpi4py it is Split, with a capital letter: comm.Split(color, key).")
        if name in big:
            arguments = {"bcast": "buf, root=0", "send": "buf, dest", "recv": "buf, source"}.get(name.removeprefix("i"), "sendbuf, recvbuf")
            raise AttributeError(
                f"Communicator has no {name}: in mpi4py it sends pickled Python objects. "
                f"Arrays go by {big[name]}, with a capital letter: comm.{big[name]}({arguments})."
            )
        raise AttributeError(f"Communicator has no {name}. It has {', '.join(OPERATIONS[1:])}, Get_rank and Get_size.")

    def Get_rank(self) -> int:
        """The rank of this process in the group, from 0."""
        return self._rank

    def Get_size(self) -> int:
        """The number of ranks in the group."""
        return self._size

    rank = property(Get_rank)
    size = property(Get_size)

    def Barrier(self) -> None:
        """Wait until every rank of the group has come here."""
        self._host.meet(BARRIER, -1, 0, 0)
        self._host.finish(self._host.mpi.Ibarrier(), BARRIER)
        self._host.count("Barrier", 0)

    def Allreduce(self, sendbuf: np.ndarray, recvbuf: np.ndarray, op: MPI.Op = MPI.SUM) -> None:
        """Reduce the ranks' arrays element by element; every rank gets the result.

        Parameters
        ----------
        sendbuf : numpy.ndarray or MPI.IN_PLACE
            Any shape; the same size and dtype on all ranks. IN_PLACE: `recvbuf` holds the input.
        recvbuf : numpy.ndarray
            The same size and dtype.
        op : MPI.Op
            SUM by default; MIN, MAX, PROD and the others of MPI.

        Raises
        ------
        TypeError, ValueError
            A buffer is wrong on this rank.
        CollectiveError
            The ranks do not make the same call, or not all of them come.
        """
        send, recv = (sendbuf, recvbuf) if self._ready(sendbuf, recvbuf) else self._check(sendbuf, recvbuf, "Allreduce")
        size = recv.size
        if send is not IN_PLACE and size != send.size:
            buffers.size(recv, send.size, send, "an all-reduce keeps the size", "Allreduce")
        group, code = self._group, 1 if op is SUM else reduction_code(op)
        call, shared, request = (ALLREDUCE, recv.dtype.num, size, code), group.shared, None
        if code == 1 and shared is not None and shared.suits(recv, self._size * recv.nbytes):
            group.exchange(call, recv if send is IN_PLACE else send, shared.add_up, recv)
        else:
            group.meet(*call)
            request = group.mpi.Iallreduce(send, recv, op)
        entry = group.counts["Allreduce"]  # counted here, while the transfer is on its way
        entry[0] += 1
        entry[1] += recv.nbytes
        if memory.held is not None:
            memory.held.exchanged(send, recv)
        if request is not None:
            group.finish(request, ALLREDUCE)

    def Allgather(self, sendbuf: np.ndarray, recvbuf: np.ndarray) -> None:
        """Collect the ranks' arrays, one after the other in rank order; every rank gets all.

        Parameters
        ----------
        sendbuf : numpy.ndarray or MPI.IN_PLACE
            Any shape; the same size and dtype on all ranks. IN_PLACE: this rank's part of
            `recvbuf` holds the input.
        recvbuf : numpy.ndarray
            n times the size of `sendbuf`, the same dtype. MPI fills it part by part: with shape
            ``(n, *sendbuf.shape)``, ``recvbuf[r]`` is what rank r sent.

        Raises
        ------
        TypeError, ValueError
            A buffer is wrong on this rank.
        CollectiveError
            The ranks do not make the same call, or not all of them come.
        """
        send, recv = (sendbuf, recvbuf) if self._ready(sendbuf, recvbuf) else self._check(sendbuf, recvbuf, "Allgather")
        count = self._gathered(send, recv, "Allgather")
        group, shared = self._group, self._group.shared
        call, mine = (ALLGATHER, recv.dtype.num, count, 0), send
        if send is IN_PLACE:
            mine = recv.reshape(-1)[self._rank * count : (self._rank + 1) * count]
        if shared is not None and shared.suits(mine, recv.nbytes):
            group.exchange(call, mine, shared.collect, recv)
        else:
            group.meet(*call)
            group.finish(group.mpi.Iallgather(send, recv), ALLGATHER)
        group.count("Allgather", recv.nbytes)
        if memory.held is not None:
            memory.held.exchanged(send, recv)

    def Reduce_scatter(
        self,
        sendbuf: np.ndarray,
        recvbuf: np.ndarray,
        recvcounts: list[int] | None = None,
        op: MPI.Op = MPI.SUM,
    ) -> None:
        """Reduce the ranks' arrays element by element; each rank gets its own part of the result.

        Parameters
        ----------
        sendbuf : numpy.ndarray
            The same size and dtype on all ranks. It is cut, in memory order, into one part a rank.
        recvbuf : numpy.ndarray
            This rank's part: ``recvcounts[rank]`` elements, the same dtype.
        recvcounts : list of int, optional
            The size of each rank's part, the same list on all ranks; equal parts by default.
        op : MPI.Op
            SUM by default.

        Raises
        ------
        TypeError, ValueError
            A buffer is wrong on this rank.
        CollectiveError
            The ranks do not make the same call, or not all of them come.
        """
        place = "Reduce_scatter"
        send, recv = (sendbuf, recvbuf) if self._ready(sendbuf, recvbuf) else self._check(sendbuf, recvbuf, place)
        recvcounts = self._parts(send, recv, recvcounts, place)
        group, shared, code = self._group, self._group.shared, reduction_code(op)
        call = (REDUCE_SCATTER, recv.dtype.num, send.size, code + (hash(tuple(recvcounts)) & 0xFFFFFF) * 16)
        if code == 1 and shared is not None and shared.suits(send, max(recvcounts) * self._size * recv.itemsize):
            group.exchange(call, send, shared.add_up, recv, sum(recvcounts[: self._rank]))
        else:
            group.meet(*call)
            group.finish(group.mpi.Ireduce_scatter(send, recv, recvcounts, op), REDUCE_SCATTER)
        group.count(place, send.nbytes)
        if memory.held is not None:
            memory.held.exchanged(send, recv)

    def Split(self, color: int = 0, key: int = 0) -> Communicator | MPI.Comm:
        """Divide the group: ranks with the same color form a new group, ordered by key.

        Parameters
        ----------
        color : int
            Which new group this rank joins; not negative, or MPI.UNDEFINED for none.
        key : int
            The order within the new group; equal keys keep the order of this group.

        Returns
        -------
        Communicator
            This rank's new group (MPI.COMM_NULL for MPI.UNDEFINED).

        Raises
        ------
        TypeError, ValueError
            The color or the key is no whole number, or the color is negative.
        CollectiveError
            Not all ranks of the group make the call.
        """
        for name, value in (("color", color), ("key", key)):
            if not isinstance(value, (int, np.integer)) or isinstance(value, (bool, np.bool_)):
                raise TypeError(f"Split: {name} must be a whole number; got {value!r}. (Use // for whole division.)")
        if color < 0 and color != MPI.UNDEFINED:
            raise ValueError(f"Split: color must not be negative; got {color}.")
        mine, everyone = np.array([color, key], np.int64), np.empty((self._size, 2), np.int64)
        group = self._host
        group.meet(SPLIT, -1, 0, 0)
        group.finish(group.mpi.Iallgather(mine, everyone), SPLIT)
        if color == MPI.UNDEFINED:
            return MPI.COMM_NULL
        chosen = [r for r in range(self._size) if everyone[r, 0] == color]
        chosen.sort(key=lambda r: (everyone[r, 1], r))
        new = type(self).__new__(type(self))
        new._join(tuple(self.ranks[r] for r in chosen), *self._settings)
        return new

    _array = staticmethod(buffers.array)

    @staticmethod
    def _ready(send: object, recv: object) -> bool:
        """Whether two buffers are fine as they are, found fast; if not, `_check` says why or unpacks."""
        return (
            type(send) is ndarray is type(recv)
            and send.dtype is recv.dtype
            and send.dtype.num < 17
            and send.flags.c_contiguous
            and recv.flags.carray
            and send is not recv
            and (send.base is recv.base is None or not may_share_memory(send, recv))
        )

    def _gathered(self, send: object, recv: np.ndarray, where: str) -> int:
        """How many elements each rank sends in an all-gather."""
        count = recv.size // self._size if send is IN_PLACE else send.size
        if recv.size != count * self._size:
            why = f"{self._size} ranks send as much each"
            buffers.size(recv, count * self._size, recv if send is IN_PLACE else send, why, where)
        return count

    def _parts(self, send: object, recv: np.ndarray, recvcounts: list[int] | None, place: str) -> list[int]:
        """The size of each rank's part in a reduce-scatter."""
        if send is IN_PLACE:
            raise ValueError(f"{place}: MPI.IN_PLACE is not supported here; send from one array, receive into another.")
        n = self._size
        if recvcounts is None:
            if send.size % n:
                raise ValueError(
                    f"{place}: sendbuf has {send.size} elements (shape {send.shape}), which "
                    f"{n} ranks cannot share equally. Pad it to a multiple of {n}, or give recvcounts."
                )
            recvcounts = [send.size // n] * n
        recvcounts = [int(c) for c in recvcounts]
        if len(recvcounts) != n or sum(recvcounts) != send.size:
            raise ValueError(f"{place}: recvcounts must be {n} numbers that add up to the size of sendbuf, {send.size}; got {recvcounts}.")
        expected = recvcounts[self._rank]
        if recv.size != expected:
            why = f"rank {self._rank} of {n} gets {expected} of them"
            buffers.size(recv, expected, send, why, place)
        return recvcounts

    def _check(self, sendbuf: object, recvbuf: object, where: str) -> tuple:
        """The two arrays, unpacked and checked; raises what `buffers` says about them."""
        if sendbuf is IN_PLACE:
            return sendbuf, self._array(recvbuf, "recvbuf", where)
        send, recv = self._array(sendbuf, "sendbuf", where), self._array(recvbuf, "recvbuf", where)
        buffers.same_dtype(send, recv, where)
        buffers.distinct(send, recv, where)
        return send, recv
