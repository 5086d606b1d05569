"""Calls beside the course's communicator, and groups whose making is interrupted."""

import os
import random
import re
import signal
import threading

import numpy as np
import pytest

from course_lib.check import Check, CheckFailed
from course_lib.cluster import Ranks, RanksGone
from course_lib.cluster.replies import RanksError

SETUP = """import numpy as np
from mpi4py import MPI
from course_lib.collectives import Communicator
comm = Communicator()
rank = comm.Get_rank()"""


def errors(ranks, source):
    return [reply["error"] for _, reply in ranks.run(source, label="cell [7]", limit=60.0)]


@pytest.fixture(scope="module")
def shared():
    ranks = Ranks(4)
    yield ranks
    ranks.stop()


@pytest.fixture
def four(shared):
    """Four ranks; new ones where a test has ended them."""
    if not shared.alive():
        shared.restart()
    shared.run(SETUP, label="cell [2]")
    return shared


@pytest.mark.slow
def test_a_rank_that_stays_in_bare_mpi_is_named_and_its_end_says_why(four, capsys):
    four.run("def half(x):\n    return x[: len(x) // 2]", label="cell [3]")
    four.run("y = half(np.arange(8))", label="cell [4]")
    four.run("y.sort()", label="cell [5]")
    threading.Timer(5.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    source = "x = np.empty(1)\nif rank < 2:\n    comm.Barrier\n    MPI.COMM_WORLD.Recv(\n        x, source=3)"
    with pytest.raises(RanksGone) as caught:
        four.run(source, label="cell [6]")
    place = "ranks 0, 1 wait in MPI.COMM_WORLD.Recv (cell [6], line 4)"
    told = capsys.readouterr().err.splitlines()  # one line, or a first one for the rank that was seen first
    assert len(told) <= 2 and told[-1] == f"{place}. If no rank answers, stop the cell."
    assert f"R{place[1:]}: Python cannot interrupt that. A call of the course's Communicator" in str(caught.value)
    four.restart(rerun=True)
    said = capsys.readouterr().out
    assert "Run again: cell [2], cell [3], cell [4]. Not run again" in said and said.endswith("variables: cell [5].\n")
    assert all(np.array_equal(y, np.arange(4)) for y in four.pull("y"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "place"),
    [("request = MPI.COMM_WORLD.Irecv(x); request.Wait()", "request.Wait"), ("MPI.COMM_WORLD.Recv(x)", "MPI.COMM_WORLD.Recv")],
)
def test_so_is_one_that_a_check_has_called(four, capsys, body, place):
    four.run(f"def collect(x, mp_comm):\n    {body}", label="cell [3]")
    threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGINT)).start()

    def collected():
        return collect(np.empty(1), comm)

    with pytest.raises(RanksGone, match=rf"Ranks 0–3 wait in {re.escape(place)} \(cell \[3\], line 2\)"):
        four.call(collected)
    assert f"ranks 0–3 wait in {place} (cell [3], line 2)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(3)",
        pytest.param("x = np.arange(3)\nwhile x[0] < 5e6:\n    x += 1", marks=pytest.mark.slow),
        pytest.param("comm.Barrier()\nsum(range(10**8))", marks=pytest.mark.slow),
    ],
)
def test_one_that_computes_is_not(four, capsys, source):
    four.run(source, label="cell [3]", limit=3.0)
    assert capsys.readouterr().err == ""


WRONG_GROUPS = {
    "comm.Allgather(x, out)": "Allgather was called on world{0–3} (cell [3], line 3); the argument mp_comm is group{0, 1}",
    "MPI.COMM_WORLD.Allgather(x, out)": "MPI.COMM_WORLD.Allgather was called on world{0–3} (cell [3], line 3); the argument mp_comm is",
    "comm.Allgather(x, out[:2])": "Allgather was called on world{0–3} (cell [3], line 3); the argument mp_comm is group{0, 1}",
    "comm.Allgather(x, out) if rank else 0": "Allgather was called on world{0–3} (cell [3], line 3); the argument mp_comm is group{0, 1}",
    "mp_comm.Allgather(x, out[:2])": None,
    "mp_comm.Recv(out[0], source=-1)": "the source of Recv was -1 (cell [3], line 3), which is MPI.PROC_NULL: no message is sent or",
}


