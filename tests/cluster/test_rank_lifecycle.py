"""Ranks come up, are interrupted, die, and go; nothing stays behind."""

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest
from machine import patient
from processes import course_processes, wait_until

from course_lib import cluster
from course_lib.cluster import Ranks, RanksGone, client, requests
from course_lib.cluster.processes import launch
from course_lib.collectives.deadlock import host_agents
from course_lib.engine.processes import mpiexec
from course_lib.utils import host


def folders():
    return set(Path(tempfile.gettempdir()).glob("course-ranks-*"))


@pytest.fixture
def two():
    ranks = Ranks(2)
    yield ranks
    ranks.stop()


def test_stopping_leaves_no_process_and_no_file():
    before, files = course_processes(), folders()
    ranks = Ranks(3)
    assert course_processes() - before and folders() - files
    began = time.monotonic()
    ranks.stop()
    assert time.monotonic() - began < patient(10)
    assert wait_until(lambda: not course_processes() - before), course_processes() - before
    assert not folders() - files
    ranks.stop()  # once more does no harm
    with pytest.raises(RanksGone, match=r"were stopped. ranks.restart\(rerun=True\)"):
        ranks.run("1")


def test_a_killed_kernel_leaves_nothing(tmp_path):
    before, files = course_processes(), folders()
    code = "from course_lib.cluster import Ranks; import time; r = Ranks(2); print('up', flush=True); r.run('import time; time.sleep(99)')"
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline() == "up\n"
    owner.kill()
    assert wait_until(lambda: not course_processes() - before, 15), "processes stay behind (the owner is a zombie now)"
    assert wait_until(lambda: not folders() - files)
    owner.wait()
    owner.stdout.close()


@pytest.mark.slow
def test_an_exit_without_stop_leaves_nothing():
    before, files = course_processes(), folders()
    subprocess.run([sys.executable, "-c", "from course_lib.cluster import Ranks; r = Ranks(2)"], check=True)
    assert wait_until(lambda: not course_processes() - before)
    assert not folders() - files


def test_starting_again_reuses_or_replaces():
    before = course_processes()
    try:
        first = cluster.start(2)
        first.run("kept = 1")
        assert cluster.start(2) is first
        assert first.pull("kept") == [1, 1]
        other = cluster.start(3)
        assert other is not first and not first.alive() and other.alive()
    finally:
        cluster._current.stop()
    assert wait_until(lambda: not course_processes() - before)


@pytest.mark.parametrize("n", [0, 65, 2.0, "4", True])
def test_a_wrong_number_of_ranks_gets_a_sentence(n):
    with pytest.raises(ValueError, match="a whole number from 1 to 64; got"):
        cluster.start(n)


def test_engine_ids_are_mpi_ranks(eight):
    eight.run("size = comm.Get_size()")
    assert eight.pull("rank") == list(range(8)) and eight.pull("size") == [8] * 8


def test_ranks_use_one_thread(eight):
    eight.run("threads = os.environ['OPENBLAS_NUM_THREADS'], os.environ['OMP_NUM_THREADS']")
    assert set(eight.pull("threads")) == {("1", "1")}


def test_nothing_listens_beyond_loopback(eight):
    open_ports = []
    for pid in course_processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # one of an earlier test that has just ended
            process = psutil.Process(pid)
            listens = [c.laddr for c in process.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN]
            open_ports += [(process.cmdline()[:4], place) for place in listens if place.ip not in ("127.0.0.1", "::1")]
    assert open_ports == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "time.sleep(60)",
        "while True: pass",
        "comm.Barrier() if rank else time.sleep(60)",
        "while True: comm.Allreduce(np.ones(1000), np.empty(1000))",
        "try: time.sleep(60)\nexcept: pass\nwhile True: pass",
    ],
)
def test_an_interrupt_leaves_usable_ranks(eight, source):
    for _ in range(3):
        timer = threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            eight.run(source)
        assert time.monotonic() - began < patient(15)
        replies = eight.run("done = True\nout = np.empty(1)\ncomm.Allreduce(np.ones(1), out)")
        assert [reply["error"] for _, reply in replies] == [None] * 8
        assert eight.pull("done") == [True] * 8, "a rank did not run the cell after the interrupt"
        eight.run("del done")


