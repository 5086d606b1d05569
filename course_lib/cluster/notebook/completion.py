"""Tab completion and help (Shift-Tab, ``?``) for names on the ranks: the notebook's kernel asks rank 0."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterable
from concurrent.futures import wait

from IPython import get_ipython

from course_lib.cluster.ranks import Ranks
from course_lib.cluster.source import cell as cells
from course_lib.engine import serialization

COMPLETION_SECONDS = 0.3  # within which rank 0 must answer, else only the kernel's own completions are shown
_DOTTED = re.compile(r"([A-Za-z_]\w*)(\.\w*)*$")


def register(ranks: Ranks) -> None:
    """Have this notebook's kernel ask these ranks for completions and help, in place of any earlier ones."""
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return
    first, kernel._ranks = not hasattr(kernel, "_ranks"), ranks
    if first:
        kernel.do_complete, kernel.do_inspect = _complete(kernel, kernel.do_complete), _inspect(kernel, kernel.do_inspect)


def _complete(kernel, own: Callable) -> Callable:
    def do_complete(code: str, cursor_pos: int | None) -> dict:
        position = len(code) if cursor_pos is None else cursor_pos
        there = _Cursor(code, position)
        if there.on_line_of_px or not (there.is_for_ranks or there.may_be_on_ranks(kernel.shell.user_ns)):
            return own(code, cursor_pos)
        found = _ask(kernel._ranks, "complete", text=there.text, place=position)
        if there.is_for_ranks:
            return _reply(found, position) if found is not None else own(code, cursor_pos)
        reply = own(code, cursor_pos)
        new = [one for one in found or () if one["text"] not in reply["matches"] and one["end"] == reply["cursor_end"]]
        if not reply["matches"]:
            return _reply(new, position) if new else reply
        new = [one for one in new if one["start"] == reply["cursor_start"]]
        reply["matches"] += [one["text"] for one in new]
        for key in reply["metadata"]:
            reply["metadata"][key] += new
        return reply

    return do_complete


def _inspect(kernel, own: Callable) -> Callable:
    def do_inspect(code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Iterable[str] = ()) -> dict:
        there = _Cursor(code, cursor_pos)
        reply = own(code, cursor_pos, detail_level, omit_sections)
        if there.on_line_of_px or (reply["found"] and not there.is_for_ranks):
            return reply
        what = dict(text=there.text, place=cursor_pos, detail=detail_level, leave_out=sorted(omit_sections))
        data = _ask(kernel._ranks, "inspect", **what)
        return {"status": "ok", "found": True, "data": data, "metadata": {}} if data else reply

    return do_inspect


def _ask(ranks: Ranks, what: str, **more: object) -> object:
    """Send rank 0 a request of `engine.requests.completion`; return the answer, or None if there is none in time."""
    try:
        if ranks.isolated or not ranks.alive():
            return None
        client = ranks._connection.client
        future = client.request(0, {"do": what, **more})
        wait([future], COMPLETION_SECONDS)
        reply = client.answer(future)
        return serialization.decode(reply["value"]) if reply and not reply["error"] else None
    except Exception:  # such as ranks that have just ended; the kernel's own completions must still be shown
        return None


class _Cursor:
    """Position of the cursor in a cell.

    Attributes
    ----------
    text : str
        The cell with ``#`` in place of ``%%px`` and what is above it, so that positions stay the same.
    is_for_ranks : bool
        Whether the cell runs on the ranks.
    on_line_of_px : bool
        Whether the cursor is in or above the line with ``%%px``.
    """

    def __init__(self, code: str, place: int):
        end = cells.end_of_px(code)
        self.is_for_ranks = end > 0
        self.on_line_of_px = end > 0 and place <= end
        hidden = re.sub(r"[^\n]", "#", code[:end])
        self.text = hidden + code[end:]
        self._before = code[:place]

    def may_be_on_ranks(self, names: dict) -> bool:
        """Return whether the text before the cursor begins with a name that the kernel does not have."""
        found = _DOTTED.search(self._before)
        return bool(found) and not (found[2] and (found[1] in names or hasattr(builtins, found[1])))


def _reply(found: list[dict], place: int) -> dict:
    start, end = (found[0]["start"], found[0]["end"]) if found else (place, place)
    metadata = {"_jupyter_types_experimental": found}
    return dict(matches=[one["text"] for one in found], cursor_start=start, cursor_end=end, metadata=metadata, status="ok")
