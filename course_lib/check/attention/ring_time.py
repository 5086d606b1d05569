"""A ring attention's forward pass in part 23, on devices and links of given speeds.

Ranks of one machine share its cores, and a message between them is a copy in memory. So blocks take the time of a device of a given speed,
spent asleep, and messages arrive no earlier than over a network. The order of the work, the messages and the waits are those of the
student's function. All times are seconds of the machine's clock, which its processes share.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from course_lib.autograd import Tensor
from course_lib.collectives.communicator import ANY_SOURCE, ANY_TAG
from course_lib.collectives.instrumentation.recording import prolonged_wait
from course_lib.engine.namespace import get_ipython, student
from course_lib.trace import span
from course_lib.trace.timeline import Trace

STAMP_BYTES = 8  # at the end of each message: when it was sent


class PacedLink:
    """Communicator whose messages take as long as on a network.

    Parameters
    ----------
    comm : Communicator
    bandwidth : float
        Bytes per second from one rank to the next, one message after the other.
    overlap : bool
        Whether a message travels while its receiver computes. If not, it sets out when the receiver waits for it.

    Attributes
    ----------
    free_at : float
        When the last message has arrived.
    """

    def __init__(self, comm, bandwidth: float, overlap: bool):
        self.comm, self.bandwidth, self.overlap, self.free_at = comm, bandwidth, overlap, 0.0
        self._asked: list[LinkReceive] = []  # receives that have not started

    def __getattr__(self, name: str):
        return getattr(self.comm, name)

    def Isend(self, buf, dest: int, tag: int = 0):
        """Start a send, with the time."""
        data = np.ascontiguousarray(buf).reshape(-1).view(np.uint8)
        return self.comm.Isend(np.append(data, np.array([time.monotonic()]).view(np.uint8)), dest, tag)

    def Irecv(self, buf, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> LinkReceive:
        """Start a receive; without overlap, the first wait starts all of them."""
        self._asked.append(LinkReceive(self, buf, source, tag))
        request = self._asked[-1]
        if self.overlap:
            self.start_receives()
        return request

    def start_receives(self) -> None:
        """Start the receives that have not started, in the order of their calls."""
        for request in self._asked:
            request.start()
        self._asked.clear()

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


class LinkReceive:
    """Request of a message that comes on a `PacedLink`."""

    def __init__(self, link: PacedLink, buf: np.ndarray, source: int, tag: int):
        self._link, self._buf, self._call, self._request = link, buf, (source, tag), None
        self._came = np.empty(buf.nbytes + STAMP_BYTES, np.uint8)

    def start(self) -> None:
        """Start the receive."""
        self._request = self._link.comm.Irecv(self._came, *self._call)

    def Wait(self) -> None:
        """Wait until the message would be here on the network."""
        link, begin = self._link, time.monotonic()
        if self._came is None:
            return
        link.start_receives()
        with prolonged_wait(self._request):
            self._request.Wait()
            (sent,) = self._came[-STAMP_BYTES:].view(float)
            link.free_at = max(float(sent), link.free_at, begin if not link.overlap else 0.0) + self._buf.nbytes / link.bandwidth
            time.sleep(max(0.0, link.free_at - time.monotonic()))
        self._buf.reshape(-1).view(np.uint8)[:] = self._came[:-STAMP_BYTES]
        self._came = None

    def Test(self) -> bool:
        """Wait: a link makes progress in `Wait` only."""
        self.Wait()
        return True

    @staticmethod
    def Waitall(requests) -> None:
        """Wait for several requests."""
        for request in requests:
            request.Wait()


RUNS = {"plain": dict(plain=True), "zigzag": {}, "zigzag, overlapped": dict(overlap=True)}


def trace_passes(ranks, shape: tuple[int, int, int, int], flop_rate: float, bandwidth: float, tries: int = 5) -> dict[str, Trace]:
    """Trace the student's `ring_attention`, forward, with the ranks' chunks in two orders, and with messages that travel meanwhile.

    Parameters
    ----------
    ranks : Ranks
    shape : (int, int, int, int)
        Batch, heads, positions of the whole sequence, and width of a head.
    flop_rate : float
        FLOP per second of each rank, in blocks of attention.
    bandwidth : float
        See `PacedLink`.
    tries : int
        Number of passes of each run.

    Returns
    -------
    dict of str to Trace
        The fastest pass of each of `RUNS`, the one that other programs disturbed least.
    """
    arguments = dict(shape=shape, flop_rate=flop_rate, bandwidth=bandwidth, tries=tries)
    with ranks.trace(show=False) as traces:
        for how in RUNS.values():
            ranks.call(run_passes, arguments | how)
    return {name: trace.fastest("pass") for name, trace in zip(RUNS, traces, strict=True)}


def run_passes(shape, flop_rate, bandwidth, tries, plain=False, overlap=False):
    """Run the student's function on this rank some times; each pass is a span. `plain`: rank r has the chunks 2 r and 2 r + 1."""
    comm, names = student("everyone"), get_ipython().user_ns
    n, (batch, heads, positions, d) = comm.Get_size(), shape
    length = positions // (2 * n) * 2
    q, k, v = (Tensor(np.zeros((batch, heads, length, d), np.float32)) for _ in "qkv")
    replaced = {"block_attention": _paced_attention(flop_rate), "zigzag": _plain_order if plain else student("zigzag")}
    kept = {name: student(name) for name in replaced}
    names.update(replaced)
    try:
        for _ in range(tries):
            link = PacedLink(comm, bandwidth, overlap)
            comm.Barrier()
            with span("pass"):
                student("ring_attention")(q, k, v, link)
    finally:
        names.update(kept)


def _plain_order(n_chunks: int, ranks: int, rank: int) -> list[int]:
    return [2 * rank, 2 * rank + 1]


def _paced_attention(flop_rate: float) -> Callable:
    """Stand-in for `block_attention` that takes the time of the visible pairs, and computes nothing."""

    def block_attention(q, k, v, q_positions, k_positions):
        visible = np.searchsorted(np.sort(k_positions), q_positions, side="right").sum()
        flop = 4 * visible * q.shape[-1] * q.size // (q.shape[-1] * q.shape[-2])
        with span("forward"):
            time.sleep(flop / flop_rate)
        return np.zeros_like(q), np.zeros(q.shape[:-1], q.dtype)

    return block_attention
