"""Ranks under a real Slurm, on two machines (which are one, see `slurm_here`)."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import psutil
import pytest
import slurm_here
from processes import wait_until

from course_lib.cluster import Ranks, RanksGone, StartError, slurm, start, startup
from course_lib.cluster.replies import RanksError
from course_lib.collectives import mirror
from course_lib.engine import slurm as asking

pytestmark = pytest.mark.skipif(bool(slurm_here.missing()), reason="Slurm is not installed (apt install slurm-wlm munge)")
OPTIONS = "--nodes=2 --time=10 --overcommit"
SETUP = """
import ctypes, os, signal, time
import numpy as np
from course_lib.collectives import Communicator
comm = Communicator()
rank = comm.Get_rank()
"""


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
def alone(slurm, common):
    """No job runs: the tests come in any order, and some stop machines, or cancel all that is theirs."""
    while common:
        common.pop().stop()
    assert wait_until(lambda: not slurm.jobs() and not processes_of(slurm, "course_lib.engine.slurm"), 60)


@pytest.fixture
def own(slurm, alone):
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


def errors(found):
    return [reply["error"] and f"{reply['error']['name']}: {reply['error']['message']}" for _, reply in found]


def test_ranks_come_up_on_both_machines(ranks):
    assert ranks.hosts == ["n1"] * 4 + ["n2"] * 4
    assert "8 ranks on 2 machines" in repr(ranks)
    ranks.run("total = np.empty(3)\ncomm.Allreduce(np.full(3, rank + 1.0), total)")
    assert [t.tolist() for t in ranks.pull("total")] == [[36.0] * 3] * 8


def test_a_deadlock_over_two_machines_is_named_rank_by_rank(ranks):
    began = time.monotonic()
    said = set(errors(ranks.run("if rank != 5:\n    comm.Barrier()")))
    assert time.monotonic() - began < 10.0  # the benchmark asks for 3 s; a busy machine may be slower
    (text,) = said - {None}
    assert "ranks 0–3 (n1) and ranks 4, 6, 7 (n2) wait in Barrier" in text and "rank 5 (n2) has finished the cell without it" in text
    assert errors(ranks.run("comm.Barrier()")) == [None] * 8


@pytest.mark.parametrize(
    "cell, words",
    [
        (
            "if rank == 0:\n    comm.Recv(np.empty(2), 7)\nif rank == 7:\n    comm.Recv(np.empty(2), 0)",
            ["rank 0 (n1) waits in Recv from rank 7"],
        ),
        ("comm.Allreduce(np.ones(2 + rank // 4), np.empty(2 + rank // 4))", ["MismatchError", "ranks 0–3", "of 2 float64", "of 3 float64"]),
        ("comm.Recv(np.empty(2), (rank + 1) % 8)", ["rank 3 (n1) waits in Recv from rank 4", "rank 4 (n2) waits in Recv from rank 5"]),
        ("if rank == 6:\n    1 / 0\ncomm.Barrier()", ["rank 6 (n2) has raised ZeroDivisionError"]),
        (
            "half = comm.Split(rank % 2)\nif rank != 2:\n    half.Barrier()",
            ["rank 0 (n1) and ranks 4, 6 (n2) wait", "rank 2 (n1) has finished"],
        ),
        ("if rank == 0:\n    comm.Send(np.ones(3), 7)\nif rank == 7:\n    comm.Recv(np.empty(2), 0)", ["3 float64", "2 float64"]),
        ("if rank != 7:\n    comm.Iallreduce(np.ones(1), np.empty(1)).Wait()", ["Iallreduce", "rank 7 (n2) has finished"]),
        (
            "x = np.ones(300_000)\nif rank == 0:\n    comm.Send(x, 7)\ncomm.Barrier()\nif rank == 7:\n    comm.Recv(x, 0)",
            ["rank 0 (n1) waits in Send to rank 7", "ranks 1–3 (n1) and ranks 4–7 (n2) wait in Barrier"],
        ),
    ],
)
def test_what_cannot_end_is_named_and_the_next_cell_works(ranks, cell, words):
    said = " ".join(filter(None, errors(ranks.run(cell))))
    assert [word for word in words if word not in said] == [], said
    assert errors(ranks.run("comm.Allreduce(np.ones(2), np.empty(2))")) == [None] * 8


def test_messages_and_collectives_between_machines_are_right(ranks):
    ranks.run("""
