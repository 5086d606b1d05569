"""Data parallel training whose gradients are sent as blocks of int8, with error feedback.

What is rounded away is added to the next gradient (Seide et al., 2014, "1-bit stochastic gradient descent and its application to
data-parallel distributed training of speech DNNs"). The all-reduce is an all-to-all of the ranks' parts, a sum in float32, and an
all-gather of the rounded means, as only decoded values can be added up.
"""

from __future__ import annotations

import numpy as np

from course_lib import traffic
from course_lib.autograd import Adam, Parameter
from course_lib.gpt.fsdp.flat_model import FlatModel

BLOCK = 256  # numbers that share a scale
SMALLEST_SCALE = np.float32(1e-30)  # of a block of zeros


class QuantizedMean:
    """The mean of the ranks' arrays, sent as int8; keeps what it rounds away.

    Parameters
    ----------
    comm : Communicator
        n ranks.
    levels : int
        The largest of the whole numbers, 1 to 127; the smallest is ``-levels``.
    feedback : bool
        Whether what one call rounds away is added in the next.

    Examples
    --------
    >>> from course_lib.collectives import Communicator
    >>> from mpi4py import MPI
    >>> mean = QuantizedMean(Communicator(MPI.COMM_SELF), levels=1, feedback=True)
    >>> values = np.full(BLOCK, 0.25, np.float32)
    >>> values[0] = 1
    >>> [float(mean(values)[1]) for _ in range(4)]
    [0.0, 0.0, 1.0, 0.0]
    """

    def __init__(self, comm: object, levels: int = 127, feedback: bool = True):
        self.comm, self.levels, self.feedback = comm, levels, feedback
        self._errors: dict[str, np.ndarray] = {}

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Mean of the ranks' arrays, float32 ``(length,)``; n times `BLOCK` must divide the length. Collective."""
        n = self.comm.Get_size()
        sent = self._quantize(values, "gradient")
        received = [np.empty_like(part) for part in sent]
        for part, parts in zip(sent, received, strict=True):
            self.comm.Alltoall(part, parts)
        mean = (received[0] * received[1]).reshape(n, -1).sum(axis=0) / np.float32(n)
        sent = self._quantize(mean, "mean")
        received = [np.empty((n, *part.shape), part.dtype) for part in sent]
        for part, parts in zip(sent, received, strict=True):
            self.comm.Allgather(part, parts)
        return (received[0] * received[1]).reshape(-1)

    def _quantize(self, values: np.ndarray, which: str) -> tuple[np.ndarray, np.ndarray]:
        """Whole numbers, int8 ``(blocks, BLOCK)``, and the scale of each block, float32 ``(blocks, 1)``."""
        blocks = (values + self._errors[which] if which in self._errors else values).reshape(-1, BLOCK)
        scales = np.maximum(np.abs(blocks).max(axis=1, keepdims=True) / np.float32(self.levels), SMALLEST_SCALE)
        numbers = np.rint(blocks / scales).astype(np.int8)
        if self.feedback:
            self._errors[which] = (blocks - numbers * scales).reshape(values.shape)
        return numbers, scales


def train(comm: object, levels: int, feedback: bool, steps: int) -> tuple[np.ndarray, float]:
    """Train a GPT with Adam, data parallel; collective.

    Parameters
    ----------
    comm : Communicator
    levels : int
        As for `QuantizedMean`; 0 sends float32.
    feedback : bool
    steps : int

    Returns
    -------
    losses : numpy.ndarray
        Of this rank, before each step.
    sent : float
        Bytes on the wire that this rank sends in a step, see `traffic`.
    """
    model, quantized, losses = FlatModel(comm, block=BLOCK), QuantizedMean(comm, levels, feedback), []
    whole = Parameter(model.whole())
    optimizer = Adam([whole], 3e-3)
    traffic.reset()
    for step in range(steps):
        model.set(whole.data)
        loss = model.loss(step)
        losses.append(loss.item())
        loss.backward()
        gradient = model.gradient()
        if levels:
            whole.grad = quantized(gradient)
        else:
            whole.grad = np.empty_like(gradient)
            comm.Allreduce(gradient, whole.grad)
            whole.grad /= np.float32(comm.Get_size())
        optimizer.step()
    return np.array(losses), sum(entry.wire for entry in traffic.entries()) / steps
