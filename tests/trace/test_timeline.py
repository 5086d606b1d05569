"""A trace's time, rank by rank: computed from records that are written down here."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.trace import perfetto
from course_lib.trace.timeline import COMPUTING, TRANSFERRING, WAITING, Arrow, Trace

ALL = (0, 1, 2)


def trace(*events, ended=10.0, dropped=0):
    """A trace of the ranks whose events are given, one list each; all clocks start at 0."""
    return Trace.from_replies({r: {"began": 0.0, "ended": ended, "dropped": dropped, "events": own} for r, own in enumerate(events)})


def collective(begin, end, number=0, ranks=ALL, nbytes=100):
    return ("collective", "Allreduce", begin, end, ranks, number, nbytes)


def states(found, rank):
    return [(s.state, s.begin, s.end) for s in found.segments[rank]]


def test_who_comes_early_waits_for_the_last():
    found = trace([collective(1.0, 5.5)], [collective(4.0, 5.0)], [collective(2.0, 6.0)])
    assert states(found, 0) == [(COMPUTING, 0.0, 1.0), (WAITING, 1.0, 4.0), (TRANSFERRING, 4.0, 5.5), (COMPUTING, 5.5, 10.0)]
    assert states(found, 1) == [(COMPUTING, 0.0, 4.0), (TRANSFERRING, 4.0, 5.0), (COMPUTING, 5.0, 10.0)]
    assert [s.waited_for for s in found.summaries()] == [{1: 3.0}, {}, {1: 2.0}]
    assert found.straggler() == (1, 5.0)


def test_who_calls_what_another_never_calls_waits_to_the_end():
    found = trace([collective(1.0, 5.0)], [], [collective(2.0, 5.0)])
    assert states(found, 0) == [(COMPUTING, 0.0, 1.0), (WAITING, 1.0, 5.0), (COMPUTING, 5.0, 10.0)]
    assert found.summaries()[0].waited_for == {1: 4.0} and found.straggler() == (1, 7.0)


def test_the_straggler_is_the_rank_at_the_end_of_the_chain():
    """As in a pipeline: rank 2 waits longest, for rank 1, which waits for the slow rank 0."""
    first, second = dict(ranks=(0, 1), number=1), dict(ranks=(1, 2), number=1)
    found = trace(
        [collective(8.0, 8.0, **first)], [collective(1.0, 8.0, **first), collective(9.0, 9.0, **second)], [collective(0.0, 9.0, **second)]
    )
    assert [s.waited_for for s in found.summaries()] == [{}, {0: 7.0}, {1: 9.0}]
    assert found.straggler() == (0, 14.0)


def test_of_a_rank_that_has_dropped_events_nothing_is_claimed():
    found = trace([collective(1.0, 5.0)], [], [collective(2.0, 5.0)], dropped=3)
    assert found.straggler()[0] == 2 and found.dropped == 9


def test_a_trace_begins_where_events_are_no_longer_missing():
    found = trace([collective(6.0, 7.0)], [collective(6.5, 7.0)], [collective(6.0, 7.0)], dropped=3)
    assert found.seconds == 4.0 and states(found, 0) == [(WAITING, 0.0, 0.5), (TRANSFERRING, 0.5, 1.0), (COMPUTING, 1.0, 4.0)]


def test_a_message_is_an_arrow_and_its_receiver_waits_for_its_sender():
    send = ("send", "Send", 3.0, 4.0, ALL, 0, 80, 2, 7)
    receive = ("receive", "Recv", 1.0, 4.5, ALL, 0, 0, 0, 7)
    found = trace([send], [], [receive])
    assert found.arrows() == [Arrow(0, 3.0, 2, 4.5, 80, ALL)]
    assert states(found, 2)[:3] == [(COMPUTING, 0.0, 1.0), (WAITING, 1.0, 3.0), (TRANSFERRING, 3.0, 4.5)]
    assert found.summaries()[2].waited_for == {0: 2.0} and found.summaries()[0].nbytes == {"Send": 80}


@pytest.mark.parametrize("end, waited", [(2.0, 0.0), (6.0, 3.0)])
def test_a_send_waits_for_its_receiver_only_if_it_was_not_buffered(end, waited):
    found = trace([("send", "Send", 1.0, end, ALL, 0, 80, 1, 7)], [("receive", "Recv", 4.0, 6.0, ALL, 0, 0, 0, 7)], [])
    assert found.summaries()[0].seconds[WAITING] == waited


def test_a_message_from_before_the_trace_moves_no_arrow():
    sends = [("send", "Send", t, t + 0.1, ALL, i, 8, 1, 0) for i, t in enumerate((5.0, 7.0))]
    receives = [("receive", "Recv", t, t + 0.5, ALL, i, 0, 0, 0) for i, t in enumerate((1.0, 5.2, 7.1))]
    assert [(a.sent, a.received) for a in trace(sends, receives, []).arrows()] == [(5.0, 5.7), (7.0, 7.6)]


def test_a_receive_that_ends_too_early_by_an_uncertain_clock_keeps_its_arrow():
    sends = [("send", "Send", t, t + 0.1, ALL, i, 8, 1, 0) for i, t in enumerate((5.0, 7.0))]
    receives = [("receive", "Recv", t, t + 0.5, ALL, i, 0, 0, 0) for i, t in enumerate((4.3, 6.3))]
    record = {"began": 0.0, "ended": 10.0, "dropped": 0}
    for uncertainty, arrows in ((0.1, 1), (0.3, 2)):
        replies = {0: record | {"events": sends}, 1: record | {"events": receives, "uncertainty": uncertainty}}
        assert len(Trace.from_replies(replies).arrows()) == arrows


def test_a_receive_to_which_nothing_came_is_waiting():
    found = trace([], [("receive", "Recv", 1.0, 3.0, ALL, -1, 0, 2, 0)], [])
    assert found.summaries()[1].waited_for == {2: 2.0}


@pytest.mark.parametrize("waits, overlap", [(8.0, 1.0), (4.0, 0.0), (6.0, 0.5)])
def test_overlap_is_the_share_of_a_transfer_in_which_the_rank_computes(waits, overlap):
    """The last rank starts its call at 4, so data moves from 4 to 8; in `Wait` a rank does not compute."""
    records = []
    for begin in (1.0, 4.0, 2.0):
        wait = [("wait", "Allreduce", waits, 8.0, ALL, 0, 0, -1, -1, "collective")] * (waits < 8.0)
        records.append([*wait, ("started collective", "Allreduce", begin, 8.0, ALL, 0, 100)])
    found = trace(*records)
    assert [s.overlap for s in found.summaries()] == [pytest.approx(overlap)] * 3
    assert [s.nbytes for s in found.summaries()] == [{"Allreduce": 100}] * 3


@given(st.data())
def test_a_rank_has_no_gap_and_nothing_twice(data):
    """Whatever was recorded: each rank's segments follow each other from its begin to its end."""
    records = []
    for _ in ALL:
        times = sorted(data.draw(st.lists(st.floats(0, 10), min_size=0, max_size=12)))
        pairs = zip(times[::2], times[1::2], strict=False)
        records.append([collective(begin, end, number) for number, (begin, end) in enumerate(pairs)])
    found = trace(*records)
    for rank, summary in enumerate(found.summaries()):
        segments = found.segments[rank]
        assert segments[0].begin == 0.0 and segments[-1].end == 10.0
        assert all(a.end == b.begin for a, b in itertools.pairwise(segments))
        assert sum(summary.seconds.values()) == pytest.approx(10.0)
        assert rank not in summary.waited_for


