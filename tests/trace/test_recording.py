"""Traces of real ranks: a straggler is named, times and bytes add up, and nothing is changed by recording."""

import time

import numpy as np
import pytest
from machine import patient

from course_lib import traffic
from course_lib.cluster import Ranks
from course_lib.collectives import Communicator
from course_lib.collectives.instrumentation.recording import recording
from course_lib.trace import Recorder, span
from course_lib.trace.timeline import COMPUTING, TRANSFERRING, WAITING, Trace


def traced(ranks, source, **options):
    """The trace of a cell."""
    with ranks.trace(show=False) as traces:
        replies = ranks.run(source, **options)
    assert [reply["error"] for _, reply in replies if reply["error"]] == []
    (found,) = traces
    return found


def test_a_straggler_made_by_a_sleep_is_named(eight):
    asleep = patient(0.1)
    found = traced(eight, f"for i in range(4):\n    time.sleep({asleep} if rank == 3 else 0)\n    comm.Barrier()")
    straggler, waited = found.straggler()
    assert straggler == 3 and waited > 3 * 4 * asleep
    others = [s for s in found.summaries() if s.rank != 3]
    assert all(max(s.waited_for, key=s.waited_for.get) == 3 and s.seconds[WAITING] > 3 * asleep for s in others)
    assert found.summaries()[3].seconds[COMPUTING] >= 4 * asleep


def test_a_straggler_among_senders_is_named(eight):
    late = f"if rank == 5:\n    time.sleep({patient(0.3)})\n"
    found = traced(eight, late + "comm.Sendrecv(np.ones(4), (rank + 1) % 8, 0, np.empty(4), (rank - 1) % 8)")
    assert max(found.summaries()[6].waited_for.items(), key=lambda item: item[1])[0] == 5
    assert len(found.arrows()) == 8 and {(a.source, a.dest, a.nbytes) for a in found.arrows()} == {(r, (r + 1) % 8, 32) for r in range(8)}
    assert all(a.received >= a.sent for a in found.arrows())


def test_the_sum_of_a_rank_is_its_time(eight):
    source = """
began = time.perf_counter()
for i in range(50):
    comm.Allreduce(np.ones(1 << 14), np.empty(1 << 14))
took = time.perf_counter() - began
"""
    found = traced(eight, source)
    for summary, took, rank in zip(found.summaries(), eight.pull("took"), found.ranks, strict=True):
        total = sum(summary.seconds.values())
        assert total == pytest.approx(rank.end - rank.begin) and took <= total
        calls = summary.seconds[WAITING] + summary.seconds[TRANSFERRING]
        assert 0 < calls <= took * 1.02


def test_bytes_are_those_of_the_traffic_counters(eight):
    eight.run(
        """
import contextlib
from course_lib.collectives import MismatchError
def exchange():
    half, whole = np.ones(600, np.float32), np.empty(4800, np.float32)
    with contextlib.suppress(MismatchError):
        comm.Allreduce(half[: 300 + rank % 2], np.empty(300 + rank % 2, np.float32))
    comm.Allreduce(half, np.empty_like(half))
    comm.Allgather(half, whole)
    comm.Reduce_scatter(whole, half)
    request = comm.Iallreduce(half, np.empty_like(half))
    comm.Sendrecv(half, (rank + 1) % 8, 0, np.empty_like(half), (rank - 1) % 8)
    requests = [comm.Isend(half, (rank + 2) % 8, 4), comm.Irecv(np.empty_like(half))]
    for r in (*requests, request):
        r.Wait()
    comm.Isend([half, MPI.FLOAT], np.int64((rank + 1) % 8), np.int64(6))  # nobody waits for it
    comm.Recv(np.empty_like(half), (rank - 1) % 8, 6)
    comm.Bcast(half, 2)
    comm.Alltoallv([whole, [rank + 1] * 8], [np.empty(36, np.float32), [r + 1 for r in range(8)]])
    comm.Split(rank % 2).Allreduce(half, np.empty_like(half))
"""
    )
    with eight.trace(show=False) as traces:
        eight.call("exchange")
    for summary, counted in zip(traces[0].summaries(), eight.traffic, strict=True):
        wanted = {}
        for operation, _, _, payload in counted:
            wanted[operation] = wanted.get(operation, 0) + payload
        assert summary.nbytes == {operation: payload for operation, payload in wanted.items() if payload}


def test_overlap_is_seen(eight):
    """A rank that tests its request while it computes hides the transfer; one that waits at once is in a call meanwhile."""
    prepare = "big, total = np.ones(1 << 19), np.empty(1 << 19)\ncomm.Barrier()\n"
    hides = "request = comm.Iallreduce(big, total)\nwhile not request.Test():\n    sum(range(100))\nrequest.Wait()"
    waits = "comm.Iallreduce(big, total).Wait()"
    assert [s.overlap for s in traced(eight, prepare + hides).summaries()] == [pytest.approx(1.0, abs=0.2)] * 8
    found = traced(eight, prepare + waits)
    for rank in found.ranks:
        (flight,) = found.flights[rank.rank]
        (wait,) = (e for e in rank.events if e.kind == "wait")
        assert flight.event.begin < wait.begin < wait.end and flight.end == wait.end


