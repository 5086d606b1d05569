"""The network of messengers on isolated ranks: its clock, silences and partitions; the same run every time."""

import json
import math
import random

import pytest

from course_lib.collectives.coordination.reference_collectives import ProtocolViolation
from course_lib.collectives.coordination.virtual_network import MAX_HELD_FRAMES, VirtualNetwork


class Ranks:
    """Ranks as generators: what one yields is sent, and it gets what `take` answers; they run in a random order."""

    def __init__(self, programs, seed=0):
        self.network, self.random = VirtualNetwork(len(programs)), random.Random(seed)
        self.programs, self.log, self.frames = programs, [], 0

    def run(self):
        self.network.begin()
        self.running = {r: program(r) for r, program in enumerate(self.programs)}
        ready = dict.fromkeys(self.running)
        while True:
            while ready:
                r = self.random.choice(sorted(ready))
                self._frame(r, ready)
            answers, held = self.network.advance()
            for r, header, _ in held:
                self._handle(r, header)
            for r, answer, data in answers:
                ready[r] = (answer["source"], data.decode())
            if not answers and not held:
                return self.log

    def _frame(self, r, ready):
        try:
            frame = self.running[r].send(ready[r])
        except StopIteration:
            del ready[r]
            return
        ready[r] = None
        if "take" in frame:
            del ready[r]
            self.frames += 1
            frame["take"] = self.frames
        self._handle(r, frame)

    def _handle(self, r, frame):
        if self.network.holds(r, frame, b""):
            return
        if "post" in frame:
            self.network.post(r, frame, 1, str(frame["what"]).encode())
        else:
            self.network.take(r, frame["take"], 1, frame["listen"], frame["seconds"])


def greet(ranks, size, seconds):
    """Send to all others, then listen for a while, and note what comes and when."""

    def program(r):
        for other in range(size):
            if other != r:
                yield {"post": other, "messenger": 1, "what": r}
        while True:
            source, what = yield {"take": 0, "listen": 1, "seconds": seconds}
            ranks.log.append((r, source, what, ranks.network.now))
            if source < 0:
                return

    return program


def heard(log):
    return {r: sorted(source for rank, source, _, _ in log if rank == r and source >= 0) for r in {entry[0] for entry in log}}


def run(size=4, seconds=1.0, seed=0, plan=lambda network: None):
    ranks = Ranks([None] * size, seed)
    ranks.programs = [greet(ranks, size, seconds)] * size
    plan(ranks.network)
    return ranks.run(), ranks.network


def test_the_clock_moves_only_when_nobody_can_go_on():
    log, network = run()
    assert heard(log) == {r: [k for k in range(4) if k != r] for r in range(4)}
    assert {now for _, source, _, now in log if source >= 0} == {0.0} and network.now == 1.0


@pytest.mark.parametrize("seconds", [0.5, 3.5])
def test_a_silent_rank_is_heard_when_it_is_back_and_then_gets_its_messages(seconds):
    log, network = run(plan=lambda network: network.plan_silence(2, seconds, 1))
    late = [] if seconds > 1 else [2]
    assert heard(log) == {0: [1, 2, 3], 1: sorted([0, *late, 3]), 2: [0, 1, 3], 3: sorted([0, 1, *late])}
    assert ("silent", 2) in [(what, rank) for _, what, rank, *_ in network.log]
    assert [now for now, what, *_ in network.log if what == "back"] == [seconds]


def test_a_silence_without_an_end_lasts_until_the_others_are_done():
    log, network = run(plan=lambda network: network.plan_silence(0, math.inf, 0))
    assert heard(log) == {0: [1, 2, 3], 1: [2, 3], 2: [1, 3], 3: [1, 2]} and network.now == 2.0


@pytest.mark.parametrize("end", [0.5, 2.5])
def test_messages_between_two_sides_wait_and_others_do_not(end):
    log, _ = run(plan=lambda network: network.plan_partition([{0}, {3}], end))
    late = end < 1
    assert heard(log) == {0: [1, 2, 3] if late else [1, 2], 1: [0, 2, 3], 2: [0, 1, 3], 3: [0, 1, 2] if late else [1, 2]}


def test_the_same_run_whatever_the_order_of_frames():
    def plan(network):
        network.plan_silence(1, 0.5, 2)
        network.plan_silence(3, 0.7, 1)
        network.plan_partition([{0, 1}, {2}], 0.6)

    runs = [run(seed=seed, plan=plan)[0] for seed in range(20)]
    assert all(sorted(one, key=json.dumps) == sorted(runs[0], key=json.dumps) for one in runs)
    for r in range(4):
        assert len({json.dumps([entry for entry in one if entry[0] == r]) for one in runs}) == 1


def post(other, *key, topic="round"):
    return {"post": other, "messenger": 1, "topic": topic, "key": list(key)}


TAKE = {"take": 1}


def held(frames, **plan):
    """Return which frames of rank 0 are held back when its silence is planned so."""
    network = VirtualNetwork(4)
    network.plan_silence(0, 1.0, **plan)
    network.begin()
    return [network.holds(0, frame, b"") for frame in frames]


