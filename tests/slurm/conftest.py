"""Ranks of jobs of the tests' own Slurm."""

import pytest
from processes import wait_until
from slurm_jobs import OPTIONS, SETUP, processes_of

from course_lib.cluster import Ranks


@pytest.fixture(scope="module")
def common(slurm):
    """The ranks that many tests use, if they run."""
    running = []
    yield running
    for ranks in running:
        ranks.stop()


@pytest.fixture
def ranks(common):
    if not common:
        common.append(Ranks(8, slurm=OPTIONS))
        common[0].run(SETUP)
    return common[0]


@pytest.fixture
def no_job(slurm, common):
    """No job runs: the tests come in any order, and some stop machines, or cancel all that is theirs."""
    while common:
        common.pop().stop()
    assert wait_until(lambda: not slurm.jobs() and not processes_of(slurm, "course_lib.engine.processes.slurm"), 60)
    assert wait_until(lambda: slurm.ask("sinfo", "-h", "-o", "%T").split() == ["idle"], 60), slurm.ask("sinfo", "-N", "-l", "-R")


@pytest.fixture
def own(slurm, no_job):
    """Ranks that a test may end; nothing of them is left after it."""
    made = []

    def make(n=4, options=OPTIONS):
        made.append(Ranks(n, slurm=options))
        made[0].run(SETUP)
        return made[0]

    yield make
    for ranks in made:
        ranks.stop()
    assert wait_until(lambda: not slurm.jobs(), 60)
