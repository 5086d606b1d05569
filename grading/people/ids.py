"""Students' ids, which are folder names: one rule for the roster and for all ways of collecting submissions."""

from __future__ import annotations

import re
import unicodedata

from grading.formatting import printable

MAX_ID_CHARS, MAX_ID_BYTES = (
    128,
    200,
)  # characters in nbgrader's gradebook; bytes of a folder's name, where file systems allow 255 including what is appended
WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9]) *(\..*)?", re.IGNORECASE)  # reserved names on Windows


def id_problem(student: str) -> str | None:
    """Return why this is not a valid student id, or None if it is.

    >>> id_problem("Ada Lovelace"), id_problem("a/b")
    (None, "not a valid name for a student's folder: expected none of [ ] * ? / \\\\, got 'a/b'")
    """
    plain, size = unicodedata.normalize("NFKC", student), len(student.encode(errors="surrogatepass"))
    rules = {
        "a name": not student,
        f"at most {MAX_ID_CHARS} characters, and {MAX_ID_BYTES} bytes in UTF-8": len(student) > MAX_ID_CHARS or size > MAX_ID_BYTES,
        "no line breaks or invisible characters": not student.isprintable(),
        r"none of [ ] * ? / \ ".strip(): set(student) & set(r"[]*?/\ ".strip()),
        "no space and none of = + @ . - at the beginning": plain.startswith((" ", "=", "+", "@", ".", "-")),
        "no space or dot at the end": plain.endswith((" ", ".")),
        "no name that Windows reserves for a device": WINDOWS_DEVICE.fullmatch(plain),
    }
    expected = next((rule for rule, broken in rules.items() if broken), None)
    return expected and f"not a valid name for a student's folder: expected {expected}, got '{printable(student)[:80]}'"


def folder_problem(student: str) -> str | None:
    """Return why nbgrader cannot make a page for a folder in submitted/, or None; it can if `id_problem` finds nothing."""
    if student.startswith(".") or "[" in student or not student.isprintable():
        return "nbgrader does not support [, a dot at the beginning, or invisible characters in a student's folder name; rename it"
    return None


def case_folded(student: str) -> str:
    """Return a form in which names are equal that some disks and readers take for the same."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", student).casefold())
