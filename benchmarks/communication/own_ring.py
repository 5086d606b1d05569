"""All-reduce of 4 MB on 4 ranks: part 30's solution, a ring of NumPy and messages, against MPICH's own `Allreduce`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import mpi
from benchmarks.turns import turns

COUNT = 1 << 19  # float64 numbers
CALLS = 10  # a turn
TURNS = turns(15)
LIMIT = 3.0
PART, FUNCTIONS = "30_collectives", ("ring_reduce_scatter", "ring_all_gather", "ring_all_reduce")


def measure(file: str) -> None:
    """Time both on each rank, turn by turn; rank 0 prints the ratios."""
    import numpy as np
    from mpi4py import MPI

    from course_lib.collectives import Communicator

    names: dict = {"np": np}
    exec(Path(file).read_text(), names)
    comm, x = Communicator(), np.arange(COUNT, dtype=float)
    received = np.empty_like(x)
    assert np.array_equal(names["ring_all_reduce"](x, comm, np.add), comm.Get_size() * x)

    def own() -> None:
        for _ in range(CALLS):
            names["ring_all_reduce"](x, comm, np.add)

    def mpich() -> None:
        for _ in range(CALLS):
            MPI.COMM_WORLD.Allreduce(x, received)

    mpi.seconds(own), mpi.seconds(mpich)
    ratios = [mpi.seconds(own) / mpi.seconds(mpich) for _ in range(TURNS)]
    if comm.Get_rank() == 0:
        print(json.dumps(ratios))


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import answers

    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write("\n\n".join(answers.solution(PART, name) for name in FUNCTIONS))
        file.flush()
        yield "own-ring-4-MB/mpich", mpi.run(4, __name__, file.name), LIMIT


if __name__ == "__main__":
    measure(sys.argv[1])
