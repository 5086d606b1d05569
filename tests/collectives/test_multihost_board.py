"""The status board on several machines, which are one: ranks are told different names for it."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from course_lib.engine.processes.mpiexec import LAUNCHERS, find_mpiexec

MACHINE = 'export SLURMD_NODENAME=n$((PMI_RANK * MACHINES / PMI_SIZE + 1)); exec "$@"'

SAY = """
import os
def say(*words):
    with open(f"said-{os.environ['PMI_RANK']}", "a") as file:
        print(*words, file=file)
"""

# The cell of a rank that gave up ends; the rank stays: one that ends is another thing to say for those that have not said theirs.
OVER = """
import glob, time
from course_lib.collectives.deadlock.board import open_board
from course_lib.collectives.deadlock.layout import STATE
from course_lib.collectives.snapshot import DEADLOCK_RAISING, DEADLOCKED
if open_board().mine[STATE] == DEADLOCK_RAISING:
    open_board().end(DEADLOCKED, keep_call=True)
open(f"over-{os.environ['PMI_RANK']}", "w").close()
while len(glob.glob("over-*")) < int(os.environ["PMI_SIZE"]):
    time.sleep(0.01)
"""


def run(tmp_path, machines, n, program):
    """Run a program on ranks of pretended machines; returns what they `say`, a list for each rank, and their log."""
    script = tmp_path / "program.py"
    script.write_text(f"{SAY}\ntry:\n{indent(program, '    ')}\nfinally:\n{indent(OVER, '    ')}")
    mpiexec = find_mpiexec()
    words = [mpiexec, *LAUNCHERS[Path(mpiexec).name], "-n", str(n), "sh", "-c", MACHINE, "sh", sys.executable, str(script)]
    environment = {**os.environ, "COURSE_ADDRESS": "127.0.0.1", "MACHINES": str(machines)}
    with open(tmp_path / "log", "wb") as log:
        running = subprocess.Popen(
            words, env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            running.wait(120)
        finally:
            with contextlib.suppress(ProcessLookupError):  # all have ended
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    said, log = [tmp_path / f"said-{r}" for r in range(n)], (tmp_path / "log").read_bytes()
    assert all(path.exists() for path in said), log.decode()
    return [path.read_text().splitlines() for path in said], log


def test_what_machines_say_to_each_other_arrives(tmp_path):
    said, log = run(
        tmp_path,
        3,
        6,
        """
import numpy as np
from course_lib.collectives import Communicator
comm = Communicator()
rank, total, ring = comm.Get_rank(), np.empty(2), np.empty(3)
for _ in range(20):
    comm.Allreduce(np.full(2, float(rank)), total)
    comm.Sendrecv(np.full(3, float(rank)), (rank + 1) % 6, 0, ring, (rank - 1) % 6, 0)
say(rank, total, ring[0])
try:
    comm.Barrier() if rank != 4 else comm.Recv(ring, 5)
except Exception as error:
    say(type(error).__name__, str(error))
""",
    )
    assert [lines[0] for lines in said] == [f"{r} [15. 15.] {(r - 1) % 6:.1f}" for r in range(6)], log
    for _, error in said:
        assert error.startswith("DeadlockError ") and "rank 4 (n3) waits in Recv from rank 5" in error, said
        assert "ranks 0, 1 (n1) and ranks 2, 3 (n2) and rank 5 (n3) wait in Barrier #21 on world{0–5}" in error, said


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 4, 7])
def test_starts_one_by_one_arrive(tmp_path, n):
    said, log = run(
        tmp_path,
        2,
        n,
        """
import numpy as np
from course_lib.collectives import Communicator
comm = Communicator()
total = np.empty(1)
for k in range(300):
    comm.Iallreduce(np.full(1, float(k)), total).Wait()
    assert total[0] == k * comm.Get_size()
say("all")
""",
    )
    assert said == [["all"]] * n, log


@pytest.mark.slow
def test_calls_that_all_make_need_no_agent(tmp_path):
    said, log = run(
        tmp_path,
        2,
        6,
        """
