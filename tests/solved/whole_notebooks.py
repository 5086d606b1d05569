"""Solved notebooks, run from top to bottom."""

import re
import tempfile

import nbformat
from nbclient import NotebookClient

from grading.paths import SOLUTIONS
from grading.submission.execute import ipc_kernel_config
from lectures import talk

# What trains or measures for long, and what stands in its place where it only has to run.
SHORTER = {
    "09_zero3_adam": {"512, 10), 40": "512, 10), 4"},
    "10_unified_training": {
        "return run.total if run": "return 12 if run",
        "train(mp_size=1, dp_size=2)\n": "",
        "((2, 1), (2, 2))": "((2, 2),)",
    },
    "11_parallel_matmul": {"m, k, n = 1024, 1024, 1024": "m, k, n = 256, 256, 256"},
    "12_mlp": {"epochs=5": "epochs=1"},
    "14_my_ddp": {"1024, 16, 4.0": "256, 16, 0.5"},
    "15_distributed_optimizer": {"64, 4, 0.01": "64, 1, 0.01", "x, y in loader:": "x, y in list(loader)[:4]:"},
    "17_zero_schedule": {"num_layers=48": "num_layers=8", "world_sizes = (1, 4, 16, 64)": "world_sizes = (16, 64)"},
    "24_experts": {"factor = 120,": "factor = 4,"},
    "25_real_pipeline": {
        "depth, count = 8, 8": "depth, count = 2, 4",
        "4 if os.cpu_count() > 3 else 2, ": "2, tries=1, ",
        "[1, 2, 4, 8, 16]": "[1, 2]",
    },
    "26_fsdp": {"Sizes(vocabulary=64, width=128, heads=4, depth=8, length=32)": "Sizes(64, 32, 4, 2, 32)"},
    "27_checkpoint": {"killed_at, survivors = 60, 10, 37, 3": "killed_at, survivors = 24, 10, 13, 3"},
    "28_gpt": {
        "def train(**sizes):": "def train(width=32, **sizes):\n    sizes['width'] = width\n",
        "steps=80": "steps=3",
        "steps, results = 5": "steps, results = 3",
        '"count": 120': '"count": 4',
        '"count": 240': '"count": 4',
        "in grids[1:] + mixtures": "in grids[-2:]",
        '"width 320": dict(width=320)': '"width 64": dict(width=64)',
    },
    "36_muon": {"steps=80": "steps=2"},
    "31_sixteen_bits": {"steps=60)": "steps=2)", "steps=60, share": "steps=2, share"},
    "29_plan": {"large, place = replace(GPT_175B, batch=1536), Cluster(A100_DEVICE, 1024)": "large = drawn"},
}


def on_ranks(part):
    """Tell whether a part starts ranks."""
    return "ranks: 1\n" not in (SOLUTIONS / part / f"{part}.py").read_text()


def run(part, folder, *, shorter=False, slurm=""):
    """The executed notebook's code cells, by id.

    Parameters
    ----------
    part : str
    folder : Path
        Where it runs.
    shorter : bool
        Whether what trains or measures for long only has to run.
    slurm : str
        Options of a job in which its ranks are to be.
    """
    notebook, where = talk.solved(part), {"metadata": {"path": str(folder)}}
    for long, short in SHORTER.get(part, {}).items() if shorter else ():
        assert sum(long in cell.source for cell in notebook.cells) == 1
        for cell in notebook.cells:
            cell.source = cell.source.replace(long, short)
    if slurm:
        for cell in notebook.cells:
            cell.source = re.sub(r"(cluster\.start\(\d)\)", rf"\1, slurm={slurm!r})\nprint(ranks)", cell.source)
    with tempfile.TemporaryDirectory() as place:
        settings = ipc_kernel_config(place)
        NotebookClient(notebook, timeout=300, allow_errors=True, kernel_name="python3", resources=where, config=settings).execute()
    nbformat.validate(notebook)
    return {c.id: c for c in notebook.cells if c.cell_type == "code"}


def errors(cells):
    """The errors of cells that are not meant to fail, by cell."""
    meant = {name for name, cell in cells.items() if "raises-exception" in cell.metadata.get("tags", [])}
    found = {name: o.evalue for name, c in cells.items() for o in c.outputs if o.output_type == "error"}
    assert meant <= set(found), "a mistake on purpose raises no error"
    return {name: said for name, said in found.items() if name not in meant}


def printed(cell):
    return "".join(o.text for o in cell.outputs if o.output_type == "stream")
