"""Completions and help from a rank, for `cluster.notebook.completion`."""

from __future__ import annotations

import itertools

from course_lib.engine import serialization
from course_lib.engine.namespace import get_ipython

MAX_COMPLETIONS = 200


def complete(request: dict) -> dict:
    """Return the completions at a position ("place") in a text."""
    from IPython.core.completer import provisionalcompleter, rectify_completions

    shell, text = get_ipython(), request["text"]
    shell.Completer.use_jedi = False
    with provisionalcompleter():
        found = itertools.islice(rectify_completions(text, shell.Completer.completions(text, request["place"])), MAX_COMPLETIONS)
        value = [dict(start=c.start, end=c.end, text=c.text, type=c.type, signature=c.signature) for c in found]
    return _reply(value)


def inspect(request: dict) -> dict:
    """Return what IPython's ``?`` shows for the name at a position in a text, by MIME type; None if the name is not defined."""
    from IPython.utils.tokenutil import token_at_cursor

    name = token_at_cursor(request["text"], request["place"])
    try:
        value = get_ipython().object_inspect_mime(name, request["detail"], omit_sections=request["leave_out"]) if name else None
    except KeyError:
        value = None
    return _reply(value)


def page(shell, data: dict | str, start: int = 0, screen_lines: int = 0) -> None:
    """Print what a pager would show, such as for ``?`` in a cell: a rank has no pager."""
    print(data["text/plain"] if isinstance(data, dict) else data)


def _reply(value: object) -> dict:
    return {"outputs": [], "error": None, "value": serialization.encode(value)}
