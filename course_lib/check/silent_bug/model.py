"""A small network whose gradients are known for each sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from course_lib.gpt.silent_bugs import rounded


def sample_gradients(parameters: Sequence[np.ndarray], batch: np.ndarray, scale: float) -> list[np.ndarray]:
    """Compute the loss and the gradients of each sample alone.

    Parameters
    ----------
    parameters : sequence of numpy.ndarray
        In backward order: ``(hidden, outputs)``, ``(hidden,)``, ``(hidden, hidden)``, ``(hidden,)``, ``(features, hidden)``.
    batch : numpy.ndarray
        ``(samples, features + outputs)``: inputs and targets.
    scale : float
        Factor of the loss.

    Returns
    -------
    list of numpy.ndarray
        The losses, ``(samples,)``, and for each parameter ``(samples, *shape)``.
    """
    w3, b2, w2, b1, w1 = parameters
    x, y = batch[:, : len(w1)], batch[:, len(w1) :]
    a1 = np.tanh(x @ w1 + b1)
    a2 = np.tanh(a1 @ w2 + b2)
    error = (a2 @ w3 - y) * scale
    d2 = error @ w3.T * (1 - a2 * a2)
    d1 = d2 @ w2.T * (1 - a1 * a1)
    losses = (error * error).sum(axis=1) / (2 * scale)
    return [losses, _outer(a2, error), d2, _outer(a1, d2), d1, _outer(x, d1)]


def _outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("ni,nj->nij", a, b)


def weighted_sum(terms: np.ndarray, weights: np.ndarray, dtype: str, order: Sequence[int] | None = None) -> np.ndarray:
    """Sum the samples' gradients with weights, one after the other; each product and each sum is rounded to a format."""
    total = np.zeros(terms.shape[1:])
    for i in range(len(terms)) if order is None else order:
        total = rounded(total + rounded(terms[i] * weights[i], dtype), dtype)
    return np.asarray(total)


def one_rank(parameters: Sequence[np.ndarray], batch: np.ndarray, scale: float, dtype: str) -> list[np.ndarray]:
    """The mean loss over a batch, and its gradients, in a format."""
    n = len(batch)
    return [weighted_sum(terms, np.full(n, 1 / n), dtype) for terms in sample_gradients(parameters, batch, scale)]
