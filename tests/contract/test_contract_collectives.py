"""The contract of a transport: right results, a sentence for each fault, the same on all of them, and ranks that work afterwards."""

import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machine import patient
from mpi4py import MPI
from transports import is_graded, is_nccl, run

from course_lib import traffic
from course_lib.collectives import Communicator, calls
from course_lib.collectives.coordination.reference_collectives import RULES
from course_lib.collectives.transport.mpi import POST_FUNCTIONS

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
def test_allreduce_is_numpys_reduction(hosted, shape, dtype, op, seed):
    inputs = np.random.default_rng(seed).integers(1, 3, (8, *shape)).astype(dtype)
    want = OPERATIONS[op](inputs, axis=0).astype(dtype)
    for out, in_place in hosted.call(reduce_all, [{"x": x, "op": op} for x in inputs]):
        assert out.dtype == want.dtype
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(in_place, want)


@SETTINGS
@given(shape=shapes, seed=st.integers(0, 999))
def test_allgather_is_a_stack_in_rank_order(hosted, shape, seed):
    inputs = np.random.default_rng(seed).random((8, *shape))
    for out in hosted.call(gather_all, [{"x": x} for x in inputs]):
        np.testing.assert_array_equal(out, inputs)


@SETTINGS
@given(counts=st.lists(st.integers(0, 4), min_size=8, max_size=8), equal=st.integers(1, 3))
def test_reduce_scatter_gives_each_rank_its_part(hosted, counts, equal):
    for sizes, given_counts in (([equal] * 8, None), (counts, counts)):
        inputs = np.arange(8 * sum(sizes)).reshape(8, sum(sizes))
        parts = np.split(inputs.sum(axis=0), np.cumsum(sizes)[:-1])
        for out, want in zip(hosted.call(reduce_parts, [{"x": x, "counts": given_counts} for x in inputs]), parts, strict=True):
            np.testing.assert_array_equal(out, want)


@SETTINGS
@given(colors=st.lists(st.integers(0, 3), min_size=8, max_size=8), keys=st.lists(st.integers(-3, 3), min_size=8, max_size=8))
def test_split_groups_by_color_in_order_of_key(hosted, colors, keys):
    answers = hosted.call(split, [{"color": c, "key": k} for c, k in zip(colors, keys, strict=True)])
    for r, (members, inner, size) in enumerate(answers):
        want = sorted((q for q in range(8) if colors[q] == colors[r]), key=lambda q: (keys[q], q))
        assert members.tolist() == want
        assert (inner, size) == (want.index(r), len(want))


def test_split_with_undefined_color_gives_no_group(hosted):
    undefined = MPI.UNDEFINED
    answers = hosted.call(split, [{"color": undefined if r == 3 else 0, "key": 0} for r in range(8)])
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
def test_broadcast_scatter_and_gather(hosted, shape, root, seed):
    random = np.random.default_rng(seed)
    x, parts = random.random(shape), random.random((8, *shape))
    for r, (buf, mine, whole, sent) in enumerate(hosted.call(rooted, dict(x=x, root=root, parts=parts))):
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
def test_a_root_that_is_a_call_ahead_is_no_mismatch(hosted):
    for array in hosted.call(many_broadcasts, dict(n=3000)):
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


