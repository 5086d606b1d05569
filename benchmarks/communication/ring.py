"""Ring attention on 4 ranks: each rank's peak memory in a step, against full attention to the same 2048 positions on one rank.

Two heads of width 64, float32, forward and backward, with part 23's solution; measured by tracemalloc beyond q, k and v.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator

from benchmarks import mpi

POSITIONS, HEADS, WIDTH = 2048, 2, 64


def measure(folder: str) -> None:
    """Run a step on each of 4 ranks; rank 0 prints the ratio of each rank's peak to that of full attention."""
    import numpy as np
    from mpi4py import MPI

    from course_lib import students
    from course_lib.check.attention.kernels import full_attention, peak_of_step
    from course_lib.collectives import Communicator

    comm, ring = Communicator(), students.get(students.load(folder), "ring_attention")

    def peak(attention, positions: int) -> int:
        q, k, v, grad = np.random.default_rng(0).standard_normal((4, 1, HEADS, positions, WIDTH), np.float32)
        return peak_of_step(attention, (q, k, v), grad, comm)[0]

    mine = [peak(ring, POSITIONS // comm.Get_size()) for _ in range(2)][-1]
    peaks = MPI.COMM_WORLD.gather(mine)
    if comm.Get_rank() == 0:
        whole = peak(full_attention, POSITIONS)
        print(json.dumps([each / whole for each in peaks]))


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    with tempfile.TemporaryDirectory() as folder:
        reference.write(folder)
        yield "ring-attention-peak-memory/full", mpi.run(4, __name__, folder), 0.35


if __name__ == "__main__":
    measure(sys.argv[1])
