"""`Communicator`: checks arguments, counts traffic, and passes each call to its transport.

Methods have mpi4py's names and argument order, so code written for it also runs on a plain `MPI.Comm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

import numpy as np
from mpi4py import MPI

from course_lib import memory, traffic
from course_lib.collectives import buffers, calls, diagnostics
from course_lib.collectives.calls import LARGEST_TAG, OPERATIONS, SUM, WILDCARD, Call, counts_digest, reduction_code
from course_lib.collectives.errors import CollectiveError, MismatchError
from course_lib.collectives.progress.operations import Operation, deferred_interrupts, progress_state, raise_interrupt
from course_lib.collectives.transport import IncomingMessage, OutgoingMessage, Transport, isolated
from course_lib.collectives.transport.requests import Request

ndarray, may_share_memory, IN_PLACE = np.ndarray, np.may_share_memory, MPI.IN_PLACE  # module globals: fewer attribute lookups per call
ANY_SOURCE, ANY_TAG, PROC_NULL = MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.PROC_NULL
LOWER = {name.lower(): name for name in OPERATIONS[1:]}
ARGUMENTS = {"bcast": "buf, root=0", "send": "buf, dest", "recv": "buf, source", "sendrecv": "sendbuf, dest, recvbuf=..., source=..."}


class Communicator:
    """A group of ranks that can communicate.

    A collective such as `Allreduce` builds a `calls.Call` from the checked arguments and hands it to `run_collective`, which has the
    transport carry it out (`Transport.run`) and counts it. `Send`, `Recv` and `Sendrecv` go to `Transport.exchange`, nonblocking calls to
    `Transport.start`, `send` or `receive`. Interrupts are deferred meanwhile, and raised within the transport's waits or on return.

    Parameters
    ----------
    comm : MPI.Comm, optional
        The group's ranks; all ranks by default. If it is not the world, creating the Communicator is collective over its ranks.
    transport : Transport, optional
        The transport for the group; by default that of this process: MPI, or the broker's on isolated ranks.

    Attributes
    ----------
    ranks : tuple of int
        World ranks, in the group's order.
    transport : Transport

    Examples
    --------
    >>> comm = Communicator(MPI.COMM_SELF)
    >>> total = np.empty(2)
    >>> comm.Allreduce(np.array([1.0, 2.0]), total)
    >>> total.tolist(), comm.Get_rank(), comm.Get_size()
    ([1.0, 2.0], 0, 1)
    """

    def __init__(self, comm: MPI.Comm | None = None, *, transport: Transport | None = None):
        if comm is not None and not isinstance(comm, MPI.Comm):
            raise TypeError(f"Communicator(comm): comm must be an MPI communicator such as MPI.COMM_WORLD; got {comm!r}.")
        if transport is None:
            everyone = comm is None or comm == MPI.COMM_WORLD
            transport = _transports().world() if everyone else _transports().of_communicator(comm)
        self.transport, self.ranks = transport, transport.members
        self._rank, self._size = transport.rank, len(transport.members)
        self._counts = traffic.counters(self.ranks)
        self._passes_fast_check = _are_plain if transport.host is transport else lambda *_: False

    def __repr__(self) -> str:
        return f"<Communicator {self.transport}, rank {self._rank} of {self._size}>"

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "split":
            raise AttributeError("Communicator has no split: in mpi4py it is Split, with a capital letter: comm.Split(color, key).")
        if name in LOWER:
            arguments = ARGUMENTS.get(name.removeprefix("i"), "sendbuf, recvbuf")
            raise AttributeError(
                f"Communicator has no {name}: in mpi4py it sends pickled Python objects. "
                f"For arrays, use {LOWER[name]}, with a capital letter: comm.{LOWER[name]}({arguments})."
            )
        raise AttributeError(f"Communicator has no {name}. It has {', '.join(OPERATIONS[1:])}, Get_rank and Get_size.")

    def Get_rank(self) -> int:
        """Return this process's rank within the group, from 0."""
        return self._rank

    def Get_size(self) -> int:
        """Return the number of ranks in the group."""
        return self._size

    rank = property(Get_rank)
    size = property(Get_size)

    # Collectives.

    def Barrier(self) -> None:
        """Block until every rank of the group has called it; with GPUs, also until the work queued on this rank's GPU is done."""
        self.transport.synchronize()
        self.run_collective(self.transport, Call(calls.BARRIER), "Barrier", 0)

    def Ibarrier(self) -> Request:
        """Start a nonblocking barrier: ``Wait()`` returns once every rank of the group has started it.

        Returns
        -------
        Request
        """
        return self.begin(Call(calls.IBARRIER), "Barrier", 0)

    def Allreduce(self, sendbuf: np.ndarray, recvbuf: np.ndarray, op: MPI.Op = MPI.SUM) -> None:
        """Reduce the ranks' arrays element by element; every rank gets the result.

        Parameters
        ----------
        sendbuf : numpy.ndarray or MPI.IN_PLACE
            Any shape; the same size and dtype on all ranks. IN_PLACE: `recvbuf` holds the input.
        recvbuf : numpy.ndarray
            The same size and dtype as `sendbuf`.
        op : MPI.Op
            SUM by default; MIN, MAX, PROD and MPI's other operations.

        Raises
        ------
        TypeError, ValueError
            A buffer is invalid on this rank.
        CollectiveError
            MismatchError if the ranks make different calls, DeadlockError if some rank can no longer make this one.
        """
        call = self._allreduce(calls.ALLREDUCE, sendbuf, recvbuf, op)
        self.run_collective(self.transport, call, "Allreduce", call.recv.nbytes)

    def Iallreduce(self, sendbuf: np.ndarray, recvbuf: np.ndarray, op: MPI.Op = MPI.SUM) -> Request:
        """Start a nonblocking all-reduce; parameters as for `Allreduce`. Touch neither array before ``Wait()``.

        Returns
        -------
        Request
        """
        call = self._allreduce(calls.IALLREDUCE, sendbuf, recvbuf, op)
        return self.begin(call, "Allreduce", call.recv.nbytes)

    def _allreduce(self, operation: int, sendbuf: object, recvbuf: object, op: MPI.Op) -> Call:
        send, recv = (sendbuf, recvbuf) if self._passes_fast_check(sendbuf, recvbuf) else self._checked(sendbuf, recvbuf, operation)
        code, size = SUM if op is MPI.SUM else reduction_code(op), recv.size
        if send is IN_PLACE:
            return Call(operation, recv.dtype.num, size, code, send, recv, recv, op)
        if size != send.size:
            buffers.check_size(recv, send.size, send, "an all-reduce keeps the size", OPERATIONS[operation])
        return Call(operation, recv.dtype.num, size, code, send, recv, send, op)

    def Allgather(self, sendbuf: np.ndarray, recvbuf: np.ndarray) -> None:
        """Concatenate the ranks' arrays in rank order; every rank gets the result.

        Parameters
        ----------
        sendbuf : numpy.ndarray or MPI.IN_PLACE
            Any shape; the same size and dtype on all ranks. IN_PLACE: this rank's part of
            `recvbuf` holds the input.
        recvbuf : numpy.ndarray
            n times the size of `sendbuf`, the same dtype. It is filled in rank order: with shape
            ``(n, *sendbuf.shape)``, ``recvbuf[r]`` is what rank r sent.

        Raises
        ------
        TypeError, ValueError
            A buffer is invalid on this rank.
        CollectiveError
            MismatchError if the ranks make different calls, DeadlockError if some rank can no longer make this one.
        """
        call = self._allgather(calls.ALLGATHER, sendbuf, recvbuf)
        self.run_collective(self.transport, call, "Allgather", call.recv.nbytes)

    def Iallgather(self, sendbuf: np.ndarray, recvbuf: np.ndarray) -> Request:
        """Start a nonblocking all-gather; parameters as for `Allgather`. Touch neither array before ``Wait()``.

        Returns
        -------
        Request
        """
        call = self._allgather(calls.IALLGATHER, sendbuf, recvbuf)
        return self.begin(call, "Allgather", call.recv.nbytes)

    def _allgather(self, operation: int, sendbuf: object, recvbuf: object) -> Call:
        send, recv = (sendbuf, recvbuf) if self._passes_fast_check(sendbuf, recvbuf) else self._checked(sendbuf, recvbuf, operation)
        n, in_place = self._size, send is IN_PLACE
        count = recv.size // n if in_place else send.size
        if recv.size != count * n:
            buffers.check_size(recv, count * n, recv if in_place else send, f"{n} ranks each send that many", OPERATIONS[operation])
        given = recv.reshape(-1)[self._rank * count : (self._rank + 1) * count] if in_place else send
        return Call(operation, recv.dtype.num, count, 0, send, recv, given)

    def Reduce_scatter(self, sendbuf: np.ndarray, recvbuf: np.ndarray, recvcounts: list[int] | None = None, op: MPI.Op = MPI.SUM) -> None:
        """Reduce the ranks' arrays element by element; each rank gets its own part of the result.

        Parameters
        ----------
        sendbuf : numpy.ndarray
            The same size and dtype on all ranks. The result is divided, in memory order, into one part per rank.
        recvbuf : numpy.ndarray
            This rank's part: ``recvcounts[rank]`` elements, the same dtype.
        recvcounts : list of int, optional
            The size of each rank's part, the same list on all ranks; equal parts by default.
        op : MPI.Op
            SUM by default.

        Raises
        ------
        TypeError, ValueError
            A buffer is invalid on this rank.
        CollectiveError
            MismatchError if the ranks make different calls, DeadlockError if some rank can no longer make this one.
        """
        call = self._reduce_scatter(calls.REDUCE_SCATTER, sendbuf, recvbuf, recvcounts, op)
        self.run_collective(self.transport, call, "Reduce_scatter", call.send.nbytes)

    def Ireduce_scatter(
        self, sendbuf: np.ndarray, recvbuf: np.ndarray, recvcounts: list[int] | None = None, op: MPI.Op = MPI.SUM
    ) -> Request:
        """Start a nonblocking reduce-scatter; parameters as for `Reduce_scatter`. Touch neither array before ``Wait()``.

        Returns
        -------
        Request
        """
        call = self._reduce_scatter(calls.IREDUCE_SCATTER, sendbuf, recvbuf, recvcounts, op)
        return self.begin(call, "Reduce_scatter", call.send.nbytes)

    def _reduce_scatter(self, operation: int, sendbuf: object, recvbuf: object, recvcounts: Sequence[int] | None, op: MPI.Op) -> Call:
        send, recv = (sendbuf, recvbuf) if self._passes_fast_check(sendbuf, recvbuf) else self._checked(sendbuf, recvbuf, operation)
        name, n = OPERATIONS[operation], self._size
        self._no_in_place(send, name)
        if recvcounts is None:
            if send.size % n:
                raise ValueError(
                    f"{name}: sendbuf has {send.size} elements (shape {send.shape}), which "
                    f"{n} ranks cannot share equally. Pad it to a multiple of {n}, or pass recvcounts."
                )
            counts = [send.size // n] * n
        else:
            counts = [int(c) for c in recvcounts]
        if len(counts) != n or sum(counts) != send.size:
            raise ValueError(f"{name}: recvcounts must be {n} numbers that add up to the size of sendbuf, {send.size}; got {counts}.")
        expected = counts[self._rank]
        if recv.size != expected:
            buffers.check_size(recv, expected, send, f"rank {self._rank} of {n} gets {expected} of them", name)
        call = Call(operation, recv.dtype.num, send.size, reduction_code(op) + counts_digest(counts), send, recv, send, op)
        call.counts = counts
        return call

    def Bcast(self, buf: np.ndarray, root: int = 0) -> None:
        """Copy one rank's array to every rank.

        Parameters
        ----------
        buf : numpy.ndarray
            On the root the array to send; on the other ranks an array of the same size and dtype that receives it.
        root : int
            The rank that sends.

        Raises
        ------
        TypeError, ValueError
            The buffer or the root is invalid on this rank.
        CollectiveError
            MismatchError if the ranks make different calls, DeadlockError if some rank can no longer make this one.
        """
        array = self.transport.check(buf, "buf" if self._is_root(root, "Bcast") else "recvbuf", "Bcast")
        # Counted as on a ring, where each rank but the last passes the array on.
        payload = array.nbytes if (self._rank - root) % self._size < self._size - 1 else 0
        call = Call(calls.BCAST, array.dtype.num, array.size, 16 * (int(root) + 1), recv=array, root=int(root))
        self.run_collective(self.transport, call, "Bcast", payload)

    def Scatter(self, sendbuf: np.ndarray | None, recvbuf: np.ndarray, root: int = 0) -> None:
        """Distribute one rank's array: an equal part to each rank, in rank order.

        Parameters
        ----------
        sendbuf : numpy.ndarray or None
            On the root: n times the size of `recvbuf`, the same dtype. Ignored on the other ranks.
        recvbuf : numpy.ndarray
            Receives this rank's part.
        root : int
            The rank that sends.

        Raises
        ------
        TypeError, ValueError
            A buffer or the root is invalid on this rank.
        CollectiveError
            MismatchError if the ranks make different calls, DeadlockError if some rank can no longer make this one.
        """
        send, recv = None, self.transport.check(recvbuf, "recvbuf", "Scatter")
        if self._is_root(root, "Scatter"):
            send, recv = self._checked(sendbuf, recvbuf, calls.SCATTER)
            self._no_in_place(send, "Scatter")
            if send.size != recv.size * self._size:
                buffers.check_size(recv, send.size // self._size, send, f"{self._size} ranks each get the same number", "Scatter")
                raise ValueError(f"Scatter: sendbuf has {send.size} elements, which {self._size} ranks cannot share equally.")
        payload = recv.nbytes * (self._size - 1) if send is not None else 0
        call = Call(calls.SCATTER, recv.dtype.num, recv.size, 16 * (int(root) + 1), send, recv, root=int(root))
        self.run_collective(self.transport, call, "Scatter", payload)

    def Gather(self, sendbuf: np.ndarray, recvbuf: np.ndarray | None, root: int = 0) -> None:
        """Concatenate the ranks' arrays in rank order on one rank.

        Parameters
        ----------
        sendbuf : numpy.ndarray
            The same size and dtype on all ranks.
        recvbuf : numpy.ndarray or None
            On the root: n times the size of `sendbuf`, the same dtype. Ignored on the other ranks.
        root : int
            The rank that receives.

        Raises
        ------
        TypeError, ValueError
            A buffer or the root is invalid on this rank.
        CollectiveError
            MismatchError if the ranks make different calls, DeadlockError if some rank can no longer make this one.
        """
        send, recv = self.transport.check(sendbuf, "sendbuf", "Gather"), None
        if self._is_root(root, "Gather"):
            send, recv = self._checked(sendbuf, recvbuf, calls.GATHER)
            self._no_in_place(send, "Gather")
            buffers.check_size(recv, send.size * self._size, send, f"{self._size} ranks each send that many", "Gather")
        call = Call(calls.GATHER, send.dtype.num, send.size, 16 * (int(root) + 1), send, recv, root=int(root))
        self.run_collective(self.transport, call, "Gather", 0 if recv is not None else send.nbytes)

    def _is_root(self, root: object, where: str) -> bool:
        self._check_rank(root, "root", where)
        return self._rank == root

    def Alltoall(self, sendbuf: np.ndarray, recvbuf: np.ndarray) -> None:
        """Exchange equal parts between all ranks: part r of each rank's array goes to rank r.

        Parameters
        ----------
        sendbuf, recvbuf : numpy.ndarray
            n equal parts in rank order; the same size and dtype on all ranks. With shape ``(n, ...)``, ``sendbuf[r]`` goes to rank r, and
            ``recvbuf[r]`` is what rank r sent.

        Raises
        ------
        TypeError, ValueError
            A buffer is invalid on this rank.
        CollectiveError
            MismatchError if the ranks make different calls, DeadlockError if some rank can no longer make this one.
        """
        send, recv = (sendbuf, recvbuf) if self._passes_fast_check(sendbuf, recvbuf) else self._checked(sendbuf, recvbuf, calls.ALLTOALL)
        if send is IN_PLACE:
            self._no_in_place(send, "Alltoall")
        if send.size % self._size:
            raise ValueError(
                f"Alltoall: sendbuf has {send.size} elements (shape {send.shape}), which {self._size} ranks cannot share equally."
            )
        if recv.size != send.size:
            buffers.check_size(recv, send.size, send, "each rank gets as much as it sends", "Alltoall")
        self.run_collective(self.transport, Call(calls.ALLTOALL, recv.dtype.num, send.size, 0, send, recv), "Alltoall", send.nbytes)

    def Alltoallv(self, sendbuf: Sequence, recvbuf: Sequence) -> None:
        """Exchange parts of any size between all ranks.

        Parameters
        ----------
        sendbuf : [numpy.ndarray, counts] or [numpy.ndarray, (counts, displacements)]
            The number of elements for each rank, and the offset of each part in the array; contiguous parts by default.
        recvbuf : the same
            The number of elements from each rank, and the offset at which each part is stored.

        Raises
        ------
        TypeError, ValueError
            A buffer or its counts are invalid on this rank.
        CollectiveError
            MismatchError if the ranks make different calls or a sent count differs from the expected one, DeadlockError if some rank can no
            longer make the call.
        """
        n, host = self._size, self.transport.host
        send, out, starts = self._vector_buffer(sendbuf, "sendbuf")
        recv, into, places = self._vector_buffer(recvbuf, "recvbuf")
        buffers.same_dtype(send, recv, "Alltoallv")
        buffers.check_disjoint(send, recv, "Alltoallv")
        # First compare the counts, so that no receive buffer overflows; they are in host memory even if the data is on GPUs.
        sent_counts, announced_counts = np.array(out, np.int64), np.empty(n, np.int64)
        call = Call(calls.ALLTOALL, sent_counts.dtype.num, n, 16 * (recv.dtype.num + 1), sent_counts, announced_counts)
        self.run_collective(host, call, "Alltoallv")
        wrong = np.array([announced_counts.tolist() != into], np.int64)
        any_wrong = np.empty_like(wrong)
        self.run_collective(host, Call(calls.ALLREDUCE, wrong.dtype.num, 1, SUM, wrong, any_wrong, op=MPI.SUM), "Alltoallv")
        if any_wrong[0]:
            raise MismatchError(self._count_mismatch(announced_counts.tolist(), into))
        call = Call(calls.ALLTOALLV, recv.dtype.num, n, 0, send, recv)
        call.counts, call.starts, call.recv_counts, call.recv_starts = out, starts, into, places
        self.run_collective(self.transport, call, "Alltoallv", (sum(out) - out[self._rank]) * send.itemsize)

    def _count_mismatch(self, announced_counts: list[int], into: list[int]) -> str:
        for r, (sent, expected) in enumerate(zip(announced_counts, into, strict=True)):
            if sent != expected:
                return (
                    f"Alltoallv: rank {self.ranks[self._rank]} expects {expected} elements from rank {self.ranks[r]}, which sends {sent}. "
                    "What rank a sends to b must be what b expects from a: exchange the counts with Alltoall first."
                )
        return "Alltoallv: on another rank, the incoming counts differ from the expected ones; no rank has received anything."

    def _vector_buffer(self, value: object, what: str) -> tuple[np.ndarray, list[int], list[int]]:
        """Return the array of a vector argument, and the counts and displacements of its parts, in elements."""
        if not isinstance(value, (list, tuple)) or len(value) < 2:
            raise TypeError(f"Alltoallv: {what} must be [array, counts]; got {buffers.shown(value)}.")
        value = list(value[:-1]) if isinstance(value[-1], MPI.Datatype) else list(value)
        array, counts, *more = value
        if not more and isinstance(counts, (list, tuple)) and len(counts) == 2 and not np.isscalar(counts[0]):
            counts, *more = counts
        array = self.transport.check(array, what, "Alltoallv")
        counts = [int(c) for c in counts]
        starts = [int(s) for s in more[0]] if more else [sum(counts[:i]) for i in range(len(counts))]
        if len(counts) != self._size or len(starts) != self._size or min(*counts, *starts, 0) < 0:
            raise ValueError(f"Alltoallv: {what} needs {self._size} counts, one for each rank, 0 or more; got {counts}.")
        if any(start + count > array.size for start, count in zip(starts, counts, strict=True)):
            needed = max(map(sum, zip(starts, counts, strict=True)))
            raise ValueError(f"Alltoallv: {what} has {array.size} elements, and its counts {counts} need {needed}.")
        return array, counts, starts

    def Split(self, color: int = 0, key: int = 0) -> Communicator | MPI.Comm:
        """Divide the group: ranks with the same color form a new group, ordered by key.

        Parameters
        ----------
        color : int
            The new group that this rank joins, 0 or more; MPI.UNDEFINED for none.
        key : int
            Sort key within the new group; ranks with equal keys keep the order of this group.

        Returns
        -------
        Communicator
            This rank's new group (MPI.COMM_NULL for MPI.UNDEFINED).

        Raises
        ------
        TypeError, ValueError
            The color or the key is not a whole number, or the color is negative.
        CollectiveError
            MismatchError if a rank makes another call, DeadlockError if one can no longer make this one.
        """
        for name, value in (("color", color), ("key", key)):
            if not isinstance(value, (int, np.integer)) or isinstance(value, (bool, np.bool_)):
                raise TypeError(f"Split: {name} must be a whole number; got {value!r}. (Use // for integer division.)")
        if color < 0 and color != MPI.UNDEFINED:
            raise ValueError(f"Split: color must not be negative; got {color}.")
        self.check_usable()
        with deferred_interrupts:
            try:
                transport = self.transport.split(int(color), int(key))
            except MismatchError:
                raise
            except BaseException as error:
                self._mark_failed("Split", error)
                raise
        return MPI.COMM_NULL if transport is None else type(self)(transport=transport)

    def run_collective(self, transport: Transport, call: Call, name: str, payload: int = -1) -> None:
        """Have a transport carry out a collective, and count it.

        Parameters
        ----------
        transport : Transport
            This group's, or its `host` transport.
        call : Call
        name : str
            The operation, as `traffic` and error messages name it.
        payload : int
            Bytes to count; -1: do not count the call.

        Raises
        ------
        CollectiveError
            As `Transport.run`; any error but MismatchError makes the group unusable until the cell has ended, see `check_usable`.
        """
        if progress_state.failed_groups:
            self.check_usable()
        progress_state.deferrals += 1  # `deferred_interrupts` written out, which takes half the time
        try:
            transport.run(call)
        except MismatchError:  # raised on all ranks, so they still agree on the next call
            raise
        except BaseException as error:
            self._mark_failed(name, error)
            raise
        else:
            if payload >= 0:
                self._count(call, name, payload)
        finally:
            progress_state.deferrals -= 1
            if progress_state.interrupt_pending and not progress_state.deferrals:
                raise_interrupt()

    def _count(self, call: Call, name: str, payload: int) -> None:
        entry = self._counts[name]
        entry[0] += 1
        entry[1] += payload
        if memory.active_account is not None:
            memory.active_account.exchanged(call.send, call.recv)

    def begin(self, call: Call, name: str, payload: int, post: Callable | None = None) -> Request:
        """Start a nonblocking collective, and count it; parameters as for `run_collective`, `post` as for `MpiTransport.start`."""
        self.check_usable()
        with deferred_interrupts:
            request = self._started(self.transport.start(call) if post is None else self.transport.start(call, post))
        self._count(call, name, payload)
        return request

    # After a failure other than a mismatch, the ranks of the group are at different calls: the next call on one rank could be matched with
    # an earlier one on another. So on this rank the group accepts no more collectives until the cell has ended.

    def _mark_failed(self, name: str, error: BaseException) -> None:
        progress_state.failed_groups.setdefault(self.ranks, (f"{name} ({diagnostics.call_site()})", type(error).__name__))

    def check_usable(self) -> None:
        """Raise CollectiveError if a collective has failed on this group in this cell."""
        if found := progress_state.failed_groups.get(self.ranks):
            raise CollectiveError(diagnostics.group_unusable(str(self.transport), *found))

    # Point-to-point messages.

    def Send(self, buf: np.ndarray, dest: int, tag: int = 0) -> None:
        """Send an array to one rank; returns when the array may be reused.

        As in MPI, a small array is buffered (eager) and the call returns at once; a large one waits for its receive (rendezvous protocol).

        Parameters
        ----------
        buf : numpy.ndarray
        dest : int
            A rank of the group, or MPI.PROC_NULL for no message.
        tag : int
            A number by which the receiver can select the message, 0 to 32767.

        Raises
        ------
        TypeError, ValueError
            An argument is invalid on this rank.
        DeadlockError
            The destination can no longer receive the message.
        """
        self._exchange(self._outgoing(self.transport.check(buf, "buf", "Send"), dest, tag, "Send"), None, "Send")

    def Recv(self, buf: np.ndarray, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None) -> None:
        """Receive an array from one rank; blocks until it is here.

        Parameters
        ----------
        buf : numpy.ndarray
            Receives the array; the size and dtype must be those that were sent.
        source : int
            A rank of the group, or MPI.PROC_NULL for no message; any rank by default.
        tag : int
            The tag of the message; any tag by default.
        status : MPI.Status, optional
            Is set to the message's source and tag.

        Raises
        ------
        TypeError, ValueError
            An argument is invalid on this rank.
        MismatchError
            The message has another size or dtype.
        DeadlockError
            No rank can send a matching message any more.
        """
        self._exchange(None, self._incoming(self.transport.check(buf, "recvbuf", "Recv"), source, tag, "Recv"), "Recv", status)

    def Sendrecv(
        self,
        sendbuf: np.ndarray,
        dest: int,
        sendtag: int = 0,
        recvbuf: np.ndarray | None = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """Send an array to one rank and receive one from the same or another rank, concurrently: a ring of ranks does not deadlock.

        Parameters
        ----------
        sendbuf, recvbuf : numpy.ndarray
            Two arrays that share no memory; each may have its own size and dtype.
        dest, source : int
            Ranks of the group, or MPI.PROC_NULL.
        sendtag, recvtag, status
            As for `Send` and `Recv`.

        Raises
        ------
        TypeError, ValueError, MismatchError, DeadlockError
            As for `Send` and `Recv`.
        """
        send, recv = sendbuf, recvbuf
        if not self._passes_fast_check(send, recv):
            send, recv = self.transport.check(sendbuf, "sendbuf", "Sendrecv"), self.transport.check(recvbuf, "recvbuf", "Sendrecv")
            buffers.check_disjoint(send, recv, "Sendrecv")
        incoming = self._incoming(recv, source, recvtag, "Sendrecv")
        self._exchange(self._outgoing(send, dest, sendtag, "Sendrecv"), incoming, "Sendrecv", status)

    def Isend(self, buf: np.ndarray, dest: int, tag: int = 0) -> Request:
        """Start a nonblocking send; parameters as for `Send`. Do not change the array before ``Wait()``.

        Returns
        -------
        Request
        """
        outgoing = self._outgoing(self.transport.check(buf, "buf", "Isend"), dest, tag, "Isend")
        with deferred_interrupts:
            return self._started(outgoing and self.transport.send(*outgoing, "Wait of Isend"))

    def Irecv(self, buf: np.ndarray, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start a nonblocking receive; parameters as for `Recv`. Do not read the array before ``Wait()``.

        Returns
        -------
        Request
        """
        incoming = self._incoming(self.transport.check(buf, "recvbuf", "Irecv"), source, tag, "Irecv")
        with deferred_interrupts:
            return self._started(incoming and self.transport.receive(*incoming, "Wait of Irecv"))

    def _outgoing(self, array: np.ndarray, dest: int, tag: int, where: str) -> OutgoingMessage | None:
        """Check the arguments of a send, count it, and return it as the transport takes it; None for MPI.PROC_NULL."""
        if not (type(dest) is int is type(tag) and 0 <= dest < self._size and 0 <= tag <= LARGEST_TAG):
            self._check_rank(dest, "dest", where, PROC_NULL)
            _check_tag(tag, "sendtag" if where == "Sendrecv" else "tag", where)
            if dest == PROC_NULL:
                return _with_nobody(f"the dest of {where}")
            tag = int(tag)
        entry = self._counts["Send"]
        entry[0] += 1
        entry[1] += array.nbytes
        if memory.active_account is not None:
            memory.active_account.exchanged(array)
        return array, self.ranks[dest], tag

    def _incoming(self, array: np.ndarray, source: int, tag: int, where: str) -> IncomingMessage | None:
        """Check the arguments of a receive, and return it as the transport takes it; None for MPI.PROC_NULL."""
        if type(source) is int is type(tag) and 0 <= source < self._size and 0 <= tag <= LARGEST_TAG:
            sources = (self.ranks[source],)
        else:
            self._check_rank(source, "source", where, PROC_NULL, ANY_SOURCE)
            _check_tag(tag, "recvtag" if where == "Sendrecv" else "tag", where, ANY_TAG)
            if source == PROC_NULL:
                return _with_nobody(f"the source of {where}")
            sources = self.ranks if source == ANY_SOURCE else (self.ranks[source],)
            tag = WILDCARD if tag == ANY_TAG else int(tag)
        if memory.active_account is not None:
            memory.active_account.exchanged(array)
        return array, sources, tag

    def _exchange(
        self, outgoing: OutgoingMessage | None, incoming: IncomingMessage | None, call_name: str, status: MPI.Status | None = None
    ) -> None:
        if outgoing or incoming:
            progress_state.has_messages = True
            progress_state.deferrals += 1
            try:
                received = self.transport.exchange(outgoing, incoming, call_name)
            finally:
                progress_state.deferrals -= 1
                if progress_state.interrupt_pending and not progress_state.deferrals:
                    raise_interrupt()
            if status is not None and received:
                status.source, status.tag = self.ranks.index(received[0]), received[1]

    def _started(self, operation: Operation | None) -> Request:
        if operation:
            progress_state.in_flight[operation], progress_state.has_messages = None, progress_state.has_messages or not operation.collective
        return Request(self.transport, operation)

    def averaged(self, like: np.ndarray, count: int, shared: bool = True):
        """Allocate `count` zeros whose mean over the ranks can be computed; collective. See `transport.averaging.averaged_buffer`."""
        from course_lib.collectives.transport.averaging import averaged_buffer

        return averaged_buffer(self, like, count, shared)

    # Arguments.

    def _check_rank(self, rank: object, name: str, where: str, *also: int) -> None:
        if not isinstance(rank, (int, np.integer)) or isinstance(rank, bool) or not (0 <= rank < self._size or rank in also):
            raise ValueError(f"{where}: {name} must be a rank of the group, 0 to {self._size - 1}; got {buffers.shown(rank)}.")

    def _checked(self, sendbuf: object, recvbuf: object, operation: int) -> tuple:
        """Unpack and check both buffers with the transport's `check`, then against each other; raises as the functions of `buffers` do."""
        where, check = OPERATIONS[operation], self.transport.check
        if sendbuf is IN_PLACE:
            return sendbuf, check(recvbuf, "recvbuf", where)
        send, recv = check(sendbuf, "sendbuf", where), check(recvbuf, "recvbuf", where)
        buffers.same_dtype(send, recv, where)
        buffers.check_disjoint(send, recv, where)
        return send, recv

    @staticmethod
    def _no_in_place(send: object, where: str) -> None:
        if send is IN_PLACE:
            raise ValueError(f"{where}: MPI.IN_PLACE is not supported here; send from one array, receive into another.")


def _are_plain(send: object, recv: object) -> bool:
    """Return whether both are valid NumPy arrays as they are: a fast check; if False, `Communicator._checked` unpacks them or raises."""
    return (
        type(send) is ndarray is type(recv)
        and send.dtype is recv.dtype
        and send.dtype.num < 17
        and send.flags.c_contiguous
        and recv.flags.carray
        and send is not recv
        and (send.base is recv.base is None or not may_share_memory(send, recv))
    )


def _transports() -> ModuleType:
    """Return the module with this process's default transport: `relay` on an isolated rank, else `mpi`."""
    return import_module(f"course_lib.collectives.transport.{'relay' if isolated.connection else 'mpi'}")


def _with_nobody(what: str) -> None:
    """Report a legal message to or from MPI.PROC_NULL: often a neighbour was meant that the end of a line of ranks does not have."""
    if traffic.on_proc_null_message:
        traffic.on_proc_null_message(what)


def _check_tag(tag: object, name: str, where: str, *also: int) -> None:
    if not isinstance(tag, (int, np.integer)) or isinstance(tag, bool) or not (0 <= tag <= LARGEST_TAG or tag in also):
        raise ValueError(f"{where}: {name} must be a whole number from 0 to {LARGEST_TAG}; got {buffers.shown(tag)}.")
