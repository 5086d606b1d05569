"""The status board on several machines, which are one: ranks are told different names for it."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from course_lib.collectives import mirror, notices
from course_lib.engine.mpiexec import LAUNCHERS, find_mpiexec

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
from course_lib.collectives.board import GAVE_UP, GIVES_UP, STATE, open_board
if open_board().mine[STATE] == GIVES_UP:
    open_board().end(GAVE_UP, keep_call=True)
open(f"over-{os.environ['PMI_RANK']}", "w").close()
while len(glob.glob("over-*")) < int(os.environ["PMI_SIZE"]):
    time.sleep(0.01)
"""


def run(tmp_path, machines, n, program):
    """What ranks on pretended machines `say`, a list for each rank, and their log."""
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


@pytest.mark.parametrize("size", range(1, 65))
def test_each_notice_goes_to_other_machines_in_one_piece(size):
    table, changed = memoryview(bytearray(8 * notices.words(size))).cast("q"), []
    mine = notices.Notices([table] * size, size - 1, lambda word, rank: changed.append(word))
    for key in range(1 << 20, (1 << 20) + 2 * notices.STARTS):
        mine.over(mine.start(key, (1, 2, 3, 4)))
    for number in range(notices.RING):
        mine.announce(size // 2, number, 1, 2)
    for start in changed:
        assert start % 8 == 0 and start // mirror.BLOCK == (start + notices.WORDS - 1) // mirror.BLOCK


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
def test_calls_that_all_make_need_no_mirror(tmp_path):
    said, log = run(
        tmp_path,
        2,
        6,
        """
import os, signal
import numpy as np
from mpi4py import MPI
from course_lib.collectives import Communicator, hosts
hosts.SILENT = 1e6  # however slow this machine is, no rank says that one is lost
comm = Communicator()
rank, half, total = comm.Get_rank(), comm.Split(comm.Get_rank() % 2), np.empty(1)
mirrors = [int(c) for c in open(f"/proc/self/task/{os.getpid()}/children").read().split()]
MPI.COMM_WORLD.Barrier()  # all have split, which still needs the mirrors
for mirror in mirrors:
    os.kill(mirror, signal.SIGSTOP)
MPI.COMM_WORLD.Barrier()
try:
    for i in range(40):
        for group in (comm, half):
            group.Allreduce(np.array([float(i * rank)]), total)
            say(group is comm, i, total[0])
    MPI.COMM_WORLD.Barrier()
finally:
    for mirror in mirrors:
        os.kill(mirror, signal.SIGCONT)
comm.Barrier()
say("over", len(mirrors))
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
    """A knock may come before a start's notice, and MPI wants the same order on all ranks."""
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
@pytest.mark.parametrize("left", [(0, 1), (1,)], ids=["all of a machine", "one that does not knock"])
def test_a_knock_of_a_call_that_was_left_is_taken_back(tmp_path, left):
    said, log = run(
        tmp_path,
        2,
        4,
        f"""
import signal, threading, time
import numpy as np
from course_lib.collectives import Communicator
comm, left = Communicator(), {left}
rank = comm.Get_rank()
comm.Barrier()
try:
    if rank in left:
        timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            comm.Barrier()
        except KeyboardInterrupt:
            open(f"left-{{rank}}", "w").close()
            comm.Recv(np.empty(1), 3)
    else:
        while rank > 1 and not all(os.path.exists(f"left-{{r}}") for r in left):
            time.sleep(0.01)
        time.sleep(0.5 * (rank > 1))
        comm.Barrier()
except Exception as error:
    say(error)
""",
    )
    for lines in said:
        assert len(lines) == 1 and "in Barrier #2" in lines[0] and "in Recv from rank 3" in lines[0], (said, log)


@pytest.mark.slow
def test_knocks_that_nobody_sends_or_hears_do_no_harm(tmp_path):
    said, log = run(
        tmp_path,
        3,
        6,
        """
import random
import numpy as np
from course_lib.collectives import Communicator
from course_lib.collectives.knocks import Knocks
all_here, rank = Knocks.all_here, int(os.environ["PMI_RANK"])
Knocks.all_here = lambda *call: (rank < 2 or random.random() < 0.5) and all_here(*call)
if rank == 4:
    Knocks.all_here = lambda *call: False
comm, total = Communicator(), np.empty(1)
pair = comm.Split(rank % 3)
for i in range(20):
    for group in (comm, pair):
        group.Allreduce(np.array([float(i * rank)]), total)
        say(i, total[0])
try:
    comm.Barrier() if rank != 5 else comm.Allreduce(total, np.empty(1))
except Exception as error:
    say(error)
""",
    )
    for r, (*lines, error) in enumerate(said):
        assert lines == [line for i in range(20) for line in (f"{i} {15.0 * i}", f"{i} {i * (2.0 * (r % 3) + 3)}")], log
        assert error.startswith("the ranks of world{0–5} make different calls. ranks 0–4: Barrier; rank 5: Allreduce of 1 float64"), said


def test_a_knock_of_an_earlier_call_is_none_of_this_one(tmp_path):
    said, log = run(
        tmp_path,
        2,
        2,
        """
import numpy as np
from mpi4py import MPI
from course_lib.collectives import Communicator
from course_lib.collectives.board import open_board
comm = Communicator()
rank, board, group = comm.Get_rank(), open_board(), comm._group
for round_ in (1, 4097):  # keys have twelve bits of it, and their numbers begin anew
    MPI.COMM_WORLD.Barrier()
    board.begin(round_, 3)
    if round_ == 1:
        comm.Barrier()
    elif rank == 0:
        say(group._knocks.all_here(group.next_key(), group._signature))
    MPI.COMM_WORLD.Barrier()
say("over")
""",
    )
    assert said == [["False", "over"], ["over"]], log


@pytest.mark.slow
def test_who_sends_to_a_machine_that_is_lost_does_not_wait_for_ever(tmp_path):
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
if rank == 0:  # the mirror of its machine
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
    assert "rank 3 (n2) is lost" in said[1][0] and "rank 1 (n1) is lost" in said[3][0], (said, log)


@pytest.mark.slow
def test_a_machine_on_which_no_process_can_be_started_is_named_on_all(tmp_path):
    said, log = run(
        tmp_path,
        2,
        4,
        """
from course_lib.collectives import Communicator, hosts
hosts.START = 2.0
start = hosts.Hosts._start
def refused(self, facts):
    if self.mine == 1:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    start(self, facts)
hosts.Hosts._start = refused
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
from course_lib.collectives import Communicator, hosts
def find(self, peers):
    if self.mine != 1:
        raise ConnectionError(f"nothing was heard from {self.names[2 - self.mine]}")
hosts.Hosts._find = find
try:
    Communicator()
except ConnectionError as error:
    say(error)
""",
    )
    sentence = "the machines cannot be connected. n1: nothing was heard from n3; n3: nothing was heard from n1. Those of a cluster must"
    assert all(len(lines) == 1 and lines[0].startswith(sentence) for lines in said), (said, log)
