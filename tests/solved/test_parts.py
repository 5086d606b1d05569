"""Solved notebooks run from top to bottom, as a lecturer would run them."""

import tempfile

import nbformat
import pytest
from nbclient import NotebookClient

from grading import reference
from grading.handin.execute import sockets
from grading.paths import parts
from lectures import talk

# What trains or measures for long, and what stands in its place where it only has to run.
SHORTER = {
    "09_zero3_adam": {"steps=40": "steps=4"},
    "10_unified_training": {
        "return run.total if run": "return 12 if run",
        "train(mp_size=1, dp_size=2)\n": "",
        "((2, 1), (2, 2))": "((2, 2),)",
    },
    "11_parallel_matmul": {"standard_normal((2, 1024, 1024))": "standard_normal((2, 256, 256))"},
    "12_mlp": {"epochs=5": "epochs=1"},
    "14_my_ddp": {"Linear(1024, 1024) for _ in range(4)": "Linear(1024, 1024) for _ in range(2)"},
    "15_distributed_optimizer": {"range(4)": "range(1)", "x, y in loader:": "x, y in list(loader)[:4]:"},
    "17_zero_schedule": {"num_layers=48": "num_layers=8", "in (1, 4, 16, 64)}\nplots.bars(\n": "in (16, 64)}\nplots.bars(\n"},
    "24_experts": {"range(120)": "range(4)"},
    "25_real_pipeline": {"4 if os.cpu_count() > 3 else 2": "2, depth=2, count=4, tries=1", "[1, 2, 4, 8, 16]": "[1, 2]"},
    "26_fsdp": {"partial(layers, sizes), everyone": "partial(layers, Sizes(64, 32, 4, 2, 32)), everyone"},
    "27_checkpoint": {"until=60": "until=24", '"killed", 37': '"killed", 13', "range(60)": "range(24)"},
    "28_gpt": {
        "def train(**sizes):": "def train(width=32, **sizes):\n    sizes['width'] = width\n",
        "steps=80": "steps=3",
        "steps=8,": "steps=3,",
        '"count": 120': '"count": 4',
        '"count": 240': '"count": 4',
        "in grids[1:]": "in grids[-1:]",
    },
    "29_plan": {"large, place = replace(GPT_175B, batch=1536), Cluster(A100, 1024)": "large = drawn"},
}


def run(part, folder, *, shorter=False):
    """The executed notebook's code cells, by id."""
    notebook, where = talk.solved(part), {"metadata": {"path": str(folder)}}
    for long, short in SHORTER[part].items() if shorter else ():
        assert sum(long in cell.source for cell in notebook.cells) == 1
        for cell in notebook.cells:
            cell.source = cell.source.replace(long, short)
    with tempfile.TemporaryDirectory() as place:
        settings = sockets(place)
        NotebookClient(notebook, timeout=300, allow_errors=True, kernel_name="python3", resources=where, config=settings).execute()
    nbformat.validate(notebook)
    return {c.id: c for c in notebook.cells if c.cell_type == "code"}


def errors(cells):
    """What no cell that is meant to fail says."""
    meant = {name for name, cell in cells.items() if "raises-exception" in cell.metadata.get("tags", [])}
    found = {name: o.evalue for name, c in cells.items() for o in c.outputs if o.output_type == "error"}
    assert meant <= set(found), "a mistake on purpose is none"
    return {name: said for name, said in found.items() if name not in meant}


def printed(cell):
    return "".join(o.text for o in cell.outputs if o.output_type == "stream")


@pytest.fixture
def solved(tmp_path):
    """A student's folder with all functions."""
    reference.write(tmp_path)
    return tmp_path


WATCHED = ("10_unified_training", "28_gpt")  # with tests of their own below


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.slow] * (part in SHORTER)) for part in parts() if part not in WATCHED]
)
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
    assert figures == ["draw-the-grid", "draw-the-loss", "draw-the-losses", "draw-the-bytes", "draw-the-memory"]


@pytest.mark.slow
def test_a_gpt_says_which_notebook_is_not_finished(solved):
    path = solved / "transformer_impl.py"
    path.write_text(path.read_text().replace("def copy_to_group", "def copy_to_gruop"))
    cells = run("28_gpt", solved)
    assert "Not there yet: copy_to_group. Finish 21_tensor_parallel" in printed(cells["look-for-the-functions"])
    said = errors(cells)["train-and-write"]
    assert "copy_to_group is missing. Finish the notebook 21_tensor_parallel" in said and "copy_to_gruop: a misspelling?" in said
