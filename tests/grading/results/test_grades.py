"""Grades as tables: nobody is left out, no name moves a column or computes anything, and platforms find their students."""

import csv
import json
import shutil

import pytest
from nbgrader.api import Gradebook
from traitlets.config import Config

from grading import grades, tables
from grading.collecting import records
from grading.config import configure
from grading.people import roster
from grading.running import pending
from grading.submission.assembly import fingerprint

NAIVE, ZERO = "03_naive_forward", "07_weight_grad"
TESTS = {
    NAIVE: {"test-the-collected-input": 6, "test-the-collected-output": 6, "test-the-whole-layer": 3},
    ZERO: {"test-the-mean-in-every-grid": 7, "test-any-shape": 3},
}
FORMULA = '=HYPERLINK("http://evil","x")'


class Course:
    """A gradebook that is filled by hand, and the tables made from it."""

    def __init__(self, home):
        self.home = home
        self.book = Gradebook(configure(Config(), home).CourseDirectory.db_url)
        for part, tests in TESTS.items():
            self.book.add_assignment(part)
            self.book.add_notebook(part, part)
            for test, points in tests.items():
                self.book.add_grade_cell(test, part, part, max_score=points, cell_type="code")

    def graded(self, student, part, *points, penalty=None, by_hand=(), extra=0, current=True):
        self.book.update_or_create_student(student)
        self.book.add_submission(part, student)
        for (test, _), score in zip(TESTS[part].items(), points, strict=True):
            grade = self.book.find_grade(test, part, part, student)
            grade.auto_score, grade.needs_manual_grade, grade.extra_credit = score, test in by_hand, extra
        self.book.find_submission_notebook(part, part, student).late_submission_penalty = penalty
        self.book.db.commit()
        path = self.handed_in(student, part)
        if current:
            done = self.home / "autograded" / student / part / f"{part}.ipynb"
            done.parent.mkdir(parents=True)
            done.write_text(
                json.dumps(
                    {"metadata": {"course": {"graded": fingerprint(path.read_bytes()), "key": pending.current_key(part, self.home)}}}
                )
            )

    def handed_in(self, student, part, **collected):
        path = self.home / "submitted" / student / part / f"{part}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        if collected:
            records.write(self.home, student, part, collected)
        return path

    def roster(self, head, *lines):
        (self.home / "roster.csv").write_text("\n".join([head, *lines]), encoding="utf-8")

    def tables(self):
        _, self.said = grades.grades(self.home)
        read = {}
        for path in self.home.glob("grades*.csv"):
            rows = list(csv.reader(path.open(encoding="utf-8-sig", newline="")))
            assert all(len(row) == len(rows[0]) for row in rows), "a column has moved"
            assert not [cell for row in rows for cell in row if tables.is_formula(cell)]
            read[path.stem.removeprefix("grades").strip("-")] = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
        return read


@pytest.fixture
def course(tmp_path, empty_gradebook):
    shutil.copy(empty_gradebook, tmp_path)
    course = Course(tmp_path)
    yield course
    course.book.close()


def test_everybody_has_a_line(course):
    course.roster("id,name,email", "ada,Ada,ada@x.org", 'ben,"O\'Hara, ""Ben"", José",', "zoe,Zoe,")
    course.graded("ada", NAIVE, 6, 6, 3)
    course.graded("ben", NAIVE, 6, 0, 1.5, penalty=1)
    course.graded("eve", NAIVE, 0, 0, 3, by_hand=["test-the-whole-layer"])
    course.handed_in("zoe", ZERO)
    course.graded("fay", ZERO, 7, 3, extra=1, current=False)
    lines = course.tables()[""]
    assert [line["id"] for line in lines] == ["ada", "ben", "zoe", "eve", "fay"], "the roster's order, then those who are not in it"
    ada, ben, zoe, eve, fay = lines
    assert (ada[f"{NAIVE} points"], ada[f"{NAIVE} maximum"], ada["total"], ada["total maximum"]) == ("15", "15", "15", "25")
    assert ada[f"{ZERO} points"] == "" and ada[f"{ZERO} not graded"] == "nothing handed in" and ada[f"{NAIVE} not graded"] == ""
    assert ben["name"] == 'O\'Hara, "Ben", José' and ben[f"{NAIVE} points"] == "6.5" and ben[f"{NAIVE} late penalty"] == "1"
    assert zoe[f"{ZERO} not graded"] == "not graded: make autograde" and zoe["total"] == "0"
    assert eve[f"{NAIVE} not graded"] == "by hand: the whole layer"
    assert fay[f"{ZERO} points"] == "12" and fay[f"{ZERO} not graded"] == "a newer hand-in: make autograde"
    assert "not in roster.csv, but with points: eve, fay" in course.said
    assert any(line.startswith("not fully graded") and line.endswith(": zoe, fay") for line in course.said)
    assert any(line.startswith("points still to be given by hand") and line.endswith(": eve") for line in course.said)


