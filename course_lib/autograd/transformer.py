"""Modules of a transformer."""

from __future__ import annotations

import numpy as np

from course_lib.autograd import functional
from course_lib.autograd.modules import Module, Parameter
from course_lib.autograd.tensor import Tensor


class Embedding(Module):
    """Rows of a table, looked up by index.

    Parameters
    ----------
    rows, width : int
        Size of the table, such as the size of the vocabulary and the width of the model.
    random : numpy.random.Generator, optional
        Draws the table with standard deviation 0.02 (Radford et al., 2019).
    dtype : data type
    """

    def __init__(self, rows: int, width: int, random: np.random.Generator | None = None, dtype=np.float32):
        random = random or np.random.default_rng()
        self.weight = Parameter((0.02 * random.standard_normal((rows, width))).astype(dtype))

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(self.weight, ids)


class LayerNorm(Module):
    """Normalise each position over its width, then scale and shift it (Ba et al., 2016)."""

    def __init__(self, width: int, eps: float = 1e-5, dtype=np.float32):
        self.weight, self.bias, self.eps = Parameter(np.ones(width, dtype)), Parameter(np.zeros(width, dtype)), eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Scale each position by its root mean square (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int, eps: float = 1e-5, dtype=np.float32):
        self.weight, self.eps = Parameter(np.ones(width, dtype)), eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight, self.eps)


class GELU(Module):
    """Smooth ReLU of Hendrycks and Gimpel, 2016."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(x)


class Dropout(Module):
    """In training, set a fraction of the numbers to 0, and scale the others to preserve the mean (Srivastava et al., 2014).

    Parameters
    ----------
    rate : float
        Fraction that is dropped.
    random : numpy.random.Generator
        Draws the mask: ranks with the same activations need the same mask, ranks with different parts need different ones.
    """

    def __init__(self, rate: float, random: np.random.Generator):
        self.rate, self.random = rate, random

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x
        return functional.dropout(x, self.random.random(x.shape) >= self.rate, self.rate)
