"""Results of a class, from graded notebooks: submissions, points, messages of failed tests, missing students. Read once, not changed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from grading.authoring import build, survey
from grading.authoring.build import kind_of
from grading.collecting import records
from grading.results import course_grades, ungraded
from grading.running import pending
from grading.submission import assembly
from grading.submission.assembly import ADDED_CELL_TAG, is_regular_file
from grading.submission.flags import Flag

ADDED_CELLS_NAME = "cells that the student added"
TIMESTAMP_FORMAT = "%Y-%m-%d %H:%M:%S UTC"  # as `collect` writes it


@dataclass
class GradedSubmission:
    """A graded submission.

    Attributes
    ----------
    points : dict of str to float
        By test.
    failures : dict of str to str
        The message of each failed test.
    answers : dict of str to str
        The student's answers, by exercise.
    flags : list of Flag
        Lines that a person may want to read.
    """

    points: dict[str, float]
    failures: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    flags: list[Flag] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(self.points.values())


@dataclass
class ClassResults:
    """The results of a class in a part.

    Attributes
    ----------
    source : NotebookNode
        The released part, with solutions and tests.
    tests : dict of str to float
        The points of each test, in the notebook's order.
    names : dict of str to str
        The students' names in the roster.
    graded : dict of str to GradedSubmission
        By student.
    ungraded : dict of str to str
        Students who submitted but have no grade, and the reason as far as known.
    late : dict of str to float
        Seconds after the part was due.
    due : datetime or None
        The due date in UTC, if the gradebook has one.
    timeless : int
        Number of submissions whose time is unknown.
    surveys : list of dict of str to str
        The answers to the survey, see `grading.authoring.survey`.
    missing, strangers : list of str
        Students in the roster who submitted nothing; students who submitted but are not in the roster.
    """

    part: str
    source: NotebookNode
    tests: dict[str, float]
    names: dict[str, str] = field(default_factory=dict)
    graded: dict[str, GradedSubmission] = field(default_factory=dict)
    ungraded: dict[str, str] = field(default_factory=dict)
    late: dict[str, float] = field(default_factory=dict)
    due: datetime | None = None
    timeless: int = 0
    missing: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    has_roster: bool = False
    surveys: list[dict[str, str]] = field(default_factory=list)

    @property
    def most(self) -> float:
        """Points of the whole part."""
        return sum(self.tests.values())

    @property
    def handed_in(self) -> int:
        return len(self.graded) + len(self.ungraded)


def read(part: str, home: Path) -> ClassResults:
    """Read the results of a part from `home`.

    Raises
    ------
    grading.people.roster.RosterError
        The roster is invalid.
    """
    path = home / "source" / part / f"{part}.ipynb"
    source = nbformat.read(path, 4) if path.exists() else build.build(part)
    tests = {cell.id: float(cell.metadata.nbgrader.points) for cell in source.cells if kind_of(cell) == "test"}
    gradebook = course_grades.read(home)
    people = gradebook.people
    course = ClassResults(part, source, tests, due=gradebook.due.get(part))
    if people:
        course.has_roster = True
        course.names = {student: row.get("name", "").strip() for student, row in people.rows.items()}
    students = {path.parent.name for folder in ("submitted", "autograded") for path in (home / folder).glob(f"*/{part}") if path.is_dir()}
    students |= set(records.all_refused(home, part))
    hand_ins = {student: _graded(part, student, home, tests) for student in sorted(students)}
    stamps: dict[str, datetime] = {}
    for student, hand_in in hand_ins.items():
        known = gradebook.submissions.get((student, part))
        if hand_in and known:
            hand_in.points = {test: known.points.get(test, 0.0) for test in tests}
            course.graded[student] = hand_in
            time = known.time and known.time - known.extension
        else:
            course.ungraded[student] = _reason_ungraded(part, student, home)
            time = _stamp(home / "submitted" / student / part / "timestamp.txt")
        stamps |= {student: time} if time else {}
    course.surveys = [answers for student in students if (answers := _survey(part, student, home))]
    course.timeless = len(hand_ins.keys() - stamps.keys())
    if course.due:
        course.late = {s: late for s in hand_ins if (time := stamps.get(s)) and (late := (time - course.due).total_seconds()) > 0}
    if people:
        course.missing = [student for student in people.rows if student not in students]
        course.strangers = sorted(students - set(people.rows))
    return course


def _graded(part: str, student: str, home: Path, tests: dict[str, float]) -> GradedSubmission | None:
    """Read a graded notebook, without points yet, if it belongs to the current submission or there is none any more."""
    path = home / "autograded" / student / part / f"{part}.ipynb"
    if (
        pending.submission_state(part, student, home, pending.current_key(part, home)) in (pending.NEW, pending.CHANGED)
        or not path.exists()
    ):
        return None
    notebook = json.loads(path.read_text(encoding="utf-8"))
    found = GradedSubmission({}, flags=[Flag(*flag) for flag in notebook["metadata"]["course"].get("flags", [])])
    for cell in notebook["cells"]:  # as JSON: validating each notebook with nbformat takes longer than all the rest
        kind, source = kind_of(NotebookNode(cell)), "".join(cell["source"])
        if kind == "test" and cell["id"] in tests:
            error = next((output for output in cell["outputs"] if output["output_type"] == "error"), None)
            if error:
                found.failures[cell["id"]] = f"{error['ename']}: {error['evalue']}"
        elif kind == "exercise":
            found.answers[cell["id"]] = source
        elif kind == "example" and ADDED_CELL_TAG in cell["metadata"].get("tags", []):
            found.answers[ADDED_CELLS_NAME] = f"{found.answers.get(ADDED_CELLS_NAME, '')}\n{source}".lstrip("\n")
    return found


def _survey(part: str, student: str, home: Path) -> dict[str, str]:
    """Return a student's answers to the survey; empty if there are none, or if the file is no notebook."""
    try:
        path = home / "submitted" / student / part / f"{part}.ipynb"
        cells = assembly.read_cells(assembly.read_submission(path)).cells
    except (OSError, assembly.UnreadableSubmission):
        return {}
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    return survey.read_answers(next((text for text in texts if text.lstrip().startswith(survey.HEADING)), ""))


def _reason_ungraded(part: str, student: str, home: Path) -> str:
    """Return why a submission has no grade, as far as known."""
    folder = home / "submitted" / student / part
    if not (folder / f"{part}.ipynb").exists():
        found = ", ".join(sorted(p.name for p in folder.iterdir())[:5]) if folder.exists() else ""
        return ungraded.lasting_reason(part, student, home) or f"expected {part}.ipynb; there is {found or 'nothing'}"
    if why := ungraded.lasting_reason(part, student, home):
        return why.removeprefix("not graded: ")
    if (home / "autograded" / student / part / f"{part}.ipynb").exists():
        return "it arrived after the last grading, or the tests have changed since; run make autograde"
    return "never graded; run make autograde"


def _stamp(path: Path) -> datetime | None:
    try:
        return datetime.strptime(path.read_text().strip(), TIMESTAMP_FORMAT) if is_regular_file(path, 1024) else None
    except (OSError, ValueError):
        return None
