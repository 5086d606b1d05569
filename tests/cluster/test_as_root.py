"""Behaviour that differs for root; .ci/run runs these tests as well."""

import os
from pathlib import Path

import pytest

from course_lib.cluster import Ranks
from course_lib.sandbox import bubblewrap
from course_lib.tools import lab

pytestmark = pytest.mark.root


def test_jupyterlab_is_allowed_to_run_as_root(tmp_path):
    assert os.geteuid() == 0, "run this as root"
    assert "--allow-root" in lab.command(tmp_path, [])


def test_ranks_of_root_see_none_of_its_files_in_the_sandbox(monkeypatch):
    assert bubblewrap.problem() is None
    monkeypatch.setenv(bubblewrap.ISOLATION_VARIABLE, bubblewrap.SANDBOXED)
    secret = Path.home() / f".course-test-{os.getpid()}"
    secret.write_text("for root alone")
    ranks = Ranks(2)
    try:
        assert ranks.call(is_there, {"path": str(secret)}) == [False, False]
        assert ranks.call(is_there, {"path": ranks.call(where)[0]}) == [True, True], "the check sees nothing at all"
    finally:
        ranks.stop()
        secret.unlink()


def is_there(path):
    import os

    return os.path.exists(path)


def where():
    import os

    return os.__file__
