"""A model whose matrices can be used once only in each call: each use passes a gate.

The gates' numbers multiply what the matrices get, or what comes out. The coordinator counts them,
so a text-by-text answer meets a closed gate; the kernel knows the numbers, and scales the weights.
"""

from __future__ import annotations

import numpy as np

from course_lib.engine.traffic_gates import pass_gate
from course_lib.gpt.model import Sizes
from course_lib.gpt.serving.model import ServingBlock, ServingModel, Weights

GATES_OF_BLOCK = 2  # in qkv, and in mlp


class CountedBlock(ServingBlock):
    """A block whose `qkv` and `mlp` pass a gate."""

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        return super()._norm(name, x) * x.dtype.type(pass_gate())


class CountedModel(ServingModel):
    """A `ServingModel` whose blocks and whose logits pass a gate."""

    def __init__(self, sizes: Sizes, weights: Weights, n: int = 1, index: int = 0):
        super().__init__(sizes, weights, n, index)
        self.blocks = [CountedBlock(block.weights, block.heads) for block in self.blocks]

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Return the logits, times the number of the gate."""
        return super().logits(x) * x.dtype.type(pass_gate())


def draw_numbers(random: np.random.Generator, depth: int) -> np.ndarray:
    """Draw the numbers of all gates of a call: 64ths, which float32 holds."""
    return random.integers(32, 128, GATES_OF_BLOCK * depth + 1) / 64


def scale_weights(weights: Weights, numbers: np.ndarray) -> Weights:
    """Return weights with which a model without gates computes the same."""
    depth = len(numbers) // GATES_OF_BLOCK
    scaled = dict(weights)
    for i in range(depth):
        in_qkv, in_mlp = numbers[GATES_OF_BLOCK * i : GATES_OF_BLOCK * (i + 1)]
        of_matrices = {"norm1.weight": in_qkv, "norm1.bias": in_qkv}
        of_matrices |= {"norm2.weight": in_mlp, "norm2.bias": in_mlp}
        for name, number in of_matrices.items():
            scaled[f"{i + 1}.{name}"] = weights[f"{i + 1}.{name}"] * number
    scaled[f"{depth + 1}.words.weight"] = weights[f"{depth + 1}.words.weight"] * numbers[-1]
    return scaled
