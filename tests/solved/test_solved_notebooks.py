"""Solved notebooks run from top to bottom, as a lecturer would run them."""

import pytest
import slurm_cluster
from whole_notebooks import SHORTER, errors, on_ranks, printed, run

from grading.authoring import reference
from grading.paths import parts


@pytest.fixture
def solved(tmp_path):
    """A student's folder with all functions."""
    reference.write(tmp_path)
    return tmp_path


WATCHED = ("10_unified_training", "28_gpt")  # with tests of their own below


def _marks(part):
    """Marks of a notebook: one that trains for long runs in `make test-all` only.

    One that `make test-all` runs on two machines, and no shorter, runs here in `make test` only.
    """
    twice = on_ranks(part) and not slurm_cluster.missing()
    return pytest.mark.slow if part in SHORTER else pytest.mark.brief if twice else ()


@pytest.mark.parametrize("part", [pytest.param(part, marks=_marks(part)) for part in parts() if part not in WATCHED])
def test_a_solved_notebook_runs(part, solved):
    assert errors(run(part, solved)) == {}


@pytest.mark.brief
@pytest.mark.parametrize("part", [part for part in SHORTER if part not in WATCHED[:1]])
def test_a_solved_notebook_that_trains_for_long_runs(part, solved):
    assert errors(run(part, solved, shorter=True)) == {}


@pytest.mark.parametrize("shorter", [pytest.param(True, marks=pytest.mark.brief), pytest.param(False, marks=pytest.mark.slow)])
def test_unified_training_runs_every_configuration(solved, shorter):
    cells = run("10_unified_training", solved, shorter=shorter)
    assert errors(cells) == {}
    assert "All eleven functions are there" in printed(cells["look-for-the-functions"])
    lines = printed(cells["compare-with-one-rank"]).splitlines()
    names = ["mp 1, dp 1", "naive mp 2, dp 2", "Megatron mp 2, dp 2", "Megatron mp 4, dp 2"]
    if not shorter:
        names[1:1] = ["mp 1, dp 2", "naive mp 2, dp 1", "Megatron mp 2, dp 1"]
    assert [line.split(" accuracy")[0].strip() for line in lines] == names
    for line in lines:
        assert shorter or float(line.split("accuracy ")[1].split()[0]) >= 0.90
        assert float(line.split()[-1]) <= 1e-5
    figures = [n for n, c in cells.items() if any("image/png" in o.get("data", {}) for o in c.outputs)]
    assert figures == ["draw-the-grid", "draw-the-loss", "draw-the-losses", "draw-the-traffic", "draw-the-memory"]


@pytest.mark.slow
def test_unified_training_says_which_notebook_is_not_finished(solved):
    path = solved / "func_impl.py"
    path.write_text(path.read_text().replace("def collect_weight_grad", "def collect_weight_gard"))
    cells = run("10_unified_training", solved)
    assert "Not there yet: collect_weight_grad. Finish 07_weight_grad" in printed(cells["look-for-the-functions"])
    said = errors(cells)["train"]
    assert "collect_weight_grad is missing. Finish the notebook 07_weight_grad" in said
    assert "collect_weight_gard: a misspelling?" in said


@pytest.mark.slow
def test_a_gpt_trains_on_every_grid_and_writes(solved):
    cells = run("28_gpt", solved)
    assert errors(cells) == {}
    assert "All of them are there" in printed(cells["look-for-the-functions"])
    before, after = printed(cells["train-and-write"]).split("\ndef ")[1:]
    strange = [sum(not letter.isascii() for letter in text) / len(text) for text in (before, after)]
    assert strange[0] > 0.3 and strange[1] < 0.05, "before it has learnt anything, it writes any bytes"
    apart = next(o for o in cells["draw-the-losses"].outputs if "image/png" in o.get("data", {}))["data"]["text/plain"]
    assert float(apart.split("at most ")[1].split()[0]) < 1e-4
    figures = [n for n, c in cells.items() if any("image/png" in o.get("data", {}) for o in c.outputs)]
    drawn = ["draw-the-grid", "draw-the-loss", "draw-the-losses", "draw-the-bytes", "change-the-sizes"]
    assert figures == [*drawn, "a-step-on-the-first-grid", "draw-the-memory"]


@pytest.mark.slow
def test_a_gpt_says_which_notebook_is_not_finished(solved):
    path = solved / "transformer_impl.py"
    path.write_text(path.read_text().replace("def copy_to_group", "def copy_to_gruop"))
    cells = run("28_gpt", solved)
    assert "Not there yet: copy_to_group. Finish 21_tensor_parallel" in printed(cells["look-for-the-functions"])
    found = errors(cells)
    said = found.pop("train-and-write")
    assert "copy_to_group is missing. Finish the notebook 21_tensor_parallel" in said and "copy_to_gruop: a misspelling?" in said
    after = ["draw-the-loss", "train-on-other-grids", "draw-the-losses", "draw-the-bytes", "change-the-sizes"]
    after += ["a-step-on-the-first-grid", "draw-the-memory"]
    assert list(found) == after and all(text.startswith("No training has finished yet") for text in found.values())


@pytest.mark.slow
def test_a_gpt_says_what_has_not_passed_its_check(solved):
    path = solved / "transformer_impl.py"
    path.write_text(f"{path.read_text()}\n\nNOT_PASSED = ['copy_to_group']\n".replace("def copy_to_gruop", "def copy_to_group"))
    cells = run("28_gpt", solved, shorter=True)
    assert "Checks not passed yet: copy_to_group. See 21_tensor_parallel." in printed(cells["look-for-the-functions"])
    assert errors(cells) == {}
