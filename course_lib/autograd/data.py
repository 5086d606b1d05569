"""Data sets, batches and partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


class ArrayDataset:
    """Samples and their labels.

    Parameters
    ----------
    x : numpy.ndarray
        ``(n, ...)``.
    y : numpy.ndarray
        ``(n,)``.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray):
        if len(x) != len(y):
            raise ValueError(f"the number of labels must equal the number of samples; got {len(x)} samples and {len(y)} labels.")
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index) -> tuple[np.ndarray, np.ndarray]:
        return self.x[index], self.y[index]


class DataLoader:
    """Iterate over the batches of a data set, epoch by epoch.

    Parameters
    ----------
    dataset : ArrayDataset
        Or any object with a length that can be indexed with an array.
    batch_size : int
    shuffle : bool
        Whether to shuffle in each epoch; the same seed gives the same orders.
    seed : int
    drop_last : bool
        Whether to omit a smaller last batch.

    Examples
    --------
    >>> loader = DataLoader(ArrayDataset(np.arange(5), np.arange(5)), batch_size=2)
    >>> [x.tolist() for x, y in loader], len(loader)
    ([[0, 1], [2, 3], [4]], 3)
    """

    def __init__(self, dataset: ArrayDataset, batch_size: int, shuffle: bool = False, seed: int = 0, drop_last: bool = False):
        if not isinstance(batch_size, (int, np.integer)):
            raise TypeError(f"DataLoader: batch_size must be a whole number; got {batch_size!r}. (Use // for integer division.)")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
        self.dataset, self.batch_size, self.shuffle, self.drop_last = dataset, batch_size, shuffle, drop_last
        self._random = np.random.default_rng(seed)

    def __len__(self) -> int:
        n = len(self.dataset)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        n = len(self.dataset)
        order = self._random.permutation(n) if self.shuffle else np.arange(n)
        for i in range(len(self)):
            yield self.dataset[order[i * self.batch_size : (i + 1) * self.batch_size]]


class DataPartitioner:
    """Split a data set into parts after a shuffle that depends on the seed only.

    Parameters
    ----------
    dataset : ArrayDataset
        Or any object with a length that can be indexed with an array.
    fractions : sequence of float
        Fraction of the samples in each part, rounded down; remaining samples are in no part.
    seed : int

    Raises
    ------
    ValueError
        The fractions add up to more than 1, or one is negative.

    Examples
    --------
    >>> halves = DataPartitioner(ArrayDataset(np.arange(5), np.arange(5)), [0.5, 0.5])
    >>> len(halves.use(0)), len(halves.use(1)), len(set(halves.use(0).x) | set(halves.use(1).x))
    (2, 2, 4)
    """

    def __init__(self, dataset: ArrayDataset, fractions: Sequence[float] = (0.7, 0.2, 0.1), seed: int = 1234):
        if min(fractions) < 0 or sum(fractions) > 1 + 1e-9:
            raise ValueError(f"fractions must be positive and add up to at most 1; got {list(fractions)}.")
        self.dataset, order = dataset, np.random.default_rng(seed).permutation(len(dataset))
        cuts = np.cumsum([int(f * len(dataset) + 1e-6) for f in fractions])
        self.parts = np.split(order[: cuts[-1]], cuts[:-1])

    def use(self, part: int) -> ArrayDataset:
        """The part of this number, counted from 0, as a data set of its own."""
        return ArrayDataset(*self.dataset[self.parts[part]])