def test_spans_and_operations_are_recorded(eight):
    source = """
from course_lib.autograd import Linear, SGD, Tensor
from course_lib.trace import span
model = Linear(256, 256)
with span("step", micro_batch=2):
    model(Tensor(np.ones((512, 256), np.float32))).sum().backward()
    SGD(model.parameters(), 0.1).step()
"""
    found = traced(eight, source)
    for r in found.ranks:
        kinds = {(e.kind, e.name, e.of) for e in r.events}
        assert ("span", "step", "micro batch 2") in kinds
        assert {("operation", "linear", ""), ("operation", "linear, backward", "")} <= kinds


def test_a_deadlock_shows_for_whom_the_others_waited(eight):
    with eight.trace(show=False) as traces:
        replies = eight.run("if rank != 2:\n    comm.Barrier()")
    assert sum("DeadlockError" in (reply["error"] or {}).get("kind", []) for _, reply in replies) == 7
    assert traces[0].straggler()[0] == 2
    assert all(set(s.waited_for) == {2} for s in traces[0].summaries() if s.rank != 2)
    assert traced(eight, "comm.Barrier()").seconds < patient(5)


def test_a_cell_on_some_ranks_has_a_trace_of_these(eight):
    found = traced(eight, "pair = rank", targets=[1, 6])
    assert [r.rank for r in found.ranks] == [1, 6] and found.straggler() is None


def test_on_ranks_that_are_not_in_the_trace_others_may_wait(eight):
    with eight.trace(show=False) as traces:
        replies = eight.run("comm.Barrier()", targets=[1, 6])
    assert all("DeadlockError" in reply["error"]["kind"] for _, reply in replies)
    for s in traces[0].summaries():
        assert set(s.waited_for) == {0} and s.seconds[TRANSFERRING] == 0.0


def test_a_trace_ends_with_the_cell(eight):
    """The work of a rank after its cell, for the others' cells, is not in its trace."""
    source = (
        "if rank == 0:\n    late = comm.Isend(np.ones(1 << 20), 1)\nif rank == 1:\n    time.sleep(0.5)\n    comm.Recv(np.empty(1 << 20), 0)"
    )
    found = traced(eight, source)
    assert found.ranks[0].end - found.ranks[0].begin < 0.4 < found.ranks[1].end - found.ranks[1].begin


def test_a_rank_that_runs_into_a_time_limit_is_in_the_trace(eight):
    with eight.trace(show=False) as traces:
        replies = eight.run("comm.Barrier()\nif rank == 4:\n    while True: pass\ncomm.Barrier()", limit=1.0)
    assert dict(replies)[4]["error"]["name"] == "TimeLimit"
    assert len(traces[0].ranks) == 8 and traces[0].straggler()[0] == 4


def test_a_restart_within_a_trace(tmp_path):
    """Each trace has the machines of its own time; cells that a restart reruns have none; an outer trace has what an inner one has."""
    ranks, file = Ranks(2), tmp_path / "new" / "trace.json"
    try:
        with ranks.trace(show=False, file=str(file)) as traces:
            ranks.run("def f(): pass")
            ranks.restart(rerun=True, n=1)
            with ranks.trace(show=False) as inner:
                ranks.run("f()")
        assert [len(trace.ranks) for trace in traces] == [2, 1] and len(inner) == 1 and file.exists()
    finally:
        ranks.stop()


def test_while_grading_there_are_no_traces(eight, monkeypatch):
    monkeypatch.setenv("COURSE_UNATTENDED", "30")
    with eight.trace() as traces:
        eight.run("comm.Barrier()")
    assert traces == []


def test_after_a_trace_all_is_as_before(eight):
    before = {name: getattr(Communicator, name) for name in ("run_collective", "begin", "Split", "_exchange", "Isend", "Irecv")}
    with pytest.raises(ZeroDivisionError), recording():
        assert Communicator.run_collective is not before["run_collective"]
        raise ZeroDivisionError
    assert all(getattr(Communicator, name) is method for name, method in before.items())
    found = traced(eight, "comm.Barrier()")
    assert len(found.ranks) == 8
    eight.run("plain = 'recording' not in comm.run_collective.__code__.co_filename")
    assert eight.pull("plain") == [True] * 8


