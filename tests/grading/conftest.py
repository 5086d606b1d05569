"""A course of its own for the tests: nothing in the repository's grading/ is touched."""

import shutil

import nbformat
import pytest
from machine import patient
from processes import course_processes, wait_until
from small_part import ONE
from traitlets.config import Config

from grading import config
from grading.authoring import build
from grading.autograde import autograde
from grading.release import release
from grading.running.pending import find_pending

SPLIT = "01_data_split"
WRONG = "%%px\ndef split_data(x_train, y_train, mp_size, dp_size, rank):\n    {}return x_train, y_train"


class Course:
    """nbgrader's folders somewhere else, and the parts that were released into them."""

    def __init__(self, folder):
        self.home, self.notebooks, self.released = folder, folder / "release", {}

    def untouched(self, part):
        """The released notebook, as a student gets it."""
        if part not in self.released:
            self.released[part] = release(part, self.home, self.notebooks)
        return nbformat.read(self.released[part], as_version=4)

    def solved(self, part, source=None, exercise=None):
        """The released notebook with the solution, or another answer, in the exercise's cell."""
        notebook = self.untouched(part)
        answers = {c.id: c.source for c in build.build(part).cells if build.kind_of(c) == "exercise"}
        for cell in notebook.cells:
            if cell.id in answers:
                cell.source = source if source is not None and exercise in (None, cell.id) else answers[cell.id]
        return notebook

    def wrong(self, extra="pass; "):
        """Part 01 with a wrong answer that does something `extra` before; it earns nothing."""
        return self.solved(SPLIT, WRONG.format(extra))

    @staticmethod
    def cell(notebook, name):
        """The cell of this id."""
        return next(c for c in notebook.cells if c.id == name)

    def hand_in(self, part, student, notebook):
        build.write(notebook, self.home / "submitted" / student / part / f"{part}.ipynb")

    def grade(self, part, **how):
        """Grade all that waits; returns the points by student."""
        self.untouched(part)
        before = course_processes()
        try:
            self.failed = autograde(
                part, self.home, self.notebooks, **({} if how.get("engine") else {"jobs": "1"}) | how
            )  # four tests run at a time
        finally:
            assert wait_until(lambda: not course_processes() - before), "grading leaves processes behind"
        return self.points(part)

    def waiting(self, part):
        """The students whose hand-ins are to be graded."""
        source = nbformat.read(self.home / "source" / part / f"{part}.ipynb", as_version=4)
        return find_pending(part, source, self.home).students

    def points(self, part):
        with config.gradebook(config.load(self.home)) as book:
            return {s.student.id: s.score for s in book.assignment_submissions(part)}

    def graded(self, part, student):
        """The autograded notebook's cells, by id."""
        notebook = nbformat.read(self.home / "autograded" / student / part / f"{part}.ipynb", as_version=4)
        return {c.id: c for c in notebook.cells}


@pytest.fixture(scope="session")
def empty_gradebook(tmp_path_factory):
    """A gradebook that nbgrader has made, for which it starts another program: once, and not in each test."""
    folder = tmp_path_factory.mktemp("gradebook")
    config.gradebook(config.configure(Config(), folder)).close()
    return folder / "gradebook.db"


@pytest.fixture
def course(tmp_path, monkeypatch, empty_gradebook):
    from course_lib.cluster import time_limits

    monkeypatch.setenv(time_limits.UNATTENDED, str(patient(6)))
    course = Course(tmp_path / "course")
    course.home.mkdir()
    shutil.copy(empty_gradebook, course.home)
    return course


@pytest.fixture
def one(course, monkeypatch, tmp_path):
    """A course with the part "97_one"."""
    part = "97_one"
    monkeypatch.setattr(build, "SOLUTIONS", tmp_path / "solutions")
    (tmp_path / "solutions" / part).mkdir(parents=True)
    (tmp_path / "solutions" / part / f"{part}.py").write_text(ONE)
    return course
