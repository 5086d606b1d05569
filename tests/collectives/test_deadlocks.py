"""Deadlocks on one machine as time goes by: who is late, who catches one, who computes meanwhile. For the rest see `contract`."""

import os
import signal
import threading
import time

import pytest
from machine import patient

from course_lib.collectives.deadlock import detector


def failing(ranks, source):
    """Run a cell; the error of each rank (None for one that has none), and the seconds it took."""
    began = time.monotonic()
    replies = ranks.run(source, label="cell [1]")
    seconds = time.monotonic() - began
    errors = [reply["error"] for _, reply in replies]
    after = ranks.run("out = np.empty(2); comm.Allreduce(np.ones(2), out); assert out[0] == 8")
    assert [reply["error"] for _, reply in after] == [None] * ranks.n, "the next cell does not work"
    return errors, seconds


def test_a_deadlock_names_members_of_the_group_only(eight):
    errors, _ = failing(eight, "pair = comm.Split(rank // 2)\nif rank == 4:\n    pair.Barrier()\nif rank == 7:\n    1 / 0")
    said = errors[4]["message"]
    assert "rank 4 waits in Barrier #1 on group{4, 5}" in said and "rank 5 has finished the cell without it" in said
    assert "6" not in said and "7" not in said and "raised" not in said and "an if on the rank" in said


def test_a_rank_that_has_come_and_does_not_say_yet_that_it_waits_is_named_with_the_others(eight):
    """As where many ranks share a core."""
    errors, _ = failing(
        eight,
        """
from course_lib.collectives.progress import engine
before = engine.SPIN_SECONDS
if rank == 3:
    engine.SPIN_SECONDS = 3.5
try:
    if rank != 5:
        comm.Barrier()
finally:
    engine.SPIN_SECONDS = before
""",
    )
    assert errors[5] is None
    for error in filter(None, errors):
        assert "ranks 0–4, 6, 7 wait in Barrier #1" in error["message"] and "rank 5 has finished" in error["message"], error["message"]
    assert errors.count(None) == 1


def test_a_rank_that_begins_a_cell_late_is_one_of_those_who_wait(eight):
    eight.run("pid = os.getpid()")
    late = eight.pull("pid")[3]
    os.kill(late, signal.SIGSTOP)
    threading.Timer(0.8, os.kill, (late, signal.SIGCONT)).start()
    errors, _ = failing(eight, "if rank != 5: comm.Barrier()")
    assert [r for r in range(8) if errors[r] is None] == [5]
    (said,) = {error["message"] for error in errors if error}
    assert said.startswith("ranks 0–4, 6, 7 wait in Barrier #1 on world{0–7}") and "rank 5 has finished the cell without it" in said


def test_a_rank_that_does_not_begin_a_cell_is_named(eight):
    eight.run("pid = os.getpid()")
    late = eight.pull("pid")[3]
    os.kill(late, signal.SIGSTOP)
    threading.Timer(detector.CONFIRM_LATE_SECONDS + 2, os.kill, (late, signal.SIGCONT)).start()
    errors, _ = failing(eight, "if rank != 5: comm.Barrier()")
    said = {error["message"] for r, error in enumerate(errors) if error and r != 3}
    assert len(said) == 1 and "rank 3 has not begun the cell yet" in said.pop()


def test_ranks_that_deadlock_together_find_it_together(eight):
    errors, _ = failing(
        eight,
        """
from course_lib.collectives import DeadlockError
caught, total = np.zeros(1), np.empty(1)
try:
    comm.Recv(total, rank ^ 1)
except DeadlockError:
    caught[0] = 1
comm.Allreduce(caught, total)
assert total[0] == 8
""",
    )
    assert errors == [None] * 8


def test_who_catches_a_deadlock_and_works_on_is_waited_for(eight):
    errors, _ = failing(
        eight,
        """
from course_lib.collectives import DeadlockError
from course_lib.collectives.deadlock.board import open_board
from course_lib.collectives.deadlock.layout import STATE
from course_lib.collectives.snapshot import DEADLOCK_RAISING
pair, rows, total = comm.Split(rank // 2), open_board().parts, np.empty(1)
if rank == 0:
    try:
        comm.Recv(total, 7)
    except DeadlockError:
        total[0] = 0
    end = time.monotonic() + 3
    while time.monotonic() < end:
        sum(range(10**7))  # one step of C, during which no other thread runs
while rank == 1 and rows[0][STATE] != DEADLOCK_RAISING:
    time.sleep(0.01)
if rank < 2:
    time.sleep(0.3 * rank)
    pair.Allreduce(np.ones(1), total)
    assert total[0] == 2
""",
    )
    assert errors == [None] * 8


