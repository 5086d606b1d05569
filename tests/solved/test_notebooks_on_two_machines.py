"""The same notebooks with ranks on two machines, under Slurm: rings of messages, starts, checkpoints and killed ranks."""

import re

import pytest
import slurm_cluster
from whole_notebooks import errors, on_ranks, run

from grading.authoring import reference
from grading.paths import parts

pytestmark = slurm_cluster.NEEDED


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in parts() if on_ranks(part)])
def test_a_notebook_runs_on_two_machines(slurm, tmp_path, part):
    reference.write(tmp_path)
    cells = run(part, tmp_path, shorter=True, slurm="--nodes=2 --time=20 --overcommit")
    assert errors(cells) == {}
    said = "".join(str(cell.outputs) for cell in cells.values())
    assert re.search(r"[48] ranks on 2 machines", said)
