"""Describe an exception on a rank as plain data: its name, message and usual cause, and the student's own lines that led to it."""

from __future__ import annotations

import builtins
import linecache
import re
import traceback

from course_lib.collectives.diagnostics import CELL_FILE_PREFIXES
from course_lib.engine import memory_limit

MAX_TRACEBACK_FRAMES = 8  # frames shown; of more, only the first two and the last two
MAX_MESSAGE_CHARACTERS = 50_000


def _assigned_below(message: str) -> str:
    found = re.search(r"local variable '(\w+)'", message)
    if not found:
        return ""
    name = found[1]
    return (
        f". A line of this function assigns {name}, but no such line has run on this rank: is it in an `if`, or further down? "
        f"If you mean the {name} outside the function, choose another name inside it."
    )


def _types(message: str) -> str:
    if re.search(r"'(builtin_function_or_)?method'|<bound method|not method", message) or "output from dtype('O')" in message:
        return " (A method without its parentheses? comm.Get_size() is a number, comm.Get_size is not.)"
    if "Pending" in message:
        return " (A communication that has been started: write `await` before it, and use the value that this gives.)"
    if message == "'NoneType' object is not subscriptable":
        return " (What comes before the bracket is None: a name never assigned anything else, or the result of a function without return.)"
    if "NoneType" in message or "does not have enough dimensions (has 0" in message or "not supported for the input types" in message:
        return " (Is one of them None? A collective returns nothing: it fills the array you pass. Nor does a function without return.)"
    if message.startswith("Cannot cast ufunc"):
        return " (x /= n keeps the type of x; x = x / n makes a new array of the type that the result needs.)"
    return ""


# The usual causes of Python's own errors.
_HINTS = {
    "UnboundLocalError": _assigned_below,
    "TypeError": _types,
    "ValueError": _types,
    "AttributeError": _types,
    "UFuncTypeError": _types,
    "MemoryError": lambda message: memory_limit.hint(),
    "_ArrayMemoryError": lambda message: memory_limit.hint(),  # NumPy's
    "SystemExit": lambda message: " (The rank keeps running: exit() and sys.exit() end only this cell. To leave a function, write return.)",
    "StdinNotImplementedError": lambda message: " (Ranks have no keyboard: write the value into the cell instead of input().)",
}


def describe(error: BaseException) -> dict:
    """Describe an exception as plain data.

    Returns
    -------
    dict
        "name": the exception's class; "message": its text, with a hint at the usual cause; "place": the innermost of the student's own
        lines, such as "cell [5], line 7"; "lines": the student's own frames, two lines of text for each; "kind": the names of the class
        and its bases.
    """
    name = type(error).__name__
    own = [place for place in _places(error) if place[0].startswith(CELL_FILE_PREFIXES)]
    lines = [line for place in own for line in _shown(*place)]
    if len(own) > MAX_TRACEBACK_FRAMES:
        left_out = f"    ... {len(own) - 4:,} more calls between these ..."
        lines = [*lines[:4], left_out, *lines[-4:]]
    if isinstance(error, SyntaxError):
        lines = [line.rstrip("\n") for line in traceback.format_exception_only(error)[:-1]]
    try:
        message = str(error)
    except BaseException as broken:  # whatever __str__ does, the kernel waits for this reply
        message = f"(its message cannot be shown: {type(broken).__name__})"
    if name == "NotImplementedError" and not message and own:
        what = "this cell" if own[-1][2] == "<module>" else own[-1][2]
        message = f"{what} is still empty. Replace this line with your answer, and run the cell again."
    message += _HINTS.get(name, lambda message: "")(message)
    if not own and name == "TypeError" and "positional argument" in message:  # of the call that a check makes
        message += " (It is called with the arguments in the exercise's first line. Has this line been changed?)"
    if len(message) > MAX_MESSAGE_CHARACTERS:
        message = f"{message[:MAX_MESSAGE_CHARACTERS]} (truncated)"
    place = f"{own[-1][0]}, line {own[-1][1]}" if own else "outside the cell"
    kind = [c.__name__ for c in type(error).__mro__]
    return {"name": name, "message": message, "place": place, "lines": lines, "kind": kind}


def hidden(message: str, names: dict) -> str:
    """Return a hint for a TypeError: a cell has rebound one of Python's own functions, or MPI was given a request of the course."""
    if "to mpi4py.MPI.Request" in message:
        return " (Requests of the course's Communicator have a Wait of their own: call request.Wait() for one after the other.)"
    found = sorted(name for name in names if hasattr(builtins, name) and not name.startswith("_") and not callable(names[name]))
    if "is not callable" not in message or not found:
        return ""
    return f" (A cell has assigned to {', '.join(found)}. `del {', '.join(found)}` restores Python's own meaning.)"


def _places(error: BaseException) -> list[tuple[str, int, str, str]]:
    """Return the frames of a traceback, outermost first: file, line, qualified name of the function, and text of the line."""
    found = []
    for frame, line in traceback.walk_tb(error.__traceback__):  # ignores sys.tracebacklimit, unlike the functions of `traceback` that print
        code = frame.f_code
        found.append((code.co_filename, line, code.co_qualname, linecache.getline(code.co_filename, line).strip()))
    return found


def _shown(file: str, line: int, function: str, text: str) -> list[str]:
    return [f"{file}, line {line}" + (f", in {function}" if function != "<module>" else ""), f"    {text}"]