@pytest.mark.parametrize("call", WRONG_GROUPS)
def test_another_group_than_the_one_that_was_given_is_named(four, call):
    four.run(f"def collect(x, mp_comm):\n    out = np.zeros((4, 3))\n    {call}\n    return out", label="cell [3]")

    def collected(x):
        return collect(x, comm.Split(color=rank // 2, key=rank))

    check = Check("collect")
    with pytest.raises((CheckFailed, RanksError)) as caught:
        for r, got in enumerate(four.call(collected, {"x": np.ones(3)})):
            check.array(got, np.ones((2, 3)), name="the result", rank=r)
    assert (WRONG_GROUPS[call] in str(caught.value)) if WRONG_GROUPS[call] else ("was called on" not in str(caught.value))


@pytest.mark.slow
def test_making_a_group_can_be_interrupted_and_leaves_nobody_behind(eight):
    random.seed(3)
    eight.run("import os, random, signal\norder = random.Random(5)\ncomm = Communicator()\nrank = comm.Get_rank()")
    eight.run("signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))")
    again = "keys = list(range(8))\norder.shuffle(keys)\ngroup = comm.Split(0, keys[rank])\n"
    stopped = 0
    for _ in range(12):
        victim, delay = random.randrange(8), random.uniform(1e-4, 2e-3)
        begin = f"comm.Barrier()\nif rank == {victim}:\n    signal.setitimer(signal.ITIMER_REAL, {delay})\n"
        begin += f"if rank == {(victim + 1) % 8}: time.sleep(0.003)\n"  # most interrupts come while the victim waits for this rank
        found = eight.run(f"{begin}{again}time.sleep(0.01)", limit=60.0)
        kinds = {reply["error"]["name"] for _, reply in found if reply["error"]}
        assert kinds <= {"KeyboardInterrupt", "DeadlockError"}, kinds
        stopped += "KeyboardInterrupt" in kinds
        out = "out = np.empty(8)\ngroup.Allgather(np.array([float(rank)]), out)\nassert sorted(out) == list(range(8))"
        assert not any(errors(eight, again + out)), "the ranks cannot go on"
    assert stopped, "none came while a group was made"


def test_a_call_that_was_made_before_is_no_match_where_memory_is_not_in_order(eight):
    late = """
from course_lib.collectives.deadlock.layout import ARRIVED_KEY
from course_lib.collectives.progress import rendezvous as meeting
meeting.TOTAL_STORE_ORDER = False
comm = Communicator()
rank = comm.Get_rank()
group, out = comm.transport.rendezvous, np.empty(4)
if rank == 3:  # that it has come is to be seen before its call
    group._page[ARRIVED_KEY] = group.next_key()
    import time
    time.sleep(0.3)
    group._key -= 2
comm.Allreduce(np.ones(4), out)
assert (out == 8).all()
meeting.TOTAL_STORE_ORDER = True
"""
    assert not any(errors(eight, late))


WATCHED = """
import time, weakref
import numpy as np
from course_lib.collectives import Communicator

def computes_for_long(comm):
    array = np.ones(10)
    gone, until = weakref.ref(array), time.monotonic() + 2.2
    while time.monotonic() < until:
        pass
    array = None
    return gone() is None

def calls(comm):
    array = np.ones(10)
    gone = weakref.ref(array)
    comm.Barrier()
    array = None
    return gone() is None

def has_its_names(comm):
    names, until = locals(), time.monotonic() + 2.2
    while time.monotonic() < until:
        pass
    comm.Barrier()
    return sorted(names)

def run(name):
    return globals()[name](Communicator())
"""


def test_who_looks_at_a_function_keeps_none_of_its_arrays(four):
    """A right answer to part 23 was blamed for what the frame of its function kept, on busy machines: after a second, it is looked at."""
    four.run(WATCHED, label="cell [3]")
    assert four.call("run", dict(name="computes_for_long")) == [True] * 4
    assert four.call("run", dict(name="calls")) == [True] * 4
    assert all("comm" in names for names in four.call("run", dict(name="has_its_names")))


TURNS = """
import time
def turns():
    until, n = time.monotonic() + 5, 1000
    while time.monotonic() < until:
        MPI.COMM_WORLD.Iprobe()
        n += 1
turns()
"""


def test_a_loop_of_bare_mpi_that_goes_on_is_not_said_to_wait(four, capsys):
    assert [reply["error"] for _, reply in four.run(TURNS, label="cell [6]")] == [None] * 4
    assert "wait" not in capsys.readouterr().err


def test_answered_requests_leave_nothing_in_the_client(four):
    client = four._connection.client
    kept = [len(kept) for kept in (client.results, client._futures, client._output_futures, client.metadata)]
    for _ in range(3):
        four.pull("rank")
    assert not client.outstanding
    assert [len(kept) for kept in (client.results, client._futures, client._output_futures, client.metadata)] == kept


@pytest.mark.parametrize("broken", ["ValueError", "SystemExit", "KeyboardInterrupt"])
def test_an_error_that_cannot_be_shown_is_one_and_the_others_hear_of_it(eight, broken):
    source = f"class Bad(Exception):\n    def __str__(self): raise {broken}\nif rank == 3: raise Bad\ncomm.Barrier()"
    found = errors(eight, source)
    assert found[3]["name"] == "Bad" and broken in found[3]["message"]
    assert all(error["name"] == "DeadlockError" for r, error in enumerate(found) if r != 3)
    assert not any(errors(eight, "comm.Barrier()"))


def test_a_mistake_of_the_engine_itself_is_answered_and_keeps_nobody_waiting(eight):
    breaks = "import course_lib.engine.requests.tracebacks as t\nwhole = t.describe\n"
    once = "def once(error):\n    t.describe = whole\n    raise OSError('a broken pipe')\n"
    found = errors(eight, f"{breaks}{once}if rank == 3:\n    t.describe = once\n    raise ValueError\ncomm.Barrier()")
    assert found[3]["name"] == "OSError" and "a broken pipe" in found[3]["message"]
    assert all(error["name"] == "DeadlockError" for r, error in enumerate(found) if r != 3)
    assert not any(errors(eight, "comm.Barrier()"))
