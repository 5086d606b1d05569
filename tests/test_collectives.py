"""Communicator: right results, a sentence for each fault, and ranks that work afterwards."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machine import patient
from mpi4py import MPI

from course_lib.collectives import watch

SETTINGS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
OPERATIONS = {"SUM": np.sum, "MIN": np.min, "MAX": np.max, "PROD": np.prod}


def reduce_all(x, op):
    out = np.empty_like(x)
    comm.Allreduce(x, out, op=getattr(MPI, op))
    in_place = x.copy()
    comm.Allreduce(MPI.IN_PLACE, in_place, op=getattr(MPI, op))
    return out, in_place


def gather_all(x):
    out = np.empty((comm.Get_size(), *x.shape), x.dtype)
    comm.Allgather(x, out)
    return out


def reduce_parts(x, counts):
    out = np.empty(counts[rank] if counts else x.size // comm.Get_size(), x.dtype)
    comm.Reduce_scatter(x, out, counts)
    return out


def split(color, key):
    group = comm.Split(color, key)
    if group == MPI.COMM_NULL:
        return None
    members = np.empty(group.Get_size(), int)
    group.Allgather(np.array([rank]), members)
    return members, group.Get_rank(), group.Get_size()


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


@SETTINGS
@given(
    shape=shapes, dtype=st.sampled_from(["f4", "f8", "i4", "i8", "u1"]), op=st.sampled_from(sorted(OPERATIONS)), seed=st.integers(0, 999)
)
def test_allreduce_is_numpys_reduction(eight, shape, dtype, op, seed):
    inputs = np.random.default_rng(seed).integers(1, 3, (8, *shape)).astype(dtype)
    want = OPERATIONS[op](inputs, axis=0).astype(dtype)
    for out, in_place in eight.call(reduce_all, [{"x": x, "op": op} for x in inputs]):
        assert out.dtype == want.dtype
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(in_place, want)


@SETTINGS
@given(shape=shapes, seed=st.integers(0, 999))
def test_allgather_is_a_stack_in_rank_order(eight, shape, seed):
    inputs = np.random.default_rng(seed).random((8, *shape))
    for out in eight.call(gather_all, [{"x": x} for x in inputs]):
        np.testing.assert_array_equal(out, inputs)


@SETTINGS
@given(counts=st.lists(st.integers(0, 4), min_size=8, max_size=8), equal=st.integers(1, 3))
def test_reduce_scatter_gives_each_rank_its_part(eight, counts, equal):
    for sizes, given_counts in (([equal] * 8, None), (counts, counts)):
        inputs = np.arange(8 * sum(sizes)).reshape(8, sum(sizes))
        parts = np.split(inputs.sum(axis=0), np.cumsum(sizes)[:-1])
        for out, want in zip(eight.call(reduce_parts, [{"x": x, "counts": given_counts} for x in inputs]), parts, strict=True):
            np.testing.assert_array_equal(out, want)


@SETTINGS
@given(colors=st.lists(st.integers(0, 3), min_size=8, max_size=8), keys=st.lists(st.integers(-3, 3), min_size=8, max_size=8))
def test_split_groups_by_color_in_order_of_key(eight, colors, keys):
    answers = eight.call(split, [{"color": c, "key": k} for c, k in zip(colors, keys, strict=True)])
    for r, (members, inner, size) in enumerate(answers):
        want = sorted((q for q in range(8) if colors[q] == colors[r]), key=lambda q: (keys[q], q))
        assert members.tolist() == want
        assert (inner, size) == (want.index(r), len(want))


def test_split_with_undefined_color_gives_no_group(eight):
    undefined = MPI.UNDEFINED
    answers = eight.call(split, [{"color": undefined if r == 3 else 0, "key": 0} for r in range(8)])
    assert answers[3] is None
    assert answers[0][0].tolist() == [0, 1, 2, 4, 5, 6, 7]


def rooted(x, root, parts):
    """Runs on the ranks: broadcast, scatter and gather; and what a rank sent in each."""
    from course_lib import traffic

    traffic.reset()
    buf = x.copy() if rank == root else np.empty_like(x)
    comm.Bcast(buf, root=root)
    mine = np.empty_like(parts[0])
    comm.Scatter(parts if rank == root else None, mine, root)
    whole = np.empty_like(parts) if rank == root else None
    comm.Gather(mine * 2, whole, root)
    return buf, mine, whole, [(e.operation, e.calls, e.wire) for e in traffic.entries()]


@SETTINGS
@given(shape=shapes, root=st.integers(0, 7), seed=st.integers(0, 999))
def test_broadcast_scatter_and_gather(eight, shape, root, seed):
    random = np.random.default_rng(seed)
    x, parts = random.random(shape), random.random((8, *shape))
    for r, (buf, mine, whole, sent) in enumerate(eight.call(rooted, dict(x=x, root=root, parts=parts))):
        np.testing.assert_array_equal(buf, x)
        np.testing.assert_array_equal(mine, parts[r])
        assert (whole is None) == (r != root)
        if r == root:
            np.testing.assert_array_equal(whole, 2 * parts)
        scattered, gathered = (7 * x.nbytes, 0) if r == root else (0, x.nbytes)
        passed_on = 0 if r == (root - 1) % 8 else x.nbytes
        assert sent == [("Bcast", 1, passed_on), ("Scatter", 1, scattered), ("Gather", 1, gathered)]


def many_broadcasts(n):
    """Runs on the ranks: the root does not wait for the others, and may be a call ahead of them."""
    array = np.arange(3) if rank == 0 else np.empty(3, int)
    for i in range(n):
        comm.Bcast(array[: 1 + i % 3], root=0)
    return array


@pytest.mark.slow
def test_a_root_that_is_a_call_ahead_is_no_mismatch(eight):
    for array in eight.call(many_broadcasts, dict(n=3000)):
        assert array.tolist() == [0, 1, 2]


def several_at_once(n):
    """Runs on the ranks: all-reduces that are all on their way before the first is awaited."""
    inputs = [np.full(1000 * (i + 1), rank + i, float) for i in range(n)]
    outputs = [np.empty_like(x) for x in inputs]
    requests = [comm.Iallreduce(x, y) for x, y in zip(inputs, outputs, strict=True)]
    requests[-1].Wait()
    while not requests[0].Test():
        pass
    for request in requests:
        request.Wait()
    return [float(y[-1]) for y in outputs], [len(set(y.tolist())) for y in outputs]


def test_all_reduces_that_are_awaited_later(eight):
    for values, different in eight.call(several_at_once, dict(n=5)):
        assert values == [28.0 + 8 * i for i in range(5)] and different == [1] * 5


def failing(ranks, source):
    """Run a cell; the error of each rank (None for one that has none), and the seconds it took."""
    began = time.monotonic()
    replies = ranks.run(source, label="cell [1]")
    seconds = time.monotonic() - began
    errors = [reply["error"] for _, reply in replies]
    after = ranks.run("out = np.empty(2); comm.Allreduce(np.ones(2), out); assert out[0] == 8")
    assert [reply["error"] for _, reply in after] == [None] * ranks.n, "the next cell does not work"
    return errors, seconds


FAULTS = {
    "one rank skips the call": (
        "if rank != 3:\n    comm.Barrier()",
        [
            "DeadlockError",
            "ranks 0–2, 4–7 wait in Barrier #1",
            "cell [1], line 2",
            "rank 3 has finished the cell without it",
            "an if on the rank",
        ],
    ),
    "another operation": (
        "x = np.ones(8)\ncomm.Allreduce(x, x * 0) if rank != 2 else comm.Allgather(np.ones(1), x)",
        ["MismatchError", "ranks 0, 1, 3–7: Allreduce of 8 float64 (op SUM)", "rank 2: Allgather of 1 float64", "the same collective"],
    ),
    "another op": (
        "x = np.ones(8)\ncomm.Allreduce(x, x * 0, op=MPI.MAX if rank else MPI.SUM)",
        ["MismatchError", "rank 0: Allreduce of 8 float64 (op SUM)", "(op MAX)", "the same op"],
    ),
    "counts differ": (
        "x = np.ones(8 if rank < 7 else 9)\ncomm.Allreduce(x, x * 0)",
        ["MismatchError", "rank 7: Allreduce of 9 float64", "The count must be the same", "shape"],
    ),
    "dtypes differ": (
        "x = np.ones(8, np.float32 if rank else np.float64)\ncomm.Allreduce(x, x * 0)",
        ["MismatchError", "ranks 1–7: Allreduce of 8 float32", "rank 0: Allreduce of 8 float64", "dtype="],
    ),
    "a view": (
        "x = np.ones((4, 4))[:, 1]\ncomm.Allreduce(x, np.empty(4))",
        ["ValueError", "sendbuf is not contiguous", "np.ascontiguousarray(sendbuf)"],
    ),
    "a receive buffer of the wrong size": (
        "comm.Allgather(np.ones((2, 3)), np.empty(6))",
        ["ValueError", "recvbuf has 6 elements (shape (6,)), expected 48", "8 ranks send as much each"],
    ),
    "a part of the wrong size": (
        "comm.Reduce_scatter(np.ones(16), np.empty(16))",
        ["ValueError", "recvbuf has 16 elements", "expected 2", "gets 2 of them"],
    ),
    "parts that are not equal": (
        "comm.Reduce_scatter(np.ones(9), np.empty(1))",
        ["ValueError", "8 ranks cannot share equally", "Pad it"],
    ),
    "roots differ": (
        "comm.Bcast(np.ones(3), root=int(rank == 5))",
        ["MismatchError", "rank 5: Bcast of 3 float64 (root 1)", "(root 0)", "the same root"],
    ),
    "a root that is none": ("comm.Bcast(np.ones(3), root=8)", ["ValueError", "root must be a rank of the group, 0 to 7; got 8"]),
    "no array on the root": (
        "comm.Scatter(None, np.ones(2), root=rank)",
        ["TypeError", "Scatter: sendbuf must be a NumPy array; got None"],
    ),
    "parts that are too large": (
        "comm.Scatter(np.ones(16), np.ones(3), root=rank)",
        ["ValueError", "recvbuf has 3 elements", "expected 2", "8 ranks get as much each"],
    ),
    "a whole that is too small": (
        "comm.Gather(np.ones(2), np.ones(15), root=rank)",
        ["ValueError", "recvbuf has 15 elements", "expected 16", "8 ranks send as much each"],
    ),
    "one rank does not start": (
        "out = np.empty(4)\nif rank != 3:\n    comm.Iallreduce(np.ones(4), out).Wait()",
        ["DeadlockError", "ranks 0–2, 4–7 wait in Iallreduce #1", "rank 3 has finished the cell without it"],
    ),
    "a list": ("comm.Allreduce([1.0, 2.0], np.empty(2))", ["TypeError", "sendbuf must be a NumPy array; got a list", "np.array"]),
    "None": ("comm.Allreduce(np.ones(2), None)", ["TypeError", "recvbuf must be a NumPy array; got None"]),
    "two dtypes": (
        "comm.Allreduce(np.ones(2, np.float32), np.empty(2))",
        ["TypeError", "sendbuf is float32, recvbuf is float64", "dtype=float32"],
    ),
    "objects": ("comm.Allreduce(np.array([{}, {}]), np.empty(2))", ["TypeError", "dtype object", "numbers"]),
    "the same buffer twice": ("x = np.ones(2)\ncomm.Allreduce(x, x)", ["ValueError", "the same array", "fresh array"]),
    "buffers that overlap": ("x = np.ones(4)\ncomm.Allreduce(x[:3], x[1:])", ["ValueError", "sendbuf and recvbuf overlap", "fresh array"]),
    "a part of the whole": ("x = np.ones(8)\ncomm.Allgather(x[:1], x)", ["ValueError", "sendbuf and recvbuf overlap", "fresh array"]),
    "scattered within": ("x = np.ones(8)\ncomm.Scatter(x, x[2:3], root=rank)", ["ValueError", "sendbuf and recvbuf overlap"]),
    "lower case": ("comm.allreduce(1)", ["AttributeError", "pickled Python objects", "comm.Allreduce(sendbuf, recvbuf)"]),
    "a group in lower case": ("comm.split(0, 1)", ["AttributeError", "comm.Split(color, key)"]),
    "a float as color": ("comm.Split(rank / 2)", ["TypeError", "color must be a whole number", "//"]),
    "each other": (
        "pair = comm.Split(rank // 2)\nif rank % 2:\n    comm.Barrier()\nelse:\n    pair.Barrier()",
        ["DeadlockError", "wait for each other", "Barrier #1 on group{0, 1}", "Barrier #2 on world{0–7}"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_gets_a_sentence_and_the_next_cell_works(eight, fault):
    source, words = FAULTS[fault]
    errors, seconds = failing(eight, source)
    skipped = 3 if fault in ("one rank skips the call", "one rank does not start") else None
    assert [r for r in range(8) if errors[r] is None] == [r for r in range(8) if r == skipped]
    said = {f"{e['name']}: {e['message']}" for e in errors if e}
    if words[0] in ("DeadlockError", "MismatchError"):
        assert len(said) == 1, f"the ranks do not say the same: {said}"
    for text in said:
        assert [word for word in words if word not in text] == [], text
    assert seconds < patient(10)  # not a speed test: a hang would take a minute


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
from course_lib.collectives import meeting
class Late:
    def __le__(self, turns):
        return time.monotonic() > self.until
spins = meeting.SPINS
if rank == 3:
    meeting.SPINS = Late()
    meeting.SPINS.until = time.monotonic() + 3.5
try:
    if rank != 5:
        comm.Barrier()
finally:
    meeting.SPINS = spins
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
    threading.Timer(watch.LATE + 2, os.kill, (late, signal.SIGCONT)).start()
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
from course_lib.collectives.board import GIVES_UP, STATE, open_board
pair, rows, total = comm.Split(rank // 2), open_board().rows, np.empty(1)
if rank == 0:
    try:
        comm.Recv(total, 7)
    except DeadlockError:
        total[0] = 0
    end = time.monotonic() + 3
    while time.monotonic() < end:
        sum(range(10**7))  # one step of C, during which no other thread runs
while rank == 1 and rows[0][STATE] != GIVES_UP:
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
from course_lib.collectives.board import GAVE_UP, GIVES_UP, STATE, open_board
pair, rows = comm.Split(rank // 2), open_board().rows
if rank == 0:
    comm.Barrier()
over, began = np.zeros(1), time.monotonic()
while rank > 1 and not over[0] and time.monotonic() - began < 30:
    time.sleep(0.3)
    pair.Allreduce(np.full(1, float(rows[0][STATE] in (GAVE_UP, GIVES_UP))), over)
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


@pytest.mark.slow
def test_slow_is_not_stuck(eight):
    replies = eight.run("if rank == 1:\n    time.sleep(4)\nout = np.empty(1)\ncomm.Allreduce(np.ones(1), out)")
    assert [reply["error"] for _, reply in replies] == [None] * 8


def test_some_ranks_only(eight):
    replies = eight.run("comm.Barrier()", targets=[0, 1])
    assert all("ranks 2–7 were not asked to run this cell" in reply["error"]["message"] for _, reply in replies)
    assert not failing(eight, "comm.Barrier()")[0][0]


def test_a_caught_fault_does_not_spoil_the_rest_of_the_cell(eight):
    errors, _ = failing(eight, "try:\n    comm.Allreduce([1], np.empty(1))\nexcept TypeError:\n    pass\ncomm.Barrier()")
    assert errors == [None] * 8


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


def time_limited(limit):
    from course_lib.collectives import Communicator

    other = Communicator(limit=limit, board=False)
    Communicator(limit=500.0, board=False).Barrier()  # changes nothing but itself
    out = np.empty(8)
    other.Allgather(np.full(1, rank, float), out)
    message = None
    if rank != 6:
        try:
            other.Barrier()
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
    return out, message


def without_board():
    from course_lib.collectives import Communicator

    out = np.empty(8)
    Communicator(board=False).Allgather(np.full(1, rank, float), out)
    try:
        Communicator(board=False).Allreduce(np.ones(1 + (rank == 1)), np.empty(1 + (rank == 1)))
    except Exception as error:
        return out, f"{type(error).__name__}: {error}"


@pytest.mark.slow
def test_without_a_board_a_plain_time_limit_ends_a_wait(eight):
    for r, (out, message) in enumerate(eight.call(time_limited, {"limit": 5.0})):
        assert out.tolist() == list(range(8))
        assert (message is None) == (r == 6)
        assert r == 6 or ("waited 5 s in Barrier on world{0–7}" in message and "share no status board" in message)
    for out, message in eight.call(without_board):  # the channels were renewed: MPI still works
        assert out.tolist() == list(range(8))
        assert "MismatchError" in message and "rank 1: Allreduce of 2 float64" in message


def counted(n):
    comm.Allreduce(np.ones(n), np.empty(n))
    comm.Allreduce(np.ones(n), np.empty(n))
    comm.Allgather(np.ones(n), np.empty(8 * n))
    comm.Reduce_scatter(np.ones(8 * n), np.empty(n))


def test_traffic_counts_what_moved(eight):
    eight.call(counted, {"n": 100})
    world = list(range(8))
    for moved in eight.traffic:
        assert sorted([m[0], list(m[1]), m[2], m[3]] for m in moved) == [
            ["Allgather", world, 1, 6400],
            ["Allreduce", world, 2, 1600],
            ["Reduce_scatter", world, 1, 6400],
        ]
