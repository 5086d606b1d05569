"""Messages and all-to-all of `Communicator`, with all its checks, against bare mpi4py, on 2 ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchmarks import mpi
from benchmarks.turns import turns

SIZES = ((65536, 800), (1 << 20, 150))  # bytes, and calls per turn
TURNS = turns(15)
LIMIT = 1.15


def measure() -> None:
    """Time both on each rank, turn by turn; rank 0 prints the ratios."""
    import numpy as np
    from mpi4py import MPI

    from course_lib.collectives import Communicator

    bare, checked = MPI.COMM_WORLD, Communicator()
    other, results = 1 - bare.Get_rank(), {}
    for nbytes, n in SIZES:
        send = np.ones(nbytes // 4, np.float32)
        recv = np.empty_like(send)
        calls = {
            "sendrecv": lambda comm, s=send, r=recv: comm.Sendrecv(s, other, 0, r, other, 0),
            "alltoall": lambda comm, s=send, r=recv: comm.Alltoall(s, r),
        }
        for name, call in calls.items():

            def seconds(comm, call=call, n=n) -> float:
                return mpi.seconds(lambda: [call(comm) for _ in range(n)])

            for comm in (bare, checked):
                seconds(comm)
            results[f"{name}-{nbytes}"] = [seconds(checked) / seconds(bare) for _ in range(TURNS)]
    if bare.Get_rank() == 0:
        print(json.dumps(results))


def figures() -> Iterator[tuple[str, list[float], float]]:
    results = mpi.run(2, __name__)
    for name in ("sendrecv", "alltoall"):
        for nbytes, _ in SIZES:
            yield f"{name}-{nbytes}-bytes/bare", results[f"{name}-{nbytes}"], LIMIT


if __name__ == "__main__":
    measure()
