"""Virtual ranks: what they return and count, their order, and that nothing of them stays.

What every transport must do, they are shown to do in tests/contract.
"""

import gc
import signal
import threading
import time

import numpy as np
import pytest
from greenlet import greenlet
from machine import patient

from course_lib import traffic
from course_lib.check.cases.virtual_group import VirtualGroup, run_virtually
from course_lib.cluster import Ranks
from course_lib.cluster.replies import RanksError
from course_lib.collectives import DeadlockError, MismatchError
from course_lib.collectives.progress.operations import progress_state
from course_lib.collectives.transport import isolated
from course_lib.sandbox import bubblewrap

CELL = """
import functools
import numpy as np
from course_lib.collectives import Communicator
everyone = Communicator()
kept, count = np.empty(3), 0

@functools.cache
def buffer(size, dtype):
    return np.empty(size, dtype)

def pass_on(x, comm, received={}):
    global count
    count += 1
    n, rank = comm.Get_size(), comm.Get_rank()
    out = received.setdefault(x.size, np.empty_like(x))
    result = buffer(x.size, x.dtype)
    kept[:], result[:] = x, 0
    for step in range(n):
        result += kept
        comm.Sendrecv(kept, (rank + 1) % n, recvbuf=out, source=(rank - 1) % n)
        kept[:] = out
    return result.copy(), count
"""
MODES = {"notebook": {}, "open": {bubblewrap.ISOLATION_VARIABLE: bubblewrap.UNSANDBOXED}}
if bubblewrap.problem() is None:
    MODES["bubblewrap"] = {bubblewrap.ISOLATION_VARIABLE: bubblewrap.SANDBOXED}


def ring_all_gather(part, comm):
    n, rank = comm.Get_size(), comm.Get_rank()
    parts = np.tile(part, (n, 1))
    for step in range(n - 1):
        sent, received = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        comm.Sendrecv(sent, (rank + 1) % n, recvbuf=received, source=(rank - 1) % n)
    return parts.reshape(-1)


@pytest.fixture(autouse=True)
def nothing_left():
    """The state of this process is as before, and no rank waits to be continued."""
    before = isolated.connection, isolated.rank, dict(vars(progress_state)), traffic.entries()
    yield
    after = isolated.connection, isolated.rank, dict(vars(progress_state)), traffic.entries()
    assert after == before
    gc.collect()
    assert [rank for rank in gc.get_objects() if type(rank) is greenlet and rank.gr_frame] == []


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 11, 17])
def test_a_ring_of_any_size(size):
    parts = np.random.default_rng(size).random((size, 20))
    outcomes = run_virtually(size, lambda comm, rank: ring_all_gather(parts[rank], comm), seed=3)
    for rank, (result, messages, sent, unended) in enumerate(outcomes):
        np.testing.assert_array_equal(result, parts.reshape(-1))
        to_next, from_previous = ("to", (rank + 1) % size, 160), ("from", (rank - 1) % size, 160)
        assert sorted(messages) == [from_previous] * (size - 1) + [to_next] * (size - 1)
        assert sum(payload for *_, payload in sent) == 160 * (size - 1)
        assert all(entry[:3] == ("Send", list(range(size)), size - 1) for entry in sent)
        assert unended == 0


