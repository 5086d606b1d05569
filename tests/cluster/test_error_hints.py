"""Hints that a message adds: each is for one kind of mistake, and stays away from others."""

import numpy as np
import pytest

from course_lib import plots, students
from course_lib.autograd import SGD, Linear
from course_lib.cluster.source import misplaced_names
from course_lib.engine.requests import tracebacks
from course_lib.gpt.settings import Settings, SettingsError
from course_lib.sim.core.model import Pending


def said(function):
    with pytest.raises(Exception) as caught:
        function()
    return tracebacks.describe(caught.value)["message"]


def test_none_before_a_bracket_and_none_elsewhere():
    best = None
    assert "What comes before the bracket is None" in said(lambda: best[1]) and "collective" not in said(lambda: best[1])
    assert "A collective returns nothing" in said(lambda: best + 1)


def test_a_communication_that_was_not_awaited():
    pending = object.__new__(Pending)
    assert "write `await` before it" in said(lambda: 0 + pending)


def test_a_gradient_of_another_parameter():
    p = Linear(3, 4).parameters()[0]
    p.grad = np.ones((4, 2))
    assert "uses the p of the loop's last iteration" in said(SGD([p], 0.1).step)
    p.grad = np.ones(12)
    assert "is a reshape to the parameter's shape missing?" in said(SGD([p], 0.1).step)


def test_a_figure_of_nothing_names_the_ranks():
    before = [np.ones(2)] * 3
    with pytest.raises(ValueError, match=r"after is None on rank 1\. A collective returns nothing"):
        plots.exchange(before, [np.ones(2), None, np.ones(2)], "A title")


def test_a_missing_exercise_is_no_misspelt_name():
    text = "name 'route' is not defined"
    assert misplaced_names.hint(text, [0, 1], 2, ["Route"]) == ". route is an exercise: run its cell first; after a restart, too."
    assert misplaced_names.hint(text.replace("route", "ruote"), [0, 1], 2, ["route"]) == ". Is it route?"


def test_a_run_that_was_left_out_is_named():
    students.have_run({"mp 1, dp 1": {}}, "mp 1, dp 1")
    with pytest.raises(students.NoRun, match="No run of mp 1, dp 1 has finished yet"):
        students.have_run({"mp 2, dp 1": {}}, "mp 1, dp 1")


def test_a_grid_of_more_ranks_than_are_up_is_refused():
    assert Settings(dp=2, pp=2, tp=2).on(8).mesh.size == 8
    with pytest.raises(SettingsError, match="dp 2 × pp 2 × tp 4 is a grid of 16 ranks, but only 8 are running"):
        Settings(dp=2, pp=2, tp=4).on(8)
