"""A slow network between the ranks of a machine, to see what the bytes of a step cost."""

from __future__ import annotations

import time

import numpy as np

from course_lib import traffic
from course_lib.trace import recorder


class SlowLink:
    """Communicator whose all-gathers and all-to-alls take as long as on a network; all else is as fast as it is.

    Parameters
    ----------
    comm : Communicator
    bandwidth : float
        Bytes per second that a rank sends, while it receives as many.
    """

    def __init__(self, comm: object, bandwidth: float):
        self.comm, self.bandwidth = comm, bandwidth

    def __getattr__(self, name: str):
        return getattr(self.comm, name)

    def Allgather(self, sendbuf: np.ndarray, recvbuf: np.ndarray) -> None:
        """Gather the ranks' arrays on each rank, as `Communicator.Allgather` does."""
        self.comm.Allgather(sendbuf, recvbuf)
        self._prolong("Allgather", recvbuf.nbytes)

    def Alltoall(self, sendbuf: np.ndarray, recvbuf: np.ndarray) -> None:
        """Exchange parts of the ranks' arrays, as `Communicator.Alltoall` does."""
        self.comm.Alltoall(sendbuf, recvbuf)
        self._prolong("Alltoall", recvbuf.nbytes)

    def _prolong(self, operation: str, payload: int) -> None:
        """Wait as long as the bytes of the last call would take, and have a trace show this time as part of it."""
        time.sleep(traffic.wire_bytes(operation, self.comm.Get_size(), payload) / self.bandwidth)
        if active := recorder.active:
            event = active.events.pop()
            active.events.append((*event[: recorder.END], active.clock(), *event[recorder.END + 1 :]))
