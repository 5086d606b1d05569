"""Allowances of one student in the roster: more time, and tests that do not count.

    extension    2 days                                for all parts
                 03_naive_forward: 2 days; 05: 12 hours
                 1 day; 03: 3 days                     if several apply to a part, the longest counts
    dropped      03_naive_forward: the whole layer     one test, by its name or its grade id
                 03: the whole layer, the collected input; 07      several; all tests of a part

A part is given by its name or its number.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from grading.formatting import display_name
from grading.paths import NOTEBOOKS, parts

ALLOWANCE_COLUMNS = ("extension", "dropped")
MAX_EXTENSION = timedelta(days=366)
DURATION = re.compile(r"(\d+(?:[.,]\d+)?)\s*(minute|hour|day|week)s?", re.IGNORECASE)


class AllowanceError(ValueError):
    """An unreadable allowance in the roster; the message says what was expected."""


def extension(row: Mapping[str, str], part: str) -> timedelta:
    """Return a student's extension for a part.

    Parameters
    ----------
    row : mapping of str to str
        A line of the roster; its column `extension` may be missing or empty.
    part : str
        The part's name.

    Returns
    -------
    timedelta
        Zero if there is none.

    Raises
    ------
    AllowanceError
        It names an unknown part, or is not a duration.
    """
    return max((_time(time) for whose, time in _entries(row, "extension") if whose in (None, part)), default=timedelta())


def dropped(row: Mapping[str, str], part: str, notebooks: Path = NOTEBOOKS) -> set[str]:
    """Return the grade ids of a part's tests that do not count for a student.

    Parameters
    ----------
    row : mapping of str to str
        A line of the roster; its column `dropped` may be missing or empty.
    part : str
        The part's name.
    notebooks : Path
        Folder of the released parts.

    Raises
    ------
    AllowanceError
        It names an unknown part, or a test that the part does not have.
    """
    found: set[str] = set()
    for whose, names in _entries(row, "dropped"):
        if whose == part:
            found |= _tests(part, names, notebooks)
    return found


def check(row: Mapping[str, str], notebooks: Path = NOTEBOOKS) -> None:
    """Check that all allowances in a roster line can be read.

    Raises
    ------
    AllowanceError
        One of them cannot be read.
    """
    for column, read in (("extension", extension), ("dropped", functools.partial(dropped, notebooks=notebooks))):
        for part in {whose or "" for whose, _ in _entries(row, column)}:
            read(row, part)


def _entries(row: Mapping[str, str], column: str) -> list[tuple[str | None, str]]:
    """Return each entry's part, or None for all parts, and its text."""
    found: list[tuple[str | None, str]] = []
    for entry in filter(None, map(str.strip, (row.get(column) or "").split(";"))):
        name, colon, said = map(str.strip, entry.partition(":"))
        part = _part(name)
        if part is None and (colon or column == "dropped"):
            raise AllowanceError(
                f"{column}: {entry!r}: there is no part {name!r}; expected its name or number, such as {parts()[3]!r} or '03'"
            )
        found.append((part, said if part else entry))
    return found


def _part(name: str) -> str | None:
    return next((part for part in parts() if name in (part, part.partition("_")[0])), None)


def _time(text: str) -> timedelta:
    """Parse a duration such as "2 days" or "1 day 12 hours"."""
    if not DURATION.search(text) or DURATION.sub("", text).strip(" ,"):
        raise AllowanceError(f"extension: {text!r}: expected a time in minutes, hours, days or weeks, such as '2 days' or '03: 12 hours'")
    try:
        time = sum((timedelta(**{f"{unit.lower()}s": float(n.replace(",", "."))}) for n, unit in DURATION.findall(text)), timedelta())
    except OverflowError:
        time = timedelta.max
    if time > MAX_EXTENSION:
        raise AllowanceError(f"extension: {text!r}: expected at most {MAX_EXTENSION.days} days")
    return time


def _tests(part: str, names: str, notebooks: Path) -> set[str]:
    try:
        cells = json.loads((notebooks / part / f"{part}.ipynb").read_text(encoding="utf-8"))["cells"]
    except FileNotFoundError:
        raise AllowanceError(f"dropped: {part} is not released, so it has no tests to drop; first: make release PART={part}") from None
    known = {mark["grade_id"] for cell in cells if (mark := cell["metadata"].get("nbgrader", {})).get("grade")}
    if not names:
        return known
    found = set()
    for name in filter(None, map(str.strip, names.split(","))):
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        meant = {test for test in known if test.removeprefix("test-") == plain.removeprefix("test-")}
        if not meant:
            has = ", ".join(map(display_name, sorted(known))) or "none"
            raise AllowanceError(f"dropped: {part} has no test {name!r}; its tests: {has}")
        found |= meant
    return found
