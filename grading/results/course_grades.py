"""Grades from nbgrader's gradebook, for each student: points, maximum, and what a person must still grade. Only read here."""

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
    """A student's grade for a part.

    Attributes
    ----------
    points : float, optional
        Points that count: without dropped tests, after the late penalty, never below 0. None if nothing was graded.
    maximum : float
        The maximum, without dropped tests.
    penalty : float
        The late penalty.
    missing : str
        What is not graded yet, and why; empty if everything is graded.
    old : bool
        Whether the points are those of an earlier submission, or of other tests.
    by_hand : bool
        Whether only points given by hand are missing.
    """

    points: float | None
    maximum: float
    penalty: float = 0.0
    missing: str = ""
    old: bool = False
    by_hand: bool = False


@dataclass
class GradebookSubmission:
    """A submission in the gradebook: points and extra credit by test, tests that wait for a person, and the late penalty.

    It arrived at `time`, in UTC, if known; `extension` is the student's extension.
    """

    time: datetime | None = None
    extension: timedelta = timedelta()
    points: dict[str, float] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)
    by_hand: list[str] = field(default_factory=list)
    penalty: float = 0.0


@dataclass
class CourseGrades:
    """All data from which grades are computed.

    Attributes
    ----------
    tests : dict of str to dict of str to float
        For each part with points, the points of each test.
    submissions : dict of (str, str) to GradebookSubmission
        By student and part.
    due : dict of str to datetime
        The due dates, in UTC, of the parts that have one.
    people : Roster, optional
    home, notebooks : Path
        Folders of the submissions, and of the released notebooks.
    """

    tests: dict[str, dict[str, float]]
    submissions: dict[tuple[str, str], GradebookSubmission]
    people: Roster | None
    home: Path
    notebooks: Path
    due: dict[str, datetime] = field(default_factory=dict)

    @property
    def students(self) -> list[str]:
        """Students of the roster, in its order, and then all others."""
        known = list(self.people.rows) if self.people else []
        there = {student for student, _ in self.submissions} | {path.parents[1].name for path in self.home.glob("submitted/*/*/*.ipynb")}
        there |= {student for part in self.tests for student in records.all_refused(self.home, part)}
        return known + sorted(there - set(known))

    def row(self, student: str) -> dict[str, str]:
        """Return a student's roster line."""
        return self.people.row(student) if self.people else {"id": student}

    def dropped(self, student: str, part: str) -> set[str]:
        """Return the tests that do not count for a student; for an empty id, those that count for nobody."""
        return allowances.dropped(self.row(student), part, self.notebooks)

    def maximum(self, part: str, without: Collection[str] = ()) -> float:
        """Return the maximum of a part."""
        return sum(points for test, points in self.tests[part].items() if test not in without)

    def mark(self, student: str, part: str) -> PartGrade:
        """Return a student's grade for a part."""
        dropped = self.dropped(student, part)
        maximum, found = self.maximum(part, dropped), self.submissions.get((student, part))
        if not maximum:
            return PartGrade(None, 0.0)
        if not found or not found.points:
            why = ungraded.missing_grade_reason(part, student, self.home)
            return PartGrade(None, maximum, missing="not graded: make autograde" if why == ungraded.NOT_GRADED_YET else why)
        whole, kept = sum(found.points.values()), sum(points for test, points in found.points.items() if test not in dropped)
        penalty = min(kept, found.penalty * kept / whole) if whole else 0.0  # no penalty on the points of a dropped test
        waits = [display_name(test) for test in found.by_hand if test not in dropped]
        missing = [f"by hand: {', '.join(waits)}"] if waits else []
        state = pending.submission_state(part, student, self.home, pending.current_key(part, self.home))
        newer = ungraded.lasting_reason(part, student, self.home) or "make autograde"
        missing += {pending.NEW: [f"a newer hand-in: {newer}"], pending.CHANGED: ["the tests have changed: make autograde"]}.get(state, [])
        old = state in (pending.NEW, pending.CHANGED)
        return PartGrade(max(0.0, kept - penalty), maximum, penalty, "; ".join(missing), old, bool(waits) and not old)


def read(home: Path = GRADING, notebooks: Path = NOTEBOOKS) -> CourseGrades:
    """Read the gradebook and the roster of a course. If nothing is released yet, there are no parts.

    Raises
    ------
    grading.people.roster.RosterError
        The roster is invalid.
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
        # One query for all grades: nbgrader's own properties make one for each student.
        whose = gradebook.db.query(Assignment.name, SubmittedAssignment.student_id)
        hand_ins = whose.add_columns(SubmittedAssignment.timestamp, SubmittedAssignment.extension).select_from(SubmittedAssignment)
        for part, student, time, extension in hand_ins.join(SubmittedAssignment.assignment):
            course.submissions[student, part] = GradebookSubmission(time, extension or timedelta())
        of_test = (BaseCell.name, Grade.score, Grade.needs_manual_grade, Grade.extra_credit, SubmittedNotebook.late_submission_penalty)
        grades = whose.add_columns(*of_test).select_from(Grade).join(Grade.cell).join(Grade.notebook).join(SubmittedNotebook.assignment)
        for part, student, test, score, by_hand, extra, penalty in grades.join(SubmittedAssignment.assignment):
            found = course.submissions.setdefault((student, part), GradebookSubmission())  # one that arrived between the two queries
            found.penalty = penalty or 0.0
            found.points[test] = score or 0.0
            found.extra |= {test: extra} if extra else {}
            found.by_hand += [test] if by_hand else []
    course.tests = {part: tests for part, tests in sorted(course.tests.items()) if sum(tests.values())}
    return course
