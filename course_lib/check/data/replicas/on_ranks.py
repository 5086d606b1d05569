"""Functions that the check of part 13 runs on the ranks; see `replicas.check`."""

from __future__ import annotations

import numpy as np

from course_lib.autograd import ArrayDataset, DataLoader, Linear, Sequential
from course_lib.engine.namespace import student


def batch_loader(samples, batch, shuffle, seed, drop_last):
    """Make a loader of numbered samples, the same in each place."""
    x, y = np.arange(2 * samples, dtype=np.float32).reshape(samples, 2), -np.arange(samples)
    return DataLoader(ArrayDataset(x, y), batch, shuffle=shuffle, seed=seed, drop_last=drop_last)


def take_batches(size, loader):
    """Return the batches of every rank in a group in two epochs, all computed on one rank."""
    rank_batches, found = student("rank_batches"), []
    for r in range(size):
        mine = batch_loader(**loader)
        found.append([[(x, y) for x, y in rank_batches(mine, r, size)] for _ in range(2)])
    return found


def compare_models(values):
    """Return the answer for a model with these parameters, and whether the call left them unchanged."""
    check_parameter_closeness = student("check_parameter_closeness")
    model = Sequential(Linear(1, 1), Linear(1, 1, bias=False))
    for p, v in zip(model.parameters(), values, strict=True):
        p.data = v.copy()
    answer = check_parameter_closeness(model)
    return answer, all(np.array_equal(p.data, v, equal_nan=True) for p, v in zip(model.parameters(), values, strict=True))