def test_a_deadlock_is_said_while_other_ranks_go_on_working(eight):
    errors, _ = failing(
        eight,
        """
from course_lib.collectives.deadlock.board import open_board
from course_lib.collectives.deadlock.layout import STATE
from course_lib.collectives.snapshot import DEADLOCK_RAISING, DEADLOCKED
pair, rows = comm.Split(rank // 2), open_board().parts
if rank == 0:
    comm.Barrier()
over, began = np.zeros(1), time.monotonic()
while rank > 1 and not over[0] and time.monotonic() - began < 30:
    time.sleep(0.3)
    pair.Allreduce(np.full(1, float(rows[0][STATE] in (DEADLOCKED, DEADLOCK_RAISING))), over)
assert time.monotonic() - began < 30
""",
    )
    assert [r for r in range(8) if errors[r]] == [0], errors
    assert "rank 1 has finished the cell without it. Every rank" in errors[0]["message"], errors[0]["message"]


def test_a_rank_that_raises_is_named_to_those_who_wait(eight):
    errors, seconds = failing(eight, "x = np.ones(2)\nif rank == 5:\n    1 / 0\ncomm.Allreduce(x, x * 0)")
    assert errors[5]["name"] == "ZeroDivisionError"
    assert "rank 5 has raised ZeroDivisionError (cell [1], line 3)" in errors[0]["message"]
    assert seconds < patient(10)  # not a speed test: a hang would take a minute


def test_messages_that_fill_all_buffers_are_named(eight):
    """Rank 3 has finished its cell, and receives none of them, so rank 0 can send nothing else; rank 1 waits for rank 0."""
    errors, seconds = failing(
        eight,
        """
from course_lib.collectives.progress import engine
pair, before = comm.Split(rank // 2, 0), engine.FINISHED_PEER_SECONDS
engine.FINISHED_PEER_SECONDS = 1.0
waits = [comm.Isend(np.ones(3), 3) for _ in range(1000 if rank == 0 else 0)]
try:
    if rank < 2:
        pair.Allreduce(np.ones(100_000), np.empty(100_000))
finally:
    engine.FINISHED_PEER_SECONDS = before
""",
    )
    assert "its messages to rank 3 fill all buffers" in errors[0]["message"] and "left alone" in errors[1]["message"]
    assert errors[2:] == [None] * 6 and seconds < patient(10)


@pytest.mark.slow
def test_a_time_limit_names_the_rank_that_is_late_and_none_that_has_sent_it_messages(eight):
    source = "if rank > 5: comm.Send(np.ones(2), 2)\nif rank == 7: 1 / 0\nwhile rank == 2: pass"
    errors = [reply["error"] for _, reply in eight.run(source, limit=10)]
    assert [error and error["name"] for error in errors] == [None, None, "TimeLimit", None, None, None, None, "ZeroDivisionError"]
    assert not failing(eight, "pass")[0][0]


def test_when_graded_an_interrupt_that_the_answer_handles_itself_saves_it_no_points(eight, monkeypatch):
    monkeypatch.setenv("COURSE_UNATTENDED", "60")
    source = "import signal\ncame = []\nsignal.signal(signal.SIGINT, lambda *_: came.append(1))\nwhile rank == 3 and not came: pass"
    errors = [reply["error"] for _, reply in eight.run(source, limit=1.0)]
    assert errors[3]["name"] == "TimeLimit"


@pytest.mark.slow
def test_slow_is_not_stuck(eight):
    replies = eight.run("if rank == 1:\n    time.sleep(4)\nout = np.empty(1)\ncomm.Allreduce(np.ones(1), out)")
    assert [reply["error"] for _, reply in replies] == [None] * 8


def test_some_ranks_only(eight):
    replies = eight.run("comm.Barrier()", targets=[0, 1])
    assert all("ranks 2–7 were not asked to run this cell" in reply["error"]["message"] for _, reply in replies)
    assert not failing(eight, "comm.Barrier()")[0][0]


def test_many_calls_in_a_row_and_in_many_groups(eight):
    source = """
total = 0
for step in range(300):
    group = comm.Split(color=(rank >> step % 3) & 1, key=-rank)
    out = np.empty(1)
    group.Allreduce(np.ones(1), out)
    comm.Allgather(out, np.empty(8))
    total += out[0]
assert total == 1200
"""
    errors, _ = failing(eight, source)
    assert errors == [None] * 8


