"""Cells of a hand-in: which of them run, in which order, and what a person is told of the others."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell

from grading.authoring import build
from grading.submission import flags
from grading.submission.assembly import UnreadableSubmission, assemble, read_cells
from grading.submission.grade import Task, grade
from grading.submission.sandbox import sandbox_variables

PART = """# ---
# jupyter:
#   course:
#     ranks: 2
# ---

# %% Start tags=["given"]
from course_lib import cluster
ranks = cluster.start(2)

# %% Set up tags=["given"]
# %%px
from course_lib.collectives import Communicator
comm = Communicator()

# %% An example
# %%px
print(comm.Get_rank())

# %% First tags=["exercise"]
# %%px
def first(x):
    ### BEGIN SOLUTION
    return x + 1
    ### END SOLUTION

# %% Second tags=["exercise"]
# %%px
def second(x):
    ### BEGIN SOLUTION
    return first(x) + 1
    ### END SOLUTION

# %% Try it tags=["experiment"]
# %%px
print(second(1))

# %% Test first tags=["test"] points=1
### BEGIN HIDDEN TESTS
assert ranks.call("first", dict(x=1)) == [2, 2]
### END HIDDEN TESTS

# %% Test second tags=["test"] points=2
### BEGIN HIDDEN TESTS
assert ranks.call("second", dict(x=1)) == [3, 3]
### END HIDDEN TESTS

# %% Stop tags=["given"]
ranks.stop()
"""
SOURCE = build.from_text(PART, "97_cells")


def solved():
    return nbformat.from_dict(SOURCE)


def place(notebook, name):
    return next(i for i, cell in enumerate(notebook.cells) if cell.id == name)


def with_cells(**added):
    """The solved notebook with cells of the student's own, each below the cell of its name."""
    notebook = solved()
    for name, source in added.items():
        notebook.cells.insert(place(notebook, name.replace("_", "-")) + 1, new_code_cell(source))
    return notebook


def assembled(notebook):
    return assemble(SOURCE, read_cells(json.dumps(notebook).encode()))


def sources(notebook):
    """The sources of the assembled cells, in the order in which they run."""
    return [cell.source for cell in assembled(notebook).cells if cell.cell_type == "code"]


def flagged(notebook):
    """The flags: (cell, why, text)."""
    return [(flag.cell, flag.why, flag.text) for flag in flags.find_flags(assembled(notebook), SOURCE)]


def points(notebook):
    options = {"COURSE_UNATTENDED": "60", **sandbox_variables()}
    result = grade(Task(nbformat.writes(SOURCE), nbformat.writes(notebook).encode(), variables=options))
    assert result.problem is None
    return sum(result.points.values()), json.loads(result.notebook)["metadata"]["course"]["flags"]


def attacks():
    """Hand-ins that want to run a cell once a test has begun."""
    for below in ("test_first", "test_second", "stop"):
        yield with_cells(**{below: "%%px\nattack = 1\nprint(attack)"})
    moved = with_cells(first="%%px\nattack = 1")
    test = moved.cells.pop(place(moved, "test-first"))
    moved.cells.insert(0, test)
    yield moved
    between = solved()
    exercise = between.cells.pop(place(between, "second"))
    between.cells.insert(place(between, "test-first") + 1, exercise)
    between.cells.insert(place(between, "second") + 1, new_code_cell("%%px\nattack = 1"))
    yield between
    copied = solved()
    for name in ("test-first", "an-example", "first", "stop"):
        copied.cells.insert(place(copied, "test-first") + 1, nbformat.from_dict(copied.cells[place(copied, name)]))
        copied.cells[place(copied, "test-first") + 1].source = "%%px\nattack = 1"
    yield copied
    unmarked = with_cells(test_first="%%px\nattack = 1")
    for i, cell in enumerate(unmarked.cells):
        cell.metadata, cell.id = nbformat.from_dict({}), f"cell-{i}"
    yield unmarked