def test_an_interrupt_while_ranks_are_asked_reaches_them_all(eight, monkeypatch):
    request, asked = client.Client.request, []

    def interrupted(self, engine, what):
        asked.append(engine)
        if len(asked) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return request(self, engine, what)

    monkeypatch.setattr(client.Client, "request", interrupted)
    with pytest.raises(KeyboardInterrupt):
        eight.run("while True: pass")
    monkeypatch.undo()
    assert asked[:8] == list(range(8)) and eight.pull("rank") == list(range(8))


@pytest.mark.slow
def test_interrupts_in_quick_succession_lose_no_reply(eight):
    def insist():
        for _ in range(60):
            eight.interrupt()
            time.sleep(0.02)

    for _ in range(3):
        thread = threading.Timer(0.3, insist)
        thread.start()
        replies = eight.run("time.sleep(60)", limit=20)
        thread.join()
        assert [reply["error"]["name"] for _, reply in replies] == ["KeyboardInterrupt"] * 8
        assert [reply["error"] for _, reply in eight.run("x = 1", limit=20)] == [None] * 8


@pytest.mark.slow
def test_an_interrupt_that_arrives_late_does_not_hit_the_next_cell():
    ranks = Ranks(1)
    try:
        ranks.run(
            "import asyncio, time\nhandlers = get_ipython().kernel.control_handlers\nreal = handlers['interrupt_request']\n"
            "async def late(*message):\n    await asyncio.sleep(0.8)\n    await real(*message)\nhandlers['interrupt_request'] = late"
        )
        assert ranks.run("while True: pass", limit=0.2)[0][1]["error"]["name"] == "TimeLimit"
        assert ranks.run("time.sleep(2)")[0][1]["error"] is None
    finally:
        ranks.stop()


def test_a_rank_that_answers_in_the_last_moment_is_not_ended():
    """Its answer comes when the wait for it is over, and before anybody looks who is stubborn."""
    future, asked = Future(), []

    class Late:
        def interrupt(self, ranks):
            asked.append(ranks)
            return [Future() for _ in ranks]

        def flush_replies(self):
            pass

        def check(self):
            future.set_result(None)

        def end(self):
            raise AssertionError("the rank was ended")

    connection = Late()
    connection.client = connection
    requests._interrupt(connection, {0: future})
    assert asked == [[0], []]


def test_a_time_limit_interrupts_and_says_so(eight):
    replies = eight.run("while rank == 1: pass", limit=1.0)
    assert [bool(reply["error"]) for _, reply in replies] == [r == 1 for r in range(8)]
    assert "was still running after 1 s" in replies[1][1]["error"]["message"]
    assert eight.pull("rank") == list(range(8))


@pytest.mark.slow
def test_ranks_that_ignore_the_interrupt_are_ended(two):
    two.run("import time")
    stubborn = "while True:\n    try:\n        time.sleep(1)\n    except BaseException:\n        pass"
    with pytest.raises(RanksGone, match=r"ranks 0, 1 did not react to the interrupt.*Does an `except:`.*ranks.restart\(rerun=True\)"):
        two.run(stubborn, limit=0.5)
    two.restart()
    assert two.run("1")[0][1]["error"] is None


def test_a_call_tells_how_many_requests_it_has_left_open(two):
    two.run("import numpy as np\nfrom course_lib.collectives import Communicator\ncomm = Communicator()")
    two.run("def begin(many):\n    for _ in range(many):\n        comm.Irecv(np.empty(1), source=comm.Get_rank())")
    for many in (2, 0):
        two.call("begin", dict(many=many))
        assert two.unended == [many] * 2


def test_cells_that_set_up_run_again_also_where_they_print_and_so_do_import_lines(two, capsys):
    setup = "from course_lib.collectives import Communicator\ncomm = Communicator()\nprint('There are', comm.Get_size())"
    more = "import math\ntotal = [1]\ntotal.append(2)"
    for number, source in enumerate((setup, more, "def area(r):\n    return math.pi * r**2"), 1):
        two.run(source, label=f"cell [{number}]")
    for _ in range(2):
        two.restart(rerun=True)
        said = capsys.readouterr().out
        left_out = "Not run again, as they do more than define functions and variables (their import lines were): cell [2]."
        assert said == f"Run again: cell [1], cell [3]. {left_out}\n"
        assert two.call("area", dict(r=2)) == [4 * math.pi] * 2


