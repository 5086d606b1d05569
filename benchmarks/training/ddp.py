"""The ready-made wrapper with buckets, against one all-reduce per parameter in its hook: two ranks, four layers of 1024, float32.

Forward and backward with 16 samples per rank; one BLAS thread per rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from benchmarks import mpi
from benchmarks.turns import turns
from course_lib.autograd import Linear, Module, Sequential, Tanh, cross_entropy

WIDTH, LAYERS, SAMPLES = 1024, 4, 16
TURNS = turns(15)
STEPS = 10


class OneAParameter(Module):
    """A wrapper as part 14 asks for: each parameter's hook averages its gradient."""

    def __init__(self, model: Module, comm):
        self.model, self.comm = model, comm
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.average)

    def average(self, grad: np.ndarray) -> np.ndarray:
        mean = np.empty_like(grad)
        self.comm.Allreduce(grad, mean)
        mean /= self.comm.Get_size()
        return mean

    def forward(self, x):
        return self.model(x)


def measure() -> None:
    """Time both on each rank, turn by turn; rank 0 prints the ratios."""
    from course_lib.collectives import Communicator
    from course_lib.ddp import DistributedDataParallel

    comm, random = Communicator(), np.random.default_rng(0)
    x, y = random.standard_normal((SAMPLES, WIDTH), np.float32), random.integers(0, WIDTH, SAMPLES)

    def model() -> Module:
        return Sequential(*(part for _ in range(LAYERS) for part in (Linear(WIDTH, WIDTH), Tanh())))

    def steps(wrapped: Module) -> None:
        for _ in range(STEPS):
            for p in wrapped.parameters():
                p.grad = None
            cross_entropy(wrapped(x), y).backward()

    ours, theirs = DistributedDataParallel(model(), comm), OneAParameter(model(), comm)
    taken = [(mpi.seconds(lambda: steps(ours)), mpi.seconds(lambda: steps(theirs))) for _ in range(TURNS + 1)][1:]
    if comm.Get_rank() == 0:
        print(json.dumps([a / b for a, b in taken]))


def figures() -> Iterator[tuple[str, list[float], float]]:
    yield "ddp-buckets-2-ranks/one-collective-a-parameter", mpi.run(2, __name__), 0.8


if __name__ == "__main__":
    measure()
