"""Where a hand-in came from, as `make collect` saw it: the platform, the name there, which upload it was.

The records lie beside submitted/, in collected/PART/STUDENT.json, and not in it: a student who submits a folder writes none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from grading import build


def path(home: Path, student: str, part: str) -> Path:
    """The file of a record."""
    return home / "collected" / part / f"{student}.json"


def read(home: Path, student: str, part: str) -> dict:
    """A record; empty where there is none."""
    try:
        found = json.loads(path(home, student, part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    whole = isinstance(found, dict) and isinstance(found.get("file"), str) and isinstance(found.get("age"), list)
    return found if whole else {}


def of(home: Path, student: str) -> Iterator[tuple[str, dict]]:
    """All records of a student, each with its part."""
    for folder in (home / "collected").glob("*/"):
        if found := read(home, student, folder.name):
            yield folder.name, found


def write(home: Path, student: str, part: str, record: dict) -> None:
    """Keep a record, whole or not at all."""
    build.put(json.dumps(record), path(home, student, part))