ring = np.empty(1000)
for k in range(50):
    comm.Sendrecv(np.full(1000, rank + 100.0 * k), (rank + 1) % 8, 0, ring, (rank - 1) % 8, 0)
    assert (ring == (rank - 1) % 8 + 100 * k).all()
for k in range(10):
    time.sleep(0.01 * (rank % 2))
    comm.Iallreduce(np.empty(0), np.empty(0)).Wait()
    counts = [1] * 7 + [0]
    comm.Ireduce_scatter(np.ones(7), np.empty(counts[rank]), counts).Wait()
everyone = np.empty(8 * 5)
comm.Iallgather(np.full(5, float(rank)), everyone).Wait()
if rank == 0:
    for k in range(100):
        comm.Send(np.full(10, float(k)), 7)
if rank == 7:
    got = np.empty(10)
    for k in range(100):
        comm.Recv(got, 0)
        assert (got == k).all()
""")
    assert ranks.pull("everyone")[5].tolist() == [float(r) for r in range(8) for _ in range(5)]


def test_a_rank_that_computes_is_never_taken_for_stuck(ranks):
    # A step of C that keeps Python's lock: neither a thread of this rank nor its Python says a word meanwhile.
    found = ranks.run("if rank == 6:\n    ctypes.PyDLL(None).sleep(12)\ncomm.Barrier()")
    assert errors(found) == [None] * 8


def test_a_suspended_rank_is_not_taken_for_gone(ranks):
    pids = _pids(ranks)
    os.kill(pids[6], signal.SIGSTOP)
    try:
        resumed = subprocess.Popen([sys.executable, "-S", "-c", f"import os, time; time.sleep(10); os.kill({pids[6]}, 18)"])
        assert errors(ranks.run("comm.Barrier()")) == [None] * 8
    finally:
        os.kill(pids[6], signal.SIGCONT)
        resumed.wait()


def _pids(ranks):
    ranks.run("pid = os.getpid()")
    return ranks.pull("pid")


def test_an_interrupt_reaches_all_machines(ranks):
    found = ranks.run("if rank == 0:\n    comm.Barrier()\nelse:\n    time.sleep(60)", limit=2.0)
    assert any("TimeLimit" in (error or "") for error in errors(found))
    assert errors(ranks.run("comm.Barrier()")) == [None] * 8


def test_the_controller_and_the_mirrors_let_in_nobody_without_the_keys(ranks, slurm):
    plain = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)  # the greeting of ZMTP 3, without encryption
    doors = listening(processes_of(slurm, "engine.slurm controller"))
    assert len(doors) >= 4
    for door in doors:
        with socket.create_connection(door, 5) as stranger:
            stranger.settimeout(20)
            stranger.sendall(plain[:11])
            greeting = exactly(stranger, 64)
            assert greeting[12:32].rstrip(b"\0") == b"CURVE", greeting
            stranger.sendall(plain[11:])
            assert not everything(stranger)
    doors = listening(processes_of(slurm, "mirror.py"))
    assert len(doors) == 2
    for door in doors:
        for who in (0, 1, 2, mirror.WATCHER):
            for known in (bytes(32), os.urandom(32), b""):
                with socket.create_connection(door, 5) as stranger:
                    nonce = exactly(stranger, 16)
                    stranger.sendall(mirror.greeting(known, nonce, who) + bytes(16))
                    assert not everything(stranger), who
        with socket.create_connection(door, 5) as stranger:  # nor one who says nothing, for long
            assert len(everything(stranger)) == 16
    assert errors(ranks.run("comm.Barrier()")) == [None] * 8


def listening(processes):
    """Where they listen: on loopback here."""
    doors = {(c.laddr.ip, c.laddr.port) for p in processes for c in p.net_connections("tcp") if c.status == "LISTEN"}
    assert {ip for ip, _ in doors} == {"127.0.0.1"}
    return doors


def exactly(connection, size):
    """So many bytes, or what comes until it is closed."""
    said = b""
    while len(said) < size and (more := connection.recv(size - len(said))):
        said += more
    return said


def everything(connection):
    """What is said on a connection until the other side closes it, which it must do soon."""
    connection.settimeout(20)
    said, deadline = b"", time.monotonic() + 20
    with suppress(ConnectionError):
        while more := connection.recv(4096):
            said += more
            assert time.monotonic() < deadline, said
    return said


def _line(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_no_key_is_left_where_others_could_read_it(ranks, slurm):
    for folder in slurm.folder.glob(".course-ranks-*"):
        assert folder.stat().st_mode & 0o077 == 0
        assert not list(folder.glob("security/*"))
    lines = [" ".join(_line(p)) for p in processes_of(slurm, "course_lib")]  # nor on a command line
    assert len(lines) > 8
    assert not [line for line in lines if re.search(r"[0-9a-f]{32}", line)]


@contextmanager
def all_machines_taken(slurm):
    """A job of somebody else that leaves no room."""
    words = ["srun", "--nodes=2", "--exclusive", "--job-name=other", "sleep", "300"]
    other = subprocess.Popen(words, env={**os.environ, **slurm.environment}, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_until(lambda: "RUNNING" in slurm.ask("squeue", "-h", "--name=other", "-o", "%T"), 30)
    try:
        yield
    finally:
        other.kill()
        other.wait()
        slurm.ask("scancel", "--name=other")


@pytest.mark.parametrize(
    "options, word",
    [
        ("--ntasks=3", "cluster.start(n) says how many"),
        ("-n3", "cluster.start(n) says how many"),
        ("-n 3", "cluster.start(n) says how many"),
        ("--ntas=3", "cluster.start(n) says how many"),
        ("--export=NONE", "this notebook's environment"),
        ("nodes=2", "expected options of srun"),
        ("--nodes=2 short", "short belongs to none"),
        ("-N2 true", "true belongs to none"),
        ("-N 2 true", "true belongs to none"),
        ("--nodes=2 -- true", "belongs to none"),
        ("--wait=0", "when one rank ends, all do"),
        ("-D /tmp", "where the notebook is"),
        ("-Mother", "SLURM_CLUSTERS"),
        ("--mpi=none", "the course starts the ranks"),
        ("-J mine", "finds its job again"),
        ("--output=x", "reads what the ranks write"),
        ("--quiet", "reads what srun says"),
        ("-On3", "-On3 is several options; write each by itself"),
        ("-vKn3", "several options"),
        ("-Oe/tmp/x", "several options"),
        ('--nodes="2', "No closing quotation"),
    ],
)
def test_options_that_are_the_courses_get_a_sentence(options, word):
    with pytest.raises(ValueError) as error:
        slurm.options(options)
    assert word in str(error.value)


def test_options_of_the_users_pass():
    assert slurm.options("--nodes=2 -N2 --ntasks-per-node=4 --time=1:00:00 -p main --mem=4G -A 'my account' -O -vv")
    with pytest.raises(TypeError, match="expected options of srun"):
        slurm.options(True)


def test_what_slurm_refuses_is_said(slurm):
    with pytest.raises(StartError, match="the Slurm job ended") as error:
        Ranks(4, slurm="--partition=nowhere")
    assert "invalid partition" in str(error.value)


def test_what_will_never_begin_is_said(alone, slurm):
    kernel = program(slurm, options="--nodes=7")
    try:
        while "waits in the queue" not in (said := kernel.stdout.readline()):
            assert said
        assert "With these options it will never begin" in said, said
    finally:
        kernel.terminate()
        kernel.wait()
    assert wait_until(lambda: "PartitionNodeLimit" not in slurm.ask("squeue", "-h", "-o", "%r"), 30)


def test_without_slurm_there_is_a_sentence(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(StartError, match="there is no srun on this machine"):
        Ranks(4, slurm="--nodes=2")


def test_slurm_and_attach_exclude_each_other():
    with pytest.raises(ValueError, match="give one of them"):
        start(4, slurm="--nodes=2", attach="default")


def test_sixty_four_ranks(own, monkeypatch):
    monkeypatch.setattr(startup, "SLURM_LIMIT", 300.0)  # 32 to a core
    ranks = own(64)
    assert ranks.hosts == ["n1"] * 32 + ["n2"] * 32
    ranks.run("total = np.empty(3)\ncomm.Allreduce(np.full(3, rank + 1.0), total)")
    assert [t.tolist() for t in ranks.pull("total")] == [[2080.0] * 3] * 64
    said = errors(ranks.run("if rank != 40:\n    comm.Barrier()"))
    assert [said[40], said.count(None)] == [None, 1]
    assert all("rank 40 (n2) has finished the cell without it" in text for text in said if text)
    assert errors(ranks.run("comm.Barrier()")) == [None] * 64


def test_new_ranks_come_from_slurm_too(own):
    ranks = own(4)
    ranks.run("def double(x):\n    return 2 * x", label="cell [2]")
    ranks.restart(rerun=True, n=6)
    assert len(ranks.hosts) == 6 and set(ranks.hosts) == {"n1", "n2"}
    assert ranks.call("double", {"x": 4}) == [8] * 6


def test_a_rank_that_ends_is_named_with_its_machine(own):
    ranks = own(4)
    with pytest.raises(RanksGone, match=r"rank 3 on n2 ended: exited with exit code 7"):
        ranks.run("if rank == 3:\n    os._exit(7)\ncomm.Barrier()")


def test_a_rank_that_ends_in_good_order_does_not_leave_the_others_waiting(own):
    ranks = own(4)
    with pytest.raises(RanksGone, match=r"rank 3 on n2 ended before the others"):
        ranks.run("if rank == 3:\n    os._exit(0)\ncomm.Barrier()")


def test_modules_beside_the_notebook_are_not_pythons_own(own, tmp_path, monkeypatch):
    (tmp_path / "hmac.py").write_text("raise SystemExit('a stranger')")
    (tmp_path / "mine.py").write_text("x = 7")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ranks = own(4)
    ranks.run("import mine\nfound = mine.x, os.getcwd()")
    assert ranks.pull("found") == [(7, str(tmp_path))] * 4


def test_a_killed_rank_is_named_with_its_machine(own):
    ranks = own(4)
    with pytest.raises(RanksGone, match=r"rank 2 on n2 ended: killed"):
        ranks.run("if rank == 2:\n    os.kill(os.getpid(), signal.SIGKILL)\ncomm.Barrier()")


def soon(slurm, *words):
    """A command of Slurm's, after a second."""
    subprocess.Popen(["sh", "-c", 'sleep 1; exec "$@"', "sh", *words], env={**os.environ, **slurm.environment})


