"""The meaning of a cell: whether it runs on the ranks, on which ones, and which code.

A cell runs on the ranks if ``%%px`` is on top. Above it may be comments, empty lines, and magics
that run the code below them, such as ``%%time``. The notebook's input transformer (`px_first`), the
magic, completion and grading all ask this module, so a cell means the same everywhere.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from dataclasses import dataclass

from IPython.core.inputtransformer2 import TransformerManager, leading_indent

RUN_BELOW = ("time", "timeit", "capture", "prun")  # cell magics that run the code below them
WRITE_FILE = ("%%writefile", "%%file")
MAX_MAGICS = 10  # that may be on top of a cell
INVISIBLE = " \t\r\n\f\v\xa0\u200b\ufeff"  # characters; the last three come with copied text

# `%% px` and `%%PX` can mean nothing else, and neither can `%px` alone on its line.
_MAGIC = re.compile(rf"%%[ \t]*(px|{'|'.join(RUN_BELOW)})(?![^\s#])(.*)", re.IGNORECASE)
_PX_ALONE = re.compile(r"%(px)[ \t]*((?:#.*)?)$", re.IGNORECASE)
_PX = re.compile(r"\s*%%[ \t]*px(?![^\s#])[ \t]*([^\s#])?", re.IGNORECASE)  # [1]: if it has options
_IPYTHON = re.compile(r"^([ \t]*(?:[\w.]+[ \t]*=[ \t]*)?)[%!].*", re.MULTILINE)
_PX_LINE = re.compile(r"(?:[\w.]+[ \t]*=[ \t]*)?%px[ \t]+(.*)")
_RANKS = re.compile(r"all|\d+(,\d+)*|-?\d*:-?\d*(:-?[1-9]\d*)?")
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)  # what `ast.parse` raises


class Plain(Exception):
    """An error shown as a single line, without a traceback through the library."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"]


class UsageOfPx(Plain, ValueError):
    """``%%px`` is used in an invalid way."""


@dataclass(frozen=True)
class Cell:
    """The meaning of a cell.

    Attributes
    ----------
    for_ranks : bool
        Whether ``%%px`` is on top.
    source : str
        The code, without ``%%px`` and the magics above it.
    targets : str or None
        The ranks, as after ``--targets``; None means all.
    trace : str or None
        The file for the trace, or an empty text; None means no trace.
    title : str
        The comment on the line of ``%%px``.
    problem : str
        Why a notebook refuses to run the cell, in a sentence; else empty.
    file : str
        The file that the cell writes with ``%%writefile``; else empty.
    """

    for_ranks: bool
    source: str
    targets: str | None = None
    trace: str | None = None
    title: str = ""
    problem: str = ""
    file: str = ""

    @property
    def lines_for_ranks(self) -> str:
        """The code after ``%px`` in a cell of the kernel, except in its loops and branches."""
        of_kernel = not (self.for_ranks or self.problem or self.source.startswith("%%"))
        if not of_kernel or "%px" not in self.source:
            return ""
        lines = [_PX_LINE.match(line) for line in self.source.split("\n")]
        try:
            statements = ast.parse(without_magics(self.source)).body
        except NOT_PYTHON:
            return ""
        found = [lines[statement.lineno - 1] for statement in statements]
        return "\n".join(match[1] for match in found if match)


def read(text: str) -> Cell:
    """Tell what a cell means.

    Examples
    --------
    >>> cell = read("# my answer\\n%%time\\n%%px --targets 0,1\\nx = 1")
    >>> cell.for_ranks, cell.targets, cell.source
    (True, '0,1', '# my answer\\nx = 1')
    >>> print(read("import numpy as np\\n%%px\\nx = 1").problem)
    %%px must be the first line of its cell, but here it is line 2. Only comments may precede it.
    """
    lines = text.splitlines(keepends=True)
    for _ in range(MAX_MAGICS):
        for transform in (*TransformerManager().cleanup_transforms, _magic_first):
            lines = transform(lines)
        magic = _MAGIC.match(lines[0]) if lines else None
        if not magic:
            break
        lines = lines[1:]
        if magic[1] == "px":
            return _for_ranks(magic[2], lines)
    if not lines or not lines[0].startswith("%%"):
        return Cell(False, "".join(_without_px(lines)), problem=_low_px(lines))
    words = lines[0].split()
    file = words[-1] if len(words) > 1 and words[0] in WRITE_FILE else ""
    return Cell(False, "".join(lines), file=file)


def px_first(lines: list[str]) -> list[str]:
    """Move ``%%px``, or a magic that runs the code below it, to the first line.

    An input transformer of IPython, which knows magics on the first line only.

    >>> px_first(["# mine\\n", "%%px\\n", "x = 1"])
    ['%%px\\n', '# mine\\n', 'x = 1']
    """
    if problem := _low_px(lines):
        return [f"__import__({__name__!r}, fromlist=['here']).refuse({problem!r})\n"]
    return _magic_first(lines)


def end_of_px(text: str) -> int:
    """Return the position at which the line of ``%%px`` ends, or 0 if the cell is not for the ranks.

    >>> end_of_px("# mine\\n%%px\\nx = 1")
    11
    """
    if not read(text).for_ranks:
        return 0
    position = 0
    for line in text.splitlines(keepends=True):
        magic = _magic(line)
        position += len(line)
        if magic and magic[0] == "px":
            break
    return position - len(line) + len(line.rstrip("\r\n"))


def refuse(problem: str) -> None:
    """Raise UsageOfPx.

    Raises
    ------
    UsageOfPx
        Always.
    """
    raise UsageOfPx(problem)


def is_px(line: str) -> bool:
    """Return whether a line is ``%%px``, or a magic that may be above it."""
    return _magic(line) is not None


