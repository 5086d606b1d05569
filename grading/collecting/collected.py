"""The result of `make collect`, file by file, and the table that shows it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from grading.collecting import platforms
from grading.collecting.owners import CandidateSubmission
from grading.formatting import printable

MAX_REASONS_PER_STUDENT = 5  # of one student
MAX_LINES_PER_GROUP, MAX_UNMATCHED_PER_STUDENT = 20_000, 10  # of a group in the table, and of one student's files that are not matched


@dataclass
class CollectResult:
    """What became of each file.

    Attributes
    ----------
    matched : dict of str to CandidateSubmission
        By student.
    refused : list of (str, str)
        A file, and why it is nobody's.
    replaced : list of (str, str, str)
        A student, the file that counts, and an older one.
    late : list of str
        Whose hand-in came after the part was due for them, or is called late by the platform.
    granted : dict of str to timedelta
        How much later those may hand in whom the platform calls late, and of whom nobody knows when it came.
    missing : list of str
        Who is in the roster and has nothing in submitted/.
    without : dict of str to list of str
        By student: why their files do not count.
    for_students : dict of str to CandidateSubmission
        By student: one of these, where the reason is for them to read.
    private : set of str
        Students of whom something was refused for a reason that is the instructor's alone: it names others, or their folders.
    due : datetime, optional
        When the part is due, if the gradebook says so.
    """

    matched: dict[str, CandidateSubmission] = field(default_factory=dict)
    refused: list[tuple[str, str]] = field(default_factory=list)
    replaced: list[tuple[str, str, str]] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    granted: dict[str, timedelta] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    without: dict[str, list[str]] = field(default_factory=dict)
    for_students: dict[str, CandidateSubmission] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    due: datetime | None = None

    def refuse(self, student: str, hand_in: CandidateSubmission, why: str, *, for_student: bool = False) -> None:
        """Note why a file of a student does not count; `for_student`, if it says nothing that only an instructor should read."""
        if for_student:
            self.for_students.setdefault(student, hand_in)
        else:
            self.private.add(student)
        own = hand_in.platform.rest if hand_in.platform else ""  # as the student has called it
        self.without.setdefault(student, []).append(f"{own or hand_in.file.inside[-1]}: {why}")

    def reason(self, student: str) -> str:
        """Why nothing of a student counts, in a sentence of bounded length."""
        why = self.without.get(student, [])
        more = f"; and {len(why) - MAX_REASONS_PER_STUDENT} more" if len(why) > MAX_REASONS_PER_STUDENT else ""
        return printable("; ".join(why[:MAX_REASONS_PER_STUDENT]) + more)


def format_table(done: CollectResult) -> str:
    """What became of each file, for a person."""
    groups = {
        "matched": [f"{student}: {hand_in.file}" for student, hand_in in done.matched.items()],
        "replaced by a newer one": [f"{student}: {old}, by {new}" for student, new, old in done.replaced],
        "late": [f"{student}{_how_late(done, student)}" for student in done.late],
        "not matched": _shortened(done.refused),
        "missing": [f"{student}: {done.reason(student)}" if student in done.without else student for student in done.missing],
    }
    lines, counts = [], {name: len(entries) for name, entries in groups.items()} | {"not matched": len(done.refused)}
    for name, entries in groups.items():
        lines += [f"{name}: {counts[name]}", *(f"    {entry}" for entry in entries[:MAX_LINES_PER_GROUP])] if entries else []
        lines += [f"    and {len(entries) - MAX_LINES_PER_GROUP} more"] if len(entries) > MAX_LINES_PER_GROUP else []
    return "\n".join(map(printable, lines))


def _shortened(refused: list[tuple[str, str]]) -> list[str]:
    """The lines of what is nobody's, a few of each student whom a platform has named: who sends many files hides nobody else's."""
    lines, seen = [], Counter()
    for file, why in refused:
        names = file.split("/")
        level = next((i + 1 for i, name in enumerate(names) if platforms.parse_name(name)), 0)
        whose = "/".join(names[:level])
        seen[whose] += 1
        lines += [f"{file}: {why}"] if not whose or seen[whose] <= MAX_UNMATCHED_PER_STUDENT else []
    return lines + [
        f"and {n - MAX_UNMATCHED_PER_STUDENT} more of {whose}" for whose, n in seen.items() if whose and n > MAX_UNMATCHED_PER_STUDENT
    ]


def _how_late(done: CollectResult, student: str) -> str:
    if not done.matched[student].late:
        return ""
    more = done.granted.get(student)
    counts = "; as the gradebook has no due date, it costs nothing" if not done.due else "; it counts as one second"
    granted = f"; the roster grants {str(more).removesuffix(', 0:00:00')}, so look there, or grant it in Canvas, too" if more else counts
    return f": Canvas says so, and not by how much{granted}"
