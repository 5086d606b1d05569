"""A cell as plain Python: without IPython's magics, shell commands and help, in bounded time.

IPython reads the whole cell again after each command. Here, this is done only after a command that
may change how the lines below it are read, as one with a quotation mark does.
"""

from __future__ import annotations

import ast
import contextlib
import re

from IPython.core.inputtransformer2 import TransformerManager, make_tokens_by_line

MAX_COMMANDS = 500  # of a cell, as in IPython itself
MAX_CHARACTERS = 50_000  # of a cell that is not plain Python
MAX_CHARACTERS_READ = 500_000  # in all readings of a cell together
_HIDING = re.compile(r"[\"'()\[\]{}\\]")  # what may begin on one line and end on another


def parse_cell(source: str) -> tuple[str, ast.Module]:
    """Parse a cell.

    Returns
    -------
    text : str
        The cell as plain Python.
    tree : ast.Module

    Raises
    ------
    SyntaxError
        It is neither Python nor IPython, or too long to find out.
    """
    try:
        return source, _parsed(source)
    except SyntaxError:
        text = _without_commands(source)
        return text, _parsed(text)


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, or nested too deeply
        raise SyntaxError(f"it cannot be read as Python ({type(error).__name__})") from None


def _without_commands(source: str) -> str:
    """Translate IPython's commands to Python."""
    if len(source) > MAX_CHARACTERS:
        most = f"{MAX_CHARACTERS:,} characters"
        raise SyntaxError(f"it is not plain Python, and has more than {most}")
    manager = TransformerManager()
    lines = (source if source.endswith("\n") else f"{source}\n").splitlines(keepends=True)
    for transform in (*manager.cleanup_transforms, *manager.line_transforms):
        lines = transform(lines)
    commands = characters_read = 0
    while found := _commands(lines, manager):
        commands += len(found)
        characters_read += sum(map(len, lines))
        if commands > MAX_COMMANDS or characters_read > MAX_CHARACTERS_READ:
            raise SyntaxError(f"it has more than {MAX_COMMANDS} magics or shell commands, or long ones")
        for candidates in reversed(found):  # from the end, so that line numbers stay valid
            lines = _translated(candidates, lines)
    return "".join(lines)


def _commands(lines: list[str], manager: TransformerManager) -> list[list]:
    """Find the commands, up to the first that may change how the lines below it are read.

    Returns
    -------
    list of list of TokenTransformBase
        For each command, the translations to try, in this order.
    """
    commands = []
    for tokens in make_tokens_by_line(lines):
        found = [transformer.find([tokens]) for transformer in manager.token_transformers]
        if candidates := sorted(filter(None, found), key=lambda candidate: candidate.sortby()):
            commands.append(candidates)
            if _HIDING.search(tokens[0].line):
                break
    return commands


def _translated(candidates: list, lines: list[str]) -> list[str]:
    for candidate in candidates:
        with contextlib.suppress(SyntaxError):
            return candidate.transform(lines)
    raise SyntaxError("it has a command that IPython does not know")