def test_a_cancelled_job_is_said(own, slurm):
    ranks = own(4)
    soon(slurm, "scancel", "--me")
    with pytest.raises(RanksGone, match=r"cancelled, with scancel"):
        ranks.run("time.sleep(60)")


def test_a_job_that_is_cancelled_while_nothing_runs_is_said_at_the_next_cell(own, slurm):
    ranks = own(4)
    slurm.ask("scancel", "--me")
    assert wait_until(lambda: not ranks.alive(), 30)
    with pytest.raises(RanksGone, match=r"cancelled, with scancel"):
        ranks.run("1")


def test_time_that_is_over_is_said(own, slurm):
    ranks = own(4, "--nodes=2 --time=1 --overcommit")
    with pytest.raises(RanksGone, match=r"The allocation's time is over. Ask for more"):
        ranks.run("time.sleep(200)")


def test_a_machine_that_slurm_has_given_up_is_named_with_its_ranks(own, slurm):
    ranks = own(4)
    soon(slurm, "scontrol", "update", "nodename=n2", "state=down", "reason=test")
    try:
        with pytest.raises(RanksGone, match=r"A machine of the allocation has failed: n2, and ranks 2, 3 went with it\."):
            ranks.run("time.sleep(60)")
    finally:
        slurm.ask("scontrol", "update", "nodename=n2", "state=resume")
    assert wait_until(lambda: slurm.ask("sinfo", "-h", "-o", "%T").split() == ["idle"], 60)


