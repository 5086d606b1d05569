"""Six runs of a tiny GPT on four ranks. Each has one bug, and none of them crashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from course_lib.autograd import Module, Sequential, Tensor
from course_lib.autograd.block_attention import block_attention, block_backward
from course_lib.autograd.tensor import run_backward
from course_lib.gpt.model.block import Block
from course_lib.gpt.model.decoder import Embed, Head, loss_of
from course_lib.gpt.silent_bugs.step import (
    SEED,
    SIZES,
    Step,
    gathered,
    loss_and_backward,
    own_part,
    samples_of,
    split_head,
    summed,
)
from course_lib.mesh import RankMesh
from course_lib.trace import span


class RunA(Step):
    """Two copies of the model (dp), and in each, two ranks share the columns of the last matrix (tp)."""

    axes, sharded = dict(dp=2, tp=2), {"3.words.weight": ("tp", 1)}

    def step(self, batch: np.ndarray, mesh: RankMesh) -> float:
        """The mean over dp; the loss is the mean over all ranks."""
        loss = split_head(self.model, samples_of(batch, mesh), mesh.along("tp"))
        self.average("dp")
        return summed(loss, mesh.along("tp")) / mesh.size


class RunB(Step):
    """Four copies of the model."""

    axes: ClassVar = dict(dp=4)

    def step(self, batch: np.ndarray, mesh: RankMesh) -> float:
        """The mean over dp."""
        loss = loss_and_backward(self.model, samples_of(batch, mesh))
        for p in self.model.parameters():
            p.grad = summed(p.grad, mesh.along("dp"))
        return summed(loss, mesh.along("dp")) / mesh.dp


def accumulate(model: Module, micro_batches: Sequence[np.ndarray]) -> float:
    """Leave the gradients of the mean loss over all micro-batches in the model's parameters; return this loss."""
    loss = 0.0
    for texts in micro_batches:
        model.zero_grad()
        loss += loss_and_backward(model, texts) / len(micro_batches)
    return loss


class RunC(Step):
    """Four copies of the model; each takes its texts in two micro-batches, which halves the memory of activations."""

    axes, accumulate = dict(dp=4), staticmethod(accumulate)

    def step(self, batch: np.ndarray, mesh: RankMesh) -> float:
        """The mean over the micro-batches, and then over dp."""
        loss = self.accumulate(self.model, np.split(samples_of(batch, mesh), 2))
        self.average("dp")
        return summed(loss, mesh.along("dp")) / mesh.dp


def own_gradients(dq: np.ndarray, dk: np.ndarray, dv: np.ndarray, comm: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of this rank's q, k and v, from what this rank's queries give to its own q, and to the k and v of all ranks."""
    return dq, own_part(dk, comm, 2), own_part(dv, comm, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, comm: object, own_gradients: Callable) -> Tensor:
    """Attention of this rank's positions to all earlier positions of the text, of which the other ranks have the rest."""
    n, rank, each = comm.Get_size(), comm.Get_rank(), q.shape[2]
    mine, every = np.arange(rank * each, (rank + 1) * each), np.arange(n * each)
    keys, values = gathered(k.data, comm, 2), gathered(v.data, comm, 2)
    out, lse = block_attention(q.data, keys, values, mine, every)

    def backward(grad: np.ndarray) -> tuple:
        return own_gradients(*block_backward(grad, out, lse, q.data, keys, values, mine, every), comm)

    return Tensor.from_operation(out, (q, k, v), backward)


class RunD(Step):
    """Two copies of the model (dp), and in each, two ranks share the positions of all texts (cp)."""

    axes, own_gradients = dict(dp=2, cp=2), staticmethod(own_gradients)

    def build(self, mesh: RankMesh) -> Module:
        """Blocks whose attention sees the keys and values of all ranks."""

        def core_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(q, k, v, mesh.along("cp"), self.own_gradients)

        each, random = SIZES.length // mesh.cp, [np.random.default_rng([SEED, i]) for i in range(SIZES.depth + 2)]
        here = np.arange(each) + each * mesh.coordinate("cp")
        blocks = [Block(SIZES.width, SIZES.heads, random[1 + i], core_attention=core_attention) for i in range(SIZES.depth)]
        return Sequential(Embed(SIZES, random[0], positions=here), *blocks, Head(SIZES, random[-1]))

    def step(self, batch: np.ndarray, mesh: RankMesh) -> float:
        """The mean over dp and cp, as each rank has the same number of tokens."""
        texts = samples_of(batch, mesh)
        tokens, labels = (own_part(a, mesh.along("cp"), 1) for a in (texts[:, :-1], texts[:, 1:]))
        with span("forward"):
            loss = loss_of(self.model(tokens), labels)
        with span("backward"):
            loss.backward()
        self.average("dp")
        self.average("cp")
        return summed(loss.item(), mesh.comm) / mesh.size


class RunE(Step):
    """As run A: two copies of the model (dp), and two ranks share the columns of the last matrix (tp)."""

    axes, sharded = dict(dp=2, tp=2), {"3.words.weight": ("tp", 1)}

    def step(self, batch: np.ndarray, mesh: RankMesh) -> float:
        """The mean over dp."""
        loss = self.split_head(samples_of(batch, mesh), mesh.along("tp"))
        self.average("dp")
        return summed(loss, mesh.along("dp")) / mesh.dp

    def split_head(self, texts: np.ndarray, comm: object) -> float:
        """The logits of all columns, and the gradients of this rank's columns and of all other layers."""
        *body, head = self.model.modules
        x = head.norm(Sequential(*body)(texts[:, :-1]))
        here = Tensor(x.data, requires_grad=True)
        mine = head.words(here)
        logits = Tensor(gathered(mine.data, comm, -1), requires_grad=True)
        loss = loss_of(logits, texts[:, 1:])
        loss.backward()
        run_backward(mine, own_part(logits.grad, comm, -1))
        run_backward(x, here.grad)
        return loss.item()


class RunF(Step):
    """Four copies of the model. The largest gradients are sent into one of two buffers, so that the next step need not wait."""

    axes, overlapped = dict(dp=4), ("0.words.weight", "0.places")

    def __init__(self, mesh: RankMesh):
        super().__init__(mesh)
        self.turn, self.buffers = 0, {}

    def step(self, batch: np.ndarray, mesh: RankMesh) -> float:
        """The mean over dp."""
        loss = loss_and_backward(self.model, samples_of(batch, mesh))
        self.average("dp")
        self.turn = 1 - self.turn
        for name in self.overlapped:
            p = self.parameters[name]
            self.buffers[self.turn, name] = p.grad
            p.grad = self.buffers.get((1 - self.turn, name), np.zeros_like(p.grad))
        return summed(loss, mesh.along("dp")) / mesh.dp


RUNS = dict(A=RunA, B=RunB, C=RunC, D=RunD, E=RunE, F=RunF)