def test_a_leak_on_one_rank_ends_with_an_error_there_and_the_rank_goes_on(monkeypatch):
    monkeypatch.setenv("COURSE_RANK_MEMORY", "600M")
    ranks = Ranks(2)
    try:
        ranks.run("import numpy as np\nfrom mpi4py import MPI\nkept = []")
        leak = "if MPI.COMM_WORLD.rank == 1:\n    while True: kept.append(np.ones(1_000_000))"
        found = [reply["error"] for _, reply in ranks.run(leak, limit=60.0)]
        assert found[0] is None and found[1]["name"].endswith("MemoryError")
        assert "A rank may use 0.586 GiB here. Does a list grow in each step" in found[1]["message"]
        assert ranks.run("kept.clear(); x = np.ones(10_000_000)")[1][1]["error"] is None
    finally:
        ranks.stop()


@pytest.mark.parametrize("size", ["much", "4", "100M", "-1", ""])
def test_a_limit_of_memory_that_is_no_size_gets_a_sentence(monkeypatch, size):
    monkeypatch.setenv("COURSE_RANK_MEMORY", size)
    with pytest.raises(ValueError, match=f"COURSE_RANK_MEMORY='{size}': expected a size such as 2G"):
        Ranks(2)


def test_a_rank_that_dies_is_named_and_new_ones_come_up(two):
    with pytest.raises(RanksGone, match=r"rank 1 ended, with exit code 7.*ranks.restart\(rerun=True\)"):
        two.run("import os\nfrom mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: os._exit(7)")
    two.restart()
    with pytest.raises(RanksGone, match="rank 0 ended, by signal SIGKILL"):
        two.run("import os, signal\nfrom mpi4py import MPI\nif MPI.COMM_WORLD.rank == 0: os.kill(os.getpid(), signal.SIGKILL)")


def test_an_interrupt_while_starting_leaves_nothing(monkeypatch):
    before, files, real = course_processes(), folders(), subprocess.Popen

    def second_is_interrupted(command, **settings):
        if "course_lib.engine.processes.mpiexec" in command:
            raise KeyboardInterrupt
        return real(command, **settings)

    monkeypatch.setattr(launch.subprocess, "Popen", second_is_interrupted)
    with pytest.raises(KeyboardInterrupt):
        launch.launch(2)
    assert wait_until(lambda: not course_processes() - before)
    assert not folders() - files


@pytest.mark.slow
def test_ranks_without_a_zygote_as_on_macos(monkeypatch):
    monkeypatch.setenv(mpiexec.NO_ZYGOTE, "1")
    before, files = course_processes(), folders()
    ranks = Ranks(2)
    try:
        ranks.run(
            "import os\nimport numpy as np\nfrom course_lib.collectives import Communicator\ncomm = Communicator()\nout = np.empty(2)"
        )
        assert not [r["error"] for _, r in ranks.run("comm.Allgather(np.full(1, comm.Get_rank(), float), out)") if r["error"]]
        assert [o.tolist() for o in ranks.pull("out")] == [[0, 1], [0, 1]]
        with pytest.raises(RanksGone, match="rank 1 ended, with exit code 7"):
            ranks.run("if comm.Get_rank() == 1: os._exit(7)")
    finally:
        ranks.stop()
    assert wait_until(lambda: not course_processes() - before)
    assert not folders() - files


def test_ranks_that_cannot_start_say_why(monkeypatch):
    monkeypatch.setattr(launch, "find_mpiexec", lambda: "/bin/false")
    before = course_processes()
    with pytest.raises(cluster.StartError, match=r"mpiexec ended with exit code 1(.|\n)*make doctor"):
        Ranks(2)
    assert wait_until(lambda: not course_processes() - before)


def test_a_missing_mpiexec_gets_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(cluster.StartError, match=r"no mpiexec in .* It comes with the package mpich"):
        launch.find_mpiexec()


