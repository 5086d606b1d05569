"""Scratch variables of a student's notebook, which a check of memory must not count as an answer's."""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import os
import sys
import types
from collections.abc import Iterator

import numpy as np

from course_lib.collectives.communicator import Communicator
from course_lib.engine.namespace import get_ipython
from course_lib.sandbox.bubblewrap import ISOLATION_VARIABLE

CAUSE = "large arrays in variables that functions of the notebook use, or large modules that its cells import on the ranks"
GLOBAL_LOOKUPS = ("LOAD_GLOBAL", "LOAD_NAME")  # of Python's bytecode
SMALL_BYTES = 1 << 16  # variables with fewer bytes in arrays stay


def held_without_scratch(ranks, most: int) -> list[int]:
    """Measure what each isolated rank holds; if one holds more than `most`, first delete what the student only played with.

    Returns
    -------
    list of int
        Bytes, see `Ranks.held`. They may still be more than `most`.
    """
    held = ranks.held()
    if max(held) > most and ISOLATION_VARIABLE in os.environ:
        ranks.call(drop_scratch)
        held = ranks.held()
    return held


def drop_scratch():
    """Delete variables with large arrays that no function or class of this rank's cells uses, cells' results, and errors' frames."""
    shell = get_ipython()
    shell.displayhook.flush()  # Out, _, __ and ___
    shell.displayhook.exec_result = shell.last_execution_result = None
    sys.last_value = sys.last_traceback = sys.last_exc = None
    used = names_used(list(shell.user_ns.values()))
    for names in (shell.user_ns, shell.user_ns_hidden):
        for name, value in list(names.items()):
            if name not in used and array_bytes(value) > SMALL_BYTES:
                del names[name]


def names_used(values: list[object]) -> set[str]:
    """Return all names that functions and classes may look up that are among `values`, or in their containers and objects."""
    used: set[str] = set()
    seen: set[int] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.CodeType):
            used.update(step.argval for step in dis.get_instructions(value) if step.opname in GLOBAL_LOOKUPS)
            todo += value.co_consts
        elif isinstance(value, types.FunctionType):
            todo += [value.__code__, value.__defaults__, value.__kwdefaults__, *vars(value).values(), *_closure(value)]
        elif isinstance(value, type) and value.__module__ == "__main__":
            todo += vars(value).values()
        elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
            todo.append(value.__func__)
        elif isinstance(value, property):
            todo += [value.fget, value.fset, value.fdel]
        elif isinstance(value, functools.partial):
            todo += [value.func, value.args, value.keywords]
        elif isinstance(value, functools.cached_property):
            todo.append(value.func)
        elif isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            todo += value
        elif hasattr(value, "__wrapped__"):  # such as of functools.cache
            todo.append(value.__wrapped__)
        elif type(value).__module__ == "__main__":
            todo += getattr(value, "__dict__", {}).values()
    return used


def _closure(function: types.FunctionType) -> Iterator[object]:
    """Yield what a function refers to in the functions around it."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # a name that has no value yet
            yield cell.cell_contents


def array_bytes(value: object) -> int:
    """Count the bytes of the arrays that a value leads to, except through functions, classes, modules and communicators."""
    apart = (types.FunctionType, types.ModuleType, type, types.CodeType, types.FrameType, Communicator)
    owners: dict[int, int] = {}
    seen: set[int] = set()
    todo = [value]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, apart):
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray):
            while isinstance(thing.base, np.ndarray):
                thing = thing.base
            owners[id(thing)] = thing.nbytes
        todo += gc.get_referents(thing)
    return sum(owners.values())
