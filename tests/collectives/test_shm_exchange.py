"""Small sums and gathers in shared memory: right in every order of calls and groups, also after a call that failed."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def many(seed, calls, dtype):
    """On a rank: sums on several groups in turn, each rank with pauses of its own; what came out, and what should have."""
    random, mine = np.random.default_rng(seed), np.random.default_rng([seed, rank])
    groups = [comm, comm.Split(color=rank // 4), comm.Split(color=rank % 2), comm.Split(color=rank // 2)]
    wrong = 0
    for _ in range(calls):
        group, size, time_out = groups[random.integers(4)], int(random.integers(1, 3000)), mine.random() < 0.05
        whole = random.integers(-1000, 1000, (8, size)).astype(dtype)
        if time_out:
            time.sleep(0.002)
        parts, want = whole[list(group.ranks)], whole[list(group.ranks)].sum(axis=0)
        kind, n, me = random.integers(4), group.Get_size(), group.Get_rank()
        if kind == 0:
            out = np.empty(size, dtype)
            group.Allreduce(whole[rank], out)
        elif kind == 1:
            out, want = np.empty((n, size), dtype), parts
            group.Allgather(whole[rank], out)
        elif kind == 2:
            out, want = np.zeros((n, size), dtype), parts
            out[me] = whole[rank]
            group.Allgather(MPI.IN_PLACE, out)
        else:
            cuts = np.sort(random.integers(0, size + 1, n - 1))
            counts = np.diff([0, *cuts, size]).tolist()  # some of them 0
            want = np.split(want, cuts)[me]
            out = np.empty(counts[me], dtype)
            group.Reduce_scatter(whole[rank], out, counts)
        wrong += not np.array_equal(out, want)
    return wrong


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 999), dtype=st.sampled_from(["float32", "float64", "int32", "complex128"]))
def test_exchanges_on_groups_that_overlap_are_right(eight, seed, dtype):
    assert eight.call(many, dict(seed=seed, calls=60, dtype=dtype)) == [0] * 8


def once(x, in_place):
    from mpi4py import MPI

    out = x.copy() if in_place else np.empty_like(x)
    comm.Allreduce(MPI.IN_PLACE if in_place else x, out)
    return out


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("size", [0, 1, 7, 1 << 14, 1 << 15, 1 << 18])
def test_every_rank_has_the_same_to_the_last_bit(eight, size, in_place):
    x = np.random.default_rng(0).standard_normal((8, size)).astype(np.float32)
    answers = eight.call(once, [dict(x=row, in_place=in_place) for row in x])
    assert all(np.array_equal(a, answers[0]) for a in answers)
    assert np.allclose(answers[0], x.sum(axis=0), atol=1e-4)


def of_one(size):
    """On a rank: exchanges in a group of this rank alone, also of nothing."""
    alone, found = comm.Split(color=rank), []
    for exchange in (alone.Allreduce, alone.Allgather, alone.Reduce_scatter):
        out = np.empty(size)
        exchange(np.full(size, 3.0), out)
        found.append(out)
    return found


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_group_of_one_exchanges_with_itself(eight, size):
    assert all(np.array_equal(out, np.full(size, 3.0)) for found in eight.call(of_one, dict(size=size)) for out in found)


def half_of_them():
    """On a rank: one rank of each pair does not come."""
    part = comm.Split(color=rank // 2)
    try:
        if rank % 2:
            raise RuntimeError("not today")
        part.Allreduce(np.ones(5), np.empty(5))
    except RuntimeError as error:
        return type(error).__name__


def test_a_sum_that_failed_does_not_spoil_the_next(eight):
    assert eight.call(half_of_them) == ["DeadlockError", "RuntimeError"] * 4
    assert eight.call(many, dict(seed=1, calls=40, dtype="float64")) == [0] * 8
    assert eight.call(swallowed) == [[True] * 5] * 8


def swallowed():
    """A mismatch that is caught, and right sums behind it, in the same cell."""
    right = []
    for turn in range(5):
        size = 4 + (rank == 3)
        try:
            comm.Allreduce(np.ones(size), np.empty(size))
        except RuntimeError:
            out = np.empty(6)
            comm.Allreduce(np.full(6, float(turn)), out)
            right.append(bool((out == 8 * turn).all()))
    return right


def kept(sizes):
    """Bytes that sums of so many sizes leave behind on this rank."""
    from course_lib.memory import live_array_bytes

    before = live_array_bytes()
    for size in range(1, sizes + 1):
        comm.Allreduce(np.ones(size), np.empty(size))
    return live_array_bytes() - before


def test_sums_leave_nothing_behind(eight):
    assert max(eight.call(kept, dict(sizes=300))) < 100_000


def slow_reader():
    """Rank 0 is called away between the rendezvous and its reading, and catches the interrupt; it does not say that it has left."""
    from course_lib.collectives.progress.rendezvous import BoardRendezvous

    pair, out, alone = comm.Split(color=min(rank, 1)), np.empty(1), comm.Split(color=rank)
    real, caught = BoardRendezvous.leave, ""

    def called_away(self, key):
        raise KeyboardInterrupt

    if rank == 0:
        BoardRendezvous.leave = called_away
    try:
        comm.Allreduce(np.ones(3), np.empty(3))
    except KeyboardInterrupt:
        caught = "interrupted"
    finally:
        BoardRendezvous.leave = real
    alone.Barrier()
    for _ in range(4):  # the others use both slots again, without rank 0
        pair.Allreduce(np.ones(1), out)
    try:
        comm.Allreduce(np.ones(1), out) if rank == 0 else None
    except RuntimeError as error:
        caught = str(error)
    return caught


def test_a_reader_that_never_said_that_it_left_holds_up_nobody(eight):
    said, *others = eight.call(slow_reader, limit=20)
    assert others == [""] * 7
    assert "world{0–7} takes no more collectives in this cell: Allreduce (" in said and "failed on this rank (KeyboardInterrupt)" in said
