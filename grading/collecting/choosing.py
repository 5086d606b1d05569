"""Choose which of a student's submissions counts, and report those that are ambiguous."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from grading.collecting.owners import CandidateSubmission
from grading.collecting.tree import split_copy_number
from grading.people.ids import case_folded
from grading.people.roster import Roster


@dataclass
class Choice:
    """The choice among one student's submissions.

    Attributes
    ----------
    newest : CandidateSubmission, optional
        The one that counts; None if that is ambiguous.
    older : list of CandidateSubmission
        Those that it replaces.
    refused : list of (str, str)
        A file, or the student, and why it does not count.
    """

    newest: CandidateSubmission | None = None
    older: list[CandidateSubmission] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)


def choose(student: str, hand_ins: list[CandidateSubmission], classes: set[str]) -> Choice:
    """Choose the newest submission of a student.

    Parameters
    ----------
    classes : set of str
        The zips with files of several students.
    """
    found = Choice()
    hand_ins = _only(
        hand_ins, [h for h in hand_ins if h.is_readable], f"cannot be read as a notebook, but another one from {student} can", found
    )
    usual: dict[tuple, tuple] = {}
    for h in hand_ins:
        usual[h.upload] = min(h.oddness, usual.get(h.upload, h.oddness))
    expected = [h for h in hand_ins if not h.platform or h.oddness == usual[h.upload]]
    hand_ins = _only(hand_ins, expected, "there is one with the expected name or place next to it, and that one counts", found)
    hand_ins = sorted(hand_ins, key=lambda h: h.age)
    newest, sums = hand_ins[-1], [hashlib.sha256(h.file.path.read_bytes()).digest() for h in hand_ins]
    others = [h for h, found_sum in zip(hand_ins, sums, strict=True) if found_sum != sums[-1]]
    why = _unsure(newest, others, hand_ins, classes) if others else None
    if why is not None:
        names = sorted({str(h.file) for h in [*others, newest]})
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        found.refused.append((student, f"there are different hand-ins in {shown}{why}; keep only the right one, and collect again"))
        return found
    found.newest, found.older = newest, others
    return found


def _only(hand_ins: list[CandidateSubmission], kept: list[CandidateSubmission], why: str, found: Choice) -> list[CandidateSubmission]:
    """Return those to keep, if there are any; the others go to `found.refused`."""
    if not kept:
        return hand_ins
    left_out = {id(h) for h in hand_ins} - {id(h) for h in kept}
    found.refused += [(str(h.file), why) for h in hand_ins if id(h) in left_out]
    return kept


def _unsure(
    newest: CandidateSubmission, others: list[CandidateSubmission], hand_ins: list[CandidateSubmission], classes: set[str]
) -> str | None:
    """Return a remark, possibly empty, if it is ambiguous which one counts; None if it is clear."""
    if [h for h in others if h.age == newest.age] or any(h.odd and h.by_name for h in hand_ins):
        return ""
    timeless = [h.platform.name for h in hand_ins if h.platform and h.platform.platform == "brightspace" and not h.platform.time]
    if timeless:
        return f", and no time can be read from {timeless[0]!r}"
    # A name tells whose a file is, but in a zip of their own a student may have chosen it.
    own = any(h.file.container and h.file.container not in classes and not h.by_zip for h in hand_ins)
    several = any(not _one_place(newest, h) for h in others)
    mixed = len({h.platform and h.platform.platform for h in hand_ins if not h.by_zip}) > 1
    return "" if several and (own or mixed) else None


def _one_place(one: CandidateSubmission, other: CandidateSubmission) -> bool:
    """Return whether two are in the same place, or in downloads whose names differ only by a number."""
    stems = [{stem, split_copy_number(stem)[0]} for stem in (Path(h.file.container).stem for h in (one, other))]
    folders = [() if h.platform else h.file.inside[:-1] for h in (one, other)]
    return bool(stems[0] & stems[1]) and folders[0] == folders[1]


def ambiguous_submissions(found: dict[str, list[CandidateSubmission]], people: Roster | None) -> list[tuple[str, CandidateSubmission, str]]:
    """Find submissions whose students may be one person, or one student who may be two: student, submission and reason.

    Parameters
    ----------
    found : dict of str to list of CandidateSubmission
        By student.
    """
    unclear, alike = [], {}
    for student in sorted(found):
        alike.setdefault(case_folded(student), []).append(student)
    for students in alike.values():
        if len(students) > 1:
            why = f"{', '.join(students)} may be the same student; rename the folder or file of one of them"
            unclear += [(student, hand_in, why) for student in students for hand_in in found[student]]
    for student, hand_ins in found.items():
        users: dict[tuple[str, str], list[CandidateSubmission]] = {}
        for hand_in in hand_ins:
            if hand_in.platform:
                users.setdefault((hand_in.platform.platform, hand_in.platform.number), []).append(hand_in)
        for platform in {platform for platform, _ in users}:
            numbers = {number: mine for (where, number), mine in users.items() if where == platform}
            sure = [n for n in numbers if people and people.knows(platform, n)]  # Canvas: the roster says who has this number
            if len(numbers) > 1:
                why = duplicate_name_message(student, platform, sorted(numbers))
                unclear += [(student, hand_in, why) for n, mine in numbers.items() if sure != [n] for hand_in in mine]
    return unclear


def duplicate_name_message(student: str, platform: str, numbers: list[str]) -> str:
    """Explain that a platform has several numbers for one name."""
    both = "both" if len(numbers) == 2 else "all"
    return f"users {' and '.join(numbers)} are {both} called {student}; {disambiguation_hint(platform, student, numbers[0])}"


def disambiguation_hint(platform: str, name: str, number: str) -> str:
    """Return advice on two people of one name; the number stays in the name, since the platform matches feedback by it."""
    column = f"the column {platform!r} of roster.csv can tell them apart"
    if platform == "canvas":
        return column
    return f"{column}, by these numbers, such as {number}; or replace {name!r} with each one's id, and keep the rest of the name"