@pytest.mark.slow
def test_attaching_to_engines_that_already_run(monkeypatch, capfd):
    import ipyparallel

    monkeypatch.setenv(host.REMOTE_NOTEBOOK_ENV, "1")  # as if they were on another machine
    monkeypatch.setenv(host.ADDRESS_ENV, "127.0.0.1")

    monkeypatch.setenv("PATH", str(Path(launch.find_mpiexec()).parent), prepend=os.pathsep)  # ipyparallel takes mpiexec from there
    running = ipyparallel.Cluster(engines="mpi", n=2, log_level=50)
    running.start_cluster_sync()
    try:
        ranks = cluster.start(2, attach=running.cluster_file)
        ranks.run("import numpy as np\nfrom course_lib.collectives import Communicator\nout = np.empty(1)")
        ranks.run("Communicator().Allreduce(np.ones(1), out)\ntotal = float(out[0])")
        assert ranks.pull("total") == [2.0, 2.0]
        assert ranks._connection.heartbeat and "nobody would notice" not in capfd.readouterr().out
        ranks.stop()
        monkeypatch.setattr(host_agents.AgentLink, "connect", unreachable)  # the kernel reaches them by a tunnel
        ranks = cluster.start(2, attach=running.cluster_file)  # they still run: stop leaves them
        assert "nobody would notice if that machine failed" in capfd.readouterr().out
        assert ranks.pull("total") == [2.0, 2.0]
        ranks.stop()
    finally:
        running.stop_cluster_sync()


def unreachable(*where):
    raise OSError("no route")


def test_attaching_to_nothing_gets_a_sentence():
    with pytest.raises(cluster.StartError, match=r"expected the name of an ipyparallel profile"):
        cluster.start(2, attach="no-such-profile")


def test_what_a_rank_sends_is_never_unpickled(eight, tmp_path):
    trace = tmp_path / "ran"
    source = f"""
class Evil:
    def __reduce__(self):
        return open, ({str(trace)!r}, "w")
evil = Evil()
from ipyparallel.datapub import publish_data
publish_data({{"evil": evil}})
"""
    eight.run(source)
    assert "Evil" in repr(eight.pull("evil")[0])
    view = eight._connection.client[:]
    with pytest.raises(Exception, match="a pickle from a rank"):
        view.apply_sync(eval, "evil", {"evil": 1})
    time.sleep(0.5)
    assert not trace.exists()


@pytest.mark.slow
def test_ranks_that_do_not_come_in_time_get_a_second_try(monkeypatch):
    real, tried = client.connect, []

    def connect(file, limit):
        tried.append(file)
        if len(tried) == 1:
            raise TimeoutError
        return real(file, limit)

    monkeypatch.setattr(client, "connect", connect)
    before = course_processes()
    second = Ranks(2)
    try:
        assert len(set(tried)) == 2 and second.run("1 + 1")[1][1]["outputs"][0]["data"]["text/plain"] == "2"
    finally:
        second.stop()

    def never(file, limit):
        raise TimeoutError

    monkeypatch.setattr(client, "connect", never)
    with pytest.raises(cluster.StartError, match="the controller did not answer within 60 s"):
        Ranks(2)
    assert wait_until(lambda: not course_processes() - before)


if sys.platform == "linux":  # elsewhere shared memory has no files

    @pytest.mark.slow
    def test_killed_ranks_leave_no_shared_memory_behind():
        ranks = Ranks(3)
        ranks.run("import os\npid = os.getpid()")
        lines = [line.split() for pid in ranks.pull("pid") for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        shared = {Path(words[5]) for words in lines if len(words) > 5 and words[5].startswith("/dev/shm/")}
        assert len(shared) >= 3 and not [path for path in shared if path.exists()], "a name should be gone as soon as all have it"
        ranks.stop()
        assert not [path for path in shared if path.exists()]


def test_a_rank_finds_the_arrays_of_its_own_cells(two):
    two.run(
        "import numpy as np\nfrom course_lib.memory import live_array_bytes\n"
        "before, array = live_array_bytes(), np.ones(1_000_000)\nof_cell = live_array_bytes() - before\n"
        "del array\ngone = live_array_bytes() - before"
    )
    found = [two.pull(name)[0] for name in ("of_cell", "gone")]
    assert [round(nbytes / 1e6, 1) for nbytes in found] == [8.0, 0.0]
