"""What is different for root; .ci/run runs these besides."""

import os

import pytest

from course_lib.cluster import Ranks, sandbox
from course_lib.tools import lab

pytestmark = pytest.mark.root


def test_jupyterlab_is_allowed_to_run_as_root(tmp_path):
    assert os.geteuid() == 0, "run this as root"
    assert "--allow-root" in lab.command(tmp_path, [])


def test_ranks_run_in_the_sandbox_of_root(monkeypatch):
    assert sandbox.problem() is None
    monkeypatch.setenv(sandbox.SANDBOX, "1")
    ranks = Ranks(2)
    try:
        assert ranks.call(home_of_root) == [[], []]
    finally:
        ranks.stop()


def home_of_root():
    import os

    return os.listdir("/root")
