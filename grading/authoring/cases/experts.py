"""The right answer to part 24's `route`, in plain NumPy, from which its hidden tests draw cases.

Students do not get this file: it has an answer.
"""

from __future__ import annotations

import numpy as np

from course_lib.check.experts.reference import softmax


def choose(logits: np.ndarray, topk: int, capacity: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose the experts and the slots of a rank's tokens.

    Parameters
    ----------
    logits : numpy.ndarray
        ``(tokens, experts)``.
    topk, capacity : int

    Returns
    -------
    tuple of numpy.ndarray
        The experts, the slots (-1 for none) and the gates, each ``(tokens, topk)``.
    """
    expert = np.argsort(-logits, axis=1, kind="stable")[:, :topk]
    gates = np.take_along_axis(softmax(logits.astype(float)), expert, axis=1)
    choices = expert.T.ravel()  # all first choices before any second ones
    earlier_same = np.tril(np.equal.outer(choices, choices), -1)
    before = earlier_same.sum(axis=1).reshape(topk, -1).T
    if topk > 1:
        gates = gates / gates.sum(axis=1, keepdims=True)
    return expert, np.where(before < capacity, before, -1), gates
