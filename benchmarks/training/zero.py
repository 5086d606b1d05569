"""ZeRO: an epoch of stage 3 with Adam against a plain loop with the same steps, both in float32; and a step of stage 3 against stage 0.

784-256-10, global batch 60, 60,000 images, 4 ranks; and four layers of 1024 x 1024. One BLAS thread per rank.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator

import numpy as np

from benchmarks import mpi
from benchmarks.training.perceptron import BATCH, IMAGES, images
from benchmarks.turns import turns

DIMS = (784, 256, 10)
RANKS = 4
TURNS = turns(5)
STEPS = 20


class PlainLayer:
    """A stage-3 layer in bare mpi4py, in float32."""

    def __init__(self, comm, fan_in: int, fan_out: int, random: np.random.Generator):
        self.comm, self.size, self.shape = comm, comm.Get_size(), (fan_in, fan_out)
        self.w, self.b = (
            self.shard(a) for a in (random.standard_normal(self.shape, np.float32) * np.float32(0.05), np.zeros(fan_out, np.float32))
        )
        self.state = [np.zeros_like(a) for a in (self.w, self.w, self.b, self.b)]

    def shard(self, array: np.ndarray) -> np.ndarray:
        return np.split(np.pad(array.ravel(), (0, -array.size % self.size)), self.size)[self.comm.Get_rank()].copy()

    def gather(self, shard: np.ndarray, shape: tuple) -> np.ndarray:
        full = np.empty(self.size * shard.size, np.float32)
        self.comm.Allgather(shard, full)
        return full[: int(np.prod(shape))].reshape(shape)

    def scatter(self, grad: np.ndarray) -> np.ndarray:
        padded = np.pad(grad.ravel(), (0, -grad.size % self.size))
        mine = np.empty(padded.size // self.size, np.float32)
        self.comm.Reduce_scatter(padded, mine)
        return mine

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return x @ self.gather(self.w, self.shape) + self.gather(self.b, self.shape[1:])

    def backward(self, grad: np.ndarray) -> np.ndarray:
        grad_x = grad @ self.gather(self.w, self.shape).T
        self.grads = self.scatter(self.x.T @ grad), self.scatter(grad.sum(axis=0))
        return grad_x

    def adam(self, t: int, lr: float = 1e-3) -> None:
        mw, vw, mb, vb = self.state
        for i, (w, g, m, v) in enumerate(((self.w, self.grads[0], mw, vw), (self.b, self.grads[1], mb, vb))):
            m = 0.9 * m + 0.1 * g
            v = 0.999 * v + 0.001 * g**2
            w -= lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            self.state[2 * i : 2 * i + 2] = m, v


def plain_epoch(x: np.ndarray, y: np.ndarray, comm) -> None:
    """Run an epoch with the same exchanges and updates, step by step."""
    random, each = np.random.default_rng(0), BATCH // comm.Get_size()
    first, second = PlainLayer(comm, *DIMS[:2], random), PlainLayer(comm, *DIMS[1:], random)
    rows = np.arange(each)
    for t, start in enumerate(range(0, len(x), each), 1):
        xb, yb = x[start : start + each], y[start : start + each]
        h = np.maximum(first.forward(xb), 0)
        logits = second.forward(h)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        _loss = -np.mean(np.log(p[rows, yb]))
        p[rows, yb] -= 1
        first.backward(second.backward(p / np.float32(BATCH)) * (h > 0))
        first.adam(t)
        second.adam(t)


def measure(folder: str) -> None:
    """Time both on each rank, turn by turn; rank 0 prints the ratios."""
    from mpi4py import MPI

    from course_lib import datasets, students, training, zero
    from course_lib.collectives import Communicator

    world, comm, found = MPI.COMM_WORLD, Communicator(), students.load(folder)
    n, rank = world.Get_size(), world.Get_rank()
    x, y = images()
    training.read_shared = lambda name, comm: datasets.Dataset(name, x, y, x[:60], y[:60])
    run = training.TrainingRun(training.Config(dp_size=n, batch_size=BATCH, optimizer="adam", zero=3), found, comm)
    mine = slice(rank * IMAGES // n, (rank + 1) * IMAGES // n)
    own = x[mine], y[mine]

    def ours() -> None:
        run.model, run._done = run._new_model(), 0
        run.steps(run.total)

    epochs = [(mpi.seconds(ours), mpi.seconds(lambda: plain_epoch(*own, world))) for _ in range(TURNS)]
    models = {stage: zero.ZeroModel((1024,) * 5, comm, stage, found) for stage in (0, 3)}
    batch = np.random.default_rng(rank).random((15, 1024), np.float32), np.arange(15)

    def steps(stage: int) -> None:
        for _ in range(STEPS):
            models[stage].step(*batch)

    taken = [(mpi.seconds(lambda: steps(3)), mpi.seconds(lambda: steps(0))) for _ in range(2 * TURNS + 1)][1:]
    if rank == 0:
        print(json.dumps([[a / b for a, b in epochs], [a / b for a, b in taken]]))


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    with tempfile.TemporaryDirectory(prefix="course-bench-") as folder:
        reference.write(folder)
        epochs, steps = mpi.run(RANKS, __name__, folder)
    yield "zero3-adam-epoch-4-ranks/plain", epochs, 1.0
    yield "zero3-step-4-ranks/stage-0", steps, 1.0


if __name__ == "__main__":
    measure(sys.argv[1])
