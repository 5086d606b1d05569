"""The network of messengers on isolated ranks: its clock, silences and partitions; the same run every time."""

import json
import math
import random

import pytest

from course_lib.cluster.isolated.reference_collectives import ProtocolViolation
from course_lib.cluster.isolated.virtual_time.network import VirtualNetwork


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
            self.network.post(r, frame["post"], 1, str(frame["what"]).encode())
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


def test_a_mark_counts_sends_anew():
    network = VirtualNetwork(2)
    network.plan_silence(0, 1.0, 1, mark=2)
    network.begin()
    send, mark = {"post": 1, "messenger": 7}, {"post": 0, "messenger": 3}
    frames = [mark, send, send, send, mark, send, send]
    assert [network.holds(0, frame, b"") for frame in frames] == [False] * 6 + [True]


def test_a_rank_that_floods_another_is_dropped():
    network = VirtualNetwork(2)
    with pytest.raises(ProtocolViolation, match="more messages than are received"):
        for _ in range(10_000):
            network.post(0, 1, 1, b"x")