def test_the_queue_is_shown_and_an_interrupt_leaves_it(alone, slurm, capfd, monkeypatch):
    pause, count = startup._pause, []

    def interrupted(*words):
        count.append(1)
        if len(count) > 200:
            raise KeyboardInterrupt
        pause(*words)

    monkeypatch.setattr(startup, "_pause", interrupted)
    with all_machines_taken(slurm), pytest.raises(KeyboardInterrupt):
        Ranks(4, slurm=OPTIONS)
    shown = capfd.readouterr().out
    assert "waits in the queue since" in shown and "(Resources)" in shown
    assert wait_until(lambda: not of_course(slurm), 20)


PROGRAM = """
import sys, time
from course_lib import cluster
print("asks", flush=True)
ranks = cluster.start(4, slurm={options!r})
print("up", flush=True)
{then}
"""


def program(slurm, then="time.sleep(120)", options=OPTIONS):
    """A kernel's process of its own."""
    words = [sys.executable, "-c", PROGRAM.format(options=options, then=then)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **slurm.environment}, start_new_session=True)


def of_course(slurm):
    return [job for job in slurm.ask("squeue", "-h", "-o", "%j").split() if job.startswith("course-")]


@pytest.mark.parametrize("when", ["in the queue", "while it asks", "while ranks run"])
def test_the_kernels_end_gives_the_allocation_back(alone, slurm, when):
    kernel = program(slurm)
    try:
        if when == "while ranks run":
            while "up" not in kernel.stdout.readline():
                pass
        elif when == "in the queue":
            assert wait_until(lambda: of_course(slurm), 30)
        else:
            kernel.stdout.readline()
    finally:
        kernel.kill()
        kernel.wait()
    assert wait_until(lambda: not of_course(slurm), 40)
    time.sleep(1.0)  # nor does it ask again
    assert not of_course(slurm)