def below_magics(source: str) -> str:
    """Return the code of a cell that ran on the ranks, without magics such as ``%%time``."""
    lines = _magic_first(source.splitlines(keepends=True))
    for _ in range(MAX_MAGICS):
        if lines and _MAGIC.match(lines[0]):
            lines = _magic_first(lines[1:])
    return "".join(lines)


def without_magics(source: str) -> str:
    """Return code with a call in place of each magic and command: Python with the same lines.

    >>> without_magics("files = !ls\\nif files:\\n    %time f()")
    'files = magic()\\nif files:\\n    magic()'
    """
    return _IPYTHON.sub(r"\1magic()", source)


def imported(source: str) -> set[str]:
    """Return the modules that a cell imports, without those inside packages.

    >>> sorted(imported("import numpy as np\\ndef f():\\n    from helpers import g"))
    ['helpers', 'numpy']
    """
    try:
        nodes = list(ast.walk(ast.parse(without_magics(below_magics(source)))))
    except NOT_PYTHON:
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {name.partition(".")[0] for name in names}


def targets(text: str | None, n: int) -> list[int] | None:
    """Return the ranks that a cell's `targets` name; None means all.

    >>> targets("0,2", 4), targets("1:4", 4), targets(None, 4)
    ([0, 2], [1, 2, 3], None)

    Raises
    ------
    UsageOfPx
        There are no such ranks.
    """
    if text is None or text == "all":
        return None
    if ":" in text:
        bounds = [int(part) if part else None for part in text.split(":")]
        ranks = list(range(n)[slice(*bounds)])
    else:
        ranks = [int(part) for part in text.split(",")]
    if not ranks or not set(ranks) <= set(range(n)):
        refuse(f"%%px --targets: the ranks are 0 to {n - 1}; got {text!r}.")
    return ranks


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        usage = "Use %%px alone, %%px --targets 0,2 for some ranks, or %%px --trace."
        refuse(f"%%px: {message}. {usage}")


def _options(line: str) -> argparse.Namespace:
    """Parse the line of ``%%px``; raise UsageOfPx if it is invalid."""
    parser = _Parser(prog="%%px", add_help=False)
    parser.add_argument("--targets", "-t", nargs="+", default=[])
    parser.add_argument("--trace", nargs="?", const="")
    parser.add_argument("--block", action="store_true")  # for compatibility: %%px always blocks
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        parser.error(f"a quotation mark is not closed in {line.strip()!r}")
    options = parser.parse_args(words)
    ranks = " ".join(options.targets).strip("[]() ,")  # [0, 1] is 0,1
    options.targets = ",".join(re.split(r"[\s,]+", ranks)) or None
    if options.targets and not _RANKS.fullmatch(options.targets):
        refuse(f"%%px --targets: expected ranks such as 2 or 0,1 or 1:4; got {options.targets!r}.")
    if options.trace and not options.trace.endswith(".json"):
        wrong = f"the name of a file must end in .json; got {options.trace!r}"
        refuse(f"%%px --trace: {wrong}. For some ranks: %%px --targets 0,2 --trace.")
    return options


def _for_ranks(line: str, below: list[str]) -> Cell:
    """Return the meaning of a cell, by the rest of the line of ``%%px`` and the lines below."""
    source = "".join(_magic_first(_without_px(below)))
    title = line.partition("#")[2].strip()
    try:
        options = _options(line)
        if any(_PX.match(below[number])[1] for number in _px_lines(below)):
            refuse("%%px is also below, with options: make two cells, each with its own %%px.")
    except UsageOfPx as problem:
        return Cell(True, source, title=title, problem=str(problem))
    return Cell(True, source, options.targets, options.trace, title)


def _low_px(lines: list[str]) -> str:
    """Return why a cell with ``%%px`` below its code is refused; empty for any other cell."""
    first = _first_code(lines)
    px = _px_lines(lines)
    if not px or lines[first].startswith("%%") or is_px(lines[first]):
        return ""
    where = f"%%px must be the first line of its cell, but here it is line {px[0] + 1}"
    return f"{where}. Only comments may precede it."


def _px_lines(lines: list[str]) -> list[int]:
    """Return which lines are ``%%px``; none if the cell is Python: they are in a string."""
    found = [number for number, line in enumerate(lines) if _PX.match(line)]
    if not found:
        return []
    try:
        ast.parse("".join(lines))
    except NOT_PYTHON:
        return found
    return []


def _without_px(lines: list[str]) -> list[str]:
    """Make comments of lines that are ``%%px``, as after two cells have been merged."""
    px = set(_px_lines(lines))
    return [f"# {line}" if number in px else line for number, line in enumerate(lines)]


def _magic(line: str) -> tuple[str, str] | None:
    """Return name and rest of a line that is ``%%px``, or a magic that runs the code below it."""
    text = line.strip(INVISIBLE)
    match = _MAGIC.match(text) or _PX_ALONE.match(text)
    return (match[1].lower(), match[2].replace("\xa0", " ").strip()) if match else None


def _magic_first(lines: list[str]) -> list[str]:
    """Move such a line above the comments before it, and write it as IPython expects it."""
    first = _first_code(lines)
    magic = _magic(lines[first]) if first is not None else None
    if not magic:
        return lines
    top = f"%%{magic[0]} {magic[1]}".rstrip() + "\n"
    code = [lines[first].lstrip("\ufeff\u200b"), *lines[first + 1 :]]
    below = leading_indent(code)[1:]  # the comment may not be indented, and the rest be
    return [top, *lines[:first], *below]


def _first_code(lines: list[str]) -> int | None:
    """Return the number of the first line that is neither empty nor a comment."""
    visible = [line.strip(INVISIBLE) for line in lines]
    code = (n for n, line in enumerate(visible) if line and not line.startswith("#"))
    return next(code, None)
