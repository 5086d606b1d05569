"""Writing parts and graded submissions to nbgrader's gradebook. While grading, only the process of `make autograde` writes to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import datetime, timedelta

from nbformat import NotebookNode
from nbgrader.api import Comment, Grade, Gradebook, GradeCell, MissingEntry, Notebook, SolutionCell, SourceCell, SubmittedAssignment
from nbgrader.preprocessors import AssignLatePenalties
from nbgrader.utils import compute_checksum
from traitlets.config import Config

from grading.authoring.build import WRITTEN_ANSWER, kind_of
from grading.config import GradingConfigError
from grading.submission.grade import Graded

Extension = Callable[[str, timedelta | None], timedelta | None]


class GradebookWriter:
    """The open gradebook of a course.

    Parameters
    ----------
    gradebook : nbgrader.api.Gradebook
    config : traitlets.config.Config
        Defines the late penalty.
    extension : callable, optional
        Returns a student's extension, given the one in the gradebook; by default the same.
    """

    def __init__(self, gradebook: Gradebook, config: Config, extension: Extension | None = None):
        self.gradebook, self.extension = gradebook, extension or (lambda student, now: now)
        self._late = AssignLatePenalties(config=config)
        self._late.init_plugin()

    def record(
        self, part: str, student: str, graded: Graded, notebook: NotebookNode, submitted_at: datetime | None, known: Collection[str] = ()
    ) -> None:
        """Record a submission's points; comments, points and extra credit given by hand are kept.

        Parameters
        ----------
        part, student : str
        graded : Graded
        notebook : NotebookNode
            The executed notebook.
        submitted_at : datetime or None
            When it was submitted, in UTC, without a time zone.
        known : collection of str
            Written answers unchanged since this student was last graded: a person need not read them again.
        """
        self.gradebook.update_or_create_student(student)
        submission = self.gradebook.update_or_create_submission(part, student)
        submission.timestamp = submitted_at
        (submitted,) = (n for n in submission.notebooks if n.name == part)
        empty = self._without_answer(submitted.notebook, notebook)
        written = {cell.metadata.nbgrader.grade_id for cell in notebook.cells if kind_of(cell) == WRITTEN_ANSWER}
        for grade in submitted.grades:
            if grade.name in graded.points:
                grade.auto_score = graded.points[grade.name]
                grade.needs_manual_grade = grade.manual_score is not None
            elif grade.name in written:
                grade.auto_score = 0.0 if grade.name in empty else None
                grade.needs_manual_grade = (grade.name not in known) if grade.manual_score is not None else grade.name not in empty
        for comment in submitted.comments:
            comment.auto_comment = "No response." if comment.name in empty else None
        self._apply_penalty(submission)
        self.gradebook.db.commit()

    def _without_answer(self, released: Notebook, notebook: NotebookNode) -> set[str]:
        """Return the exercises and written answers that the student has not filled in."""
        sums = {cell.name: cell.checksum for cell in released.source_cells}
        exercises = [cell for cell in notebook.cells if kind_of(cell) in ("exercise", WRITTEN_ANSWER)]
        return {c.metadata.nbgrader.grade_id for c in exercises if sums.get(c.metadata.nbgrader.grade_id) == compute_checksum(c)}

    def update_penalties(self, part: str, times: dict[str, datetime | None]) -> None:
        """Update all penalties: a due date, an extension or the policy may have changed.

        Parameters
        ----------
        part : str
        times : dict of str to datetime or None
            Submission times of graded submissions; a later `make collect` may know them better.
        """
        for submission in self.gradebook.assignment_submissions(part):
            if submission.student.id in times:
                submission.timestamp = times[submission.student.id]
            self._apply_penalty(submission)
        self.gradebook.db.commit()

    def has_part(self, part: str, source: NotebookNode) -> bool:
        """Return whether the gradebook has the part with these cells and points."""
        try:
            released = self.gradebook.find_notebook(part, part)
        except MissingEntry:
            return False
        cells = [cell for cell in source.cells if kind_of(cell) in ("given", "exercise", "test", WRITTEN_ANSWER)]
        points = {cell.id: float(cell.metadata.nbgrader.points) for cell in cells if kind_of(cell) in ("test", WRITTEN_ANSWER)}
        exercises = {cell.id for cell in cells if kind_of(cell) in ("exercise", WRITTEN_ANSWER)}
        there = {cell.name: cell.max_score for cell in released.grade_cells}, {cell.name for cell in released.solution_cells}
        return there == (points, exercises) and {cell.name for cell in released.source_cells} == {cell.id for cell in cells}

    def _apply_penalty(self, submission: SubmittedAssignment) -> None:
        """Set the late penalty, as computed by nbgrader's plugin."""
        student, due = submission.student.id, submission.assignment.duedate
        if due:
            submission.extension = self.extension(student, submission.extension)
        late = submission.total_seconds_late
        for notebook in submission.notebooks:
            if not late:
                notebook.late_submission_penalty = None
                continue
            self.gradebook.db.flush()
            self.gradebook.db.refresh(notebook)  # its score is what the database computes
            try:
                penalty = self._late.plugin_inst.late_submission_penalty(student, notebook.score, late)
            except Exception as error:
                name = type(self._late.plugin_inst).__name__
                raise GradingConfigError(
                    f"The plugin for late hand-ins, {name}, failed for {student}: {type(error).__name__}: {error}"
                ) from error
            notebook.late_submission_penalty = None if penalty is None else min(max(penalty, 0), notebook.score)

    def sync_cells(self, part: str, source: NotebookNode) -> None:
        """Make the gradebook's cells of the part match `source`. nbgrader itself refuses to add or remove cells once there are submissions.

        Points and comments given by hand to cells that stay are kept, even if a cell was renamed.

        Raises
        ------
        GradingConfigError
            A removed cell has points or comments given by hand; nothing was changed.
        """
        try:
            released = self.gradebook.find_notebook(part, part)
        except MissingEntry:
            return
        if not released.submissions:
            return
        new = {cell.metadata.nbgrader.grade_id: cell for cell in source.cells if cell.metadata.get("nbgrader")}
        kinds = {name: kind_of(cell) for name, cell in new.items()}
        wanted = {
            GradeCell: {name for name, kind in kinds.items() if kind in ("test", WRITTEN_ANSWER)},
            SolutionCell: {name for name, kind in kinds.items() if kind in ("exercise", WRITTEN_ANSWER)},
            SourceCell: set(new),
        }
        there = {GradeCell: released.grade_cells, SolutionCell: released.solution_cells, SourceCell: released.source_cells}
        renamed = _renamed(released, new)
        for cells in there.values():
            for cell in cells:
                cell.name = renamed.get(cell.name, cell.name)
        self._none_lost(part, [cell for kind, cells in there.items() for cell in cells if cell.name not in wanted[kind]])
        for kind, cells in there.items():
            for cell in [cell for cell in cells if cell.name not in wanted[kind]]:
                for written in [*getattr(cell, "grades", []), *getattr(cell, "comments", [])]:
                    self.gradebook.db.delete(written)
                self.gradebook.db.delete(cell)
            for name in sorted(wanted[kind] - {cell.name for cell in cells}):
                self._add(kind, new[name], released)
        self.gradebook.db.commit()

    def _none_lost(self, part: str, going: list[GradeCell | SolutionCell | SourceCell]) -> None:
        """Raise GradingConfigError if a cell to be removed has points or comments given by hand."""
        for cell in going:
            grades = [g for g in getattr(cell, "grades", []) if g.manual_score is not None or g.extra_credit]
            students = sorted(written.student.id for written in [*grades, *(c for c in getattr(cell, "comments", []) if c.manual_comment)])
            if students:
                who = ", ".join(students[:5]) + (f" and {len(students) - 5} more" if len(students) > 5 else "")
                self.gradebook.db.rollback()
                raise GradingConfigError(
                    f"{part}: {cell.name} is no longer in its source, but in the gradebook a person has given it points or comments, for "
                    f"{who}. Restore its name, or first remove these points and comments there."
                )

    def _add(self, kind: type, cell: NotebookNode, released: Notebook) -> None:
        points = {"max_score": float(cell.metadata.nbgrader.points)} if kind is GradeCell else {}
        typed = {"cell_type": cell.cell_type} if kind is not SolutionCell else {}
        made = kind(name=cell.metadata.nbgrader.grade_id, notebook=released, **points, **typed)
        self.gradebook.db.add(made)
        self.gradebook.db.flush()
        for submitted in released.submissions:
            if kind is GradeCell:
                self.gradebook.db.add(Grade(cell_id=made.id, notebook=submitted))
            elif kind is SolutionCell:
                self.gradebook.db.add(Comment(cell_id=made.id, notebook=submitted))


def _renamed(released: Notebook, new: dict[str, NotebookNode]) -> dict[str, str]:
    """Map the names of cells that were only renamed to the new names: tests with the same text, exercises of the same function."""
    known = {cell.name: cell for cell in released.source_cells}
    gone = {name: cell for name, cell in known.items() if name not in new}
    come = {name: cell for name, cell in new.items() if name not in known}
    found = {}
    for name, cell in gone.items():
        is_exercise = any(cell.name == name for cell in released.solution_cells)
        same = [
            other
            for other, made in come.items()
            if (kind_of(made) == "exercise") == is_exercise
            and (_function(made.source) == _function(cell.source) if is_exercise else made.source == cell.source)
        ]
        if len(same) == 1 and same[0] not in found.values():
            found[name] = same[0]
    return found


def _function(source: str) -> str:
    """Return what an exercise defines, such as "def first", or its whole source if it defines nothing."""
    found = re.search(r"^(?:def|class) \w+", source, re.MULTILINE)
    return found[0] if found else source