@pytest.mark.parametrize("call", ["Isend and Recv", "Iallreduce and Recv"])
def test_a_rank_without_a_core_for_a_while_does_not_look_stuck(eight, call):
    """Rank 1 stops just when it has read what it waited for, while rank 0 waits for its answer."""
    first = {
        "Isend and Recv": "sent = comm.Isend(x, 1) if rank == 0 else comm.Irecv(x, 0)",
        "Iallreduce and Recv": "sent = pair.Iallreduce(np.ones(4), x)",
    }[call]
    source = f"""
from course_lib.collectives.progress.point_to_point import ReceiveOperation
from course_lib.collectives.transport import mpi

def late(call):
    def slow(*arguments):
        request = call(*arguments)
        time.sleep(1)
        return request
    return slow

x, pair = np.ones(4), comm.Split(rank // 2, rank)
fast = ReceiveOperation.accept, mpi.POST_FUNCTIONS[mpi.calls.ALLREDUCE]
try:
    if rank == 0:
        time.sleep(0.3)
    if rank == 1:
        ReceiveOperation.accept, mpi.POST_FUNCTIONS[mpi.calls.ALLREDUCE] = map(late, fast)
    if rank < 2:
        {first}
    if rank == 1:
        sent.Wait()
        comm.Send(x, 0)
    if rank == 0:
        comm.Recv(np.empty(4), 1)
        sent.Wait()
finally:
    ReceiveOperation.accept, mpi.POST_FUNCTIONS[mpi.calls.ALLREDUCE] = fast
"""
    assert failing(eight, source)[0] == [None] * 8


def test_a_rank_that_missed_a_renewal_catches_up(eight):
    """It was interrupted just before it began to duplicate the group's communicator, as the others did."""
    errors, _ = failing(
        eight,
        """
from course_lib.collectives.progress.operations import progress_state
transport = comm.transport
if rank != 2:
    transport._renewals += 1
    lost = transport.message_comm.Idup()
    progress_state.abandoned.append((progress_state.epoch, lost))
raise KeyboardInterrupt
""",
    )
    assert all(error["name"] == "KeyboardInterrupt" for error in errors)
    large = "x, total = np.full(300_000, rank + 1.0), np.empty(300_000)\nfor _ in range(3):\n    comm.Allreduce(x, total)\n"
    large += "assert (total == 36).all()"
    assert failing(eight, large)[0] == [None] * 8


KINDS = {
    "small": "while True: comm.Allreduce(np.ones(4), np.empty(4))",
    "large": "while True: comm.Allreduce(np.ones(200_000), np.empty(200_000))",
    "started": "while True:\n    for x in [comm.Iallreduce(np.ones(100), np.empty(100)) for _ in range(5)]: x.Wait()",
    "messages": "while True: comm.Sendrecv(np.ones(9), (rank + 1) % 8, 0, np.empty(9), (rank - 1) % 8, 0)",
    "groups": "while True: comm.Split(rank % 2)",
}
AFTERWARDS = """
x, total, got = np.full(200_000, 1.0), np.empty(200_000), np.empty(2)
for i in range(3):
    comm.Allreduce(np.full(1, float(i)), total[:1])
    assert total[0] == 8 * i, total[0]
comm.Allreduce(x, total)
assert total[0] == 8
comm.Iallreduce(x, total).Wait()
assert total[-1] == 8
comm.Sendrecv(np.full(2, float(rank)), (rank + 1) % 8, 0, got, (rank - 1) % 8, 0)
assert got[0] == (rank - 1) % 8
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_at_any_moment_spoils_nothing(eight, kind):
    """Python raises between any two of its steps: also where MPI has begun a transfer, and nobody has noted that yet."""
    for turn in range(25):
        stopped = eight.run(KINDS[kind], limit=0.1 + 0.004 * turn)  # again, where a rank had not begun yet
        assert all(reply["error"] for _, reply in stopped)
        after = [reply["error"] for _, reply in eight.run(AFTERWARDS, limit=60)]
        assert after == [None] * 8, (turn, after)


def test_a_send_that_an_interrupt_leaves_keeps_its_array(eight):
    """MPI reads it until the receiver has it; here, a Sendrecv waits for what it has begun to receive."""
    source = """
import gc, threading, time, weakref
from course_lib.collectives.progress.operations import progress_state
n = 1 << 22
class Never:
    def Test(self):
        return False
if rank == 0:
    array, endpoint = np.full(n, 7.0), comm.transport._endpoint
    kept, endpoint.try_receive = weakref.ref(array), lambda *_: (Never(), (1, 0))
    threading.Timer(0.3, lambda: setattr(progress_state, "interrupt_pending", True)).start()
    try:
        comm.Sendrecv(array, 1, 0, np.zeros(1), 1, 0)
        raise AssertionError("it was not interrupted")
    except KeyboardInterrupt:
        del endpoint.try_receive, array
    gc.collect()
    assert kept() is not None, "MPI reads an array that is gone"
    time.sleep(1.0)
elif rank == 1:
    time.sleep(1.0)
    into = np.zeros(n)
    comm.Recv(into, 0, 0)
    assert set(into) == {7.0}
"""
    errors = [reply["error"] for _, reply in eight.run(source, limit=30)]
    assert errors == [None] * 8, errors
    assert [reply["error"] for _, reply in eight.run(AFTERWARDS, limit=60)] == [None] * 8
