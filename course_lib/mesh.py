"""Where a rank sits in the grid of model parallel and data parallel ranks.

The grid is model parallel major: ranks that follow each other form a model parallel group.
With ``mp_size=2, dp_size=4``, ranks 0 and 1 are the first model parallel group, and ranks
0, 2, 4, 6 the first data parallel group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Mesh:
    """A grid of ``dp_size`` rows and ``mp_size`` columns of ranks.

    Parameters
    ----------
    mp_size, dp_size : int
        Ranks in each model parallel and each data parallel group.

    Raises
    ------
    ValueError
        A size is not a positive whole number.

    Examples
    --------
    >>> mesh = Mesh(mp_size=2, dp_size=4)
    >>> mesh.ranks.tolist()
    [[0, 1], [2, 3], [4, 5], [6, 7]]
    >>> mesh.coordinates(5)
    (2, 1)
    >>> mesh.mp_groups()[0], mesh.dp_groups()[0]
    ((0, 1), (0, 2, 4, 6))
    """

    mp_size: int
    dp_size: int

    def __post_init__(self):
        for name in ("mp_size", "dp_size"):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
                raise ValueError(f"Mesh: {name} must be a positive whole number; got {value!r}.")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.mp_size * self.dp_size

    @property
    def ranks(self) -> np.ndarray:
        """The ranks, shape ``(dp_size, mp_size)``."""
        return np.arange(self.size).reshape(self.dp_size, self.mp_size)

    def coordinates(self, rank: int) -> tuple[int, int]:
        """The (row, column) of a rank: its data parallel and its model parallel index."""
        if not 0 <= rank < self.size:
            raise ValueError(f"Mesh: there is no rank {rank} in a grid of {self.mp_size} x {self.dp_size} = {self.size} ranks.")
        return rank // self.mp_size, rank % self.mp_size

    def mp_groups(self) -> list[tuple[int, ...]]:
        """The model parallel groups: the rows of the grid."""
        return [tuple(row) for row in self.ranks.tolist()]

    def dp_groups(self) -> list[tuple[int, ...]]:
        """The data parallel groups: the columns of the grid."""
        return [tuple(column) for column in self.ranks.T.tolist()]


def grids(size: int) -> list[Mesh]:
    """Every grid with this many ranks.

    >>> [(m.mp_size, m.dp_size) for m in grids(4)]
    [(1, 4), (2, 2), (4, 1)]
    """
    return [Mesh(mp, size // mp) for mp in range(1, size + 1) if size % mp == 0]