def test_a_silence_in_a_round_begins_with_it_whatever_else_is_sent():
    hello = post(1, topic="hello")
    frames = [*[hello] * 6, post(1, 0, 2), *[hello] * 6, post(0, 1, 2), hello, post(2, 1, 2), hello, TAKE]
    assert held(frames, round=(1, 2)) == [False] * 15 + [True] * 3


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_some_ranks_still_get_the_message_of_the_last_round_in_any_order(order):
    frames = [frame for other in order for frame in (post(other, topic="hello"), post(other, 1, 2))]
    late = [other != 2 for other in order for _ in range(2)]
    late[0] = False  # before the round
    assert held([*frames, TAKE, post(2, 1, 3)], round=(1, 2), through=frozenset({2})) == [*late, True, True]


def test_a_silence_in_a_round_that_is_left_out_begins_with_a_later_one():
    assert held([post(1, 1, 1), post(1, 3, 0), TAKE], round=(1, 2)) == [False, True, True]


def test_a_silence_does_not_begin_before_its_time():
    network = VirtualNetwork(2)
    network.plan_silence(0, 1.0, since=0.5)
    network.begin()
    assert not network.holds(0, post(1, 0), b"")
    network.now = 0.5
    assert not network.holds(0, TAKE, b"") and network.holds(0, post(1, topic="state"), b"")


def test_frames_that_were_held_may_begin_the_next_silence():
    network = VirtualNetwork(2)
    network.plan_silence(0, 1.0, round=(1, 0))
    network.plan_silence(0, 2.0, round=(1, 1))
    network.begin()
    assert all(network.holds(0, frame, b"") for frame in (post(1, 1, 0), TAKE, post(1, 1, 1), TAKE))
    _, back = network.advance()
    assert [network.holds(rank, header, b"") for rank, header, _ in back] == [False, False, True, True]
    assert network.silent == {0: 3.0}


def arrive(frames, request=None):
    """Return which messages arrive, each a sender and a frame, if only those of rounds do."""
    network = VirtualNetwork(2)
    network.plan_rounds_only(request)
    network.begin()
    for rank, frame in frames:
        network.post(rank, frame, 1, b"x")
    for rank in (0, 1):
        network.take(rank, rank, 1, 1, 1.0)
    while not any(answer["source"] < 0 for _, answer, _ in network.advance()[0]):
        for rank in (0, 1):
            network.take(rank, rank, 1, 1, 1.0)
    return [(event.other, event.topic) for event in network.log if event.what == "receives"]


def test_only_messages_of_rounds_arrive():
    frames = [(0, post(1, topic="hello")), (0, post(1, 1, 2)), (0, {**post(1), "key": None}), (0, {**post(1), "key": [0.5]})]
    assert arrive(frames) == [(0, "round")]


def test_answers_to_a_request_arrive_and_nothing_else():
    before, request, after = (0, post(1, topic="state")), (1, post(0, topic="join")), (0, post(1, topic="state"))
    assert arrive([before, request], "join") == [(1, "join")]
    assert sorted(arrive([request, after, (1, post(0, topic="state"))], "join")) == [(0, "state"), (1, "join")]


def test_a_rank_that_floods_another_is_dropped():
    network = VirtualNetwork(2)
    with pytest.raises(ProtocolViolation, match="more messages than are received"):
        for _ in range(10_000):
            network.post(0, post(1), 1, b"x")


def test_a_silent_rank_that_listens_at_once_does_not_stop_the_network():
    """Only code that bypasses the library sends while it waits for a message."""
    network = VirtualNetwork(2)
    network.plan_silence(0, 5.0, 0)
    network.begin()
    network.take(0, 1, 1, 1, 2.0)
    assert network.holds(0, {"post": 1, "messenger": 1}, b"")
    network.post(1, post(0), 1, b"hello")
    assert network.advance() == ([(0, {"took": 1, "source": -1}, b"")], []) and network.now == 2.0


def test_there_is_an_end_to_what_a_silent_rank_sends():
    network = VirtualNetwork(2)
    network.plan_silence(0, 5.0, 0)
    network.begin()
    frame = {"post": 1, "messenger": 1}
    with pytest.raises(ProtocolViolation, match="more messages than are received"):
        for _ in range(5_000):
            network.holds(0, frame, bytes(1000))
    assert network.waiting_bytes() == 1000 * (MAX_HELD_FRAMES + 1)
    network.advance()
    assert network.waiting_bytes() == 0


def test_there_is_an_end_to_listening():
    network = VirtualNetwork(2)
    with pytest.raises(ProtocolViolation, match="it listened more than 100,000 times"):
        for listen in range(200_000):
            network.take(0, listen, 1, listen, 1.0)


def test_messages_are_counted_until_they_are_taken_or_their_messenger_is_over():
    network = VirtualNetwork(2)
    for number in range(3):
        network.post(1, post(0), 1 + number // 2, bytes(10 + number))
    assert network.waiting_bytes() == 33
    network.take(0, 1, 2, 1, 1.0)
    assert network.advance()[0][0][2] == bytes(12) and network.waiting_bytes() == 0
    for _ in range(8_000):  # none of them is looked at more than a few times
        network.post(1, post(0), 2, b"x")
    for number in range(8_000):
        network.take(0, number, 2, 2, 1.0)
        assert network.advance()[0][0][2] == b"x"
    assert network.waiting_bytes() == 0