def test_a_kernel_that_ends_in_good_order_leaves_nothing(alone, slurm):
    kernel = program(slurm, "pass")
    assert kernel.wait(60) == 0
    assert wait_until(lambda: not of_course(slurm), 20)  # Slurm itself takes a second


def test_a_kernel_inside_a_job_asks_for_one_of_its_own(alone, slurm):
    words = [
        "srun",
        "--nodes=1",
        "--ntasks=1",
        "--overcommit",
        sys.executable,
        "-c",
        PROGRAM.format(options=OPTIONS, then="print(ranks.hosts)"),
    ]
    environment = {**os.environ, **slurm.environment}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL, check=False)
    assert "['n1', 'n1', 'n2', 'n2']" in done.stdout, done.stderr


def test_when_srun_is_gone_with_its_machine_the_job_ends(alone, slurm):
    """Not even the process that watches for the kernel's end is left."""
    kernel = program(slurm)
    while "up" not in kernel.stdout.readline():
        pass
    family = [p for p in psutil.process_iter() if " ask 4 " in " ".join(_line(p)) or (_line(p) and _line(p)[0].endswith("srun"))]
    mine = [p for p in family if _environment(p).get("SLURM_CONF") == slurm.environment["SLURM_CONF"]]
    for process in mine:
        process.suspend()
    for process in [*mine, kernel]:
        process.kill()
    kernel.wait()
    assert wait_until(lambda: not of_course(slurm), 40)


def processes_of(slurm, words):
    """The course's processes with these words, of jobs of this Slurm."""
    found = [p for p in psutil.process_iter() if words in " ".join(_line(p))]
    return [p for p in found if _environment(p).get("SLURM_CONF") == slurm.environment["SLURM_CONF"]]


def _environment(process):
    try:
        return process.environ()
    except psutil.Error:
        return {}


def test_strangers_at_the_door_of_the_process_that_asked_end_nothing(own, slurm):
    ranks = own(4)
    (asks,) = processes_of(slurm, "course_lib.engine.slurm ask")
    (door,) = [c.laddr for c in asks.net_connections("tcp") if c.status == "LISTEN"]
    strangers = [socket.create_connection(tuple(door), 5) for _ in range(150)]
    for stranger in strangers[:20]:
        with suppress(OSError):  # put out already, for one who came later
            stranger.sendall(b"0" * 64)
    try:
        assert errors(ranks.run("time.sleep(4)\ncomm.Barrier()")) == [None] * 4
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_controller_that_ends_is_named(own, slurm):
    ranks = own(4)
    (controller,) = processes_of(slurm, "course_lib.engine.slurm controller")
    subprocess.Popen([sys.executable, "-S", "-c", f"import os, time; time.sleep(1); os.kill({controller.pid}, 9)"])
    began = time.monotonic()
    with pytest.raises(RanksGone, match="process that passes cells on to the ranks has ended"):
        ranks.run("time.sleep(60)")
    assert time.monotonic() - began < 20


