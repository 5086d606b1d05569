"""Sanitize the output and errors of a rank, which end up in pages that an instructor opens.

HTML and JavaScript would run there with the instructor's privileges, so only text and plain images are kept.
"""

from __future__ import annotations

from course_lib.cluster import image_limits
from course_lib.utils import wording

MAX_OUTPUT_CHARACTERS = 4 << 20  # of a cell's output on all ranks together
MAX_OUTPUTS = 400  # of a cell on all ranks together: a notebook's client takes 2 ms for each
MAX_TEXT_CHARACTERS = 200_000  # of one text in it
MAX_ERROR_CHARACTERS = 50_000
MAX_ANSI_CODES = 500  # terminal codes in a text: rendering a page with many takes minutes
MAX_LINES = 2_000  # of an error


def outputs(found: object, ranks: int = 1) -> list[dict]:
    """Sanitize the outputs of a cell on one of `ranks` ranks: keep text and images, within this rank's share of the limit."""
    found = found if isinstance(found, list) else []
    most_outputs, most_characters = MAX_OUTPUTS // ranks, MAX_OUTPUT_CHARACTERS // ranks
    if len(found) > most_outputs:
        return [_left_out(f"{len(found):,} pieces", f"{most_outputs:,}")]
    shown = [harmless for output in found if (harmless := _output(output))]
    size = sum(len(o.get("text", "")) + sum(map(len, o.get("data", {}).values())) for o in shown)
    if size > most_characters:
        return [_left_out(wording.size(size), wording.size(most_characters))]
    return shown


def _left_out(size: str, most: str) -> dict:
    text = f"(the output of this cell is left out: it has {size}, and at most {most} are shown for each rank)\n"
    return {"stream": "stdout", "text": text}


def _output(output: object) -> dict | None:
    if not isinstance(output, dict):
        return None
    if isinstance(output.get("text"), str):
        return {"stream": "stderr" if output.get("stream") == "stderr" else "stdout", "text": _cut(output["text"], MAX_TEXT_CHARACTERS)}
    data = output.get("data")
    if not isinstance(data, dict):
        return None
    text = data.get("text/plain")
    plain_text = {"text/plain": _cut(text, MAX_TEXT_CHARACTERS)} if isinstance(text, str) else {}
    shown = {
        kind: value.replace("\n", "") for kind, value in data.items() if kind in image_limits.IMAGE_SIGNATURES and isinstance(value, str)
    }
    kept, _ = image_limits.allowed_images(plain_text | shown)
    return {"data": kept or {"text/plain": "(not shown when grading: only text and images are)"}, "metadata": {}}


def error(found: object) -> dict | None:
    """Sanitize an error, cut to `MAX_ERROR_CHARACTERS` characters; None if there is none."""
    if not isinstance(found, dict):
        return None
    lines, kind = (found.get(part) if isinstance(found.get(part), list) else [] for part in ("lines", "kind"))
    return {
        "name": str(found.get("name"))[:200],
        "message": _cut(str(found.get("message"))),
        "place": str(found.get("place", ""))[:200],
        "lines": _cut("\n".join(map(str, lines[:MAX_LINES]))).splitlines(),
        "kind": [str(name)[:200] for name in kind[:20]],
    }


def strip_ansi(text: str) -> str:
    """Strip a text's terminal codes if it has more than `MAX_ANSI_CODES`."""
    return text if text.count("\x1b") <= MAX_ANSI_CODES else text.replace("\x1b", "")


def _cut(text: str, most: int = MAX_ERROR_CHARACTERS) -> str:
    text = strip_ansi(text)
    return text if len(text) <= most else text[:most] + " (truncated)"
