"""Answers in words: from the release to the feedback page; a person gives their points."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.request

import nbformat
import pytest
from machine import patient
from nbformat.v4 import new_markdown_cell
from processes import wait_until
from small_part import ONE

from grading import config, grades
from grading.authoring import build
from grading.autograders import build_archive
from grading.feedback import feedback
from grading.results.pages import markdown
from grading.submission.assembly import MAX_ANSWER_CHARS, assemble, read_cells, verbatim
from lectures import talk

PART, CELL = "97_one", "why-a-sum"
QUESTION = """
# %% [markdown]
# ## A question to answer
#
# Why does every rank get the same sum?

# %% Why a sum [markdown] tags=["written"] points=4
# The model answer: all-reduce ends with an all-gather.
"""
HOSTILE = "<script>alert(1)</script> [x](javascript:alert(2)) ![p](http://e/p.png) <img src=x onerror=alert(3)>\n```\n</pre>\n# A title $x$"


@pytest.fixture
def course(one):
    path = build.SOLUTIONS / PART / f"{PART}.py"
    path.write_text(path.read_text().replace("\n# %% Test first", f"{QUESTION}\n# %% Test first"))
    return one


def answered(course, text, **ids):
    notebook = course.solved(PART)
    course.cell(notebook, CELL).source = text
    return notebook


def by_hand(course, student, points=None):
    """The gradebook's record of the written answer, after a person has given `points`."""
    with config.gradebook(config.load(course.home)) as book:
        grade = book.find_grade(CELL, PART, PART, student)
        if points is not None:
            grade.manual_score, grade.needs_manual_grade = points, False
            book.db.commit()
        return grade.score, grade.needs_manual_grade


@pytest.mark.slow
def test_a_written_answer_waits_for_a_person_and_keeps_what_it_got(course, capfd):
    notebook = course.untouched(PART)
    given = course.cell(notebook, CELL)
    assert given.source == build.YOUR_ANSWER and "model answer" not in nbformat.writes(notebook)
    assert build.points(build.build(PART)) == 14
    course.hand_in(PART, "ada", answered(course, "Because $a + b$ is\n\nthe same everywhere."))
    course.hand_in(PART, "ben", answered(course, build.YOUR_ANSWER))
    course.hand_in(PART, "eve", answered(course, HOSTILE))
    assert course.grade(PART) == {"ada": 10, "ben": 10, "eve": 10} and course.failed == []
    printed = capfd.readouterr().out
    assert "ada: 10 of 10 and up to 4 by hand" in printed and "ben: 10 of 10," in printed
    assert by_hand(course, "ada") == (0, True) and by_hand(course, "ben") == (0, False)
    found, said = grades.grades(course.home, course.notebooks)
    assert found.mark("ada", PART).by_hand and found.mark("ada", PART).missing == "by hand: why a sum"
    assert found.mark("ada", PART).maximum == 14 and not found.mark("ben", PART).missing
    assert [line for line in said if line.startswith("points still to be given by hand") and "ada" in line]

    assert by_hand(course, "ada", 3) == (3, False)
    course.hand_in(PART, "ada", answered(course, "Because $a + b$ is\n\nthe same everywhere."))
    course.hand_in(PART, "ada", course.solved(PART, "%%px\ndef first(x): return x"))
    course.cell(notebook := course.solved(PART, "%%px\ndef first(x): return x"), CELL).source = "Because $a + b$ is\n\nthe same everywhere."
    course.hand_in(PART, "ada", notebook)
    assert course.grade(PART)["ada"] == 3 and by_hand(course, "ada") == (3, False), "the same answer must be read again"
    course.hand_in(PART, "ada", answered(course, "Another one."))
    course.grade(PART)
    assert by_hand(course, "ada") == (3, True), "another answer waits again"

    assert feedback(PART, course.home, course.notebooks) == {}
    pages = {s: (course.home / "feedback" / s / PART / f"{PART}.html").read_text() for s in ("ada", "ben", "eve")}
    assert "Another one." in pages["ada"] and "3 of 4 points, for an earlier hand-in; to be graded again" in pages["ada"]
    assert "not graded yet, 4 points possible" in pages["eve"]
    assert "0 of 4 points" in pages["ben"] and "No response." in pages["ben"]
    assert "&lt;script&gt;alert" in pages["eve"]
    assert not [p for p in pages.values() if "model answer" in p or "<script" in p or "<img src=x" in p or 'javascript:alert(2)"' in p]


@pytest.mark.slow
def test_nbgrader_itself_grades_it_so_too(course):
    from nbgrader.converters import Autograde
    from nbgrader.coursedir import CourseDirectory

    course.hand_in(PART, "ada", answered(course, HOSTILE))
    course.hand_in(PART, "ben", course.solved(PART))
    settings = config.load(course.home, course.notebooks)
    settings.CourseDirectory.assignment_id = PART
    settings.Autograde.create_student = True
    Autograde(coursedir=CourseDirectory(config=settings), config=settings).start()
    assert by_hand(course, "ada") == (0, True) and by_hand(course, "ben") == (0, False)


@pytest.mark.slow
def test_the_formgrader_shows_who_waits_and_complains_of_no_exchange(course, tmp_path):
    course.hand_in(PART, "ada", answered(course, "Mine."))
    course.grade(PART)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "grading.results.formgrader", f"--port={port}", "--IdentityProvider.token=abc", "--no-browser"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(words, env={**os.environ, "COURSE_GRADING": str(course.home)}, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}/formgrader/api/submitted_notebooks/{PART}/{PART}?token=abc"
        assert wait_until(lambda: server.poll() is not None or fetched(address), patient(60))
        assert [(s["student"], s["needs_manual_grade"]) for s in json.loads(fetched(address))] == [("ada", True)]
        assert fetched(f"http://127.0.0.1:{port}/formgrader?token=abc")
    finally:
        server.terminate()
        server.wait(60)
    assert "nwritable" not in (tmp_path / "log").read_text()


