"""Right answers keep their points, however they were saved and whatever stands beside them."""

import json
import os

import nbformat
import pytest

from course_lib.cluster import time_limits
from grading.authoring import build
from grading.submission.assembly import MAX_ANSWER_CHARS, UnreadableSubmission, read_cells
from grading.submission.execute import is_for_ranks, on_ranks

PART = "97_one"


def stripped(notebook):
    """As some platforms and editors save it: no ids, no metadata."""
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        del cell["id"]
    notebook.metadata, notebook.nbformat_minor = nbformat.from_dict({}), 4
    return json.dumps(notebook).encode()


def new_ids(notebook):
    for i, cell in enumerate(notebook.cells):
        cell.id = f"cell-{i}"
    return as_bytes(notebook)


def as_bytes(notebook):
    return nbformat.writes(notebook).replace("\ud800", "\\ud800").encode()


def version_3(notebook):
    cells = [
        {"cell_type": "code", "language": "python", "input": c.source.splitlines(True), "outputs": [], "metadata": {}}
        for c in notebook.cells
    ]
    return json.dumps({"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": cells}]}).encode()


def with_lines(above="", first="", below=""):
    """The exercise with lines above %%px, at the top of its code, or below."""

    def changed(notebook):
        cell = next(c for c in notebook.cells if c.id == "first")
        magic, _, code = cell.source.partition("\n")
        cell.source = f"{above}{magic}\n{first}{code}{below}"
        return as_bytes(notebook)

    return changed


def with_cell(source):
    """A cell of the student's own, before the test."""

    def changed(notebook):
        notebook.cells.insert(3, nbformat.v4.new_code_cell(source))
        return as_bytes(notebook)

    return changed


SAVED = {
    "as-it-is": as_bytes,
    "byte-order-mark": lambda notebook: b"\xef\xbb\xbf" + as_bytes(notebook),
    "utf-16": lambda notebook: as_bytes(notebook).decode().encode("utf-16"),
    "windows-lines": lambda notebook: as_bytes(notebook).replace(b"\n", b"\r\n").replace(b"\\n", b"\\r\\n"),
    "old-mac-lines": lambda notebook: as_bytes(notebook).replace(b"\\n", b"\\r"),
    "half-a-letter": with_lines(below="\n# the half of a letter: \ud800"),
    "stripped": stripped,
    "new-ids": new_ids,
    "version-3": version_3,
    "timed": with_lines(above="%%time\n"),
    "inline-figures": with_lines(first="%matplotlib inline\n"),
    "hints-and-threads": with_lines(
        first="from __future__ import annotations\nimport threading\n",
        below="\nthread = threading.Thread(target=print, args=('hello',))\nthread.start()\nthread.join()",
    ),
    "kernel-cell": with_cell("for rank in range(4):\n    comm = None\n    print(rank)"),
    "world": with_cell("%%px\nfrom mpi4py import MPI\nassert MPI.COMM_WORLD.Get_rank() == comm.Get_rank()\ncomm = MPI.COMM_WORLD"),
}


@pytest.mark.slow
def test_right_answers_keep_their_points(one):
    for student, save in SAVED.items():
        path = one.home / "submitted" / student / PART / f"{PART}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_bytes(save(one.solved(PART)))
    assert one.grade(PART) == dict.fromkeys(SAVED, 10) and one.failed == []


def test_without_an_exercise_it_is_not_graded_and_never_0(one, capfd):
    notebook = one.solved(PART)
    notebook.cells = [c for c in notebook.cells if c.id != "first"]
    one.hand_in(PART, "ada", notebook)
    assert one.grade(PART) == {} and one.failed == ["ada"]
    said = "".join(capfd.readouterr())
    assert "ada: NOT graded: no exercise of this part is in the notebook; expected a cell that defines first" in said


LONG = {"nbformat": 4, "nbformat_minor": 0, "metadata": {}, "cells": []}
LONG["cells"] = [{"cell_type": "code", "source": "x" * 110_000, "outputs": [], "metadata": {}, "execution_count": None}] * 10


MARKDOWN = {"cell_type": "markdown", "source": "a", "metadata": {}}


def of_cells(cells):
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<html>", "not a notebook"),
        (json.dumps(LONG).encode(), "its code has 1,100,000 characters, and the limit is 1,048,576"),
        (b"", "not a notebook"),
        (b"[" * 100_000, "nested too deeply|not a notebook"),
        (b"\xff\xfe\x00", "not a notebook"),
        (b"[]", "not a notebook"),
        (b"{}", "not a notebook: its cells are missing"),
        (of_cells([MARKDOWN] * 2_001), "it has 2,001 cells, and the limit is 2,000"),
        (of_cells([MARKDOWN | {"metadata": {"x": [[]] * 1_000_000}}]), "1,000,00[0-9] lists and objects"),
    ],
)
def test_what_is_no_notebook_gets_a_sentence(data, message):
    with pytest.raises(UnreadableSubmission, match=message):
        read_cells(data)


def test_only_sources_and_ids_are_read():
    """The rest, which may have 64 MB, is neither copied nor checked."""
    code = {"cell_type": "code", "source": ["x = 1\r\n", "y = 2"], "outputs": 5, "id": "a"}
    wide = {"cell_type": "markdown", "source": "\U0001f600" * 100_000, "attachments": 5, "id": "b"}
    marked = code | {"metadata": {"nbgrader": {"grade_id": "one", "points": []}, "x": {}}, "id": 7}
    raw = {"cell_type": "raw", "source": "z", "metadata": {}}
    cells = read_cells(of_cells([code, wide, marked, raw, code | {"source": []}])).cells
    assert [(cell.cell_type, cell.source[:20], cell.get("id")) for cell in cells] == [
        ("code", "x = 1\ny = 2", "a"),
        ("markdown", "\U0001f600" * 20, "b"),
        ("code", "x = 1\ny = 2", None),
        ("raw", "z", None),
        ("code", "", None),  # a copy of the first, with its id
    ]
    assert [cell.metadata for cell in cells] == [{}, {}, {"nbgrader": {"grade_id": "one"}}, {}, {}]
    assert len(cells[1].source) == MAX_ANSWER_CHARS + 1


