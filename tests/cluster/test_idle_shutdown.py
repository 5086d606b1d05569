"""Ranks rest when no cell runs for a while, and a user has only so many; the hub sets both, and here they are tried without one."""

import os
import signal
import subprocess
import sys
import time

import pytest
from processes import course_processes, wait_until

from course_lib import cluster
from course_lib.cluster import Ranks, RanksGone, idle_shutdown
from course_lib.cluster.processes import rank_quota


@pytest.mark.slow
def test_ranks_rest_and_come_back_at_the_next_cell(kernel, monkeypatch):
    before = course_processes()
    kernel.run(f"import os\nos.environ['{idle_shutdown.IDLE_VARIABLE}'] = '5'")
    said, error = kernel.run("from course_lib import cluster\nranks = cluster.start(2)")
    assert error is None
    kernel.run("%%px\ndef double(x):\n    return 2 * x")
    kernel.run("%%px\nnumbers = [5]\nnumbers.append(6)")
    _, error = kernel.run("import time; time.sleep(8)\nassert ranks.alive(), 'ranks rested while a cell ran'")
    assert error is None
    assert course_processes() - before
    assert wait_until(lambda: not course_processes() - before, 15), "ranks do not rest"
    said, error = kernel.run("%%px\nprint(double(4))")
    assert error is None
    assert "The ranks were stopped, as no cell had run for 5 s; new ones are starting." in said
    assert "Run again: cell [3]. Not run again, as they do more than define functions and variables: cell [4]." in said
    assert "8" in said.split("variables: cell [4].")[1]
    _, error = kernel.run("ranks.stop()")
    time.sleep(7)
    _, error = kernel.run("%%px\n1")
    assert "the ranks were stopped" in error, "ranks that were stopped stay so"


@pytest.mark.slow
def test_whoever_comes_back_and_begins_at_the_top_is_told_too(kernel):
    """The first cell starts ranks: those that rest wake, with what they had."""
    kernel.run(f"import os\nos.environ['{idle_shutdown.IDLE_VARIABLE}'] = '1'")
    kernel.run("from course_lib import cluster\nranks = cluster.start(2)")
    kernel.run("%%px\ndef double(x):\n    return 2 * x")
    kernel.run("%%px\ncount = 0")
    for _ in range(3):
        kernel.run("%%px\ncount += 1")
    assert wait_until(lambda: "stopped while idle" in kernel.run("print(ranks)")[0] or time.sleep(1.5), 30)
    kernel.run("ranks.interrupt()")
    said, error = kernel.run("ranks = cluster.start(2)")
    assert error is None and "The ranks were stopped" in said
    said, error = kernel.run("%%px\nprint(double(4), count)")
    assert error is None and "8 0" in said, "a count that went on from what there was is not the old one, and is not run again"


@pytest.mark.slow
def test_ranks_stay_where_nobody_asks_them_to_rest(kernel):
    kernel.run("from course_lib import cluster\nranks = cluster.start(2)")
    said, error = kernel.run("from course_lib.cluster import idle_shutdown\nprint(idle_shutdown._idle_timer.ranks)")
    assert (said, error) == ("None\n", None)


def test_a_user_has_only_so_many_ranks(monkeypatch):
    monkeypatch.setenv(rank_quota.QUOTA_VARIABLE, "3")
    monkeypatch.setattr(rank_quota, "ranks_elsewhere", dict)  # of other tests
    with pytest.raises(ValueError, match=r"at most 3 ranks, which this server allows each user; got 4. Use cluster.start\(3\), or fewer."):
        cluster.start(4)
    ranks = Ranks(3)  # in whatever way they are started
    try:
        with pytest.raises(ValueError, match="at most 3 ranks"):
            ranks.restart(n=4)
        assert ranks.alive(), "who asks for too many keeps what there is"
        ranks.restart(n=2)
        assert len(ranks.run("1")) == 2
    finally:
        ranks.stop()


@pytest.mark.slow
def test_the_ranks_of_all_notebooks_count(kernel, monkeypatch):
    folder, _ = kernel.run("from course_lib import cluster\nranks = cluster.start(2)\nprint(ranks._connection.processes.folder)")
    mine = Ranks(3)
    found = rank_quota.ranks_elsewhere()  # those of other tests, too
    assert found[folder.strip()] == 2
    assert str(mine._connection.processes.folder) not in found, "who restarts ranks is told that they are another notebook's"
    mine.stop()
    monkeypatch.setenv(rank_quota.QUOTA_VARIABLE, "3")
    monkeypatch.setattr(rank_quota, "ranks_elsewhere", lambda: {folder: 2})
    with pytest.raises(ValueError, match=r"at most 1 ranks; got 2. This server allows each user 3, and 2 of yours run in another"):
        Ranks(2)
    ranks = Ranks(1)
    ranks.stop()
    with pytest.raises(RanksGone):
        ranks.run("1")


def test_ranks_of_a_cluster_that_has_been_stopped_no_longer_count(tmp_path):
    """A rank whose launcher is gone takes a moment to end, and belongs to nobody's notebook."""
    rank = [sys.executable, "-c", "import time; time.sleep(60)", "course_lib.engine.processes.mpiexec", "mpiexec", "5"]
    start = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL).pid)"
    here, gone = tmp_path / "here", tmp_path / "gone"
    here.mkdir()
    pids = [int(subprocess.check_output([sys.executable, "-c", start, *rank, str(folder)])) for folder in (here, gone)]
    try:
        found = rank_quota.ranks_elsewhere()
        assert found[str(here)] == 5 and str(gone) not in found
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
