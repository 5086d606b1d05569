"""Resumable training run: a small GPT, data parallel, with a sharded optimizer state (ZeRO stage 1)."""

from __future__ import annotations

import numpy as np

from course_lib.autograd import Sequential
from course_lib.gpt.fsdp.flat_buffer import FlatBuffer
from course_lib.gpt.model.decoder import Sizes, layers, loss_of

LEARNING_RATE, BETA1, BETA2, EPSILON = 3e-3, 0.9, 0.999, 1e-8  # Adam's hyperparameters


class ResumableRun:
    """A model in training, on any number of ranks: except for rounding, their number does not change the steps.

    Parameters
    ----------
    comm : Communicator
        Its size divides `batch`.
    sizes : Sizes
    batch : int
        Texts per step, over all ranks.
    seed : int
        Seed of the weights and the texts.

    Attributes
    ----------
    step : int
        Number of steps taken; it also determines which texts come next.
    parts : dict of str to numpy.ndarray
        This rank's parts of the parameters and of Adam's two moments, flat, in float64; the last rank's may be shorter or empty.
    """

    def __init__(self, comm: object, sizes: Sizes, batch: int = 12, seed: int = 0):
        self.comm, self.sizes, self.batch, self.seed, self.step = comm, sizes, batch, seed, 0
        if batch % comm.Get_size():
            raise ValueError(f"ResumableRun: {comm.Get_size()} ranks must divide the {batch} texts of a step.")
        self.model = Sequential(*layers(sizes, seed=seed, dtype=np.float64))
        self.parameters = self.model.parameters()
        self.flat = FlatBuffer([p.data for p in self.parameters], comm.Get_size())
        self.size = sum(p.data.size for p in self.parameters)
        mine = self._local_part(self.flat.join([p.data for p in self.parameters]))
        self.parts = {"parameters": mine, "first moment": np.zeros_like(mine), "second moment": np.zeros_like(mine)}

    def train_step(self) -> float:
        """Take a step; return the mean loss over all ranks, before it. Collective."""
        n, rank = self.comm.Get_size(), self.comm.Get_rank()
        texts = np.random.default_rng([self.seed, self.step]).integers(0, self.sizes.vocabulary, (self.batch, self.sizes.length))
        texts[:, 1::2] = texts[:, ::2][:, : texts[:, 1::2].shape[1]]  # every second token repeats the one before: something to learn
        mine = np.split(texts, n)[rank]
        for p in self.parameters:
            p.grad = None
        loss = loss_of(self.model(mine[:, :-1]), mine[:, 1:])
        loss.backward()
        grad, total = np.empty(self.flat.length // n), np.empty(1)
        self.comm.Reduce_scatter(self.flat.join([p.grad for p in self.parameters]), grad)
        self.comm.Allreduce(np.array([loss.item()]), total)
        self.step += 1
        self._update(grad[: self.parts["parameters"].size] / n)
        return float(total[0]) / n

    def restore(self, step: int, parts: dict[str, np.ndarray]) -> None:
        """Continue from a checkpoint. Collective.

        Parameters
        ----------
        step : int
        parts : dict of str to numpy.ndarray
            As the attribute `parts`.

        Raises
        ------
        ValueError
            The parts belong to another model.
        """
        for name, mine in self.parts.items():
            got = parts[name].shape if name in parts else "none"
            if got != mine.shape:
                raise ValueError(
                    f"ResumableRun.restore: {name} must have shape {mine.shape} on this rank; got {got}. "
                    "Is it a checkpoint from another model?"
                )
        self.step, self.parts = step, {name: np.array(parts[name], float) for name in self.parts}
        self._all_gather_parameters()

    def _local_part(self, whole: np.ndarray) -> np.ndarray:
        """This rank's part, without the padding."""
        n, rank = self.comm.Get_size(), self.comm.Get_rank()
        each = self.flat.length // n
        return whole[: self.size][rank * each : (rank + 1) * each].copy()

    def _update(self, grad: np.ndarray) -> None:
        """Update this rank's part with Adam (Kingma and Ba, 2015, algorithm 1)."""
        own, m, v = self.parts.values()
        m += (1 - BETA1) * (grad - m)
        v += (1 - BETA2) * (grad * grad - v)
        own -= LEARNING_RATE * (m / (1 - BETA1**self.step)) / (np.sqrt(v / (1 - BETA2**self.step)) + EPSILON)
        self._all_gather_parameters()

    def _all_gather_parameters(self) -> None:
        """Give all ranks all parameters."""
        whole, mine = np.empty(self.flat.length), np.zeros(self.flat.length // self.comm.Get_size())
        mine[: self.parts["parameters"].size] = self.parts["parameters"]
        self.comm.Allgather(mine, whole)
        for p, array in zip(self.parameters, self.flat.cut(whole), strict=True):
            p.data[...] = array
