"""The same notebooks with ranks on two machines, under Slurm: rings of messages, starts, checkpoints and killed ranks."""

import re
import tempfile

import pytest
import slurm_here
from nbclient import NotebookClient

from grading import build, reference
from grading.handin.execute import sockets

pytestmark = slurm_here.NEEDED

OPTIONS = "--nodes=2 --time=20 --overcommit"


@pytest.mark.slow
@pytest.mark.parametrize("part", ["23_ring_attention", "26_fsdp", "27_checkpoint"])
def test_a_notebook_runs_on_two_machines(slurm, tmp_path, part):
    reference.write(tmp_path)
    notebook = build.build(part)
    for cell in notebook.cells:
        cell.source = re.sub(r"(cluster\.start\(\d)\)", rf"\1, slurm={OPTIONS!r})\nprint(ranks)", cell.source)
    where = {"metadata": {"path": str(tmp_path)}}
    with tempfile.TemporaryDirectory() as place:
        settings = sockets(place)
        NotebookClient(notebook, timeout=300, allow_errors=True, kernel_name="python3", resources=where, config=settings).execute()
    outputs = [(cell.id, output) for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [(name, output.evalue) for name, output in outputs if output.output_type == "error"] == []
    assert any("4 ranks on 2 machines" in str(output) for _, output in outputs)
