"""An epoch of the perceptron, against a plain NumPy loop, and against PyTorch's DDP.

784-256-10, float32, global batch 60, 60,000 images, one BLAS thread per rank.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import mpi
from benchmarks.turns import turns
from course_lib.engine.processes.mpiexec import THREAD_VARIABLES

IMAGES, PIXELS, HIDDEN, CLASSES, BATCH, LR = 60_000, 784, 256, 10, 60, 0.1
TURNS = turns(5)


def images() -> tuple[np.ndarray, np.ndarray]:
    """Return as many images as Fashion-MNIST has, as easy to tell apart.

    Nothing can be learned from pure noise: units die, and Adam's moments decay to denormal numbers, which
    processors handle slowly.
    """
    random = np.random.default_rng(0)
    labels, prototypes = random.integers(0, CLASSES, IMAGES), np.maximum(random.standard_normal((CLASSES, PIXELS), np.float32), 0)
    x = random.random((IMAGES, PIXELS), np.float32)
    x *= prototypes[labels]
    return x, labels


def plain(x: np.ndarray, y: np.ndarray, comm) -> None:
    """Run an epoch in plain NumPy; on several ranks, with one fused all-reduce of all gradients per step."""
    size, random = comm.Get_size(), np.random.default_rng(0)
    w1 = (random.standard_normal((PIXELS, HIDDEN)) * 0.05).astype(np.float32)
    w2 = (random.standard_normal((HIDDEN, CLASSES)) * 0.08).astype(np.float32)
    b1, b2 = np.zeros(HIDDEN, np.float32), np.zeros(CLASSES, np.float32)
    params, each = [w1, b1, w2, b2], BATCH // size
    for start in range(0, len(x), each):
        xb, yb = x[start : start + each], y[start : start + each]
        h = np.maximum(xb @ w1 + b1, 0)
        logits = h @ w2 + b2
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        _loss = -np.mean(np.log(p[np.arange(each), yb]))
        p[np.arange(each), yb] -= 1
        p /= each
        dh = p @ w2.T * (h > 0)
        grads = [xb.T @ dh, dh.sum(axis=0), h.T @ p, p.sum(axis=0)]
        if size > 1:
            flat = np.concatenate([g.ravel() for g in grads])
            total = np.empty_like(flat)
            comm.Allreduce(flat, total)
            total /= size
            cuts = np.cumsum([g.size for g in grads])[:-1]
            grads = [part.reshape(g.shape) for part, g in zip(np.split(total, cuts), grads, strict=True)]
        for w, g in zip(params, grads, strict=True):
            w -= LR * g


def measure(folder: str) -> None:
    """Time an epoch of both on each rank, turn by turn; rank 0 prints the seconds."""
    from mpi4py import MPI

    from course_lib import datasets, students, training
    from course_lib.collectives import Communicator

    world, comm = MPI.COMM_WORLD, Communicator()
    n = world.Get_size()
    x, y = images()
    training.read_shared = lambda name, comm: datasets.Dataset(name, x, y, x[:60], y[:60])
    run = training.TrainingRun(training.Config(dp_size=n, batch_size=BATCH, lr=LR), students.load(folder), comm)
    mine = x[world.Get_rank() * IMAGES // n :][: IMAGES // n], y[world.Get_rank() * IMAGES // n :][: IMAGES // n]

    def ours() -> None:
        run._done = 0
        run.steps(run.total)

    taken = [(mpi.seconds(ours), mpi.seconds(lambda: plain(*mine, world))) for _ in range(TURNS + 1)][1:]
    if world.Get_rank() == 0:
        print(json.dumps(taken))


def measure_torch(rank: int, n: int, meet: str) -> None:
    """Run one rank of PyTorch's DDP on gloo; rank 0 prints the seconds of each epoch."""
    import torch
    from torch import distributed, nn

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=n)
    x, y = (torch.from_numpy(a[rank * IMAGES // n :][: IMAGES // n]) for a in images())
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)))
    optimizer, loss, each = torch.optim.SGD(model.parameters(), lr=LR), nn.CrossEntropyLoss(), BATCH // n
    taken = []
    for _ in range(4):
        distributed.barrier()
        began = time.perf_counter()
        for start in range(0, len(x), each):
            optimizer.zero_grad()
            loss(model(x[start : start + each]), y[start : start + each]).backward()
            optimizer.step()
        distributed.barrier()
        taken.append(time.perf_counter() - began)
    if rank == 0:
        print(json.dumps(taken[1:]))
    distributed.destroy_process_group()


def by_torch(n: int, folder: str) -> list[float]:
    """Return the seconds of an epoch of PyTorch's DDP on n ranks."""
    meet = str(Path(folder) / f"gloo-{n}")
    environment = {**os.environ, **THREAD_VARIABLES, "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
    words = [sys.executable, "-m", "benchmarks.training.perceptron", str(n), meet]
    ranks = [subprocess.Popen([*words, str(r)], env=environment, stdout=subprocess.PIPE, text=True) for r in range(n)]
    out = [r.communicate(timeout=600)[0] for r in ranks]
    if any(r.returncode for r in ranks):
        raise RuntimeError(f"PyTorch's DDP ended with {[r.returncode for r in ranks]}")
    return json.loads(out[0])


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    with tempfile.TemporaryDirectory(prefix="course-bench-") as folder:
        reference.write(folder)
        yield "epoch-1-rank/plain-numpy", [ours / plain for ours, plain in mpi.run(1, __name__, folder)], 1.1
        two = mpi.run(2, __name__, folder)
        yield "epoch-2-ranks-dp/plain-fused", [ours / plain for ours, plain in two], 1.0
        if importlib.util.find_spec("torch") is None:
            print("bench: PyTorch's DDP was left out: torch is not installed (pip install -e '.[torch]').", file=sys.stderr)
            return
        for n, limit in ((2, 0.25), (4, 0.25)):
            ours = two if n == 2 else mpi.run(n, __name__, folder)
            theirs = statistics.median(by_torch(n, folder))
            yield f"epoch-{n}-ranks-dp/torch-ddp", [seconds / theirs for seconds, _ in ours], limit


if __name__ == "__main__":
    if len(sys.argv) == 2:
        measure(sys.argv[1])
    else:
        measure_torch(int(sys.argv[3]), int(sys.argv[1]), sys.argv[2])