def test_all_reduces_that_are_awaited_later(hosted):
    for values, different in hosted.call(several_at_once, dict(n=5)):
        assert values == [28.0 + 8 * i for i in range(5)] and different == [1] * 5


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
        ["ValueError", "recvbuf has 6 elements (shape (6,)), expected 48", "8 ranks each send that many"],
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
    "a root outside the group": ("comm.Bcast(np.ones(3), root=8)", ["ValueError", "root must be a rank of the group, 0 to 7; got 8"]),
    "no array on the root": (
        "comm.Scatter(None, np.ones(2), root=rank)",
        ["TypeError", "Scatter: sendbuf must be a NumPy array; got None"],
    ),
    "parts that are too large": (
        "comm.Scatter(np.ones(16), np.ones(3), root=rank)",
        ["ValueError", "recvbuf has 3 elements", "expected 2", "8 ranks each get the same number"],
    ),
    "a whole that is too small": (
        "comm.Gather(np.ones(2), np.ones(15), root=rank)",
        ["ValueError", "recvbuf has 15 elements", "expected 16", "8 ranks each send that many"],
    ),
    "one rank does not start": (
        "out = np.empty(4)\nif rank != 3:\n    comm.Iallreduce(np.ones(4), out).Wait()",
        ["DeadlockError", "ranks 0–2, 4–7 wait in Iallreduce #1", "rank 3 has finished the cell without it"],
    ),
    "a list": ("comm.Allreduce([1.0, 2.0], np.empty(2))", ["TypeError", "sendbuf must be a NumPy array; got a list", "np.array"]),
    "None": ("comm.Allreduce(np.ones(2), None)", ["TypeError", "recvbuf must be a NumPy array; got None"]),
    "two dtypes": (
        "comm.Allreduce(np.ones(2, np.float32), np.empty(2))",
        ["TypeError", "sendbuf is float32, recvbuf is float64", "sendbuf.dtype"],
    ),
    "objects": ("comm.Allreduce(np.array([{}, {}]), np.empty(2))", ["TypeError", "dtype object", "numeric dtype"]),
    "the same buffer twice": ("x = np.ones(2)\ncomm.Allreduce(x, x)", ["ValueError", "the same array", "fresh array"]),
    "buffers that overlap": ("x = np.ones(4)\ncomm.Allreduce(x[:3], x[1:])", ["ValueError", "sendbuf and recvbuf overlap", "fresh array"]),
    "a part of the whole": ("x = np.ones(8)\ncomm.Allgather(x[:1], x)", ["ValueError", "sendbuf and recvbuf overlap", "fresh array"]),
    "scattered within": ("x = np.ones(8)\ncomm.Scatter(x, x[2:3], root=rank)", ["ValueError", "sendbuf and recvbuf overlap"]),
    "lower case": ("comm.allreduce(1)", ["AttributeError", "pickled Python objects", "comm.Allreduce(sendbuf, recvbuf)"]),
    "a group in lower case": ("comm.split(0, 1)", ["AttributeError", "comm.Split(color, key)"]),
    "a float as color": ("comm.Split(rank / 2)", ["TypeError", "color must be a whole number", "//"]),
    "counts of a reduce-scatter differ": (
        "n = [1] * 8 if rank < 7 else [2, 0, 1, 1, 1, 1, 1, 1]\ncomm.Reduce_scatter(np.ones(8), np.empty(n[rank]), n)",
        ["MismatchError", "Reduce_scatter of 8 float64", "the same list of recvcounts"],
    ),
    "each other": (
        "pair = comm.Split(rank // 2)\nif rank % 2:\n    comm.Barrier()\nelse:\n    pair.Barrier()",
        ["DeadlockError", "wait for each other", "Barrier #1 on group{0, 1}", "Barrier #2 on world{0–7}"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_gets_a_sentence_and_the_next_cell_works(ranks, request, fault):
    source, words = FAULTS[fault]
    if is_nccl(request):
        words = [word.replace("NumPy array", "CuPy array") for word in words if "np.ascontiguousarray" not in word]
        if fault in ("a list", "objects"):  # of which GPUs know nothing
            words = words[:1]
    began = time.monotonic()
    errors = run(ranks, source)
    skipped = 3 if fault in ("one rank skips the call", "one rank does not start") else None
    assert [r for r in range(8) if errors[r] is None] == [r for r in range(8) if r == skipped]
    said = set(filter(None, errors))
    if words[0] in ("DeadlockError", "MismatchError"):
        assert len(said) == 1, f"the ranks do not say the same: {said}"
    for text in said:
        assert [word for word in words if word not in text] == [], text
    assert time.monotonic() - began < patient(15)  # not a speed test: a hang would take a minute


def test_a_caught_fault_does_not_spoil_the_rest_of_the_cell(ranks, request):
    assert run(ranks, "try:\n    comm.Allreduce([1], np.empty(1))\nexcept TypeError:\n    pass\ncomm.Barrier()") == [None] * 8
    mismatched = "try:\n    comm.Allreduce(np.ones(4 + (rank == 3)), np.empty(4 + (rank == 3)))\nexcept RuntimeError:\n    pass\n"
    errors = run(ranks, f"{mismatched}out = np.empty(1)\ncomm.Allreduce(np.ones(1), out)\nassert out[0] == 8")
    if is_graded(request):  # an error says something of other ranks, so what follows it counts for nothing
        assert all(error.startswith("MismatchError") for error in errors)
    else:
        assert errors == [None] * 8


BROKEN = """
pair, got = comm.Split(rank // 2), np.empty(1)
try:
    if rank != 3:
        comm.Barrier()
except RuntimeError:
    other = rank ^ 1
    if other != 3 and rank != 2:  # messages, and other groups, still work
        comm.Sendrecv(np.full(1, float(rank)), other, 0, got, other, 0)
        pair.Allreduce(np.ones(1), total := np.empty(1))
        assert got[0] == other and total[0] == 2
    comm.Allgather(np.ones(1), np.empty(8))
"""


def test_a_group_in_which_a_call_has_failed_takes_no_more_in_this_cell(ranks, request):
    """Else what one rank calls next could meet what another one called before."""
    errors = run(ranks, BROKEN)
    assert errors[3] is None
    for error in errors[:3] + errors[4:]:
        if is_graded(request):
            assert error.startswith("DeadlockError: ranks 0–2, 4–7 wait in Barrier #2"), error
            continue
        assert "CollectiveError: world{0–7} takes no more collectives in this cell: Barrier (cell [1], line" in error, error
        assert "has failed on this rank (DeadlockError)" in error


@pytest.mark.parametrize("call", ["comm.Alltoallv([np.ones(8), [1] * 8], [np.empty(8), [1] * 8])", "comm.Split(0)"])
def test_one_that_takes_several_steps_fails_as_one(hosted, request, call):
    source = f"try:\n    if rank != 3:\n        {call}\nexcept RuntimeError:\n    comm.Barrier()"
    errors = run(hosted, source)
    expected = "DeadlockError" if is_graded(request) else "takes no more collectives in this cell"
    assert errors[3] is None and all(expected in error for r, error in enumerate(errors) if r != 3), errors


def test_an_interrupt_ends_every_wait(processes):
    waits = "if rank == 0:\n    time.sleep(30)\nelif rank < 4:\n    comm.Recv(np.empty(1), 0)\nelse:\n    comm.Barrier()"
    began = time.monotonic()
    replies = processes.run(waits, limit=1.5)
    assert time.monotonic() - began < patient(20)
    assert all(reply["error"] for _, reply in replies)
    assert run(processes, "comm.Barrier()") == [None] * 8


def test_slow_is_not_stuck(ranks):
    assert run(ranks, "if rank == 1:\n    time.sleep(3)\nout = np.empty(1)\ncomm.Allreduce(np.ones(1), out)") == [None] * 8


ALIKE = """
groups = []
for members in (1, 2, 6, 4), (4, 1, 6, 3, 0):  # once, both had the same number
    mine = members.index(rank) if rank in members else -1
    groups.append(comm.Split(0 if mine >= 0 else MPI.UNDEFINED, mine))
one, two = groups
got, total = np.empty(1), np.empty(1)
if rank == 1:
    one.Send(np.full(1, 1.0), one.ranks.index(4))
    two.Send(np.full(1, 2.0), two.ranks.index(4))
if rank == 4:
    two.Recv(got, two.ranks.index(1))
    assert got[0] == 2, got
    one.Recv(got, one.ranks.index(1))
    assert got[0] == 1, got
for group in groups:
    if group != MPI.COMM_NULL:
        group.Allreduce(np.ones(1), total)
        assert total[0] == len(group.ranks), total
"""


def test_groups_of_some_of_the_same_ranks_are_not_taken_for_each_other(ranks):
    assert run(ranks, ALIKE) == [None] * 8


def started_barrier():
    """On the ranks: one that comes late holds up who waits for it, and nobody else."""
    import time

    began = time.monotonic()
    if rank == 5:
        time.sleep(0.5)
    request = comm.Ibarrier()
    started = time.monotonic() - began
    request.Wait()
    return started, time.monotonic() - began


def test_a_barrier_that_does_not_block(hosted_processes):
    for r, (started, ended) in enumerate(hosted_processes.call(started_barrier)):
        assert (started < 0.4 or r == 5) and ended > 0.4


def counted(n):
    comm.Allreduce(np.ones(n), np.empty(n))
    comm.Allreduce(np.ones(n), np.empty(n))
    comm.Allgather(np.ones(n), np.empty(8 * n))
    comm.Reduce_scatter(np.ones(8 * n), np.empty(n))


def test_traffic_counts_what_moved(hosted):
    hosted.call(counted, {"n": 100})
    world = list(range(8))
    for moved in hosted.traffic:
        assert sorted([m[0], list(m[1]), m[2], m[3]] for m in moved) == [
            ["Allgather", world, 1, 6400],
            ["Allreduce", world, 2, 1600],
            ["Reduce_scatter", world, 1, 6400],
        ]


def test_each_collective_is_known_to_all_who_carry_count_and_describe_it():
    blocking = {number for number, name in enumerate(calls.COLLECTIVES) if name and number not in calls.BLOCKING_FORM}
    counted = {*traffic._RING_PASSES, *traffic._SENT_ONCE, "Split"}  # a split moves nothing of the student's
    places = {
        "transport/mpi.py, POST_FUNCTIONS": set(POST_FUNCTIONS),
        "collectives/coordination/reference_collectives.py, RULES": set(RULES),
        "traffic.py": {number for number in blocking if calls.COLLECTIVES[number] in counted},
        "communicator.py": {number for number in blocking if hasattr(Communicator, calls.COLLECTIVES[number])},
    }
    for place, known in places.items():
        assert known == blocking, f"{place} lacks {[calls.COLLECTIVES[n] for n in blocking - known]}"


def counted_as_sent():
    """Runs on the ranks: collectives whose ranks send different numbers of bytes, and what this rank has counted."""
    from course_lib import traffic

    counts = [[3] + [1] * 7] * 8
    traffic.reset()
    comm.Alltoallv([np.ones(10), counts[rank]], [np.empty(24), [row[rank] for row in counts]])
    comm.Bcast(np.ones(4), root=2)
    comm.Gather(np.ones(4), np.empty((8, 4)) if rank == 3 else None, root=3)
    comm.Barrier()
    comm.Ibarrier().Wait()
    return [[e.operation, e.calls, e.payload] for e in traffic.entries()]


def test_what_leaves_a_rank_is_counted_alike_by_the_rank_and_by_the_broker(hosted):
    own = hosted.call(counted_as_sent)
    for r, moved in enumerate(hosted.traffic):
        outside = {operation: [calls, payload] for operation, _, calls, payload in moved}
        inside = {operation: [calls, payload] for operation, calls, payload in own[r]}
        assert outside["Alltoallv"] == inside["Alltoallv"] == [1, 56 if r == 0 else 72]
        assert outside["Barrier"] == inside["Barrier"] == [2, 0]  # sends nothing, and is a call
        assert all(outside.get(name, [0, 0])[1] == inside.get(name, [0, 0])[1] for name in ("Bcast", "Gather"))
