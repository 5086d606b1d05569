"""A training run of which ranks are killed goes on from its last checkpoint."""

import json

import pytest

from benchmarks.training import checkpointing
from grading.authoring import reference


@pytest.mark.slow
def test_a_run_goes_on_after_kills(tmp_path):
    reference.write(tmp_path / "functions")
    (tmp_path / "run").mkdir()
    done, apart = checkpointing.killed(str(tmp_path / "functions"), str(tmp_path / "run"), seed=1, kills=3)
    assert done == 3 and apart < 1e-6
    index = json.loads((tmp_path / "run" / "killed" / "index.json").read_text())
    assert index["step"] == checkpointing.STEPS
