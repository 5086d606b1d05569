"""State that a process has once, for each of the virtual ranks in it; see `virtual_group`.

The library's variables are exchanged whenever another virtual rank runs. A student's are copied: an
answer may keep a buffer in a global variable, in a default argument or in a cache.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType, FunctionType

import numpy as np

from course_lib import traffic
from course_lib.autograd import tensor
from course_lib.collectives.progress.operations import ProgressState, progress_state
from course_lib.collectives.transport import isolated
from course_lib.engine import namespace

CachedFunction = type(functools.cache(len))
VARIABLES = (  # of the library, in modules and in an object
    *((isolated, name) for name in ("connection", "rank", "size", "call_count")),
    *((isolated, name) for name in ("unanswered", "answers", "transports")),
    *((traffic, name) for name in ("_counts", "_sent_before")),
    *((tensor, name) for name in ("_grad_enabled", "_after_backward")),
    (progress_state, "__dict__"),
    (namespace, "virtual_names"),
)


def new(connection: object, rank: int, size: int) -> list[object]:
    """Return the values of `VARIABLES` for a new virtual rank with this connection."""
    shell = namespace.get_ipython()
    names = OwnNames(shell.user_ns if shell else {})
    of_isolated = connection, rank, size, 0, set(), {}, {}
    return [*of_isolated, {}, 0.0, True, [], vars(ProgressState()), names]


def take() -> list[object]:
    """Return the present values of `VARIABLES`."""
    return [getattr(owner, name) for owner, name in VARIABLES]


def put(values: list[object]) -> None:
    """Set `VARIABLES`."""
    for (owner, name), value in zip(VARIABLES, values, strict=True):
        setattr(owner, name, value)


@contextmanager
def kept() -> Iterator[None]:
    """Context manager: `VARIABLES` have their present values again after it."""
    before = take()
    try:
        yield
    finally:
        put(before)


class OwnNames(dict):
    """A copy of a namespace, made name by name when a name is first looked up.

    Functions of the namespace, arrays, and lists, tuples, sets and dicts are copied; other objects,
    such as modules, classes and their instances, are the same.

    Parameters
    ----------
    shared : dict
        The namespace.

    Examples
    --------
    >>> shared = {"buffers": [np.zeros(1)]}
    >>> exec("def add(x): buffers[0] += x; return buffers[0].tolist()", shared)
    >>> first, second = OwnNames(shared), OwnNames(shared)
    >>> first["add"](1), first["add"](1), second["add"](5), shared["buffers"][0].tolist()
    ([1.0], [2.0], [5.0], [0.0])
    """

    def __init__(self, shared: dict):
        super().__init__()
        self._shared = shared
        self._copies: dict[int, tuple[object, object]] = {}  # by id: an object, and its copy

    def __missing__(self, name: str) -> object:
        self[name] = self._copy(self._shared[name])
        return self[name]

    def _copy(self, value: object) -> object:
        """Return this namespace's copy of an object, of which there is one."""
        if id(value) not in self._copies:
            if isinstance(value, FunctionType) and value.__globals__ is self._shared:
                return self._copy_function(value)
            self._copies[id(value)] = value, self._copied(value)
        return self._copies[id(value)][1]

    def _copied(self, value: object) -> object:
        if isinstance(value, CachedFunction):
            return functools.lru_cache(**value.cache_parameters())(self._copy(value.__wrapped__))
        if type(value) is np.ndarray:
            return value.copy(order="K")
        if type(value) in (list, tuple, set):
            return type(value)(self._copy(each) for each in value)
        if type(value) is dict:
            return {key: self._copy(each) for key, each in value.items()}
        return value

    def _copy_function(self, value: FunctionType) -> FunctionType:
        cells = tuple(CellType() for _ in value.__closure__ or ())
        copy = FunctionType(value.__code__, self, value.__name__, None, cells or None)
        self._copies[id(value)] = value, copy  # first, as the function may refer to itself
        copy.__defaults__ = self._copy(value.__defaults__)
        copy.__kwdefaults__ = self._copy(value.__kwdefaults__)
        copy.__dict__.update(self._copy(value.__dict__))
        for cell, original in zip(cells, value.__closure__ or (), strict=True):
            if original != CellType():  # not empty
                cell.cell_contents = self._copy(original.cell_contents)
        return copy
