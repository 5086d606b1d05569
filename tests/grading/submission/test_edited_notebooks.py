"""Right notebooks that students have edited: they keep their points, or a person is told why not."""

import functools
import json

import edited_notebooks
import nbformat
import pytest
from pretended_ranks import SimulatedRanks, notebook_shell, run_quietly
from test_assembly import SOURCE

from grading.authoring import build
from grading.submission import flags
from grading.submission import notes as notes_module
from grading.submission.assembly import UnreadableSubmission, assemble, read_cells
from grading.submission.execute import on_ranks
from grading.submission.grade import Task, grade
from grading.submission.sandbox import sandbox_variables

SEED = 1
MUST_BE_TOLD = {"made_a_text", "on_one_rank", "deleted", "older_version_below"}


@functools.cache
def of_all_kinds(count):
    """Hand-ins in which each kind of edit and each format comes up, and the edits of each."""
    found = list(edited_notebooks.hand_ins(SOURCE, count, SEED))
    assert {kind for _, _, done in found for kind in done} == set(edited_notebooks.EDITS)
    return found


def answers_of(notebook):
    """Run the students' cells on pretended ranks as grading does; return what the exercises' functions then give on each rank."""
    ranks = SimulatedRanks()
    with notebook_shell(ranks) as shell:
        for cell in notebook.cells:
            if cell.id == "set-up":
                for names in ranks.names:
                    names["comm"] = type("Communicator", (), {"Get_rank": lambda self: 0, "Barrier": lambda self: None})()
            if notes_module.runs(cell):
                run_quietly(shell, on_ranks(cell.source, whole=build.kind_of(cell) == "exercise"))
    return [_value(names, name) for names in ranks.names for name in ("first", "second")]


def _value(names, function):
    try:
        return names[function](1)
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("number", range(60))
def test_an_edited_notebook_gives_the_same_answers_or_a_note(number):
    name, file, done = of_all_kinds(60)[number]
    try:
        notebook = assemble(SOURCE, read_cells(file))
    except UnreadableSubmission:
        assert {"deleted", "made_a_text"} & set(done), name
        return
    told = edited_notebooks.notes(flags.find_flags(notebook, SOURCE))
    assert answers_of(notebook) == [2, 3, 2, 3] or told, name


@pytest.mark.slow
@pytest.mark.parametrize("number", range(15))
def test_an_edited_notebook_keeps_its_points_or_a_person_is_told(number):
    name, file, done = of_all_kinds(15)[number]
    variables = {"COURSE_UNATTENDED": "120", **sandbox_variables()}
    result = grade(Task(nbformat.writes(SOURCE), file, variables=variables))
    if result.problem:
        assert {"deleted", "made_a_text"} & set(done), name
        return
    points = sum(result.points.values())
    told = edited_notebooks.notes(json.loads(result.notebook)["metadata"]["course"]["flags"])
    assert points == 3 or told, name
    assert points == 3 or MUST_BE_TOLD & set(done) or "helper_in_an_experiment" in done, name
