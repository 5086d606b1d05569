"""Records of where submissions came from, as `make collect` saw it: the platform, the name there, and the upload.

The records are beside submitted/, in collected/PART/STUDENT.json, not inside: so no submitted folder can bring one along.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from grading.authoring import build
from grading.collecting import platforms

REFUSAL_SUFFIX = ".refused.txt"
MAX_REASON_CHARS = 2000  # characters of a reason
AGES = 3  # numbers in an age, see `owners.CandidateSubmission`


def path(home: Path, student: str, part: str) -> Path:
    """Return the file of a record."""
    return home / "collected" / part / f"{student}.json"


def read(home: Path, student: str, part: str) -> dict:
    """Read a record; empty if there is none."""
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
        found["number"] = said.number  # an earlier version did not store it
    return found


def records_of_student(home: Path, student: str) -> Iterator[tuple[str, dict]]:
    """Yield a student's records, each with its part, if the submission is still there."""
    for folder in (home / "collected").glob("*/"):
        if (home / "submitted" / student / folder.name).exists() and (found := read(home, student, folder.name)):
            yield folder.name, found


def numbers(home: Path, part: str) -> dict[tuple[str, str], str]:
    """Map each platform number in a part's records to its student."""
    found = {}
    for record in (home / "collected" / part).glob("*.json"):
        kept = read(home, record.stem, part)
        if kept.get("number") and (home / "submitted" / record.stem / part).exists():
            found[kept["platform"], kept["number"]] = record.stem
    return found


def refuse(home: Path, student: str, part: str, why: str, *, for_student: bool = False) -> None:
    """Record why nothing of a student was collected, and whether the student may read it; an empty reason removes the record."""
    if why:
        build.write_atomically(f"{int(for_student)}{why[:MAX_REASON_CHARS]}", _refusal(home, student, part))
    else:
        _refusal(home, student, part).unlink(missing_ok=True)


def refused(home: Path, student: str, part: str) -> tuple[str, bool]:
    """Return why nothing of a student was collected, and whether the student may read it; empty if nothing was refused."""
    try:
        text = _refusal(home, student, part).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return "", False
    return text[1:], text[:1] == "1"


def all_refused(home: Path, part: str) -> list[str]:
    """List the students with a refused submission."""
    return sorted(path.name.removesuffix(REFUSAL_SUFFIX) for path in (home / "collected" / part).glob(f"*{REFUSAL_SUFFIX}"))


def _refusal(home: Path, student: str, part: str) -> Path:
    return home / "collected" / part / f"{student}{REFUSAL_SUFFIX}"


def write(home: Path, student: str, part: str, record: dict) -> None:
    """Write a record atomically."""
    build.write_atomically(json.dumps(record), path(home, student, part))
