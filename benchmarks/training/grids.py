"""Cost of `Communicator`, with all its checks, in real training: steps on a grid, against the same on bare mpi4py communicators.

784-256-10, float32, Megatron's style, a batch of 120, 200 steps per turn.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator

import numpy as np

from benchmarks import mpi
from benchmarks.turns import turns

GRIDS = ((1, 2), (2, 2), (4, 2))  # model parallel, data parallel
BATCH = 120
STEPS = 200
TURNS = turns(11)
LIMIT = 0.9


def measure(folder: str, mp_size: int, dp_size: int) -> None:
    """Time both on each rank, turn by turn; rank 0 prints the ratios."""
    from mpi4py import MPI

    from course_lib import students
    from course_lib.collectives import Communicator
    from course_lib.layers import MLP

    functions, world = students.load(folder), MPI.COMM_WORLD
    random, each = np.random.default_rng(world.Get_rank() // mp_size), BATCH // dp_size
    x, y = random.random((each, 784), np.float32), random.integers(0, 10, each)

    def steps(model: MLP) -> None:
        for _ in range(STEPS):
            model.step(x, y, 0.01)

    models = [MLP((784, 256, 10), comm, functions, mp_size, dp_size, megatron=True) for comm in (Communicator(), world)]
    taken = [[mpi.seconds(lambda model=model: steps(model)) for model in models] for _ in range(TURNS + 1)][1:]
    if world.Get_rank() == 0:
        print(json.dumps([ours / bare for ours, bare in taken]))


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    with tempfile.TemporaryDirectory(prefix="course-bench-") as folder:
        reference.write(folder)
        for mp_size, dp_size in GRIDS:
            ratios = mpi.run(mp_size * dp_size, __name__, folder, str(mp_size), str(dp_size))
            yield f"200-steps-mp-{mp_size}-dp-{dp_size}/bare-mpi4py", ratios, LIMIT


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
