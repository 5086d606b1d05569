"""What nbgrader's gradebook says of each student: points, what there was to get, and what a person must still grade. It is only read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from grading import config
from grading.collecting import records
from grading.formatting import display_name
from grading.paths import GRADING, NOTEBOOKS
from grading.people import allowances, roster
from grading.people.roster import Roster
from grading.results import ungraded
from grading.running import pending


@dataclass
class PartGrade:
    """What a student has for a part.

    Attributes
    ----------
    points : float, optional
        What counts: without dropped tests, the late penalty taken off, never below 0. None where nothing was graded.
    maximum : float
        What there was to get, without dropped tests.
    penalty : float
        What was taken off because it came late.
    missing : str
        What is not graded yet, and why; empty if all is.
    old : bool
        Whether the points are those of an earlier hand-in, or of other tests.
    by_hand : bool
        Whether nothing is missing but points that a person gives.
    """

    points: float | None
    maximum: float
    penalty: float = 0.0
    missing: str = ""
    old: bool = False
    by_hand: bool = False


@dataclass
class GradebookSubmission:
    """What the gradebook holds of a hand-in: points and extra credit by test, those that wait for a person, and the late penalty.

    It came at `time`, in UTC, if anybody knows; `extension` is what the student may be later than others.
    """

    time: datetime | None = None
    extension: timedelta = timedelta()
    points: dict[str, float] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)
    by_hand: list[str] = field(default_factory=list)
    penalty: float = 0.0


@dataclass
class CourseGrades:
    """All that is needed to say who has which points.

    Attributes
    ----------
    tests : dict of str to dict of str to float
        For each part with points, what each test is worth.
    submissions : dict of (str, str) to GradebookSubmission
        By student and part.
    due : dict of str to datetime
        When the parts that have such a time are due, in UTC.
    people : Roster, optional
    home, notebooks : Path
        Folders of the hand-ins, and of what was released.
    """

    tests: dict[str, dict[str, float]]
    submissions: dict[tuple[str, str], GradebookSubmission]
    people: Roster | None
    home: Path
    notebooks: Path
    due: dict[str, datetime] = field(default_factory=dict)

    @property
    def students(self) -> list[str]:
        """Those of the roster, in its order, then all others of whom there is anything."""
        known = list(self.people.rows) if self.people else []
        there = {student for student, _ in self.submissions} | {path.parents[1].name for path in self.home.glob("submitted/*/*/*.ipynb")}
        there |= {student for part in self.tests for student in records.all_refused(self.home, part)}
        return known + sorted(there - set(known))

    def row(self, student: str) -> dict[str, str]:
        """What the roster says of a student."""
        return self.people.row(student) if self.people else {"id": student}

    def dropped(self, student: str, part: str) -> set[str]:
        """The tests that do not count for a student; for a student who is nobody, those that count for no one."""
        return allowances.dropped(self.row(student), part, self.notebooks)

    def maximum(self, part: str, without: Collection[str] = ()) -> float:
        """What there is to get in a part."""
        return sum(points for test, points in self.tests[part].items() if test not in without)

    def mark(self, student: str, part: str) -> PartGrade:
        """What a student has for a part."""
        dropped = self.dropped(student, part)
        maximum, found = self.maximum(part, dropped), self.submissions.get((student, part))
        if not maximum:
            return PartGrade(None, 0.0)
        if not found or not found.points:
            why = ungraded.missing_grade_reason(part, student, self.home)
            return PartGrade(None, maximum, missing="not graded: make autograde" if why == ungraded.NOT_GRADED_YET else why)
        whole, kept = sum(found.points.values()), sum(points for test, points in found.points.items() if test not in dropped)
        penalty = min(kept, found.penalty * kept / whole) if whole else 0.0  # of a dropped test's points, nothing is taken off
        waits = [display_name(test) for test in found.by_hand if test not in dropped]
        missing = [f"by hand: {', '.join(waits)}"] if waits else []
        state = pending.submission_state(part, student, self.home, pending.current_key(part, self.home))
        newer = ungraded.lasting_reason(part, student, self.home) or "make autograde"
        missing += {pending.NEW: [f"a newer one: {newer}"], pending.CHANGED: ["the tests have changed: make autograde"]}.get(state, [])
        old = state in (pending.NEW, pending.CHANGED)
        return PartGrade(max(0.0, kept - penalty), maximum, penalty, "; ".join(missing), old, bool(waits) and not old)


def read(home: Path = GRADING, notebooks: Path = NOTEBOOKS) -> CourseGrades:
    """The gradebook and the roster of a course. Where nothing was released yet, there are no parts.

    Raises
    ------
    grading.people.roster.RosterError
        The roster cannot be used.
    """
    people = roster.read(home / "roster.csv")
    course = CourseGrades({}, {}, people, home, notebooks)
    settings = config.load(home)
    if not config.gradebook_exists(settings):
        return course
    from nbgrader.api import Assignment, BaseCell, Grade, GradeCell, Notebook, SubmittedAssignment, SubmittedNotebook

    with config.gradebook(settings) as gradebook:
        cells = gradebook.db.query(Assignment.name, GradeCell.name, GradeCell.max_score)
        for part, test, points in cells.select_from(GradeCell).join(GradeCell.notebook).join(Notebook.assignment):
            course.tests.setdefault(part, {})[test] = points
        course.due = {part: due for part, due in gradebook.db.query(Assignment.name, Assignment.duedate) if due}
        # One question for all grades: nbgrader's own properties ask one for each student.
        whose = gradebook.db.query(Assignment.name, SubmittedAssignment.student_id)
        hand_ins = whose.add_columns(SubmittedAssignment.timestamp, SubmittedAssignment.extension).select_from(SubmittedAssignment)
        for part, student, time, extension in hand_ins.join(SubmittedAssignment.assignment):
            course.submissions[student, part] = GradebookSubmission(time, extension or timedelta())
        of_test = (BaseCell.name, Grade.score, Grade.needs_manual_grade, Grade.extra_credit, SubmittedNotebook.late_submission_penalty)
        grades = whose.add_columns(*of_test).select_from(Grade).join(Grade.cell).join(Grade.notebook).join(SubmittedNotebook.assignment)
        for part, student, test, score, by_hand, extra, penalty in grades.join(SubmittedAssignment.assignment):
            found = course.submissions.setdefault((student, part), GradebookSubmission())  # one that came between the two questions
            found.penalty = penalty or 0.0
            found.points[test] = score or 0.0
            found.extra |= {test: extra} if extra else {}
            found.by_hand += [test] if by_hand else []
    course.tests = {part: tests for part, tests in sorted(course.tests.items()) if sum(tests.values())}
    return course