import os, signal
import numpy as np
from mpi4py import MPI
from course_lib.collectives import Communicator
from course_lib.collectives.deadlock import host_agents
host_agents.LOST_AFTER_SECONDS = 1e6  # however slow this machine is, no rank says that one is lost
comm = Communicator()
rank, half, total = comm.Get_rank(), comm.Split(comm.Get_rank() % 2), np.empty(1)
host_agents.ANSWER_SECONDS = host_agents.RECONNECT_TIMEOUT_SECONDS = 0.05  # on a busy machine, each call may wait and try to connect
agents = [int(c) for c in open(f"/proc/self/task/{os.getpid()}/children").read().split()]
for agent in agents:
    os.kill(agent, signal.SIGSTOP)
MPI.COMM_WORLD.Barrier()
try:
    for i in range(40):
        for group in (comm, half):
            group.Allreduce(np.array([float(i * rank)]), total)
            say(group is comm, i, total[0])
    MPI.COMM_WORLD.Barrier()
finally:
    for agent in agents:
        os.kill(agent, signal.SIGCONT)
comm.Barrier()
say("over", len(agents))
""",
    )
    sums = {0: 0 + 2 + 4, 1: 1 + 3 + 5}
    for r, lines in enumerate(said):
        assert lines[:-1] == [line for i in range(40) for line in (f"True {i} {15.0 * i}", f"False {i} {sums[r % 2] * float(i)}")], log
    assert [lines[-1] for lines in said] == ["over 1" if r in (0, 3) else "over 0" for r in range(6)]


def test_whoever_makes_another_call_is_found_wherever_it_is(tmp_path):
    said, log = run(
        tmp_path,
        2,
        4,
        """
import numpy as np
from course_lib.collectives import Communicator
comm, total = Communicator(), np.empty(1)
rank = comm.Get_rank()
for odd in (0,), (1,), (2,), (3,), (0, 1):
    comm.Allreduce(np.ones(1), total)
    try:
        comm.Barrier() if rank in odd else comm.Allreduce(np.ones(1), total)
    except Exception as error:
        say(error)
""",
    )
    for lines in said:
        assert len(lines) == 5, (said, log)
        for odd, line in zip(("rank 0", "rank 1", "rank 2", "rank 3", "ranks 0, 1"), lines, strict=True):
            assert line.startswith("the ranks of world{0–3} make different calls.") and f"{odd}: Barrier" in line, said


@pytest.mark.slow
@pytest.mark.parametrize("machines", [2, 3])
def test_what_was_started_before_a_call_begins_before_it(tmp_path, machines):
    """MPI wants the same order on all ranks."""
    said, log = run(
        tmp_path,
        machines,
        6,
        """
import numpy as np
from course_lib.collectives import Communicator
comm, wrong = Communicator(), 0
rank, half = comm.Get_rank(), comm.Split(comm.Get_rank() % 2)
for i in range(60):
    for group in (comm, half):
        started, total = [np.empty(1), np.empty(1)], np.empty(1)
        requests = [group.Iallreduce(np.full(1, k + rank + 1.0), out) for k, out in enumerate(started)]
        group.Allreduce(np.full(1, 10.0 * (rank + 1)), total)
        for request in requests:
            request.Wait()
        n, sums = len(group.ranks), sum(r + 1.0 for r in group.ranks)
        wrong += (started[0][0], started[1][0], total[0]) != (sums, sums + n, 10 * sums)
say(wrong)
""",
    )
    assert said == [["0"]] * 6, log


@pytest.mark.slow
def test_who_waits_for_a_machine_that_is_lost_does_not_hang(tmp_path):
    said, log = run(
        tmp_path,
        2,
        4,
        """
import os, signal, time
import numpy as np
from course_lib.collectives import Communicator
comm = Communicator()
rank = comm.Get_rank()
comm.Barrier()
if rank == 0:  # the agent of its machine
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    os.kill(int(children[0]), signal.SIGKILL)
    open("killed", "w").close()
while not os.path.exists("killed"):
    time.sleep(0.01)
try:
    if rank == 1:
        for i in range(40):
            comm.Send(np.ones(2), 3)
    if rank == 3:
        comm.Recv(np.empty(2), 1, 7)