@contextmanager
def machine_stops(slurm, node, after, for_=60.0):
    """Soon nothing of a machine runs, or says a word, for so many seconds."""
    pids = [p.pid for p in slurm.of_node(node) if "pytest" not in " ".join(_line(p))]
    program = f"""
import os, time
def tell(number):
    for pid in {pids}:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
time.sleep({after})
tell({int(signal.SIGSTOP)})
time.sleep({for_})
tell({int(signal.SIGCONT)})
"""
    teller = subprocess.Popen([sys.executable, "-S", "-c", program])
    try:
        yield
    finally:
        teller.kill()
        teller.wait()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("options", "node", "went", "cell"),
    [
        (OPTIONS, "n2", "ranks 2, 3", "comm.Barrier() if rank % 2 else time.sleep(60)"),
        (OPTIONS, "n1", "ranks 0, 1", "time.sleep(60)"),
        ("--nodes=1 --time=10 --nodelist=n2", "n2", "ranks 0–3", "time.sleep(60)"),
    ],
)
def test_a_machine_that_fails_is_named_with_its_ranks(own, slurm, options, node, went, cell):
    ranks = own(4, options)
    assert node in ranks.hosts
    began = time.monotonic()
    with machine_stops(slurm, node, 1.0), pytest.raises(RanksGone, match=f"heard from {node} for 8 s, and {went} went with it"):
        ranks.run(cell)
    assert time.monotonic() - began < 30.0  # 12 s on a quiet machine, with what it takes to end the job


def test_a_machine_that_is_silent_for_a_while_comes_back(own, slurm):
    ranks = own(4)
    with machine_stops(slurm, "n2", 0.5, 4.5):
        assert errors(ranks.run("time.sleep(2)\ncomm.Barrier()")) == [None] * 4


def mirrors_of(ranks):
    ranks.run("children = [int(c) for c in open(f'/proc/self/task/{os.getpid()}/children').read().split()]")
    children = [child for some in ranks.pull("children") for child in some]
    return [child for child in children if "mirror.py" in " ".join(_line(psutil.Process(child)))]


def test_without_a_mirror_ranks_do_not_wait_for_ever(own):
    ranks = own(4)
    found = mirrors_of(ranks)
    assert len(found) == 2
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises((RanksGone, RanksError)):
        ranks.call(lambda: comm.Barrier())  # noqa: F821
    assert time.monotonic() - began < 20


def test_ranks_that_no_kernel_watches_say_that_a_machine_is_lost(alone, slurm, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import os, time\nfrom course_lib.collectives import Communicator\ncomm = Communicator()\ncomm.Barrier()\n"
        "print('ready', flush=True)\ntime.sleep(3)\ntry:\n    comm.Barrier()\nexcept Exception as error:\n    print(error, flush=True)\n"
    )
    words = ["srun", "--job-name=program", *OPTIONS.split(), "--ntasks=4", "--mpi=pmi2", sys.executable, str(script)]
    environment = {**os.environ, **slurm.environment}
    running = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    stopped = []
    try:
        for _ in range(4):
            assert "ready" in running.stdout.readline()
        stopped = [p for p in psutil.process_iter() if str(script) in " ".join(_line(p)) and _environment(p).get("SLURMD_NODENAME") == "n2"]
        stopped += [p for rank in stopped for p in rank.children()]
        for process in stopped:
            process.suspend()
        said = running.stdout.readline()
        assert "(n1) wait" in said and "ranks 2, 3 (n2) are lost" in said, said
    finally:
        for process in stopped:
            process.resume()
        running.kill()
        running.wait()
        slurm.ask("scancel", "--name=program")
    assert wait_until(lambda: "program" not in slurm.ask("squeue", "-h", "-o", "%j"), 20)


def test_what_squeue_says_is_shown(tmp_path, monkeypatch, capfd):
    done = subprocess.CompletedProcess([], 0, "12|PENDING|Priority|2026-11-20T14:03:00|2026-11-20T15:00:00\n", "")
    monkeypatch.setattr(slurm.subprocess, "run", lambda *words, **options: done)
    waiting = slurm.Allocation(4, tmp_path, None, None, "course-x")
    said = "Slurm job 12 waits in the queue since 2026-11-20 14:03:00 (Priority); Slurm expects it to begin at 2026-11-20 15:00:00"
    assert waiting.waits() == said
    waiting.show(said)
    waiting.show(said.replace("15:00:00", "15:00:02"))  # it guesses anew all the time
    waiting.show(said.replace("Priority", "Resources"))
    assert capfd.readouterr().out == f"{said}.\n{said.replace('Priority', 'Resources')}.\n"