def test_memory_is_bounded_and_the_oldest_go():
    comm, recorder = Communicator(), Recorder(capacity=10)
    with recording(recorder):
        for i in range(30):
            with span("turn", number=i):
                comm.Barrier()
    told = recorder.as_dict()
    assert len(told["events"]) == 10 and told["dropped"] == 50
    found = Trace.from_replies({0: told})
    assert found.dropped == 50 and {e.of for e in found.ranks[0].events} >= {"number 29"}


def test_a_request_from_before_the_trace_is_a_wait_and_no_more():
    comm, total = Communicator(), np.empty(3)
    request = comm.Iallreduce(np.ones(3), total)
    with recording() as recorder:
        request.Wait()
    assert total.tolist() == [1.0] * 3
    assert [event[0] for event in recorder.events] == ["wait"]


def test_a_request_that_was_started_in_one_trace_and_completed_in_the_next_counts_in_the_first():
    comm = Communicator()
    with recording() as first:
        request = comm.Iallreduce(np.ones(3), np.empty(3))
    with recording() as second:
        request.Wait()
        comm.Barrier()
    ((kind, _, begin, end, *_),) = first.as_dict()["events"]
    assert kind == "started collective" and begin < end == first.ended
    assert [event[0] for event in second.as_dict()["events"]] == ["wait", "collective"]
    assert Trace.from_replies({0: second.as_dict()}).summaries()[0].nbytes == {}


def test_a_request_that_is_polled_ends_when_it_is_complete():
    comm, recorder = Communicator(), Recorder()
    with recording(recorder):
        request = comm.Irecv(np.empty(1), 0, np.int64(9))
        assert not request.Test()
        comm.Send(np.ones(1), 0, 9)
        while not request.Test():
            pass
        done = recorder.clock()
        time.sleep(0.01)
    (received,) = (event for event in recorder.as_dict()["events"] if event[0] == "started receive")
    assert received[3] <= done and received[7:] == (0, 9) and type(received[8]) is int


def test_the_operations_that_are_recorded_take_long_enough():
    recorder = Recorder(min_seconds=0.01)
    recorder.start()
    try:
        recorder.add_operation("short", recorder.clock())
        began = recorder.clock()
        time.sleep(0.02)
        recorder.add_operation("long", began)
    finally:
        recorder.stop()
    assert [event[1] for event in recorder.events] == ["long"]


def test_traffic_counts_the_same_with_and_without(eight):
    eight.run("def once():\n    comm.Allreduce(np.ones(5), np.empty(5))")
    eight.call("once")
    plain = eight.traffic
    with eight.trace(show=False):
        eight.call("once")
    assert eight.traffic == plain and traffic.wire_bytes("Allreduce", 8, 40) == 70.0


def test_clocks_that_differ_are_aligned(eight):
    """Each rank's clock is shifted by some seconds; from messages with rank 0 it finds by how many."""
    eight.run(
        """
from course_lib.collectives.instrumentation.recording import clock_offset
from course_lib.trace import Recorder
shift = 100.0 * rank
comm.Send(np.ones(3), (rank + 1) % 8, 5)  # is received after the clocks are aligned
found = clock_offset(comm, Recorder(clock=lambda: time.perf_counter() + shift))
comm.Recv(np.empty(3), (rank - 1) % 8, 5)
"""
    )
    found = eight.pull("found")
    assert found[0] == (0.0, 0.0)
    assert all(abs(offset + 100.0 * r) <= uncertainty < 50.0 for r, (offset, uncertainty) in enumerate(found))


def test_a_paced_link_is_in_a_trace_what_it_stands_for(eight):
    """A message, and work for twice as long: without overlap it sets out when its receiver waits, else it arrives during the work."""
    sent = patient(0.1)
    eight.run(
        """
from course_lib.check.attention.ring_time import PacedLink
from course_lib.trace import span
def passes(overlap, seconds):
    link, got = PacedLink(comm, 8000 / seconds, overlap), np.empty(1000)
    comm.Barrier()
    with span("pass"):
        requests = [link.Irecv(got, (rank - 1) % 8), link.Isend(np.full(1000, float(rank)), (rank + 1) % 8)]
        time.sleep(2 * seconds)
        for request in requests:
            request.Wait()
    return got[0]
""",
    )
    for overlap in (False, True):
        with eight.trace(show=False) as traces:
            assert eight.call("passes", dict(overlap=overlap, seconds=sent)) == [(rank - 1) % 8 for rank in range(8)]
        (found,) = traces[0].parts("pass")
        for summary in found.summaries():
            received = [f for f in found.flights[summary.rank] if f.event.kind == "started receive"]
            assert summary.seconds[COMPUTING] >= 1.9 * sent and len(received) == 1
            assert (summary.seconds[TRANSFERRING] + summary.seconds[WAITING] > 0.9 * sent) == (not overlap)
            assert received[0].end - received[0].begin >= 0.9 * sent
        assert len(found.arrows()) == 8 and all(a.received - a.sent >= 0.9 * sent for a in found.arrows())
