"""Time of a ring attention's forward pass in part 23, on devices and links of given speeds.

Everything here runs on the ranks. Ranks of one machine share its cores, and a message between them is a copy in memory. So blocks take
the time of a device of a given speed, spent asleep, and messages arrive no earlier than over a network. The order of the work, the
messages and the waits are those of the student's function. All times are seconds of the machine's clock, which its processes share.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from course_lib.autograd import Tensor
from course_lib.collectives.communicator import ANY_SOURCE, ANY_TAG
from course_lib.engine.namespace import get_ipython, student

Wait = tuple[float, float, float]  # begin; from here on, the message is on its way; end


class PacedLink:
    """Communicator whose messages take as long as on a network, and which records how long this rank waits for them.

    Parameters
    ----------
    comm : Communicator
    bandwidth : float
        Bytes per second from one rank to the next, one message after the other.
    overlap : bool
        Whether a message travels while its receiver computes. If not, it sets out when the receiver waits for it.

    Attributes
    ----------
    waits : list of Wait
        For sends, the second and the third time are the same.
    """

    def __init__(self, comm, bandwidth: float, overlap: bool):
        self.bandwidth, self.overlap, self.waits, self.free_at = bandwidth, overlap, [], 0.0
        self._comm, self._stamps = comm, comm.Split(key=comm.Get_rank())  # each message has one more beside it: when it was sent

    def __getattr__(self, name: str):
        return getattr(self._comm, name)

    def Isend(self, buf, dest: int, tag: int = 0) -> LinkRequest:
        """Start a send, and note the time."""
        stamp = np.array([time.monotonic()])
        return LinkRequest(self, (self._comm.Isend(buf, dest, tag), self._stamps.Isend(stamp, dest, tag)), stamp, None)

    def Irecv(self, buf, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> LinkRequest:
        """Start a receive."""
        stamp = np.empty(1)
        return LinkRequest(self, (self._comm.Irecv(buf, source, tag), self._stamps.Irecv(stamp, source, tag)), stamp, buf.nbytes)

    def Send(self, buf, dest: int, tag: int = 0) -> None:
        """Send, and wait until the message has been taken."""
        self.Isend(buf, dest, tag).Wait()

    def Recv(self, buf, source: int = ANY_SOURCE, tag: int = ANY_TAG, status=None) -> None:
        """Receive; `status` is ignored."""
        self.Irecv(buf, source, tag).Wait()

    def Sendrecv(self, sendbuf, dest: int, sendtag: int = 0, recvbuf=None, source: int = ANY_SOURCE, recvtag: int = ANY_TAG) -> None:
        """Send and receive at the same time."""
        coming, going = self.Irecv(recvbuf, source, recvtag), self.Isend(sendbuf, dest, sendtag)
        coming.Wait()
        going.Wait()


class LinkRequest:
    """Request of a message on a `PacedLink`; `nbytes` is None for a send."""

    def __init__(self, link: PacedLink, requests: tuple, stamp: np.ndarray, nbytes: int | None):
        self._link, self._requests, self._stamp, self._nbytes = link, requests, stamp, nbytes

    def Wait(self) -> None:
        """Wait until the message has been taken, or, of a receive, until it would be here on the network."""
        if not self._requests:
            return
        link, begin = self._link, time.monotonic()
        for request in self._requests:
            request.Wait()
        self._requests, on_the_way = (), time.monotonic()
        if self._nbytes is not None:
            on_the_way = max(float(self._stamp[0]), link.free_at, begin if not link.overlap else 0.0)
            link.free_at = on_the_way + self._nbytes / link.bandwidth
            time.sleep(max(0.0, link.free_at - time.monotonic()))
        end = time.monotonic()
        link.waits.append((begin, min(max(begin, on_the_way), end), end))

    def Test(self) -> bool:
        """Wait: a link makes progress in `Wait` only."""
        self.Wait()
        return True

    @staticmethod
    def Waitall(requests) -> None:
        """Wait for several requests."""
        for request in requests:
            request.Wait()


def time_ring(
    shape: tuple[int, int, int, int],
    flop_rate: float,
    bandwidth: float,
    *,
    plain: bool = False,
    overlap: bool = False,
    tries: int = 5,
) -> tuple[list[Wait], float]:
    """Time the student's `ring_attention`, forward, on this rank; collective.

    Parameters
    ----------
    shape : (int, int, int, int)
        Batch, heads, positions of the whole sequence, and width of a head.
    flop_rate : float
        FLOP per second of each rank, in blocks of attention.
    bandwidth, overlap
        See `PacedLink`.
    plain : bool
        Whether rank r has the chunks 2 r and 2 r + 1, instead of what the student's `zigzag` says.
    tries : int
        Number of passes.

    Returns
    -------
    waits : list of Wait
        Those of the fastest pass, the one that other programs disturbed least, in seconds from its beginning.
    end : float
        When this rank was done.
    """
    comm, names = student("everyone"), get_ipython().user_ns
    n, (batch, heads, positions, d) = comm.Get_size(), shape
    length = positions // (2 * n) * 2
    q, k, v = (Tensor(np.zeros((batch, heads, length, d), np.float32)) for _ in "qkv")
    replaced = {"block_attention": _paced_attention(flop_rate), "zigzag": _plain_order if plain else student("zigzag")}
    kept, passes = {name: student(name) for name in replaced}, []
    names.update(replaced)
    try:
        for _ in range(tries):
            link = PacedLink(comm, bandwidth, overlap)
            comm.Barrier()
            began = time.monotonic()
            student("ring_attention")(q, k, v, link)
            passes.append((began, time.monotonic(), link.waits))
    finally:
        names.update(kept)
    times = np.empty((n, tries, 2))
    comm.Allgather(np.array([(began, ended) for began, ended, _ in passes]), times)
    begins = times[:, :, 0].min(axis=0)
    fastest = int(np.argmin(times[:, :, 1].max(axis=0) - begins))
    _, ended, waits = passes[fastest]
    return [tuple(t - begins[fastest] for t in wait) for wait in waits], ended - begins[fastest]


def _plain_order(n_chunks: int, ranks: int, rank: int) -> list[int]:
    return [2 * rank, 2 * rank + 1]


def _paced_attention(flop_rate: float) -> Callable:
    """Stand-in for `block_attention` that takes the time of the visible pairs, and computes nothing."""

    def block_attention(q, k, v, q_positions, k_positions):
        visible = np.searchsorted(np.sort(k_positions), q_positions, side="right").sum()
        flop = 4 * visible * q.shape[-1] * q.size // (q.shape[-1] * q.shape[-2])
        time.sleep(flop / flop_rate)
        return np.zeros_like(q), np.zeros(q.shape[:-1], q.dtype)

    return block_attention
