"""A training step of a tiny GPT: on one rank, and the base of those on a grid of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from course_lib.autograd import Adam, Module, Sequential, Tensor
from course_lib.autograd.tensor import run_backward
from course_lib.gpt.model.decoder import Sizes, layers, loss_of
from course_lib.gpt.silent_bugs.finding import part_of
from course_lib.gpt.text import sample_batch
from course_lib.mesh import RankMesh
from course_lib.trace import span

SIZES = Sizes(vocabulary=256, width=16, heads=2, depth=2, length=16)
BATCH, LEARNING_RATE, SEED = 16, 5e-3, 0


class Step:
    """A step of a tiny GPT; called with a batch, it returns the loss and the gradients.

    Parameters
    ----------
    mesh : RankMesh or None
        The grid to train on; None for one rank.
    **functions : callable
        Functions to use instead of the class's own ones of these names.

    Attributes
    ----------
    axes : dict of str to int
        The grid of this run; empty for one rank.
    sharded : dict of str to (str, int)
        Parameters of which each rank has a part: the axis of the grid, and the dimension. All others are whole on all ranks.
    dtype : str
        Format in which it computes.
    terms : int
        Number of terms that each gradient sums: the tokens of a batch.
    """

    axes: ClassVar[dict[str, int]] = {}
    sharded: ClassVar[dict[str, tuple[str, int]]] = {}
    dtype, terms = "float32", BATCH * SIZES.length

    def __init__(self, mesh: RankMesh | None = None, **functions: Callable):
        self.mesh, self.model = mesh, self.build(mesh)
        for name, function in functions.items():
            setattr(self, name, function)
        for name, split in self.sharded.items() if mesh else ():
            self.parameters[name].data = part_of(self.parameters[name].data, split, mesh, mesh.rank)

    def build(self, mesh: RankMesh | None) -> Module:
        """Build the model; the same weights on all ranks."""
        return Sequential(*layers(SIZES, seed=SEED))

    @property
    def parameters(self) -> dict:
        """Parameters by name, in the order in which backward reaches them: the last layer first."""
        named = {name.removeprefix("modules."): p for name, p in self.model.named_parameters()}
        return dict(sorted(named.items(), key=lambda item: _backward_order(item[0])))

    def __call__(self, batch: np.ndarray, mesh: RankMesh | None) -> dict[str, np.ndarray]:
        """Compute the loss and the gradients; the parameters do not change.

        Parameters
        ----------
        batch : numpy.ndarray
            int, ``(texts, length + 1)``: the same on all ranks; each takes its share.
        mesh : RankMesh or None
            None: compute everything on this rank alone, with whole parameters as they are before training.

        Returns
        -------
        dict of str to numpy.ndarray
            The loss, as "loss", and then the gradients in backward order; of a sharded parameter, this rank's part.
        """
        if mesh is None and self.mesh is not None:
            return Step()(batch, None)
        self.model.zero_grad()
        loss = self.step(batch, mesh)
        return {"loss": np.array(loss)} | {name: p.grad for name, p in self.parameters.items()}

    def step(self, batch: np.ndarray, mesh: RankMesh | None) -> float:
        """Compute the gradients and return the loss, here on one rank."""
        return loss_and_backward(self.model, batch)

    def average(self, axis: str) -> None:
        """Replace each gradient by its mean over an axis."""
        for p in self.parameters.values():
            p.grad = summed(p.grad, self.mesh.along(axis)) / self.mesh.shape[axis]


def loss_and_backward(model: Callable, batch: np.ndarray) -> float:
    """Add the gradients of the mean loss over some texts to those of the model's parameters; return this loss."""
    with span("forward"):
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
    with span("backward"):
        loss.backward()
    return loss.item()


def samples_of(batch: np.ndarray, mesh: RankMesh) -> np.ndarray:
    """Texts of a batch that this rank trains on: those of its coordinate along dp."""
    return np.split(batch, mesh.dp)[mesh.coordinate("dp")]


def summed(value: np.ndarray | float, comm: object) -> np.ndarray:
    """Sum an array, or a number, over the ranks of a group."""
    mine = np.asarray(value, order="C")
    total = np.empty_like(mine)
    comm.Allreduce(mine, total)
    return total


def gathered(array: np.ndarray, comm: object, dim: int) -> np.ndarray:
    """Put the parts of a group's ranks together along a dimension."""
    mine = np.asarray(array, order="C")
    every = np.empty((comm.Get_size(), *mine.shape), mine.dtype)
    comm.Allgather(mine, every)
    return np.concatenate(list(every), axis=dim)


def own_part(array: np.ndarray, comm: object, dim: int) -> np.ndarray:
    """This rank's part of an array along a dimension."""
    return np.ascontiguousarray(np.split(array, comm.Get_size(), axis=dim)[comm.Get_rank()])


def split_head(model: Module, batch: np.ndarray, comm: object) -> float:
    """As `loss_and_backward`, for a model of whose last matrix each rank has some columns."""
    *body, head = model.modules
    x = head.norm(Sequential(*body)(batch[:, :-1]))
    here = Tensor(x.data, requires_grad=True)
    mine = head.words(here)  # the logits of this rank's columns
    logits = Tensor(gathered(mine.data, comm, -1), requires_grad=True)
    loss = loss_of(logits, batch[:, 1:])
    loss.backward()
    run_backward(mine, own_part(logits.grad, comm, -1))
    run_backward(x, summed(here.grad, comm))  # each rank has the summand of its columns
    return loss.item()


def train(step: Step, text: np.ndarray, steps: int) -> list[float]:
    """Train for some steps with Adam; return the losses that the run reports."""
    optimizer, losses = Adam(list(step.parameters.values()), LEARNING_RATE), []
    for i in range(steps):
        found = step(batch_of(text, i), step.mesh)
        losses.append(float(found["loss"]))
        optimizer.step()
    return losses


def batch_of(text: np.ndarray, i: int) -> np.ndarray:
    """Texts of a step, ``(16, length + 1)``: tokens, and at each position the next one as its label."""
    tokens, labels = sample_batch(text, i, BATCH, SIZES.length, SEED)
    return np.concatenate([tokens, labels[:, -1:]], axis=1).astype(np.int64)


_ORDER = ("words", "norm", "down", "up", "norm2", "out", "qkv", "norm1")


def _backward_order(name: str) -> tuple:
    """Sort key: layers from the last to the first, and their parameters in backward order."""
    layer, module, *_ = name.split(".")
    return -int(layer), _ORDER.index(module) if module in _ORDER else len(_ORDER), name
