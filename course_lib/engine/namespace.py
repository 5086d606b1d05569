"""A rank's namespace: the names that the student's cells and the set-up cell have defined there."""

from __future__ import annotations

virtual_names: dict[str, object] | None = None  # those of the virtual rank that runs, see `check.cases`


def get_ipython():
    """Return the rank's IPython shell."""
    from IPython import get_ipython as current

    return current()


def student(name: str) -> object:
    """Look up a name on this rank, such as an exercise's function.

    Raises
    ------
    NameError
        No cell on this rank has defined it.
    """
    names = get_ipython().user_ns if virtual_names is None else virtual_names
    try:
        return names[name]
    except KeyError:
        raise NameError(f"name '{name}' is not defined", name=name) from None


def group_of(place: tuple[int, int]) -> object:
    """Split all ranks into groups; collective.

    Parameters
    ----------
    place : (int, int)
        The number of this rank's group, and its sort key within the group.

    Returns
    -------
    Communicator
    """
    return student("everyone").Split(color=place[0], key=place[1])
