"""Eight ranks that each transport connects: what holds for one holds for all, with the same sentences."""

import sys
from pathlib import Path

import pytest
from transports import GPUS, HOST, TRANSPORTS, TWO_MACHINES, VIRTUAL, VirtualRanks

from course_lib.cluster import Ranks
from course_lib.cluster.processes import launch
from course_lib.engine.processes.mpiexec import find_mpiexec
from course_lib.sandbox import bubblewrap


@pytest.fixture(scope="module")
def on_two_machines(tmp_path_factory):
    """Eight ranks that are told that they are on two machines."""
    wrapper = tmp_path_factory.mktemp("bin") / Path(find_mpiexec()).name
    wrapper.write_text(TWO_MACHINES.format(python=sys.executable, mpiexec=find_mpiexec()))
    wrapper.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "find_mpiexec", lambda: str(wrapper))
        patch.setenv("COURSE_ADDRESS", "127.0.0.1")
        ranks = Ranks(8)
    assert set(ranks.hosts) == {"n1", "n2"}
    yield ranks
    ranks.stop()


@pytest.fixture(scope="module")
def isolated():
    """Eight ranks that reach each other through the broker alone, as when a notebook is graded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(bubblewrap.ISOLATION_VARIABLE, bubblewrap.UNSANDBOXED)
        ranks = Ranks(8)
    yield ranks
    ranks.stop()


@pytest.fixture(scope="module")
def with_gpus():
    """Eight ranks with a CuPy and an NCCL that are not real, see `fake_cupy`."""
    ranks = Ranks(8)
    yield ranks
    ranks.stop()


@pytest.fixture(scope="module")
def virtual():
    """Eight ranks that share this process."""
    return VirtualRanks()


@pytest.fixture(params=[*TRANSPORTS, VIRTUAL])
def ranks(request, monkeypatch):
    """Eight ranks, with NumPy, MPI and a communicator."""
    return _set_up(request, monkeypatch)


@pytest.fixture(params=[*TRANSPORTS[:-1], VIRTUAL])
def hosted(request, monkeypatch):
    """The same, where arrays lie in the host's memory."""
    return _set_up(request, monkeypatch)


@pytest.fixture(params=TRANSPORTS)
def processes(request, monkeypatch):
    """Eight ranks that are processes: what is left of a cell meets the next one."""
    return _set_up(request, monkeypatch)


@pytest.fixture(params=TRANSPORTS[:-1])
def hosted_processes(request, monkeypatch):
    """The same, where arrays lie in the host's memory."""
    return _set_up(request, monkeypatch)


def _set_up(request, monkeypatch):
    name = request.param
    if name == "relay":
        monkeypatch.setenv(
            bubblewrap.ISOLATION_VARIABLE, bubblewrap.UNSANDBOXED
        )  # for this test alone: other ranks may come up between two of these
    fixtures = {"mpi": "eight", "mpi between machines": "on_two_machines", "relay": "isolated", "nccl": "with_gpus"}
    ranks = request.getfixturevalue(fixtures.get(name, name))
    setup = ranks.run(GPUS if name == "nccl" else HOST)
    assert [reply["error"] for _, reply in setup] == [None] * 8
    return ranks