def test_groups_of_virtual_ranks():
    def grid(comm, rank):
        row, column = comm.Split(rank // 4), comm.Split(rank % 4, -rank)
        total, order = np.empty(1), np.empty(column.Get_size(), int)
        row.Allreduce(np.full(1, float(rank)), total)
        column.Allgather(np.array([rank]), order)
        return total[0], order.tolist()

    outcomes = run_virtually(12, grid)
    for rank, (result, messages, sent, _) in enumerate(outcomes):
        row, column = rank // 4, rank % 4
        assert result == (sum(range(4 * row, 4 * row + 4)), [column + 8, column + 4, column])
        assert [name for name, *_ in messages] == ["Split", "Split", "Allreduce", "Allgather"]
        assert sent[0] == ("Allreduce", list(range(4 * row, 4 * row + 4)), 1, 8)


def test_an_operation_that_is_left_is_counted():
    def leaves(comm, rank):
        comm.Irecv(np.empty(1), 1 - rank)

    assert [unended for *_, unended in run_virtually(2, leaves)] == [1, 1]


def order_of_arrival(comm, rank):
    if rank:
        comm.Send(np.full(1, rank), 0)
        return None
    received, order = np.empty(1, int), []
    for _ in range(comm.Get_size() - 1):
        comm.Recv(received)
        order.append(int(received[0]))
    return order


def test_a_seed_decides_the_order():
    orders = [run_virtually(5, order_of_arrival, seed)[0][0] for seed in range(20)]
    assert orders == [run_virtually(5, order_of_arrival, seed)[0][0] for seed in range(20)]
    assert {order[0] for order in orders} == {1, 2, 3, 4}


def test_a_rank_that_tests_lets_the_others_run():
    def tests(comm, rank):
        received = np.empty(1)
        request = comm.Irecv(received, (rank - 1) % 17)
        if rank:
            while not request.Test():
                pass
        comm.Send(np.full(1, float(rank)), (rank + 1) % 17)
        request.Wait()
        return received[0]

    assert [result for result, *_ in run_virtually(17, tests)] == [16.0, *range(16)]


def test_the_first_error_is_raised():
    def fails(comm, rank):
        if rank == 6:
            return 1 / 0
        return comm.Barrier()

    with pytest.raises(ZeroDivisionError):
        run_virtually(9, fails)
    errors = [outcome.error for outcome in VirtualGroup(9, fails).run()]
    assert "rank 6 has raised ZeroDivisionError" in str(errors[0])
    assert {type(error) for error in errors[:6] + errors[7:]} == {DeadlockError}
    assert type(errors[6]) is ZeroDivisionError


def test_a_deadlock_and_a_mismatch_are_described():
    def all_receive(comm, rank):
        comm.Recv(np.empty(3), (rank + 1) % comm.Get_size())

    def sizes_differ(comm, rank):
        comm.Allreduce(np.ones(1 + rank // 5), np.empty(1 + rank // 5))

    with pytest.raises(DeadlockError, match=r"rank 16 waits in Recv from rank 0 \(test_virtual"):
        run_virtually(17, all_receive)
    with pytest.raises(MismatchError, match="rank 5: Allreduce of 2 float64"):
        run_virtually(6, sizes_differ)


def test_an_error_counts_although_it_is_caught():
    def catches(comm, rank):
        try:
            comm.Barrier() if rank else comm.Allgather(np.ones(1), np.empty(3))
        except MismatchError:
            return "as if nothing had been"

    with pytest.raises(MismatchError):
        run_virtually(3, catches)


def spins(comm, rank):
    comm.Barrier()
    while rank == 2:
        pass


def catches_all(comm, rank):
    for _ in range(10_000 if rank == 0 else 5):
        try:
            comm.Recv(np.empty(1), (rank + 1) % 4) if rank else time.sleep(0.01)
        except BaseException:
            pass
        finally:
            comm.Iallreduce(np.ones(1), np.empty(1))


def looks_for_ever(comm, rank):
    request = comm.Irecv(np.empty(1), rank)
    while not request.Test():
        pass


@pytest.mark.parametrize("function", [spins, catches_all, looks_for_ever])
def test_an_interrupt_ends_all_of_them(function):
    timer = threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    before = signal.signal(signal.SIGINT, _interrupted)
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_virtually(4, function)
    finally:
        signal.signal(signal.SIGINT, before)
        timer.join()
    assert time.monotonic() - began < patient(5)


def _interrupted(*_):
    """As a rank handles it."""
    if isolated.connection:
        isolated.connection.interrupt()
    raise KeyboardInterrupt


def test_what_a_rank_counts_of_itself_stays_apart():
    def counted(comm, rank):
        for _ in range(rank + 1):
            comm.Send(np.ones(2), rank)
            comm.Recv(np.empty(2), rank)
        comm.Barrier()
        return [(entry.operation, entry.calls, entry.payload) for entry in traffic.entries()]

    for rank, (counts, *_) in enumerate(run_virtually(3, counted)):
        assert counts == [("Send", rank + 1, 16 * (rank + 1)), ("Barrier", 1, 0)]


@pytest.fixture(scope="module", params=MODES)
def ranks(request):
    """Two ranks, as in a notebook and as in gradings."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in MODES[request.param].items():
            patch.setenv(name, value)
        running = Ranks(2)
        running.run(CELL)
        yield running
        running.stop()


def sums(size):
    """Runs on the ranks."""
    from course_lib.check.cases.virtual_group import run_virtually

    def summed(comm, rank):
        out = np.empty(1000)
        comm.Allreduce(np.full(1000, float(rank)), out)
        return out[:1]

    return run_virtually(size, summed, everyone.Get_rank())


def test_on_ranks(ranks):
    for answers in ranks.call(sums, dict(size=17)):
        for rank, (total, messages, sent, unended) in enumerate(answers):
            assert total == 17 * 16 / 2, rank
            assert (messages, unended) == ([("Allreduce", -1, 0)], 0)
            assert sent == [("Allreduce", list(range(17)), 1, 8000)]
    assert [list(moved) for moved in ranks.traffic] == [[], []]


def passed_on(size):
    """Runs on the ranks."""
    from course_lib.check.cases.virtual_group import run_virtually
    from course_lib.engine.namespace import student

    def called(comm, rank):
        student("pass_on")(np.full(3, float(rank)), comm)
        return student("pass_on")(np.full(3, float(rank)), comm)

    return [result for result, *_ in run_virtually(size, called)], count


def test_on_ranks_buffers_that_an_answer_keeps_are_of_one_virtual_rank(ranks):
    for results, shared_count in ranks.call(passed_on, dict(size=5)):
        for total, own_count in results:
            assert (total.tolist(), own_count) == ([10.0] * 3, 2)
        assert shared_count == 0


def stuck():
    """Runs on the ranks."""
    from course_lib.check.cases.virtual_group import run_virtually

    def waits(comm, rank):
        comm.Barrier()
        while rank == 3:
            pass

    run_virtually(5, waits)


def test_on_ranks_time_ends_an_endless_loop(ranks):
    with pytest.raises(RanksError, match="TimeLimit: was still running"):
        ranks.call(stuck, {}, limit=1.0)
    assert len(ranks.call(sums, dict(size=3))[0]) == 3
    assert [reply["error"] for _, reply in ranks.run("everyone.Barrier()")] == [None, None]


def on_everyone():
    """Runs on the ranks."""
    from course_lib.check.cases.virtual_group import run_virtually

    run_virtually(5, lambda comm, rank: everyone.Bcast(np.ones(1)))


def test_on_ranks_the_communicator_of_the_notebook_is_none_of_theirs(ranks, request):
    if request.node.callspec.params["ranks"] == "notebook":  # there, it reaches the ranks
        ranks.call(on_everyone, {})
    else:
        with pytest.raises(RanksError, match="use the communicator that the function was given"):
            ranks.call(on_everyone, {})
    assert [reply["error"] for _, reply in ranks.run("everyone.Barrier()")] == [None, None]
