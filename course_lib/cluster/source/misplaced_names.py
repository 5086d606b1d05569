"""Hints about names defined in the kernel but needed on the ranks, and the other way round."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from pathlib import Path

from IPython import get_ipython

from course_lib import students
from course_lib.cluster import time_limits
from course_lib.cluster.source import cell, definitions


class NotOnRanks(cell.Plain, RuntimeError):
    """An exercise's function is defined in the notebook's kernel, where nothing calls it."""


def check(words: set[str]) -> None:
    """Check that no exercise needed by a call is defined in the notebook instead of on the ranks.

    Parameters
    ----------
    words : set of str
        All words in the source and the arguments of the call.

    Raises
    ------
    NotOnRanks
        One is.
    """
    found = sorted(name for name in students.EXERCISES & words & _names().keys() if _written_here(_names()[name]))
    if found:
        raise NotOnRanks(
            f"{', '.join(found)} is defined in the notebook, and the ranks do not see it: its cell has no %%px at the top. "
            "Put %%px on the first line of that cell, and run it again."
        )


def forget(source: str) -> None:
    """Delete from the kernel the exercises that a cell has just defined on the ranks."""
    for name in re.findall(r"^(?:async def|def|class) +(\w+)", source, re.MULTILINE):
        if name in students.EXERCISES and _written_here(_names().get(name)):
            del _names()[name]


def files_beside(source: str) -> str:
    """Return a hint on files beside the notebook that a cell imports, as they are not handed in.

    It is empty if there are none, or if a cell that has run writes them with ``%%writefile``.
    """
    if time_limits.limit():
        return ""
    written = {cell.read(text).file for text in _names().get("In", ())}
    files = [f"{name}.py" for name in sorted(cell.imported(source))]
    only_here = [file for file in files if file not in written and Path(file).is_file()]
    if not only_here:
        return ""
    return (
        f"{' and '.join(only_here)}: beside this notebook, and you hand in the notebook only. "
        f"Put the code into a %%px cell, or into a cell with %%writefile {only_here[0]} on top."
    )


def known(name: str) -> bool:
    """Return whether a name is defined on a rank; runs on the rank."""
    return name in _names()


def kernel_hint(message: str, on_ranks: Callable[[str], bool]) -> str:
    """Return a hint for a NameError in the notebook's kernel, if another cell or the ranks define the name; else an empty text.

    Parameters
    ----------
    message : str
        The NameError's.
    on_ranks : callable
        Is given a name; returns whether the ranks have it.
    """
    found = re.search(r"name '(\w+)' is not defined", message)
    if not found:
        return ""
    if not on_ranks(found[1]):
        title = definitions.cell_of(found[1], on_ranks=False)
        return f". The cell {title!r} defines it: run that first." if title else ""
    return (
        f". {found[1]} is on the ranks, not in the notebook: is %%px missing at the top of this cell? ranks.pull('{found[1]}') fetches it."
    )


def hint(message: str, ranks: list[int], n: int, near: list[str]) -> str:
    """Return a hint for a NameError on some ranks: where the name is defined, or which one may be meant.

    Parameters
    ----------
    message : str
        The NameError's.
    ranks : list of int
        The ranks that raised it.
    n : int
        Number of ranks.
    near : list of str
        Similar names on the rank.
    """
    found = re.search(r"name '(\w+)' is not defined", message)
    if not found:
        return ""
    name = found[1]
    if not near and len(ranks) == n and (title := definitions.cell_of(name, on_ranks=True)):
        return f". The cell {title!r} defines it: run that first."
    if name in ("MPI", "np"):
        return ". Is `from mpi4py import MPI` missing?" if name == "MPI" else ". Is `import numpy as np` missing?"
    if len(ranks) < n and not near:
        return ". Only these ranks reached this line; or the others have the name, as its cell ran with --targets."
    if name in _names():
        both = "Has the cell that sets up the ranks been run? Or, if this cell is meant for the notebook, remove its %%px."
        return f". {name} is in the notebook, not on the ranks. {both}"
    if name in students.EXERCISES and len(ranks) == n:
        return f". {name} is an exercise: run its cell first; after a restart, too."
    return f". Is it {near[0]}?" if near else ". Has the cell that defines it been run, with %%px at the top?"


def _names() -> dict:
    shell = get_ipython()
    return shell.user_ns if shell else {}


def _written_here(value: object) -> bool:
    return isinstance(value, (types.FunctionType, type)) and value.__module__ == "__main__"
