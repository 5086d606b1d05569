"""A replica that trains by itself between exchanges, for part 37."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from course_lib import datasets
from course_lib.autograd import SGD, Adam, Linear, Module, ReLU, Sequential, cross_entropy

if TYPE_CHECKING:
    from course_lib.collectives import Communicator


class Replica:
    """A rank's copy of a model in training, with its two optimizers and its place in the samples.

    The ranks share one endless list of samples, the data set over and over. From `position` on, the first ``every * batch`` samples are
    rank 0's, the next ones rank 1's, and so on.

    Parameters
    ----------
    model : Module
    x, y : numpy.ndarray
        All samples, ``(count, features)``, and their classes.
    rank, ranks : int
    every : int
        Number of inner steps between two exchanges.
    batch : int
        Samples of an inner step.
    inner_lr, outer_lr : float
        Learning rates of Adam, and of gradient descent with Nesterov's momentum (0.9).
    noise : float
        Standard deviation of what is added to the samples, so that no two passes over them are the same.
    seed : int

    Attributes
    ----------
    inner : Adam
    outer : SGD
    position : int
        Number of samples so far, of all ranks.
    random : numpy.random.Generator
        Draws the noise; another one on each rank, until a rank copies a peer's state.
    """

    def __init__(
        self,
        model: Module,
        x: np.ndarray,
        y: np.ndarray,
        *,
        rank: int,
        ranks: int,
        every: int = 10,
        batch: int = 16,
        inner_lr: float = 1e-3,
        outer_lr: float = 0.7,
        noise: float = 0.1,
        seed: int = 0,
    ):
        self.model, self.x, self.y, self.rank, self.ranks = model, x, y, rank, ranks
        self.every, self.batch, self.noise, self.position = every, batch, noise, 0
        self.inner = Adam(model.parameters(), inner_lr)
        self.outer = SGD(model.parameters(), outer_lr, momentum=0.9, nesterov=True)
        self.random = np.random.default_rng([seed, rank])

    def inner_steps(self) -> float:
        """Train on this rank's next samples, and set `position` behind those of all ranks.

        Returns
        -------
        float
            The mean loss.
        """
        first, losses = self.position + self.rank * self.every * self.batch, []
        for step in range(self.every):
            ids = (first + step * self.batch + np.arange(self.batch)) % len(self.x)
            noise = self.random.standard_normal(self.x[ids].shape).astype(self.x.dtype)
            loss = cross_entropy(self.model(self.x[ids] + self.x.dtype.type(self.noise) * noise), self.y[ids])
            self.inner.zero_grad()
            loss.backward()
            self.inner.step()
            losses.append(loss.item())
        self.inner.zero_grad()
        self.position += self.ranks * self.every * self.batch
        return float(np.mean(losses))


def digits_replica(comm: Communicator, every: int) -> Replica:
    """Make a replica of a small perceptron that learns to read handwritten digits; all ranks start with the same weights."""
    random, data = np.random.default_rng(0), datasets.load("digits")
    model = Sequential(Linear(64, 32, random=random), ReLU(), Linear(32, 10, random=random))
    return Replica(model, data.x_train, data.y_train, rank=comm.Get_rank(), ranks=comm.Get_size(), every=every)
