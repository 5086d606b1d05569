"""Fully sharded data parallel on 4 ranks: memory that a rank keeps, and time of a step, against plain data parallel; part 26's solution.
And the bytes that a step sends in bfloat16, against float32: a gather, a reduction and the loss scaler of part 31's solution.

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
from benchmarks.turns import turns

TURNS = turns(9)


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
    bits = bytes_of_step("bfloat16", comm, folder) / bytes_of_step("float32", comm, folder)
    if comm.Get_rank() == 0:
        print(json.dumps([[kept], [sharded / plain for sharded, plain in taken], [bits]]))


def bytes_of_step(dtype: str, comm: object, folder: str) -> float:
    """Bytes on the wire that this rank sends in a step with gathers and reductions in a format."""
    from course_lib import students, traffic
    from course_lib.autograd import Adam, Parameter
    from course_lib.gpt.fsdp import FlatModel

    functions = students.load(folder)
    gather_as, reduce_as, scaler_of = (students.get(functions, name) for name in ("gather_as", "reduce_as", "LossScaler"))
    model = FlatModel(comm, dtype)
    master, scaler = Parameter(model.shard()), scaler_of([comm])
    optimizer = Adam([master])
    traffic.reset()
    model.set(gather_as(master.data, dtype, comm))
    scaler.scale(model.loss(0)).backward()
    master.grad = reduce_as(model.gradient(), dtype, comm)
    if not scaler.step(optimizer):
        raise RuntimeError(f"a step in {dtype} was skipped.")
    scaler.update()
    return sum(entry.wire for entry in traffic.entries())


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    with tempfile.TemporaryDirectory() as folder:
        reference.write(folder)
        kept, step, bits = mpi.run(4, __name__, folder)
    yield "fsdp-kept-4-ranks/unsharded", kept, 0.30
    yield "fsdp-step-4-ranks/data-parallel", step, 1.5
    yield "fsdp-bytes-of-a-step-bfloat16/float32", bits, 0.55


if __name__ == "__main__":
    measure(sys.argv[1])