@pytest.mark.filterwarnings("ignore::nbformat.warnings.DuplicateCellId")
@pytest.mark.parametrize("notebook", attacks())
def test_no_cell_of_a_hand_in_runs_once_a_hidden_test_has_begun(notebook):
    ready = assembled(notebook)
    first = place(ready, "test-first")
    later = [cell for cell in ready.cells[first:] if cell.cell_type == "code"]
    allowed = [cell.id for cell in later if "course-not-run" not in cell.metadata.get("tags", [])]
    assert allowed == ["test-first", "test-second", "stop"]
    assert [cell.source for cell in later[:3]] == [SOURCE.cells[place(SOURCE, name)].source for name in allowed]


@pytest.mark.slow
def test_a_function_that_is_redefined_between_the_tests_gains_nothing():
    """Answers that pass one test only, each replaced below it by what passes the other one only."""
    notebook = with_cells(test_first="%%px\ndef first(x):\n    return 0\ndef second(x):\n    return 3")
    notebook.cells[place(notebook, "second")].source = "%%px\ndef second(x):\n    return 0"
    earned, said = points(notebook)
    assert earned == 2, "all of it runs before the first test"
    assert "defines first again, after first: the last one counts" in str(said)
    notebook.cells[place(notebook, "test-first") + 1].source += "\nprint(first(1), second(1))\nsecond.done = True\ncomm.Barrier()"
    assert points(notebook)[0] == 1, "or none of it"


def test_below_the_tests_only_definitions_count():
    helper, tidied = "%%px\ndef helper(x):\n    return x", "%%px\ndel first\ncomm = None"
    ran = sources(with_cells(stop=helper, test_second=tidied, test_first="print('not for the ranks')"))
    tests = ran.index(SOURCE.cells[place(SOURCE, "test-first")].source)
    assert ran[tests - 2 : tests] == ["print('not for the ranks')", helper] and ran[-1] == tidied
    assert [(why, text) for _, why, text in flagged(with_cells(stop=helper, test_second=tidied))] == [
        ("did not run: it is below the hidden tests, and does more than define functions and variables", "%%px del first comm = None")
    ]


def test_a_cell_above_the_set_up_runs_below_it():
    helper = "%%px\nsize = comm.Get_size()"
    notebook = solved()
    notebook.cells.insert(0, new_code_cell(helper))
    assert sources(notebook)[2] == helper and flagged(notebook) == []


def test_a_helper_runs_before_an_exercise_that_is_below_it():
    """Moved exercises run in the part's order; what one of them needs while it is defined must be there."""
    notebook = solved()
    second = notebook.cells.pop(place(notebook, "second"))
    notebook.cells.insert(place(notebook, "first"), second)
    helper = "%%px\ndef decorator(f):\n    return f"
    notebook.cells.insert(place(notebook, "first"), new_code_cell(helper))
    ran = sources(notebook)
    assert ran.index(helper) < ran.index(notebook.cells[place(notebook, "first")].source) < ran.index(second.source)


def not_code(new_cell, keep):
    """Make a text of the first exercise, with or without its ids."""
    notebook = solved()
    number = place(notebook, "first")
    cell = notebook.cells[number]
    notebook.cells[number] = new_cell(cell.source, **({"id": "first", "metadata": cell.metadata} if keep else {}))
    return notebook


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(("new_cell", "kind"), [(new_markdown_cell, "a Markdown cell"), (new_raw_cell, "a raw cell")])
def test_an_exercise_that_is_no_code_is_flagged_with_what_it_holds(new_cell, kind, keep):
    notebook = not_code(new_cell, keep)
    found = flagged(notebook)
    why = f"did not run: it is {kind} in the submission, not code; in JupyterLab, Y makes it code"
    assert [(cell, said) for cell, said, _ in found] == [("first", why)] and "def first(x):" in found[0][2]
    cell = assembled(notebook).cells[place(SOURCE, "first")]
    assert all(line.startswith("#") for line in cell.source.splitlines()) and "#     return x + 1" in cell.source
    notebook.cells.pop(place(notebook, "second"))
    with pytest.raises(UnreadableSubmission, match=r"defines first, second \(a text cell has it"):
        assembled(notebook)
    notebook.cells.insert(4, new_code_cell(SOURCE.cells[place(SOURCE, "first")].source))
    assert flagged(notebook)[-1] == ("second", "is missing from the submission", "")


