"""`Communicator`, with all its checks, against bare blocking mpi4py, on 2 ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchmarks import mpi
from benchmarks.turns import turns

# Bytes, calls per turn, and the limit.
SIZES = ((16, 4000, 3.0), (65536, 1500, 0.8), (1 << 20, 200, 1.1), (4 << 20, 60, 1.1))
TURNS = turns(15)


def measure() -> None:
    """Time both on each rank, turn by turn; rank 0 prints the ratios."""
    import numpy as np
    from mpi4py import MPI

    from course_lib.collectives import Communicator

    bare, checked = MPI.COMM_WORLD, Communicator()

    def seconds(call, n: int) -> float:
        return mpi.seconds(lambda: [call() for _ in range(n)])

    results = {}
    for nbytes, n, _ in SIZES:
        send = np.ones(nbytes // 4, np.float32)
        recv = np.empty_like(send)
        pair = (lambda s=send, r=recv: bare.Allreduce(s, r), lambda s=send, r=recv: checked.Allreduce(s, r))
        for call in pair:
            seconds(call, n // 4)
        results[nbytes] = [1 / (seconds(pair[0], n) / seconds(pair[1], n)) for _ in range(TURNS)]
    if bare.Get_rank() == 0:
        print(json.dumps(results))


def figures() -> Iterator[tuple[str, list[float], float]]:
    results = mpi.run(2, __name__)
    for nbytes, _, limit in SIZES:
        yield f"allreduce-{nbytes}-bytes/bare", results[str(nbytes)], limit


if __name__ == "__main__":
    measure()
