"""Training of a few tensor parallel blocks that records how far the ranks' copies of replicated parameters drift apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from course_lib.autograd import Adam, Module, Sequential, Tensor, no_grad
from course_lib.gpt.model import Block, kinds
from course_lib.placement import replicated

TEACHER_SEED, STUDENT_SEED, TEXT_SEED = 1, 2, 3


def train_blocks(
    enter: Callable,
    leave: Callable,
    comm: object,
    *,
    after_backward: Callable[[Module], None] | None = None,
    split: bool = False,
    steps: int = 60,
    lr: float = 0.01,
    width: int = 32,
    heads: int = 4,
    depth: int = 2,
    tokens: tuple[int, int] = (4, 16),
) -> dict:
    """Train blocks to imitate other blocks, on new random activations in each step; collective.

    Parameters
    ----------
    enter, leave : callable
        Operators before and after the split work, as for `Block`.
    comm : Communicator
        The tensor parallel group.
    after_backward : callable, optional
        Called with the model between backward and the optimizer's step.
    split : bool
        Whether a rank's blocks take its own positions only (sequence parallelism).
    steps, lr : int, float
        Number of steps, and learning rate of Adam.
    width, heads, depth : int
        Sizes of a block, and number of blocks.
    tokens : (int, int)
        Texts, and positions of each.

    Returns
    -------
    dict
        "losses", and "apart", the largest difference from rank 0 in a replicated parameter, after each step; and for the last batch,
        after training: "loss", with each rank's own parameters, and "loss_of_rank_0", with rank 0's replicated parameters on all ranks.
    """
    random, n, index = np.random.default_rng(TEXT_SEED), comm.Get_size(), comm.Get_rank()
    teacher, model = _blocks(TEACHER_SEED, width, heads, depth), _blocks(STUDENT_SEED, width, heads, depth, comm, enter, leave)
    optimizer, found = Adam(model.parameters(), lr), dict(losses=[], apart=[])

    def batch() -> tuple[np.ndarray, np.ndarray]:
        x = random.standard_normal((*tokens, width)).astype(np.float32)
        with no_grad():
            y = teacher(Tensor(x)).data
        return tuple(np.ascontiguousarray(np.split(a, n, axis=1)[index]) if split else a for a in (x, y))

    def loss_of(x: np.ndarray, y: np.ndarray) -> Tensor:
        error = model(Tensor(x)) - y
        return (error * error).sum() * (1 / (tokens[0] * tokens[1] * width))

    for _ in range(steps):
        x, y = batch()
        loss = loss_of(x, y)
        optimizer.zero_grad()
        loss.backward()
        if after_backward:
            after_backward(model)
        optimizer.step()
        found["losses"].append(_whole(loss, comm, split))
        found["apart"].append(_largest_difference(model, comm))
    found["loss"] = _whole(loss_of(x, y), comm, split)
    for p in _replicated(model):
        comm.Bcast(p.data, root=0)
    return found | {"loss_of_rank_0": _whole(loss_of(x, y), comm, split)}


def _whole(loss: Tensor, comm: object, split: bool) -> float:
    value = np.array([loss.item()])
    if split:  # each rank has the terms of its own positions
        comm.Allreduce(MPI.IN_PLACE, value)
    return float(value[0])


def _blocks(seed: int, width: int, heads: int, depth: int, *parallel: object) -> Sequential:
    return Sequential(*(Block(width, heads, np.random.default_rng([seed, i]), *parallel) for i in range(depth)))


def _replicated(model: Module) -> list:
    return [p for _, p, kind in kinds(model) if kind == replicated]


def _largest_difference(model: Module, comm: object) -> float:
    """Largest difference between rank 0 and another rank in a replicated parameter."""
    mine = np.concatenate([p.data.ravel() for p in _replicated(model)])
    every = np.empty((comm.Get_size(), mine.size), mine.dtype)
    comm.Allgather(mine, every)
    return float(np.abs(every - every[0]).max())