@pytest.mark.slow
def test_a_person_and_the_student_are_told_of_an_exercise_that_is_no_code():
    options = {"COURSE_UNATTENDED": "60", **sandbox_variables()}
    handed_in = nbformat.writes(not_code(new_raw_cell, True)).encode()
    result = grade(Task(nbformat.writes(SOURCE), handed_in, variables=options))
    assert result.points == {"test-first": 0, "test-second": 0} and result.flags == 1
    cells = {cell["id"]: cell for cell in json.loads(result.notebook)["cells"]}
    assert "Its cell did not run: it is a raw cell in the submission" in cells["test-first"]["outputs"][0]["evalue"]


def test_of_two_definitions_the_last_one_counts_and_a_person_is_told():
    mine = "%%px\ndef first(x):\n    return 1 + x"
    for below, last in (("an_example", SOURCE.cells[place(SOURCE, "first")].source), ("second", mine)):
        notebook = with_cells(**{below: mine})
        assert [source for source in sources(notebook) if "def first" in source][-1] == last
        assert ["defines first again" in why for _, why, _ in flagged(notebook)] == [True]


def test_an_exercise_that_is_not_begun_does_not_replace_an_answer_above_it():
    notebook = with_cells(an_example="%%px\ndef first(x):\n    return 1 + x")
    notebook.cells[place(notebook, "first")].source = "%%px\ndef first(x):\n    raise NotImplementedError()"
    assert "NotImplementedError" not in str(sources(notebook)) and flagged(notebook) == []
    notebook.cells.pop(place(notebook, "first") - 1)
    assert "NotImplementedError" in str(sources(notebook)), "there is no other answer"


def test_an_answer_in_another_cell_is_found():
    answer = SOURCE.cells[place(SOURCE, "first")].source
    for name in ("try-it", "start", "test-first"):
        notebook = solved()
        notebook.cells.pop(place(notebook, "first"))
        notebook.cells[place(notebook, name)].source += f"\n{answer}"
        ready = assembled(notebook)
        assert "def first" in ready.cells[place(ready, "first")].source and flagged(notebook)[1:] == []
    merged = solved()
    merged.cells.pop(place(merged, "first"))
    second = merged.cells[place(merged, "second")]
    second.source = f"{answer}\n{second.source}"
    assert "# Another cell of the submission defines this exercise." in sources(merged) and flagged(merged) == []


def test_what_only_the_notebook_has_is_flagged():
    notebook = with_cells(
        an_example="%%px\nimport my_helpers",
        second="def local(): ranks.run('x = 1')",
        try_it="%%writefile written.py\nx = 1",
    )
    notebook.cells[place(notebook, "first")].source = "%%px --targets 0\nfrom written import x\ndef first(y):\n    return helper(y)"
    notebook.cells[place(notebook, "try-it")].source = "%%px\ndef helper(y):\n    return y"
    said = [why for _, why, _ in flagged(notebook)]
    assert said == [
        "imports my_helpers: not installed, and a hand-in is the notebook only",
        "runs on ranks 0 only: the others lack what it defines",
        "uses ranks.run: no cell of the notebook's kernel runs when graded",
        "defines helper, in an experiment: it did not run",
        "is not Python: a command of IPython or of the system",
    ]


def test_a_part_with_a_cell_of_the_students_below_a_test_is_refused():
    text = PART.replace("# %% Stop", "# %% Third\n# %%px\nx = 1\n\n# %% Stop")
    with pytest.raises(build.SourceError, match="'third' must be above all hidden tests, but is below 'test-first'"):
        build.from_text(text, "97_cells")