@pytest.mark.parametrize(
    "log, words",
    [
        ("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-20T15:00:00 DUE TO TIME LIMIT ***", "time is over"),
        ("srun: error: Node failure on n[2-3]\nsrun: Force Terminated job 5", "has failed: n[2-3], and ranks 4–7 went with it."),
        ("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-20 ***\nsrun: error: n2: tasks 4-7: Terminated", "It was cancelled"),
        (
            "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-20 ***\nsrun: error: n1: task 0: Exited with exit code 93",
            "cancelled",
        ),
        (
            "srun: error: n1: task 0: Exited with exit code 93\nslurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026 ***",
            "passes cells on",
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=5.0\nsrun: error: n2: task 3: Out Of Memory", "Memory ran out"),
        ("srun: error: n2: tasks 4-5,7: Killed", "ranks 4, 5, 7 on n2 ended: killed"),
    ],
)
def test_how_a_job_ends_is_said(tmp_path, log, words):
    (tmp_path / "log.txt").write_text(log)
    for rank in range(8):
        (tmp_path / f"rank-{rank}").write_text("n1" if rank < 4 else "n2")
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert words in slurm.Allocation(8, tmp_path, ended, ended, "course-x").obituary()


def test_a_slurm_that_does_not_answer_holds_nobody_up_and_the_job_that_is_left_is_named(tmp_path, monkeypatch, capfd):
    for name in ("squeue", "scancel"):
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(asking, "ASK", 0.3)
    monkeypatch.setattr(asking, "GIVEN_BACK", 1.0)
    began = time.monotonic()
    asking.give_back(subprocess.Popen(["true"]), "course-x")
    assert time.monotonic() - began < 10
    said = capfd.readouterr().out
    assert said == "Slurm did not end the job course-x within 1 s: `squeue --name=course-x` shows it, `scancel --name=course-x` ends it.\n"
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "log.txt").write_text(f"something else\n{said}")
    ended = subprocess.Popen(["true"])
    ended.wait()
    slurm.Allocation(4, folder, ended, ended, "course-x").stop()
    assert capfd.readouterr().out == said and not folder.exists()


def test_a_python_that_is_not_on_all_machines_is_said(tmp_path):
    why = "slurmstepd: error: execve(): /home/u/course/.venv/bin/python: No such file or directory"
    (tmp_path / "log.txt").write_text(f"{why}\nsrun: error: n1: tasks 0-3: Exited with exit code 2\n")
    ended = subprocess.Popen(["false"])
    ended.wait()
    said = slurm.Allocation(4, tmp_path, ended, ended, "course-x").ended()
    assert f"Python did not start there: do all machines see {sys.prefix}?" in said and why in said


def test_what_slurm_does_not_end_is_said_when_the_ranks_stop(tmp_path, monkeypatch, capfd):
    for name, does in {"srun": "exec sleep 600", "squeue": "echo 7", "scancel": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv(slurm.SHARED, str(tmp_path))
    asked = slurm.allocate(4, "--nodes=2")
    assert wait_until(lambda: psutil.Process(asked.mpiexec.pid).children(), 10)
    asked.stop()
    assert f"Slurm did not end the job {asked.name} within 20 s" in capfd.readouterr().out
    assert not asked.folder.exists()


def test_another_program_that_srun_ran_in_our_place_is_said(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert "a word in slurm=... that belongs to no option" in slurm.Allocation(4, tmp_path, ended, ended, "course-x").ended()


def test_ranks_that_did_not_begin_are_named(tmp_path):
    for rank in (0, 1, 3):
        (tmp_path / f"rank-{rank}").write_text("n1")
    (tmp_path / "ready-0").touch()
    said = slurm.Allocation(5, tmp_path, None, None).missing()
    assert "ranks 2, 4 did not begin; the others are on n1." in said and "ranks 1, 3 (n1) began, and did not get ready" in said


def test_machines_that_cannot_be_connected_say_why(alone, slurm, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif os.environ.get('SLURM_PROCID') == '2':\n    os.environ['COURSE_ADDRESS'] = '192.0.2.1'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(StartError, match=r"the machines cannot be connected. n2: COURSE_ADDRESS='192.0.2.1': expected .* lo \(127.0.0.1\)"):
        Ranks(4, slurm=OPTIONS)
    assert wait_until(lambda: not of_course(slurm), 30)


def test_a_rank_that_does_not_come_is_named(alone, slurm, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os, time\nif os.environ.get('SLURM_PROCID') == '3':\n    time.sleep(300)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(startup, "SLURM_LIMIT", 20.0)
    with pytest.raises(StartError, match=r"rank 3 did not begin; the others are on n1, n2"):
        Ranks(4, slurm=OPTIONS)
    assert wait_until(lambda: not of_course(slurm), 30)
