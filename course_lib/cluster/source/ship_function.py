"""Pack a function of the notebook for a rank: its source, and the values of its names here.

So a check's helpers do there what they do here, whatever the cells of the ranks have defined under their names. A name that has no
meaning here, such as an exercise's function, means what it means on the rank.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
import types
from collections.abc import Callable

PLAIN = (bool, int, float, complex, str, bytes, tuple, frozenset, type(None))


def pack(function: Callable, graded: bool) -> dict:
    """A function, ready to be sent.

    Parameters
    ----------
    function : function
    graded : bool
        Whether the notebook's own functions that it uses mean what they mean here. In a student's notebook, a rank's function of the same
        name is the newer one: here stands what a cell defined before it got its %%px.

    Returns
    -------
    dict
        "function": its name; "source": its own and that of the functions that it uses; "modules" and "objects": where its other
        names are imported from; "values": plain values; "yielding": functions in whose place a rank's own may stand.
    """
    packed: dict = {"function": function.__name__, "sources": {}, "modules": {}, "objects": {}, "values": {}}
    _add(function, packed)
    sources = packed.pop("sources")
    packed["source"] = "\n\n".join(sources.values())
    packed["yielding"] = [] if graded or function.__module__ != "__main__" else [name for name in sources if name != function.__name__]
    return packed


def _add(function: Callable, packed: dict) -> None:
    if function.__name__ in packed["sources"]:
        return
    known = inspect.unwrap(function).__globals__
    source, names = _read(inspect.unwrap(function).__code__)
    packed["sources"][function.__name__] = source
    for name in sorted(names & known.keys()):
        value = known[name]
        if isinstance(value, types.ModuleType):
            packed["modules"][name] = value.__name__
        elif isinstance(value, PLAIN):
            if function.__module__ != "__main__" or name.isupper():  # a notebook's variable may have the name of a rank's
                packed["values"][name] = value
        elif isinstance(value, types.FunctionType) and value.__module__ == function.__module__:
            _add(value, packed)
        elif value is _imported(value):
            packed["objects"][name] = (value.__module__, value.__qualname__)


@functools.lru_cache(256)
def _read(code: types.CodeType) -> tuple[str, frozenset[str]]:
    """Source text of a function, and the names in it; remembered, as finding them takes longer than most calls."""
    source = textwrap.dedent(inspect.getsource(code))
    return source, frozenset(node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name))


def _imported(value: object) -> object:
    """Return the module and name by which a rank imports an object; None for what belongs to the notebook."""
    module = getattr(value, "__module__", None)
    return getattr(sys.modules.get(module), getattr(value, "__qualname__", ""), None) if module != "__main__" else None
