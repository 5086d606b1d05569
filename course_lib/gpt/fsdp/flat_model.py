"""A GPT whose parameters are views of one flat array, for training with other number formats."""

from __future__ import annotations

import numpy as np

from course_lib.autograd import Sequential, Tensor
from course_lib.autograd.mixed_precision import Rounded
from course_lib.gpt.fsdp.flat_buffer import FlatBuffer
from course_lib.gpt.model.decoder import Sizes, layers, loss_of
from course_lib.gpt.text import load_and_broadcast, sample_batch

SIZES = Sizes(vocabulary=256, width=64, heads=4, depth=2, length=64)
TEXTS = 4  # of each rank in a step


class FlatModel:
    """A GPT, and the texts of one rank; making it is collective.

    Parameters
    ----------
    comm : Communicator
        n ranks, each with its own texts.
    dtype : str
        Format to which each layer rounds its output, and in backward the gradient that comes back to it; see `Rounded`.
    block : int
        n times `block` divides the length of the flat array.
    sizes : Sizes

    Attributes
    ----------
    flat : FlatBuffer
    """

    def __init__(self, comm: object, dtype: str = "float32", block: int = 1, sizes: Sizes = SIZES):
        self.sizes, self.comm, (self.text, _) = sizes, comm, load_and_broadcast(comm)
        self.model = Sequential(*(Rounded(layer, dtype) for layer in layers(sizes)))
        self.parameters = self.model.parameters()
        self.flat = FlatBuffer([p.data for p in self.parameters], block * comm.Get_size())

    def whole(self) -> np.ndarray:
        """A copy of all parameters, float32 ``(length,)``."""
        return self.flat.join([p.data for p in self.parameters])

    def shard(self) -> np.ndarray:
        """A copy of this rank's part of them."""
        return np.split(self.whole(), self.comm.Get_size())[self.comm.Get_rank()].copy()

    def set(self, whole: np.ndarray) -> None:
        """Make the parameters views of a flat array, without gradients."""
        for p, array in zip(self.parameters, self.flat.cut(whole), strict=True):
            p.data, p.grad = array, None

    def loss(self, step: int) -> Tensor:
        """Mean loss over this rank's texts of a step; the same number of the step gives the same texts."""
        n, rank = self.comm.Get_size(), self.comm.Get_rank()
        tokens, labels = sample_batch(self.text, step, TEXTS * n, self.sizes.length, seed=0)
        return loss_of(self.model(tokens[rank::n]), labels[rank::n])

    def gradient(self) -> np.ndarray:
        """The gradients of all parameters, float32 ``(length,)``."""
        return self.flat.join([p.grad for p in self.parameters])