def test_an_id_that_was_changed_after_collecting_is_named_with_what_to_do(course):
    course.roster("id,name", "ada,Ada Lovelace", "ben,Ben")
    course.graded("lovelace", NAIVE, 6, 6, 3)
    course.graded("eve", NAIVE, 6, 6, 3)
    said = "lovelaceada_11_456_03_naive_forward.ipynb"
    course.handed_in("lovelace", NAIVE, platform="canvas", key="11", number="11", name=said, age=[1, 0, 0], file="x")
    course.tables()
    line = next(line for line in course.said if line.startswith("not in roster.csv"))
    assert "lovelace (whom roster.csv calls ada now: ids must not change" in line and "eve (" not in line


def test_no_name_is_a_formula_and_all_can_be_imported_all_the_same(course):
    names = [FORMULA, "+1", "-x", "@sum", "\t=1", "\uff1d1+1", "a,b;c\"d'e\nf", "<script>", "Points Possible"]
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    course.roster("id,name,number,canvas", *(f"s{i},{name},00{i},{i + 50}" for i, name in enumerate(quoted)))
    for i in range(len(names)):
        course.graded(f"s{i}", ZERO, i % 7, 0)
    read = course.tables()
    assert [line["ID"] for line in read["canvas"][1:]] == [str(i + 50) for i in range(len(names))]
    assert [line["Student"] for line in read["canvas"] if "Points Possible" in line["Student"]] == ["    Points Possible"]
    assert [line["ID number"] for line in read["moodle"]] == [f"00{i}" for i in range(len(names))], "a number keeps its zeros"
    assert read[""][0]["name"] == f"'{FORMULA}" and read["canvas"][1]["Student"] == f"'{FORMULA}"
    assert not [line for line in course.said if "formula" in line], "a name is not what a platform goes by"
    course.roster("id,email,login", "s0,+a@x.org,-b")
    course.tables()
    assert [line for line in course.said if "formula" in line and line.endswith("s0's email, s0's login")]


def test_what_platforms_import(course):
    course.roster("id,name,email,number,login", 'ada,"Lovelace, Ada",ada@x.org,0042,al1', "ben,Ben,,,")
    course.graded("ada", NAIVE, 6, 6, 1.25)
    course.handed_in("ada", NAIVE, platform="canvas", key="777", age=[1, 0, 0], file="x")
    read = course.tables()
    (possible, ada, ben), head = read["canvas"], ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", NAIVE]
    assert list(ada) == head, "a part in which nobody has points yet would take points away"
    assert possible["Student"].strip() == "Points Possible" and possible[NAIVE] == "15"
    assert list(ada.values()) == ["Lovelace, Ada", "777", "0042", "al1", "", "13.25"] and ben[NAIVE] == ""
    assert read["moodle"][0] == {"Email address": "ada@x.org", "ID number": "0042", "Username": "al1", NAIVE: "13.25"}
    shown = {"OrgDefinedId": "0042", "Username": "al1", f"{NAIVE} Points Grade": "13.25", "End-of-Line Indicator": "#"}
    assert read["brightspace"][0] == shown
    assert len(course.said) == 3 and all(line.endswith("identify them: ben") for line in course.said)
    first = (course.home / "grades-canvas.csv").read_bytes()[:10]
    assert first == b'"Student",', "Canvas would take the mark of UTF-8 for a letter"


def test_dropped_tests_count_neither_here_nor_there(course):
    course.roster("id,name,canvas,dropped", "*,,,03: the whole layer", "ada,Ada,1,03: the collected input; 07", "ben,Ben,2,")
    course.graded("ada", NAIVE, 6, 3, 3, penalty=12)
    course.graded("ben", NAIVE, 6, 3, 3, penalty=2)
    course.graded("ben", ZERO, 7, 0)
    read = course.tables()
    ada, ben = read[""]
    assert (ada[f"{NAIVE} points"], ada[f"{NAIVE} maximum"], ada[f"{NAIVE} late penalty"]) == ("0", "6", "3"), "late, all of it was taken"
    assert (ben[f"{NAIVE} points"], ben[f"{NAIVE} maximum"], ben[f"{NAIVE} late penalty"]) == ("7.5", "12", "1.5")
    assert (ada[f"{ZERO} maximum"], ada[f"{ZERO} not graded"], ada["total maximum"]) == ("0", "", "6")
    possible, ada, ben = read["canvas"]
    assert (possible[NAIVE], ada[NAIVE], ben[NAIVE], ada[ZERO], ben[ZERO]) == ("12", "0", "7.5", "EX", "7")
    assert read["moodle"][0][ZERO] == ""
    course.book.find_submission_notebook(NAIVE, NAIVE, "ada").late_submission_penalty = None
    course.book.db.commit()
    assert course.tables()["canvas"][1][NAIVE] == "6", "3 of 6 points are 6 of the 12 that the platform knows"


def test_empty_classes_and_what_cannot_be_read(course, tmp_path, monkeypatch):
    read = course.tables()
    assert read[""] == [] and len(read["canvas"]) == 1 and course.said == []
    course.roster("id,dropped", "ada,99")
    with pytest.raises(roster.RosterError, match="line 2"):
        grades.grades(course.home)
    (tmp_path / "new").mkdir()
    monkeypatch.setattr(grades, "GRADING", tmp_path / "new")
    with pytest.raises(SystemExit, match="Nothing is released yet"):
        grades.main()
    assert not list((tmp_path / "new").iterdir()), "a gradebook, or empty tables over those of yesterday"
