"""Students' ids, which are names of folders: one rule for the roster and for all ways in which a hand-in comes."""

from __future__ import annotations

import re
import unicodedata

from grading.formatting import printable

MAX_ID_CHARS, MAX_ID_BYTES = (
    128,
    200,
)  # characters in nbgrader's gradebook; bytes of a folder's name, where disks take 255 with what is put behind it
WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9]) *(\..*)?", re.IGNORECASE)  # Windows has no files called so


def id_problem(student: str) -> str | None:
    """Why this is no student's id, or None if it may be one.

    >>> id_problem("Ada Lovelace"), id_problem("a/b")
    (None, "no student's folder may be called so: expected none of [ ] * ? / \\\\, got 'a/b'")
    """
    plain, size = unicodedata.normalize("NFKC", student), len(student.encode(errors="surrogatepass"))
    rules = {
        "a name": not student,
        f"at most {MAX_ID_CHARS} characters, and {MAX_ID_BYTES} bytes in UTF-8": len(student) > MAX_ID_CHARS or size > MAX_ID_BYTES,
        "no line ends or signs that cannot be seen": not student.isprintable(),
        r"none of [ ] * ? / \ ".strip(): set(student) & set(r"[]*?/\ ".strip()),
        "no blank and none of = + @ . - at the beginning": plain.startswith((" ", "=", "+", "@", ".", "-")),
        "no blank or dot at the end": plain.endswith((" ", ".")),
        "no name that Windows keeps for a device": WINDOWS_DEVICE.fullmatch(plain),
    }
    expected = next((rule for rule, broken in rules.items() if broken), None)
    return expected and f"no student's folder may be called so: expected {expected}, got '{printable(student)[:80]}'"


def folder_problem(student: str) -> str | None:
    """Say why nbgrader can make no page for a folder in submitted/, or None; it can where `id_problem` finds nothing."""
    if student.startswith(".") or "[" in student or not student.isprintable():
        return "nbgrader cannot have [, a dot at the beginning, or what is no letter in a folder's name, which is the student's; rename it"
    return None


def case_folded(student: str) -> str:
    """What two names have in common that some disks and eyes take for one."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", student).casefold())
