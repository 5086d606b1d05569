"""The models of part 14's check in NumPy, on a single process; see `ddp.check`.

A model is a list of blocks with tanh in between. A block is the sum of its branches, linear layers of the same input and output sizes;
branch j is multiplied by j + 1, so that the branches' gradients differ. The parameters are a list: weight and bias of a layer that is never
used, then of each branch of each block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

UNUSED = 2  # parameters of the unused layer, which come first


def gate_gradient(grad, number):
    """Apply a gate to a gradient: nonlinearly, so that reducing only after backward cannot give the right result."""
    return grad * np.where(grad > 0, grad.dtype.type(number), grad.dtype.type(number / 4))


def reference_gradients(
    values: list[np.ndarray],
    x: np.ndarray,
    target: np.ndarray,
    numbers: Sequence[float] = (),
    first: float = 0.0,
    branches: int = 1,
    skip: int | None = None,
) -> list[np.ndarray]:
    """Gradients of a single process.

    Parameters
    ----------
    values : list of numpy.ndarray
        The parameters.
    x, target : numpy.ndarray
        The samples, and the gradient of each sample's output.
    numbers : sequence of float
        The numbers of the gates between the blocks, the last block's first.
    first : float
        The number of a gate behind the last block; 0 for none.
    branches : int
        Branches of each block.
    skip : int, optional
        The branch that all blocks leave out.
    """
    grads, n = [np.zeros_like(v) for v in values], len(values)
    blocks = [range(i, i + 2 * branches, 2) for i in range(UNUSED, n, 2 * branches)]
    outputs = [x]
    for block in blocks:
        out = sum((j + 1) * (outputs[-1] @ values[i] + values[i + 1]) for j, i in enumerate(block) if j != skip)
        outputs.append(out if block is blocks[-1] else np.tanh(out))
    grad, numbers = target / len(x), iter(numbers)
    grad = gate_gradient(grad, first) if first else grad
    for block, given in zip(reversed(blocks), reversed(outputs[:-1]), strict=True):
        for j, i in enumerate(block):
            if j != skip:
                grads[i], grads[i + 1] = (j + 1) * (given.T @ grad), (j + 1) * grad.sum(axis=0)
        below = sum((j + 1) * (grad @ values[i].T) for j, i in enumerate(block) if j != skip)
        grad = (gate_gradient(below, number) if (number := next(numbers, None)) else below) * (1 - given**2)
    return grads


def buckets_of(values: list[np.ndarray], bucket_bytes: int) -> list[list[int]]:
    """Indices of the parameters in each bucket: from the last parameter on, each closed once it has `bucket_bytes`."""
    buckets: list[list[int]] = []
    held = 0
    for i in reversed(range(len(values))):
        if not buckets or held >= bucket_bytes:
            buckets.append([])
            held = 0
        buckets[-1].append(i)
        held += values[i].nbytes
    return buckets


def launched_bytes(values: list[np.ndarray], buckets: list[list[int]], blocks: int, branches: int) -> int:
    """Bytes of the buckets that are complete, in order, once the gradients of the last `blocks` blocks are final."""
    final, nbytes = len(values) - 2 * branches * blocks, 0
    for bucket in buckets:
        if min(bucket) < final:
            break
        nbytes += sum(values[i].nbytes for i in bucket)
    return nbytes
