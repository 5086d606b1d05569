"""Roofline of a model on this machine (Williams et al., 2009, "Roofline: an insightful visual performance model")."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from threadpoolctl import threadpool_limits

from course_lib.gpt.model import Sizes
from course_lib.gpt.serving.model import draw_weights

SIZES = Sizes(vocabulary=256, width=512, heads=8, depth=4, length=8)


def measure(tokens: Sequence[int], sizes: Sizes = SIZES) -> dict:
    """Measure the matrix products of a GPT with one thread, for different numbers of tokens at once.

    Parameters
    ----------
    tokens : sequence of int
        Decode has a token of each text in the batch; prefill has a text's tokens.
    sizes : Sizes

    Returns
    -------
    dict
        "peak", floating point operations a second of a large matrix product; "bandwidth", bytes a second that can be read; "tokens"; and
        for each number of tokens "intensity", operations for each byte of weights, and "rate", operations a second.
    """
    with threadpool_limits(1):
        return _measure([w for name, w in draw_weights(sizes).items() if w.ndim == 2 and not name.startswith("0.")], tokens)


def _measure(matrices: list[np.ndarray], tokens: Sequence[int]) -> dict:
    nbytes, square = sum(w.nbytes for w in matrices), np.ones((768, 768), np.float32)
    flops = [2 * n * sum(w.size for w in matrices) for n in tokens]

    def product(n: int) -> Callable:
        given = {w.shape[0]: np.ones((n, w.shape[0]), w.dtype) for w in matrices}
        return lambda: [given[w.shape[0]] @ w for w in matrices]

    rates = [f / _seconds(product(n)) for n, f in zip(tokens, flops, strict=True)]
    return {
        "peak": max(2 * 768**3 / _seconds(lambda: square @ square), *rates),
        "bandwidth": nbytes / _seconds(lambda: [np.dot(w.ravel(), w.ravel()) for w in matrices]),
        "tokens": list(tokens),
        "intensity": [f / nbytes for f in flops],
        "rate": rates,
    }


def _seconds(call: Callable, turns: int = 5) -> float:
    found = []
    for _ in range(turns + 1):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found[1:])
