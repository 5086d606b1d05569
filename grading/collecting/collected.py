"""The result of `make collect`, file by file, and its table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from grading.collecting import platforms
from grading.collecting.owners import CandidateSubmission
from grading.formatting import printable

MAX_REASONS_PER_STUDENT = 5  # per student
MAX_LINES_PER_GROUP, MAX_UNMATCHED_PER_STUDENT = 20_000, 10  # of a group in the table, and of one student's unmatched files


@dataclass
class CollectResult:
    """Outcome for each file.

    Attributes
    ----------
    matched : dict of str to CandidateSubmission
        By student.
    refused : list of (str, str)
        A file, and why it belongs to nobody.
    replaced : list of (str, str, str)
        A student, the file that counts, and an older one.
    late : list of str
        Students whose submission arrived after their due date, or that the platform calls late.
    granted : dict of str to timedelta
        Extensions of students whom the platform calls late, and whose submission time is unknown.
    missing : list of str
        Students in the roster who have nothing in submitted/.
    without : dict of str to list of str
        By student: why their files do not count.
    for_students : dict of str to CandidateSubmission
        By student: one of these, if the student may read the reason.
    private : set of str
        Students with a refusal whose reason only the instructor may read: it names others, or their folders.
    due : datetime, optional
        The due date, if the gradebook has one.
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
        """Record why a student's file does not count; `for_student` if the student may read the reason."""
        if for_student:
            self.for_students.setdefault(student, hand_in)
        else:
            self.private.add(student)
        own = hand_in.platform.rest if hand_in.platform else ""  # as the student named it
        self.without.setdefault(student, []).append(f"{own or hand_in.file.inside[-1]}: {why}")

    def reason(self, student: str) -> str:
        """Return why nothing of a student counts, in a sentence of bounded length."""
        why = self.without.get(student, [])
        more = f"; and {len(why) - MAX_REASONS_PER_STUDENT} more" if len(why) > MAX_REASONS_PER_STUDENT else ""
        return printable("; ".join(why[:MAX_REASONS_PER_STUDENT]) + more)


def format_table(done: CollectResult) -> str:
    """Format the outcome for each file as text."""
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
    """Format the unmatched files, a few per student that a platform names: one student's many files must not hide those of others."""
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
    counts = "; since the gradebook has no due date, there is no penalty" if not done.due else "; it counts as one second late"
    granted = f"; the roster grants {str(more).removesuffix(', 0:00:00')}, so check there, or grant it in Canvas, too" if more else counts
    return f": Canvas says so, but not by how much{granted}"