except Exception as error:
    say(error)
say("over")
""",
    )
    assert said[1] == ["over"] and "rank 1 (n1) is lost" in said[3][0], (said, log)  # rank 1 reaches the other machine's agent


@pytest.mark.slow
def test_a_machine_on_which_no_process_can_be_started_is_named_on_all(tmp_path):
    said, log = run(
        tmp_path,
        2,
        4,
        """
from course_lib import host
from course_lib.collectives import Communicator
from course_lib.collectives.deadlock import host_agents
start = host_agents.HostAgents._start
def refused(self, task):
    if host.name() == "n2":
        raise BlockingIOError(11, "Resource temporarily unavailable")
    start(self, task)
host_agents.HostAgents._start = refused
try:
    Communicator()
except ConnectionError as error:
    say(error)
""",
    )
    assert all(len(lines) == 1 and "n2: [Errno 11] Resource temporarily unavailable" in lines[0] for lines in said), (said, log)


@pytest.mark.slow
def test_where_two_of_three_machines_do_not_reach_each_other_all_ranks_say_so(tmp_path):
    said, log = run(
        tmp_path,
        3,
        6,
        """
from course_lib import host
from course_lib.collectives import Communicator
from course_lib.collectives.deadlock import host_agents
def reach(self):
    if host.name() != "n2":
        raise ConnectionError(f"{'n3' if host.name() == 'n1' else 'n1'} does not answer")
host_agents.HostAgents._connect_all = reach
try:
    Communicator()
except ConnectionError as error:
    say(error)
""",
    )
    sentence = "the machines cannot be connected. n1: n3 does not answer; n3: n1 does not answer. Those of a cluster must"
    assert all(len(lines) == 1 and lines[0].startswith(sentence) for lines in said), (said, log)


@pytest.mark.slow
@pytest.mark.parametrize("left", [(0, 1), (1,)], ids=["all of a machine", "one of it"])
def test_who_has_left_a_call_makes_no_more_on_its_group(tmp_path, left):
    said, log = run(
        tmp_path,
        2,
        4,
        f"""
import signal, threading, time
import numpy as np
from course_lib.collectives import Communicator
comm, left = Communicator(), {left}
rank, got = comm.Get_rank(), np.empty(1)
comm.Barrier()
if rank in left:
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        comm.Barrier()
    except KeyboardInterrupt:
        open(f"left-{{rank}}", "w").close()
    try:
        comm.Allreduce(np.ones(1), got)
    except RuntimeError as error:
        say(error)
    comm.Recv(got, 3)  # messages still come
    say(got[0])
else:
    while rank > 1 and not all(os.path.exists(f"left-{{r}}") for r in left):
        time.sleep(0.01)
    comm.Barrier()  # the others have come, as far as anybody can know
    say("through")
    for r in left if rank == 3 else ():
        comm.Send(np.full(1, 7.0), r)
""",
    )
    for r, lines in enumerate(said):
        if r in left:
            assert "takes no more collectives in this cell: Barrier (" in lines[0] and lines[1] == "7.0", (said, log)
        else:
            assert lines == ["through"], (said, log)


@pytest.mark.slow
def test_an_old_picture_is_not_taken_for_a_new_one(tmp_path):
    """The ranks of one machine go on just after they have been asked what they do, again and again."""
    said, log = run(
        tmp_path,
        2,
        4,
        """
import time
import numpy as np
from course_lib.collectives import Communicator
comm, got, mine = Communicator(), np.empty(1), np.ones(1)
rank = comm.Get_rank()
for i in range(12):
    if rank == 0:
        comm.Recv(got, 2)
    elif rank == 2:
        time.sleep(0.2 + 0.02 * i)
        comm.Send(mine, 0)
    else:
        comm.Sendrecv(mine, 4 - rank, 0, got, 4 - rank, 0)
        time.sleep(0.3)
    comm.Barrier()
say("all")
""",
    )
    assert said == [["all"]] * 4, log


@pytest.mark.slow
def test_a_leader_that_leaves_a_call_is_named_on_its_machine(tmp_path):
    said, log = run(
        tmp_path,
        2,
        4,
        """