def test_a_skewed_clock_is_set_right():
    replies = {
        0: {"began": 100.0, "ended": 110.0, "dropped": 0, "events": [collective(101.0, 105.0, ranks=(0, 1))]},
        1: {"began": 7.0, "ended": 17.0, "dropped": 0, "offset": 93.0, "events": [collective(11.0, 12.0, ranks=(0, 1))]},
    }
    found = Trace.from_replies(replies)
    assert (found.seconds, found.straggler()) == (10.0, (1, 3.0))


def test_a_group_is_known_by_its_ranks():
    pair = [collective(1.0, 2.0, ranks=(1, 2))]
    found = trace([collective(5.0, 6.0)], [*pair, collective(5.0, 6.0)], [*pair, collective(5.0, 6.0)])
    assert found.groups == [(1, 2), ALL]


def test_perfetto_gets_what_its_format_asks_for(tmp_path):
    """Complete events have ts and dur, flows and asynchronous events come in pairs with one id, and all have pid and tid."""
    send = ("send", "Send", 3.0, 4.0, ALL, 0, 80, 2, 7)
    receive = ("receive", "Recv", 1.0, 4.5, ALL, 0, 0, 0, 7)
    flight = ("started collective", "Iallreduce", 5.0, 6.0, ALL, 0, 100)
    found = trace([send, flight, ("span", "forward", 0.0, 1.0, (), -1, 0, -1, -1, "micro batch 2")], [flight], [receive, flight])
    perfetto.write(found, tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text())
    events = written["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "b", "e", "s", "f"}
    assert all(isinstance(e["pid"], int) and isinstance(e["tid"], int) and e["name"] for e in events)
    assert all(e["ts"] >= 0 for e in events if e["ph"] != "M") and all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    for first, last in (("s", "f"), ("b", "e")):
        ids = [sorted(e["id"] for e in events if e["ph"] == kind) for kind in (first, last)]
        assert ids[0] == ids[1] and len(set(map(str, ids[0]))) == len(ids[0])
    (span,) = (e for e in events if e.get("cat") == "span")
    assert (span["name"], span["ts"], span["dur"], span["args"]) == ("forward", 0.0, 1e6, {"labels": "micro batch 2"})
    (end,) = (e for e in events if e["ph"] == "f")
    assert end["bp"] == "e" and end["tid"] == 2


def test_a_trace_is_cut_into_the_spans_of_a_name():
    def named(name, begin, end):
        return ("span", name, begin, end)

    found = trace(
        [named("step", 1.0, 4.0), named("forward", 1.5, 2.0), collective(2.0, 3.0, 0), named("step", 6.0, 8.0), collective(6.5, 8.0, 1)],
        [named("step", 2.0, 4.5), collective(2.5, 3.0, 0), collective(4.6, 4.7, 5), named("step", 6.0, 8.5), collective(7.0, 8.0, 1)],
        [collective(1.0, 3.0, 0)],
    )
    first, second = found.parts("step")
    assert [r.rank for r in first.ranks] == [0, 1] and first.seconds == 3.5 and second.seconds == 2.5
    assert states(first, 0) == [(COMPUTING, 0.0, 1.0), (WAITING, 1.0, 1.5), (TRANSFERRING, 1.5, 2.0), (COMPUTING, 2.0, 3.0)]
    assert states(first, 1)[-1] == (COMPUTING, 2.0, 3.5), "the call after the span is not in it"
    assert [e.name for e in first.ranks[0].events] == ["forward", "Allreduce"]
    assert found.fastest("step").seconds == 2.5 and found.parts("stop") == []
    with pytest.raises(ValueError, match=r"the trace has no span 'stop'; it has 'forward', 'step'\."):
        found.fastest("stop")
    assert first.computing == pytest.approx((1.0 + 1.0 + 0.5 + 1.5) / (2 * 3.5))


def test_a_message_has_arrived_when_its_receive_ends():
    """Its sender may wait for it much later."""
    send, receive = ("started send", "Isend", 1.0, 9.0, ALL, 0, 80, 2, 7), ("receive", "Recv", 1.5, 3.0, ALL, 0, 0, 0, 7)
    (flight,) = trace([send], [], [receive]).flights[0]
    assert (flight.begin, flight.end) == (1.5, 3.0)
