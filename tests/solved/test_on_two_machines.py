"""The same notebooks with ranks on two machines, under Slurm: rings of messages, starts, checkpoints and killed ranks."""

import re
import tempfile

import pytest
import slurm_here
from nbclient import NotebookClient

from grading import build, reference
from grading.handin.execute import sockets
from grading.paths import SOLUTIONS, parts

pytestmark = slurm_here.NEEDED

OPTIONS = "--nodes=2 --time=20 --overcommit"


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in parts() if "ranks: 1\n" not in (SOLUTIONS / part / f"{part}.py").read_text()])
def test_a_notebook_runs_on_two_machines(slurm, tmp_path, part):
    reference.write(tmp_path)
    notebook = build.build(part)
    for cell in notebook.cells:
        cell.source = re.sub(r"(cluster\.start\(\d)\)", rf"\1, slurm={OPTIONS!r})\nprint(ranks)", cell.source)
        cell.source = re.sub(r"steps=\d\d+", "steps=8", cell.source)  # eight ranks that train share what cores there are here
    where = {"metadata": {"path": str(tmp_path)}}
    with tempfile.TemporaryDirectory() as place:
        settings = sockets(place)
        NotebookClient(notebook, timeout=300, allow_errors=True, kernel_name="python3", resources=where, config=settings).execute()
    outputs = [(cell, output) for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    meant = [cell.id for cell in notebook.cells if "raises-exception" in cell.metadata.get("tags", [])]
    failed = [(cell.id, output.evalue) for cell, output in outputs if output.output_type == "error"]
    assert [name for name, _ in failed] == meant, failed
    assert any(re.search(r"[48] ranks on 2 machines", str(output)) for _, output in outputs)
