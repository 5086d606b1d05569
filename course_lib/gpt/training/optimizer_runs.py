"""Part 36: a small GPT trained with Adam, with Muon on each rank, and with Muon over ranks; the optimizers come from the notebook."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from course_lib import traffic
from course_lib.autograd import Parameter, Sequential
from course_lib.collectives import Communicator
from course_lib.gpt.model import Sizes, layers, loss_of
from course_lib.gpt.text import load_and_broadcast, sample_batch
from course_lib.mesh import RankMesh
from course_lib.zero import ShardedAdam

SIZES = Sizes(vocabulary=256, width=128, heads=4, depth=3, length=64)
TEXTS = 4  # of each rank in a step
WAYS = ADAM, ON_EACH_RANK, SHARDED = "Adam", "Muon, on each rank", "Muon, sharded"


def matrices_and_others(model: Sequential) -> tuple[list[Parameter], list[Parameter]]:
    """Split a GPT's parameters: the matrices within its blocks, and embeddings, the output matrix and norms."""
    matrices = [p for block in model.modules[1:-1] for p in block.parameters() if len(p.shape) == 2]
    known = {id(p) for p in matrices}
    return matrices, [p for p in model.parameters() if id(p) not in known]


class Run:
    """A GPT in training, with the same initial weights on each rank; making it is collective.

    Parameters
    ----------
    comm : Communicator
        Data parallel ranks.
    way : str
        "Adam": for all parameters, on shards. "Muon, on each rank": averages the gradients of the matrices within blocks, and lets
        each rank take a step as if it were alone. "Muon, sharded": the student's optimizer over all ranks.
    muon : callable
        The student's `ShardedMuon`, called with matrices, others, a `RankMesh` and `adam_lr`.
    adam_lr : float
    sizes : Sizes

    Raises
    ------
    ValueError
        There is no such way.
    """

    def __init__(self, comm: object, way: str, muon: Callable, adam_lr: float = 3e-3, sizes: Sizes = SIZES):
        if way not in WAYS:
            raise ValueError(f"Run: way must be one of {', '.join(map(repr, WAYS))}; got {way!r}.")
        self.comm, self.sizes, self.average, (self.text, _) = comm, sizes, way == ON_EACH_RANK, load_and_broadcast(comm)
        self.model = Sequential(*layers(sizes))
        self.matrices, others = matrices_and_others(self.model)
        if way == ADAM:
            self.optimizer = ShardedAdam([*self.matrices, *others], comm, adam_lr)
            return
        where = Communicator(MPI.COMM_SELF) if self.average else comm
        mesh = RankMesh(where, dp=where.Get_size(), tp=1)
        self.optimizer = muon([(p, 0) for p in self.matrices], others, mesh, adam_lr=adam_lr)
        self.optimizer.adam = ShardedAdam(others, comm, adam_lr)

    def backward(self, step: int) -> float:
        """Compute the gradients of a step; return the mean loss over this rank's texts."""
        n, rank = self.comm.Get_size(), self.comm.Get_rank()
        tokens, labels = sample_batch(self.text, step, TEXTS * n, self.sizes.length, seed=0)
        loss = loss_of(self.model(tokens[rank::n]), labels[rank::n])
        self.model.zero_grad()
        loss.backward()
        return loss.item()

    def step(self) -> None:
        """Take the optimizer's step."""
        n = self.comm.Get_size()
        for p in self.matrices if self.average else []:
            every = np.empty((n, *p.shape), p.dtype)
            self.comm.Allgather(np.ascontiguousarray(p.grad), every)
            p.grad = every.sum(axis=0) / n  # in rank order
        self.optimizer.step()

    def train(self, steps: int) -> dict:
        """Take some steps; collective.

        Returns
        -------
        dict
            "losses", the mean over the ranks of each step; "seconds", when each step has ended; "optimizer", the mean time that a step
            spent in the optimizer, in milliseconds; "sent", the mean bytes on the wire of a step; "weights", the matrices at the end, flat.
        """
        losses, ends, spent = np.empty(steps), [], 0.0
        traffic.reset()
        self.comm.Barrier()
        began = time.perf_counter()
        for step in range(steps):
            losses[step] = self.backward(step)
            self.comm.Barrier()
            middle = time.perf_counter()
            self.step()
            self.comm.Barrier()
            ends.append(time.perf_counter() - began)
            spent += time.perf_counter() - middle
        sent = sum(entry.wire for entry in traffic.entries()) / steps
        total = np.empty(steps)
        self.comm.Allreduce(losses, total)
        weights = np.concatenate([p.data.ravel() for p in self.matrices])
        return dict(losses=total / self.comm.Get_size(), seconds=ends, optimizer=1e3 * spent / steps, sent=sent, weights=weights)


def train(comm: object, muon: Callable, way: str, steps: int, adam_lr: float = 3e-3) -> dict:
    """Make a `Run` and train for some steps; collective."""
    return Run(comm, way, muon, adam_lr).train(steps)