def fetched(address):
    with contextlib.suppress(OSError), urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=30) as page:
        return page.read()


def formgrader(source):
    """Markdown as nbgrader's formgrader shows it."""
    from nbconvert.filters import markdown2html

    return markdown2html(source)


@pytest.mark.parametrize("shown", [markdown, formgrader])
@pytest.mark.parametrize(
    "text", [HOSTILE, "~~~\n<b>", "````\n<b>\n````\n<b>", "    <b>", "$$<b>$$ \\begin{x}<b>\\end{x}", "- <b>\n\n\t<b>"]
)
def test_what_a_student_wrote_does_nothing_where_it_is_read(shown, text):
    html = shown(verbatim(text)).lower()
    assert "<b>" not in html and "<script" not in html and "<img" not in html and "<a " not in html and "<h1" not in html
    assert html.count("<pre") == html.count("</pre") == 1, "a person sees less than was written"


def test_it_is_found_without_ids_and_is_no_exercise(course):
    source = build.build(PART)
    plain = answered(course, "My answer.")
    for i, cell in enumerate(plain.cells):  # as some platforms leave it
        cell.metadata, cell.id = {}, f"cell-{i}"
    assert "My answer." in course.cell(assemble(source, read_cells(nbformat.writes(plain).encode())), CELL).source
    renamed = answered(course, "My answer.")
    course.cell(renamed, CELL).id = "other"
    assert "My answer." in course.cell(assemble(source, read_cells(nbformat.writes(renamed).encode())), CELL).source
    gone = course.solved(PART)
    gone.cells.remove(course.cell(gone, CELL))
    assert course.cell(assemble(source, read_cells(nbformat.writes(gone).encode())), CELL).source == build.YOUR_ANSWER
    text = course.solved(PART)  # an exercise that was made a text, and one with its code
    place = text.cells.index(course.cell(text, "first"))
    text.cells[place] = new_markdown_cell("def first(x): my notes", id="first", metadata=text.cells[place].metadata)
    text.cells.insert(place + 1, nbformat.v4.new_code_cell("%%px\ndef first(x):\n    return 2 * x", id="mine"))
    assert "return 2 * x" in course.cell(assemble(source, read_cells(nbformat.writes(text).encode())), "first").source
    for copied in (True, False):  # a cell that was copied, or a text that was added below it
        two = answered(course, build.YOUR_ANSWER)
        below = nbformat.from_dict(course.cell(two, CELL)) if copied else new_markdown_cell("")
        below.id, below.source = "below", "Written below."
        two.cells.insert(two.cells.index(course.cell(two, CELL)) + 1, below)
        assert "Written below." in course.cell(assemble(source, read_cells(nbformat.writes(two).encode())), CELL).source
    pasted = course.solved(PART)  # a picture in a text of the student's is no reason to grade nothing
    pasted.cells.insert(1, new_markdown_cell("data:image/png;base64," + "A" * (2 << 20)))
    assert course.cell(assemble(source, read_cells(nbformat.writes(pasted).encode())), CELL).source == build.YOUR_ANSWER
    long = course.cell(assemble(source, read_cells(nbformat.writes(answered(course, "x " * MAX_ANSWER_CHARS)).encode())), CELL).source
    assert len(long) < 1.1 * MAX_ANSWER_CHARS and "cut after" in long


def test_a_model_answer_stays_with_the_instructor(course, monkeypatch):
    source = build.build(PART)
    assert "model answer" in course.cell(talk.solved(PART), CELL).source
    assert {c.metadata.slideshow.slide_type for c in talk.talk(PART).cells if c.id == CELL} == {"skip"}
    packed = build_archive.archive_contents(PART)
    assert b"model answer" not in packed["course/source.ipynb"]
    assert "Written answers are not graded there: 4 points are for you to give." in list(
        build_archive.instructions("gradescope", PART, build.SOLUTIONS, "3.12", 10)
    )
    assert build.kind_of(course.cell(source, CELL)) == "written"


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ('# %% Why [markdown] tags=["written"]\n# x\n', "a written answer needs points="),
        ('# %% [markdown] tags=["written"] points=2\n# x\n', "a written answer needs a unique title"),
        ('# %% Why tags=["written"] points=2\nx = 1\n', "is for texts"),
        ('# %% Why [markdown] tags=["writen"] points=2\n# x\n', "Did you mean 'written'"),
    ],
)
def test_a_mistake_in_its_line_is_named(cell, said):
    with pytest.raises(build.SourceError, match=said):
        build.from_text(f"# ---\n# jupyter:\n#   course:\n#     ranks: 1\n# ---\n\n{cell}", "99_x")


@pytest.mark.slow
def test_it_may_come_later_and_go_again(course, one):
    """An instructor adds a question when hand-ins are there: they are graded anew, and nothing else is lost."""
    path = build.SOLUTIONS / PART / f"{PART}.py"
    with_question = path.read_text()
    path.write_text(ONE)
    course.hand_in(PART, "ada", course.solved(PART))
    assert course.grade(PART) == {"ada": 10}
    path.write_text(with_question)
    course.released.clear()
    course.hand_in(PART, "ben", answered(course, "Mine."))
    assert course.grade(PART) == {"ada": 10, "ben": 10} and by_hand(course, "ada") == (0, False) and by_hand(course, "ben") == (0, True)
    by_hand(course, "ben", 2)
    path.write_text(ONE)
    course.released.clear()
    with pytest.raises(config.GradingConfigError, match="why-a-sum is no longer in its source"):
        course.untouched(PART)