import signal, threading, time
from course_lib.collectives import Communicator
comm = Communicator()
rank = comm.Get_rank()
comm.Barrier()
if rank == 0:  # it leads n1, and has sent what its machine announced
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        comm.Barrier()
    except KeyboardInterrupt:
        say("left")
    open("left", "w").close()
    from course_lib.collectives.deadlock.board import open_board
    from course_lib.collectives.snapshot import RAISED
    open_board().end(RAISED, "KeyboardInterrupt")
else:
    while rank > 1 and not os.path.exists("left"):
        time.sleep(0.01)
    try:
        comm.Barrier()
        say("through")
    except Exception as error:
        say(error)
""",
    )
    assert said[0] == ["left"] and "rank 0 (n1) has raised KeyboardInterrupt" in said[1][0], (said, log)
    for lines in said[2:]:  # through, if MPI has still carried what the leader had sent
        assert lines == ["through"] or "rank 0 (n1) has raised KeyboardInterrupt" in lines[0], (said, log)


@pytest.mark.slow
@pytest.mark.parametrize(("machines", "n"), [(2, 7), (3, 4), (4, 4)])
def test_small_arrays_travel_with_the_announcement(tmp_path, machines, n):
    """Machines with different numbers of ranks, groups whose order interleaves them, arrays at and over the limit."""
    said, log = run(
        tmp_path,
        machines,
        n,
        """
import numpy as np
from mpi4py import MPI
from course_lib.collectives import Communicator
world = Communicator()
n, me, wrong = world.Get_size(), world.Get_rank(), []
pair = world.Split(me // (n // 2) if n > 2 else 0, -me)
groups = [world, world.Split(0, (me * 2) % n if n % 2 else (me // 2) + (me % 2) * n), world.Split(me % 2, -me), pair]
for count in (1, 3, 256, 512, 1024, 1025, 2048, 2049, 4096):
    for dtype in (np.float32, np.float64, np.int64):
        for comm in groups:
            size, rank, total = comm.Get_size(), comm.Get_rank(), None
            drawn = [np.random.default_rng([count, r]).integers(-99, 99, count * size).astype(dtype) for r in comm.ranks]
            mine = drawn[rank]
            total = np.empty_like(mine)
            comm.Allreduce(mine, total)
            part, gathered = np.empty(count, dtype), np.empty((size, count), dtype)
            comm.Reduce_scatter(mine, part)
            comm.Allgather(mine[:count], gathered)
            comm.Barrier()
            expected = sum(drawn)
            scattered, all_parts = expected.reshape(size, count)[rank], [d[:count] for d in drawn]
            same = (total == expected).all(), (part == scattered).all(), (gathered == all_parts).all()
            wrong += [] if all(same) else [(count, dtype.__name__, size, same)]
say(wrong)
""",
    )
    assert said == [["[]"]] * n, log


@pytest.mark.slow
def test_a_started_call_that_differs_fails_alone(tmp_path):
    said, log = run(
        tmp_path,
        2,
        4,
        """
import numpy as np
from course_lib.collectives import Communicator
comm = Communicator()
rank, totals = comm.Get_rank(), [np.empty(2), np.empty(3), np.empty(2)]
half = comm.Split(rank // 2)  # on one machine: its calls use the same slots
for odd in range(4):
    sizes = (2, 2 if rank == odd else 3, 2)
    outs = [np.empty(size) for size in sizes]
    requests = [comm.Iallreduce(np.ones(size), out) for size, out in zip(sizes, outs)]
    half.Allreduce(np.ones(2), np.empty(2))
    for k, request in enumerate(requests):
        try:
            request.Wait()
            say(odd, k, outs[k][0])
        except Exception as error:
            say(odd, k, type(error).__name__, f"rank {odd}" in str(error))
""",
    )
    expected = [line for odd in range(4) for line in (f"{odd} 0 4.0", f"{odd} 1 MismatchError True", f"{odd} 2 4.0")]
    assert said == [expected] * 4, (said, log)
