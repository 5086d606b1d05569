"""The report of a class: it tells what is there, whatever students are called and whatever their answers print."""

import csv
import json
import os
import time
from datetime import datetime, timedelta
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traitlets.config import Config

from grading.authoring import answers, build, survey
from grading.config import configure
from grading.people.roster import RosterError
from grading.report import class_results, item_analysis, mistakes, tables, variant_messages
from grading.report.__main__ import NothingToReport, report
from grading.running import pending
from grading.submission import sandbox
from grading.submission.assembly import fingerprint

pytestmark = pytest.mark.filterwarnings("ignore:Object of type")  # nbgrader's own, in its update_or_create_submission
PART = "97_one"
TEST = "test-first"
HOSTILE = ('<img src=x onerror="alert(1)">', '=HYPERLINK("x")', 'o\'neil, "bob"', "@sum", "\u202eevil", "new\nline", "{{ 7654320 + 1 }}")
SCRIPT = "</pre></details><script>alert(2)</script>{{ 7654320 + 1 }}"
TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "b", "br", "ul", "li", "code", "small", "details", "summary"}
TAGS |= {"svg", "rect", "text", "line", "table", "thead", "tbody", "tr", "th", "td", "div", "pre", "mark"}

VARIANTS = '''
from grading.authoring.answers import loses

@loses(10)
def first__own(x):
    """Adds nothing up."""
    return x

@loses(10)
def first__none(x):
    """Forgets to return."""
    comm.Allreduce(x, np.empty_like(x))
'''


