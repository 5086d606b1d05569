"""Collectives in which one rank, the root, has or gets what the others do not; see `communicator`."""

from __future__ import annotations

import numpy as np

from course_lib import memory
from course_lib.collectives import buffers
from course_lib.collectives.calls import BCAST, GATHER, SCATTER


class Rooted:
    """The part of `Communicator` with a root."""

    def Bcast(self, buf: np.ndarray, root: int = 0) -> None:
        """Give every rank what one rank has.

        Parameters
        ----------
        buf : numpy.ndarray
            On the root what is sent, elsewhere an array of the same size and dtype that receives it.
        root : int
            The rank that has it.

        Raises
        ------
        TypeError, ValueError
            The buffer or the root is wrong on this rank.
        CollectiveError
            The ranks do not make the same call, or not all of them come.
        """
        array = self._array(buf, "buf" if self._is_root(root, "Bcast") else "recvbuf", "Bcast")
        group = self._group
        group.meet(BCAST, array.dtype.num, array.size, 16 * (root + 1))
        group.finish(group.mpi.Ibcast(array, root), BCAST)
        # In a ring, each rank but the last passes it on.
        group.count("Bcast", array.nbytes if (self._rank - root) % self._size < self._size - 1 else 0)
        if memory.held is not None:
            memory.held.exchanged(array)

    def Scatter(self, sendbuf: np.ndarray | None, recvbuf: np.ndarray, root: int = 0) -> None:
        """Deal out one rank's array, an equal part to each rank, in rank order.

        Parameters
        ----------
        sendbuf : numpy.ndarray or None
            On the root: n times the size of `recvbuf`, the same dtype. Elsewhere it is not looked at.
        recvbuf : numpy.ndarray
            This rank's part.
        root : int
            The rank that has the whole.

        Raises
        ------
        TypeError, ValueError
            A buffer or the root is wrong on this rank.
        CollectiveError
            The ranks do not make the same call, or not all of them come.
        """
        send, recv = None, self._array(recvbuf, "recvbuf", "Scatter")
        if self._is_root(root, "Scatter"):
            send, recv = self._check(sendbuf, recvbuf, "Scatter")
            if send.size != recv.size * self._size:
                buffers.size(recv, send.size // self._size, send, f"{self._size} ranks get as much each", "Scatter")
                raise ValueError(f"Scatter: sendbuf has {send.size} elements, which {self._size} ranks cannot share equally.")
        group = self._group
        group.meet(SCATTER, recv.dtype.num, recv.size, 16 * (root + 1))
        group.finish(group.mpi.Iscatter(send, recv, root), SCATTER)
        group.count("Scatter", recv.nbytes * (self._size - 1) if send is not None else 0)
        if memory.held is not None:
            memory.held.exchanged(send, recv)

    def Gather(self, sendbuf: np.ndarray, recvbuf: np.ndarray | None, root: int = 0) -> None:
        """Collect the ranks' arrays on one rank, in rank order.

        Parameters
        ----------
        sendbuf : numpy.ndarray
            The same size and dtype on all ranks.
        recvbuf : numpy.ndarray or None
            On the root: n times the size of `sendbuf`, the same dtype. Elsewhere it is not looked at.
        root : int
            The rank that gets the whole.

        Raises
        ------
        TypeError, ValueError
            A buffer or the root is wrong on this rank.
        CollectiveError
            The ranks do not make the same call, or not all of them come.
        """
        send, recv = self._array(sendbuf, "sendbuf", "Gather"), None
        if self._is_root(root, "Gather"):
            send, recv = self._check(sendbuf, recvbuf, "Gather")
            buffers.size(recv, send.size * self._size, send, f"{self._size} ranks send as much each", "Gather")
        group = self._group
        group.meet(GATHER, send.dtype.num, send.size, 16 * (root + 1))
        group.finish(group.mpi.Igather(send, recv, root), GATHER)
        group.count("Gather", 0 if recv is not None else send.nbytes)
        if memory.held is not None:
            memory.held.exchanged(send, recv)

    def _is_root(self, root: object, where: str) -> bool:
        if not isinstance(root, (int, np.integer)) or not 0 <= root < self._size:
            raise ValueError(f"{where}: root must be a rank of the group, 0 to {self._size - 1}; got {buffers.shown(root)}.")
        return self._rank == root
