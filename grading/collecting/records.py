"""Where a hand-in came from, as `make collect` saw it: the platform, the name there, which upload it was.

The records lie beside submitted/, in collected/PART/STUDENT.json, and not in it: a student who submits a folder writes none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from grading.authoring import build
from grading.collecting import platforms

REFUSAL_SUFFIX = ".refused.txt"
MAX_REASON_CHARS = 2000  # characters of a reason
AGES = 3  # numbers of an age, see `owners.CandidateSubmission`


def path(home: Path, student: str, part: str) -> Path:
    """The file of a record."""
    return home / "collected" / part / f"{student}.json"


def read(home: Path, student: str, part: str) -> dict:
    """A record; empty where there is none."""
    try:
        found = json.loads(path(home, student, part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict) or not isinstance(found.get("file"), str):
        return {}
    age, texts = found.get("age"), [found.get(name) or "" for name in ("platform", "key", "number", "name")]
    sound = isinstance(age, list) and len(age) == AGES and all(type(n) in (int, float) for n in age)
    if not sound or not all(isinstance(text, str) for text in texts):
        return {}
    if not found.get("number") and (said := platforms.parse_name(found.get("name") or "")):
        found["number"] = said.number  # an earlier version did not keep it
    return found


def records_of_student(home: Path, student: str) -> Iterator[tuple[str, dict]]:
    """All records of a student whose hand-in still lies there, each with its part."""
    for folder in (home / "collected").glob("*/"):
        if (home / "submitted" / student / folder.name).exists() and (found := read(home, student, folder.name)):
            yield folder.name, found


def numbers(home: Path, part: str) -> dict[tuple[str, str], str]:
    """Whose each number of a platform is, by the records of a part."""
    found = {}
    for record in (home / "collected" / part).glob("*.json"):
        kept = read(home, record.stem, part)
        if kept.get("number") and (home / "submitted" / record.stem / part).exists():
            found[kept["platform"], kept["number"]] = record.stem
    return found


def refuse(home: Path, student: str, part: str, why: str, *, for_student: bool = False) -> None:
    """Keep why nothing of a student was collected, and whether that is for them to read; with an empty reason, forget it."""
    if why:
        build.write_atomically(f"{int(for_student)}{why[:MAX_REASON_CHARS]}", _refusal(home, student, part))
    else:
        _refusal(home, student, part).unlink(missing_ok=True)


def refused(home: Path, student: str, part: str) -> tuple[str, bool]:
    """Why nothing of a student was collected, and whether that is for them to read; empty where that is not so."""
    try:
        text = _refusal(home, student, part).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return "", False
    return text[1:], text[:1] == "1"


def all_refused(home: Path, part: str) -> list[str]:
    """List the students of whom something was refused."""
    return sorted(path.name.removesuffix(REFUSAL_SUFFIX) for path in (home / "collected" / part).glob(f"*{REFUSAL_SUFFIX}"))


def _refusal(home: Path, student: str, part: str) -> Path:
    return home / "collected" / part / f"{student}{REFUSAL_SUFFIX}"


def write(home: Path, student: str, part: str, record: dict) -> None:
    """Keep a record, whole or not at all."""
    build.write_atomically(json.dumps(record), path(home, student, part))
