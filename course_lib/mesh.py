"""Mesh: a grid of ranks with named axes, each rank's coordinates, and the groups it belongs to.

The last axis varies fastest: consecutive ranks are neighbours along it. In ``Mesh(dp=4, mp=2)``, ranks 0 and 1 are the first model
parallel group, and ranks 0, 2, 4, 6 the first data parallel group.
"""

from __future__ import annotations

import numpy as np


class Mesh:
    """A grid of ranks.

    Parameters
    ----------
    **axes : int
        Number of ranks along each axis; the last axis varies fastest: ``dp`` for data parallel, ``pp`` pipeline, ``cp`` context, ``ep``
        expert, ``tp`` tensor and ``mp`` model parallel, or any other name.

    Attributes
    ----------
    shape : dict of str to int
        Size of each axis.
    ranks : numpy.ndarray
        int, with one dimension per axis of the grid, so that every group is a slice.

    Raises
    ------
    ValueError
        There is no axis, or a size is not a positive integer.

    Examples
    --------
    >>> mesh = Mesh(dp=4, mp=2)
    >>> mesh.ranks.tolist()
    [[0, 1], [2, 3], [4, 5], [6, 7]]
    >>> mesh.dp, mesh.coordinates(5)
    (4, (2, 1))
    >>> mesh.groups("mp")[0], mesh.groups("dp")[0]
    ((0, 1), (0, 2, 4, 6))
    >>> Mesh(dp=2, pp=2, tp=2).group("pp", 5)
    (5, 7)
    """

    def __init__(self, **axes: int):
        for name, size in axes.items():
            if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 1:
                raise ValueError(f"Mesh: {name} must be a positive whole number; got {size!r}.")
            if hasattr(Mesh, name) or name in ("shape", "ranks"):
                raise ValueError(f"Mesh: an axis cannot be called {name}; usual names are dp, pp, cp, ep and tp.")
        if not axes:
            raise ValueError("Mesh: a grid needs an axis, such as Mesh(dp=4) or Mesh(dp=2, tp=4).")
        self.shape = {name: int(size) for name, size in axes.items()}
        self.ranks = np.arange(self.size).reshape(*self.shape.values())

    def __getattr__(self, name: str) -> int:
        """Size of an axis: ``mesh.tp``."""
        if name in vars(self).get("shape", {}):
            return self.shape[name]
        raise AttributeError(f"Mesh has no {name}; its axes are {', '.join(vars(self).get('shape', ()))}.")

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={size}' for name, size in self.shape.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and list(self.shape.items()) == list(other.shape.items())

    def __hash__(self) -> int:
        return hash(tuple(self.shape.items()))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return int(np.prod(list(self.shape.values())))

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Coordinates of a rank along each axis.

        Raises
        ------
        ValueError
            There is no such rank.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"Mesh: there is no rank {rank} in {self!r}, which has {self.size} ranks.")
        return tuple(int(i) for i in np.unravel_index(rank, self.ranks.shape))

    def groups(self, *axes: str) -> list[tuple[int, ...]]:
        """Groups along some axes: ranks that differ only in these coordinates, in the order of the grid.

        Raises
        ------
        ValueError
            There is no such axis.
        """
        if unknown := [axis for axis in axes if axis not in self.shape]:
            raise ValueError(f"Mesh: there is no axis {unknown[0]!r} in {self!r}; its axes are {', '.join(self.shape)}.")
        names = list(self.shape)
        along = [names.index(name) for name in names if name in axes]
        moved = np.moveaxis(self.ranks, along, range(-len(along), 0)) if along else self.ranks[..., None]
        width = int(np.prod([self.shape[name] for name in axes], dtype=int))
        return [tuple(group) for group in moved.reshape(-1, width).tolist()]

    def group(self, axis: str, rank: int) -> tuple[int, ...]:
        """Group of a rank along an axis."""
        return next(group for group in self.groups(axis) if rank in group)


class RankMesh(Mesh):
    """A grid of running ranks, as one of them sees it; collective.

    Parameters
    ----------
    comm : Communicator
        As many ranks as the grid has, in its order.
    **axes : int
        As for `Mesh`.

    Attributes
    ----------
    comm : Communicator
    rank : int
        This rank's number in the grid.

    Raises
    ------
    ValueError
        The communicator has another number of ranks than the grid.
    """

    def __init__(self, comm: object, **axes: int):
        super().__init__(**axes)
        if comm.Get_size() != self.size:
            raise ValueError(f"RankMesh: {Mesh(**self.shape)!r} has {self.size} ranks, but the communicator has {comm.Get_size()}.")
        self.comm, self.rank = comm, comm.Get_rank()
        self._along = {axis: comm.Split(color=self.group(axis, self.rank)[0], key=self.rank) for axis in self.shape}

    def along(self, axis: str) -> object:
        """Communicator of this rank's group along an axis: the ranks that differ from it only in this coordinate.

        Raises
        ------
        ValueError
            There is no such axis.
        """
        self.groups(axis)
        return self._along[axis]

    def coordinate(self, axis: str, rank: int | None = None) -> int:
        """Coordinate of a rank, by default this one, along an axis."""
        return self.coordinates(self.rank if rank is None else rank)[list(self.shape).index(axis)]


def grids(size: int) -> list[Mesh]:
    """List every grid of data and model parallel ranks with this many ranks.

    >>> grids(4)
    [Mesh(dp=4, mp=1), Mesh(dp=2, mp=2), Mesh(dp=1, mp=4)]
    """
    return [Mesh(dp=size // mp, mp=mp) for mp in range(1, size + 1) if size % mp == 0]
