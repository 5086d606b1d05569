"""Fully sharded data parallel on 4 ranks: memory that a rank keeps, and time of a step, against plain data parallel; part 26's solution.

A GPT of 8 blocks of width 256 (6.4 million parameters), float32, Adam, 128 positions, one text per rank. Kept memory: parameters,
gradients and moments between steps, by tracemalloc, against four times the model. In a step, plain data parallel computes each
block's forward once, fully sharded twice.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator

from benchmarks import mpi

TURNS = 9


def measure(folder: str) -> None:
    """Measure on each of 4 ranks; rank 0 prints both ratios."""
    import numpy as np

    from course_lib import memory, students
    from course_lib.autograd import Adam, Sequential
    from course_lib.collectives import Communicator
    from course_lib.ddp import DistributedDataParallel
    from course_lib.gpt.fsdp import profile
    from course_lib.gpt.model.decoder import Sizes, layers, loss_of

    comm, wrapper = Communicator(), students.get(students.load(folder), "FullyShardedDataParallel")
    sizes, random = Sizes(vocabulary=256, width=256, heads=8, depth=8, length=128), np.random.default_rng(comm.Get_rank())
    tokens = random.integers(0, 256, (1, 128))
    whole = 4 * sum(p.data.nbytes for p in Sequential(*layers(sizes)).parameters())
    kept = profile.train(wrapper, lambda: layers(sizes), comm, tokens, steps=2)["kept"] / whole
    memory.keep_freed()
    ways = [wrap(Sequential(*layers(sizes)), comm) for wrap in (wrapper, DistributedDataParallel)]
    optimizers = [Adam(way.parameters()) for way in ways]

    def step(i: int) -> None:
        optimizers[i].zero_grad()
        loss_of(ways[i](tokens), tokens).backward()
        optimizers[i].step()

    taken = [[mpi.seconds(lambda i=i: step(i)) for i in (0, 1)] for _ in range(TURNS + 2)][2:]
    if comm.Get_rank() == 0:
        print(json.dumps([[kept], [sharded / plain for sharded, plain in taken]]))


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    with tempfile.TemporaryDirectory() as folder:
        reference.write(folder)
        kept, step = mpi.run(4, __name__, folder)
    yield "fsdp-kept-4-ranks/unsharded", kept, 0.30
    yield "fsdp-step-4-ranks/data-parallel", step, 1.5


if __name__ == "__main__":
    measure(sys.argv[1])
