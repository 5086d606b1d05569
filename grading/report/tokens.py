"""Tokenize code independently of its style: tokens that stay the same when names, comments and spacing change."""

from __future__ import annotations

import builtins
import io
import keyword
import re
import tokenize

SHINGLE_TOKENS = 8  # tokens of a shingle: about a statement, so that reordered statements keep most of their shingles
MAX_SOURCE_CHARS = 200_000  # characters that are read
MAX_LINE_CHARS = 1_000  # of a line: the time for one with many quotation marks grows with its square

Shingle = tuple[str, ...]

_KEPT = {*keyword.kwlist, *dir(builtins)}
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_TEXT = {tokenize.STRING} | {number for number, name in tokenize.tok_name.items() if name.startswith("FSTRING_M")}
_INSIDE = {number for number, name in tokenize.tok_name.items() if name in ("FSTRING_START", "FSTRING_END")}


def tokens(source: str) -> list[tuple[str, int]]:
    """Return the tokens of a cell, each with its line; if it is not valid Python, those before the error.

    A student's own names are all the same token, and so are numbers and strings. Attributes, keywords and built-in names stay.
    What a formatter may add is left out: brackets that are not calls, trailing commas, semicolons.

    >>> [token for token, _ in tokens("total = (np.sum(parts[0], axis=1,))  # all")]
    ['name', '=', 'name', '.', 'sum', '(', 'name', '[', '0', ']', ',', 'name', '=', '0', ')']
    """
    lines = source[:MAX_SOURCE_CHARS].splitlines()
    lines = [line if _is_read(line) else "" for line in lines]
    found: list[tuple[str, int]] = []
    calls: list[bool] = []  # for each open bracket, whether it is that of a call
    last, fresh = "", True  # the previous token, and whether a statement begins
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            if token.type in _LAYOUT:
                fresh = fresh or token.type in (tokenize.NEWLINE, tokenize.INDENT)
                continue
            before, last, word = last, token.string, token.string
            docstring, fresh = fresh and token.type == tokenize.STRING, False
            if word == "(":
                calls.append(before in (")", "]") or (before.isidentifier() and before not in keyword.kwlist))
            grouping = (word == "(" and not calls[-1]) or (word == ")" and calls and not calls.pop())
            if word in (")", "]", "}") and found and found[-1][0] == ",":
                found.pop()
            if docstring or grouping or word == ";" or token.type in _INSIDE:
                continue
            if token.type == tokenize.NAME:
                word = word if word in _KEPT or before == "." else "name"
            elif token.type == tokenize.NUMBER:
                word = "0"
            elif token.type in _TEXT:
                word = "text"
            if not (word == "text" and found and found[-1][0] == "text"):  # adjacent strings are one
                found.append((word, token.start[0]))
    except (tokenize.TokenError, SyntaxError):
        pass
    return found


def _is_read(line: str) -> bool:
    """Return whether a line is Python, as far as one line shows, and not too long."""
    return len(line) <= MAX_LINE_CHARS and not re.match(r"\s*[%!]", line)


def shingles(source: str, length: int = SHINGLE_TOKENS) -> dict[Shingle, set[int]]:
    """Return all runs of `length` tokens, each with its lines (shingles; Broder, 1997).

    Winnowing (Schleimer, Wilkerson, Aiken, 2003) would keep only some of them: an answer is too short for that.
    """
    found: dict[Shingle, set[int]] = {}
    read = tokens(source)
    for i in range(len(read) - length + 1):
        words, lines = zip(*read[i : i + length], strict=True)
        found.setdefault(words, set()).update(lines)
    return found