def test_format_3_has_headings():
    cells = [{"cell_type": "heading", "level": 2, "source": "Title"}, {"cell_type": "code", "input": "x"}]
    data = json.dumps({"nbformat": 3, "worksheets": [{"cells": cells[:1]}, {"cells": cells[1:]}]})
    found = read_cells(data.encode()).cells
    assert [(cell.cell_type, cell.source) for cell in found] == [("markdown", "## Title"), ("code", "x")]


def test_lines_of_two_characters_count_once():
    windows = {"cell_type": "code", "source": "x = 1\r\n" * 160_000, "metadata": {}}
    assert len(read_cells(of_cells([windows])).cells[0].source) == 960_000


@pytest.mark.parametrize("count", [3, 9])
def test_magics_that_measure_may_stand_above(count):
    """Each copy of what is below one costs as much as the cell is long."""
    source = "%%time\n" * count + "%%px --targets 1\nx = 1"
    assert is_for_ranks(source)
    assert on_ranks(source) == "get_ipython().run_cell_magic('px', '--targets=1', 'x = 1')"


def test_there_is_an_end_to_the_magics_above():
    """Each copy of what is below one would cost as much as the cell is long."""
    assert not is_for_ranks("%%time\n" * 150_000 + "%%px\nx = 1")


def test_functions_are_not_saved_when_grading():
    """It takes time, for text that a student chooses, and nothing depends on it."""
    saving = [cell for cell in build.build("03_naive_forward").cells if "saving.save(" in cell.source]
    assert [build.only_shows(cell) for cell in saving] == [True]


@pytest.mark.slow
def test_pipes_links_and_folders_in_a_notebooks_place_cost_only_themselves(one, tmp_path, capfd):
    elsewhere = tmp_path / "elsewhere.ipynb"
    nbformat.write(one.solved(PART), elsewhere)
    makers = {"fifo": os.mkfifo, "folder": os.mkdir, "link": lambda p: p.symlink_to(elsewhere), "loop": lambda p: p.symlink_to(p.name)}
    for student, make in makers.items():
        path = one.home / "submitted" / student / PART / f"{PART}.ipynb"
        path.parent.mkdir(parents=True)
        make(path)
        os.mkfifo(path.parent / "timestamp.txt")
    one.hand_in(PART, "z-honest", one.solved(PART))
    assert one.grade(PART) == {"z-honest": 10} and one.failed == sorted(makers)
    said = "".join(capfd.readouterr())
    assert all(f"{name}: NOT graded: {PART}.ipynb is not a regular file, but a link or something else" in said for name in makers), said
    assert one.grade(PART) == {"z-honest": 10} and one.failed == sorted(makers), "they are tried again, and said again"


def test_whatever_a_student_tries_out_costs_no_points(one):
    """An experiment stands before the hidden tests, and its numbers are there to be changed."""
    plays = {
        "takes-the-group": "comm = ranks = first = np = None",
        "never-ends": "while True: pass",
        "leaves-a-message": "comm.Isend(np.ones(5), 1)",
    }
    for student, code in plays.items():
        notebook = one.solved(PART)
        next(cell for cell in notebook.cells if cell.id == "try-it").source = f"%%px\n{code}"
        one.hand_in(PART, student, notebook)
    assert one.grade(PART) == dict.fromkeys(plays, 10) and one.failed == []


def test_a_helper_in_an_experiment_is_named(one):
    notebook = one.solved(PART, "%%px\ndef first(x):\n    return helper(x)")
    next(cell for cell in notebook.cells if cell.id == "try-it").source = "%%px\ndef helper(x):\n    return 2 * x"
    one.hand_in(PART, "ada", notebook)
    assert one.grade(PART) == {"ada": 0}
    assert "grading does not run experiments" in one.graded(PART, "ada")["test-first"].outputs[0].evalue


def test_a_function_without_an_end_does_not_take_all_the_time_in_each_test(monkeypatch):
    monkeypatch.setenv(time_limits.UNATTENDED, "30")
    monkeypatch.setattr(time_limits, "_ran_out", False)
    time_limits.record_timeouts({0: {"error": None}, 1: {"error": {"name": "CheckFailed"}}})
    assert time_limits.limit(call=True) == 30
    time_limits.record_timeouts({0: {"error": None}, 1: {"error": {"name": "TimeLimit"}}})
    assert time_limits.limit(call=True) == 10 and time_limits.limit() == 30, "cells keep their time"


def test_a_hand_in_that_asks_for_a_trace_gets_none_and_keeps_its_points(one, tmp_path):
    """A trace is for the one who runs the cell: grading takes none, and writes no file where an answer names one."""
    notebook = one.solved(PART)
    exercise = next(cell for cell in notebook.cells if cell.id == "first")
    exercise.source = exercise.source.replace("%%px", f"%%px --trace {tmp_path / 'trace.json'}", 1)
    book = one.home / "gradebook.db"
    notebook.cells.append(nbformat.v4.new_code_cell(f"%%px --trace {book}\nx = 1"))
    one.hand_in(PART, "ada", notebook)
    assert one.grade(PART) == {"ada": 10} and one.failed == []
    assert not (tmp_path / "trace.json").exists() and book.read_bytes().startswith(b"SQLite")
    assert "image/png" not in str([cell.get("outputs") for cell in one.graded(PART, "ada").values()])