class Page(HTMLParser):
    """The tags and attributes of a page, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_data(self, data):
        self.text += data


class Graded:
    """A class as grading leaves it, without the minutes that grading takes."""

    def __init__(self, home):
        from nbgrader.api import Gradebook

        self.home, self.source = home, build.build(PART)
        build.write(self.source, home / "source" / PART / f"{PART}.ipynb")
        self.book = Gradebook(configure(Config(), home).CourseDirectory.db_url)
        self.book.update_or_create_assignment(PART, duedate=datetime(2026, 3, 1))
        self.book.update_or_create_notebook(PART, PART)
        self.book.update_or_create_grade_cell(TEST, PART, PART, max_score=10, cell_type="code")

    def hand_in(self, student, points=10, said="", answer=None, flags=(), time=None, extension=None, survey_text=None):
        """A graded hand-in; `said` is what its failed test says."""
        notebook = build.build(PART)
        for cell in notebook.cells:
            if build.kind_of(cell) == "exercise" and answer is not None:
                cell.source = answer
        if survey_text is not None:
            notebook.cells[-1].source = survey_text
        path = self.home / "submitted" / student / PART / f"{PART}.ipynb"
        build.write(notebook, path)
        graded = json.loads(path.read_text())
        graded["metadata"]["course"] |= {
            "graded": fingerprint(path.read_bytes()),
            "key": pending.current_key(PART, self.home),
            "flags": list(flags),
        }
        for cell in graded["cells"]:
            if cell["id"] == TEST and said:
                kind, _, text = said.partition(": ")
                cell["outputs"] = [{"output_type": "error", "ename": kind, "evalue": text, "traceback": [text]}]
        target = self.home / "autograded" / student / PART / path.name
        target.parent.mkdir(parents=True)
        target.write_text(json.dumps(graded))
        self.book.update_or_create_student(student)
        hand_in = self.book.update_or_create_submission(PART, student, timestamp=time, extension=extension)
        self.book.db.commit()
        self.book.find_grade(TEST, PART, PART, student).auto_score = points
        self.book.db.commit()
        return hand_in

    def roster(self, text):
        (self.home / "roster.csv").write_text(f"id,name\n{text}\n")

    def report(self):
        self.path = report(PART, self.home)
        return self.path.read_text()

    def rows(self, name):
        with (self.path.parent / name).open(newline="") as file:
            return list(csv.DictReader(file))


@pytest.fixture
def graded(one):
    graded = Graded(one.home)
    yield graded
    graded.book.close()


@pytest.mark.slow
def test_it_reads_what_grading_writes_and_names_a_mistake_by_the_variant_that_makes_it(one, monkeypatch, capsys):
    solutions = build.SOLUTIONS
    (solutions / PART / "variants.py").write_text(VARIANTS)
    for module in (answers, variant_messages):
        monkeypatch.setattr(module, "SOLUTIONS", solutions)
    one.hand_in(PART, "ada", one.solved(PART))
    one.hand_in(PART, "grace", one.solved(PART, "%%px\ndef first(x):\n    return 1 * x"))
    assert one.grade(PART) == {"ada": 10, "grace": 0}
    capsys.readouterr()
    page = report(PART, one.home).read_text()
    assert "running its 2 wrong variants first, once" in capsys.readouterr().out
    assert "<b>own</b>: Adds nothing up." in page and "<b>none</b>" not in page
    assert "The mean is 5 of 10 points, the median 5." in page and "<td>the sum on rank … has the right shape" in page
    monkeypatch.setattr(variant_messages, "collect_messages", lambda *_: pytest.fail("they ran before, and nothing has changed"))
    assert report(PART, one.home).read_text().count("Adds nothing up") == 1
    before = variant_messages.variants_fingerprint(PART)
    (solutions / PART / "variants.py").write_text(VARIANTS + "\n")
    assert variant_messages.variants_fingerprint(PART) != before, "variants that changed run again"


def test_a_mistake_is_named_by_its_own_docstring_also_where_it_is_written_as_changes_of_the_solution():
    titles = [variant_messages.variant_title(answer) for answer in answers.read("25_real_pipeline")]
    assert "last loss: Returns the last loss." in titles
    assert "one after the other: Each micro-batch forward and backward before the next." in titles


def test_without_a_sandbox_mistakes_have_no_names_and_the_page_says_why(graded, monkeypatch):
    def none():
        raise sandbox.NoSandbox("No sandbox: <none here>.")

    (build.SOLUTIONS / PART / "variants.py").write_text(VARIANTS)
    for module in (answers, variant_messages):
        monkeypatch.setattr(module, "SOLUTIONS", build.SOLUTIONS)
    monkeypatch.setattr(sandbox, "sandbox_variables", none)
    graded.hand_in("ada", 0, "CheckFailed: the sum on rank 1 has the wrong value. (seed 1)")
    page = graded.report()
    assert (
        "could not be run, so the mistakes have no names. No sandbox: &lt;none here&gt;." in page
        and "the sum on rank … has the wrong value" in page
    )
    assert not list((graded.home / "reports" / "variants").glob("*")), "what did not run is not remembered"


def test_no_name_and_no_answer_becomes_markup_or_a_formula(graded):
    flag = ["first", 1, f"x = '{SCRIPT}'", f"because {SCRIPT}"]
    long = "%%px\ndef first(x):\n" + "".join(f"    y = np.{word}(x, {word}=[{i}, '{SCRIPT}'])\n" for i, word in enumerate("abcdefgh"))
    for i, student in enumerate(HOSTILE):
        said = f"RanksError: rank 0: ValueError: =cmd() {SCRIPT}\n=1+1"
        graded.hand_in(student, 0, said, long if i < 2 else None, [flag], datetime(2026, 3, 4))
    graded.hand_in("ada")
    graded.hand_in("ted", 0, "ValueError: =1+1")
    graded.roster('ted,"<b onclick=x>Ted</b>, =1"\nnobody,"<script>"')
    folder = graded.home / "submitted" / "<script>late" / PART
    folder.mkdir(parents=True)
    (folder / "<script>.txt").write_text("")
    text = graded.report()
    page = Page(text)
    assert page.tags <= TAGS, page.tags - TAGS
    assert not {a for a in page.attributes if a.startswith("on")} | page.attributes & {"src", "href", "onclick", "action"}
    assert "http" not in text.replace("http-equiv", "") and "url(" not in text and "@import" not in text
    assert "7654321" not in page.text, "a template is not what a student may write"
    assert "\u202e" not in text and "<script>alert(2)" in page.text and "<b onclick=x>Ted</b>, =1" in page.text
    assert "Similar answers" in page.text and text.count("<pre>") == 2, "one group, both answers side by side"
    for name in ("points.csv", "mistakes.csv", "alike.csv"):
        rows = graded.rows(name)
        assert rows
        for row in rows:
            assert None not in row and None not in row.values(), f"{name}: a name has shifted columns"
            assert not [value for value in row.values() if value[:1] in tuple("=+-@\t\r") and value]
            assert not [value for value in row.values() if "\n" in value]
    assert {'\'=HYPERLINK("x")', 'o\'neil, "bob"'} <= {row["student"] for row in graded.rows("points.csv")}


def test_who_is_missing_late_not_graded_or_unknown(graded):
    due = datetime(2026, 3, 1)
    graded.hand_in("ada", time=due + timedelta(hours=3))
    graded.hand_in("grace", time=due + timedelta(hours=3), extension=timedelta(days=1))
    graded.hand_in("tim", time=due - timedelta(hours=3))
    changed = graded.home / "submitted" / "tim" / PART / f"{PART}.ipynb"
    changed.write_text(changed.read_text() + "\n")
    (graded.home / "submitted" / "jim" / PART).mkdir(parents=True)
    (graded.home / "submitted" / "jim" / PART / "homework.ipynb").write_text("")
    (graded.home / "submitted" / "jim" / PART / "timestamp.txt").write_text("2026-03-03 00:00:00 UTC\n")
    graded.roster("ada,Lovelace; Ada\ngrace,\ntim,\njean,Jean Bartik")
    text, page = graded.report(), class_results.read(PART, graded.home)
    assert sorted(page.graded) == ["ada", "grace"] and page.missing == ["jean"] and page.strangers == ["jim"]
    assert page.late == {"ada": 3 * 3600, "jim": 2 * 86400}
    assert "after the last grading" in page.ungraded["tim"] and "there is homework.ipynb" in page.ungraded["jim"]
    assert "Of 4 students in the roster, 1 is missing; 4 handed in (1 of them not in the roster); 2 are graded, 2 are not." in text
    assert page.timeless == 1 and "For 1 hand-in, the time is unknown." in text, "tim's new one"
    states = {row["student"]: (row["state"], row["seconds late"], row["points of 10"]) for row in graded.rows("points.csv")}
    assert (
        states["ada"] == ("graded", "10800", "10") and states["jean"] == ("missing", "0", "") and states["tim"] == ("not graded", "0", "")
    )


def test_a_class_of_nobody_of_one_and_of_those_who_never_came(graded):
    with pytest.raises(NothingToReport, match="no hand-ins"):
        report(PART, graded.home)
    graded.roster("ada,\ngrace,")
    text = graded.report()
    assert "Of 2 students in the roster, 2 are missing; 0 handed in; 0 are graded." in text and "No test failed" in text
    graded.hand_in("ada", 4)
    assert "The mean is 4 of 10 points, the median 4." in graded.report()
    (graded.home / "autograded" / "ada" / PART / f"{PART}.ipynb").write_text('{"metadata": {"course"')
    assert "0 are graded, 1 are not" in graded.report(), "half a notebook of a run that was ended"
    (graded.home / "gradebook.db").unlink()
    report(PART, graded.home)
    assert not (graded.home / "gradebook.db").exists(), "with an empty one, grading would not release the part"
    graded.roster("ada,\nada,")
    with pytest.raises(RosterError, match="line 3"):
        report(PART, graded.home)


def test_a_part_that_was_released_anew_with_another_test(graded):
    graded.hand_in("ada", 4, "CheckFailed: wrong. (seed 1)")
    for cell in graded.source.cells:
        if cell.id == TEST:
            cell.id = "test-another"
    build.write(graded.source, graded.home / "source" / PART / f"{PART}.ipynb")
    text = graded.report()
    assert "0 are graded" in text and "or the tests have changed since; run make autograde" in text


def test_grades_that_a_person_changed_count(graded):
    graded.hand_in("ada", 0)
    grade = graded.book.find_grade(TEST, PART, PART, "ada")
    grade.manual_score, grade.extra_credit = 7, 1
    graded.book.db.commit()
    assert class_results.read(PART, graded.home).graded["ada"].total == 8


SAME = {
    "ranks, shapes and seeds": (
        "CheckFailed: the sum on rank 0 has shape (4, 6), expected (4, 12), for mp_size 2, a batch of 4. A usual cause: rows. (seed 1)",
        "CheckFailed: the sum on rank 3 has shape (3,), expected (3, 1, 2), for mp_size 4, float64. A usual cause: rows. (seed 2)",
    ),
    "bytes with other units": (
        "CheckFailed: x on rank 0 keeps 1,024 B and 3.3 MB, for 2 ranks. (seed 1)",
        "CheckFailed: x on rank 1 keeps 17 kB and 2 GiB, for 4 ranks. (seed 1)",
    ),
    "what came": (
        "CheckFailed: x on rank 0 must be a NumPy array; got tuple (array([1.5]), None), for 2. (seed 1)",
        "CheckFailed: x on rank 0 must be a NumPy array; got tuple (array([[7, 8], [9,..., for 2. (seed 1)",
    ),
    "who waits": (
        "RanksError: ranks 0, 2: DeadlockError: rank 0 waits in Allgather #1 on group{0, 1} (cell [8], line 6); "
        "rank 2 waits in Allgather #1 on group{2, 3} (cell [8], line 6); ranks 1, 3 have finished the cell without it. They wait.",
        "RanksError: rank 2: DeadlockError: rank 2 waits in Allgather #5 on group{2–3} (cell [4], line 9); "
        "rank 3 has finished the cell without it. They wait.",
    ),
    "who calls what": (
        "RanksError: ranks 0, 1: MismatchError: the ranks of world{0–3} make different calls. rank 0: Allgather of 3 float32; "
        "rank 1: Allgather of 2 float32; ranks 2, 3: Allgather of 1 float32. The count must be the same.",
        "RanksError: rank 1: MismatchError: the ranks of group{0, 1} make different calls. rank 0: Allgather of 12 float64; "
        "rank 1: Allgather of 9 float64. The count must be the same.",
    ),
    "which samples": (
        "RanksError: rank 1: SimulationError: rank 1, layer 3 at 0.5 s: backward got samples 0, 1 and the gradient of samples 4–7.",
        "RanksError: rank 0: SimulationError: rank 0, layer 12 at 2 ms: backward got samples 0–3, 9 and the gradient of samples 4.",
    ),
    "what dtype a test drew": (
        "CheckFailed: x on rank 0 has dtype float64, expected float32, for 2. (seed 1)",
        "CheckFailed: x on rank 0 has dtype float64, expected uint8, for 2. (seed 1)",
    ),
    "names of variables": (
        "RanksError: rank 1: NameError: name 'a' is not defined",
        "RanksError: ranks 0–3: NameError: name 'bc' is not defined",
    ),
}
OTHER = {
    "another array": ("CheckFailed: the sum on rank 0 is wrong. (seed 1)", "CheckFailed: the mean on rank 0 is wrong. (seed 1)"),
    "another dtype": (
        "CheckFailed: x on rank 0 has dtype float64, expected float32, for 2. (seed 1)",
        "CheckFailed: x on rank 0 has dtype int64, expected float32, for 2. (seed 1)",
    ),
    "another cause": ("CheckFailed: x. A usual cause: a sum. (seed 1)", "CheckFailed: x. A usual cause: a mean. (seed 1)"),
    "a cause with another number": (
        "CheckFailed: x. A usual cause: t from 0. (seed 1)",
        "CheckFailed: x. A usual cause: t from 1. (seed 1)",
    ),
    "another error": ("RanksError: rank 1: ValueError: x", "RanksError: rank 1: KeyError: x"),
    "another attribute": ("RanksError: rank 1: AttributeError: no 'fc1'", "RanksError: rank 1: AttributeError: no 'fc2'"),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_one_mistake_is_one_sentence(pair):
    assert mistakes.normalize_message(pair[0]) == mistakes.normalize_message(pair[1])
    assert not set("0123456789") & set(mistakes.normalize_message(pair[0]).replace("float64", ""))


@pytest.mark.parametrize("pair", OTHER.values(), ids=OTHER)
def test_two_mistakes_are_two(pair):
    assert mistakes.normalize_message(pair[0]) != mistakes.normalize_message(pair[1])


def test_no_message_takes_long_to_read():
    began = time.process_time()
    for text in (
        "(1" + ", " * 9000,
        "1," * 9000,
        "<cell" * 4000,
        "; " * 9000,
        "rank 1, " * 3000,
        ", for " * 4000,
        "cell [1" * 3000,
        "(" * 20000,
    ):
        for kind in ("RanksError", "CheckFailed"):
            assert len(mistakes.normalize_message(f"{kind}: rank 0: ValueError: {text}")) < 500
    assert time.process_time() - began < 1


def test_a_student_counts_once_in_a_mistake_and_what_follows_comes_last():
    course = class_results.ClassResults(PART, None, {"a": 1.0, "b": 1.0})
    follows = "CheckFailed: the layer is wrong. A usual cause: see the tests of the two functions. (seed 1)"
    for i in range(3):
        said = {"a": f"RanksError: rank {i}: ValueError: {i}", "b": f"RanksError: rank {i}: ValueError: {i + 5}"} if i else {"b": follows}
        course.graded[f"s{i}"] = class_results.GradedSubmission({"a": 0, "b": 0}, said)
    course.graded["s3"] = course.graded["s4"] = course.graded["s0"]
    found = mistakes.find_mistakes(course)
    assert [(len(m.students), m.tests) for m in found] == [(2, ["a", "b"]), (3, ["b"])]


def test_difficulty_and_discrimination():
    rest = [float(i % 5) for i in range(40)]
    own = [2.0 * (value > 2) for value in rest]
    found, why = item_analysis.discrimination(own, rest)
    assert found == pytest.approx(np.corrcoef(own, rest)[0, 1]) and not why
    assert item_analysis.discrimination([-x for x in own], rest)[0] == pytest.approx(-found)
    for values in ([1.0] * 40, [1.0] * 36 + [0.0] * 4):
        assert item_analysis.discrimination(values, rest)[0] is None and "too few" in item_analysis.discrimination(values, rest)[1]
    assert item_analysis.discrimination(own[:19], rest[:19])[1].startswith("too few")
    course = class_results.ClassResults(PART, None, {"a": 4.0, "b": 6.0})
    course.graded = {str(i): class_results.GradedSubmission({"a": 4.0 * (i < 10), "b": 6.0 * (i < 20)}) for i in range(40)}
    tests = item_analysis.test_statistics(course)
    assert tests["a"].share == 0.25 and tests["b"].share == 0.5
    b = [6.0 * (i < 20) for i in range(40)]
    assert tests["a"].correlation == pytest.approx(np.corrcoef([i < 10 for i in range(40)], b)[0, 1]), "without itself"
    assert sum(n for _, n in item_analysis.part_statistics(course).bars) == 40 and item_analysis.part_statistics(course).bars[-1] == (
        "10",
        10,
    )


def test_a_table_has_no_formula_in_it(tmp_path):
    words = ["=1", "+1", "-1", "@x", " =1", "\t=1", "\r=1", "＝1", "a\n=1", 'a","=1', "a;=1", ""]
    tables.write(tmp_path / "t.csv", ["word"], [[word] for word in words])
    text = (tmp_path / "t.csv").read_text()
    assert len(text.splitlines()) == len(words) + 1, "a cell is one line"
    rows = [row[0] for row in csv.reader(text.splitlines())][1:]
    assert (
        not [row for row in rows if row.strip().startswith(tuple("=+-@＝"))]
        and rows[-1] == ""
        and all(line[0] == '"' for line in text.splitlines())
    )


def test_what_lies_in_the_place_of_a_hand_in_is_not_followed(graded):
    graded.hand_in("ada")
    folder = graded.home / "submitted" / "eve" / PART
    folder.mkdir(parents=True)
    os.symlink("/etc/hostname", folder / f"{PART}.ipynb")
    os.mkfifo(folder / "timestamp.txt")
    assert "eve" in class_results.read(PART, graded.home).ungraded


def filled_in(minutes="", hardest="", unclear=""):
    lines = zip(survey.LABELS.values(), (minutes, hardest, unclear), strict=True)
    return survey.HEADING + "\n\n" + "\n".join(f"- {label}: {answer}" for label, answer in lines)


def test_the_report_has_the_surveys_answers_without_names(graded):
    graded.hand_in("ada", survey_text=filled_in("1 h 20", "the sum <script>alert(1)</script>"))
    graded.hand_in("grace", survey_text=filled_in("50 min", "", "what a view is"))
    graded.hand_in("alan", survey_text=filled_in("-3", "zz the groups\nand their order"))
    graded.hand_in("edsger")
    page = graded.report().partition("<h2>What students say</h2>")[2].partition("<h2>")[0]
    assert "3 of 4 answered" in page and "a median of <b>65 minutes</b> (2 answers, from 50 to 80)" in page
    assert (
        "<li>the sum &lt;script&gt;alert(1)&lt;/script&gt;</li><li>zz the groups and their order</li>" in page and "what a view is" in page
    )
    assert not [name for name in ("ada", "grace", "alan", "edsger") if name in page]


def test_a_hand_in_that_is_no_notebook_has_no_answers(graded):
    for number, content in enumerate(("", "[]", '{"cells": [{"cell_type": "markdown"}]}', "[" * 100_000, '{"cells": 7}')):
        path = graded.home / "submitted" / f"s{number}" / PART / f"{PART}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(content)
    (graded.home / "submitted" / "s0" / PART / f"{PART}.ipynb").unlink()
    (graded.home / "submitted" / "s0" / PART / f"{PART}.ipynb").symlink_to("/dev/zero")
    assert class_results.read(PART, graded.home).surveys == []


def test_nobody_answered_so_nothing_is_shown(graded):
    graded.hand_in("ada")
    assert "What students say" not in graded.report()


@given(st.text(max_size=300), st.text(max_size=300))
def test_a_surveys_text_may_be_anything(before, answer):
    found = survey.read_answers(f"{before}\n{filled_in('', answer)}")
    assert set(found) <= set(survey.LABELS) and all(len(text) <= survey.MAX_CHARS for text in found.values())
    assert survey.minutes(answer) is None or 0 < survey.minutes(answer) <= survey.MAX_MINUTES
