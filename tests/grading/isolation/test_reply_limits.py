"""Limits on what isolated ranks send: refused before it is parsed, with a sentence."""

import json
import socket

import numpy as np
import pytest

from course_lib.cluster import Ranks, RanksGone
from course_lib.cluster.isolated import broker, sanitize
from course_lib.cluster.isolated.broker import Broker
from course_lib.cluster.replies import RanksError
from course_lib.collectives.coordination.reference_collectives import ProtocolViolation
from course_lib.engine import reply_limits, serialization
from course_lib.sandbox import bubblewrap


@pytest.fixture
def two(monkeypatch):
    monkeypatch.setenv(bubblewrap.ISOLATION_VARIABLE, bubblewrap.UNSANDBOXED)
    ranks = Ranks(2)
    yield ranks
    ranks.stop()


def texts():
    return ["x" * 5_000_000]


def numbers():
    return [0.5] * 400_000


def arrays():
    import numpy as np

    return np.ones(5_000_000)


def within():
    import numpy as np

    return ["x" * 3_000_000], [1] * 400_000, np.ones(3_000_000)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (texts, "5 MB of text without its arrays, and at most 4 MB are accepted from each of 2 ranks"),
        (numbers, "of text without its arrays, and at most 4 MB"),
        (arrays, "40 MB of arrays, and at most 32 MB"),
    ],
)
def test_a_result_that_is_too_large_is_an_error_and_ranks_go_on(two, function, said):
    with pytest.raises(RanksError, match=rf"ranks 0, 1: ResultTooLarge: the result has .*{said}"):
        two.call(function)
    assert [len(numbers) for _, numbers, _ in two.call(within)] == [400_000] * 2


def test_output_that_is_too_large_is_left_out_and_the_result_kept(two):
    source = """
from IPython.display import display
for _ in range(2):
    display({"text/plain": "x" * 2_050_000}, raw=True)
y = 5
"""
    for _, reply in two.run(source):
        assert reply["error"] is None
        assert "is left out: the rank's reply would be 4.1 MB of text" in reply["outputs"][0]["text"]
    assert two.pull("y") == [5, 5]


def forged(text, number="3 + isolated.rank", length="len(text)"):
    """A cell that replies to its own request, which is number 3 on rank 0 and 4 on rank 1."""
    return f"""
import time
from course_lib.collectives.transport import isolated
text = {text}
isolated.connection.send({{"reply": {number}, "text": {length}}}, text)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('b"[" + b"1," * 2_500_000 + b"1]"', "its reply has 5 MB of text without its arrays"),
        ('b"[" + b"1," * 1_500_000 + b"1]"', "its reply has 1,500,001 values without its arrays"),
        ('b"{}" + b"[" * 1_900_000', "its reply has 1,900,001 values without its arrays"),
        ('chr(0x1F600).encode() + b"x" * 1_000_000', "its reply cannot be read"),
        ('b"[" * 200_000', "its reply cannot be read"),
        ('b"1" * 1_000_000', "its reply cannot be read"),
    ],
)
def test_a_reply_is_measured_before_it_is_parsed(two, monkeypatch, text, said):
    parsed, loads = [], serialization.loads

    def record(text):
        parsed.append(len(text))
        return loads(text)

    monkeypatch.setattr(serialization, "loads", record)
    with pytest.raises(RanksGone, match=rf"rank 0 was ended: {said}"):
        two.run(forged(text), targets=[0])
    assert len(parsed) == said.endswith("read") - text.startswith("chr"), "only what may be read is parsed"


def test_outputs_are_counted_for_all_ranks_together():
    texts = [{"stream": "stdout", "text": "x"}] * (sanitize.MAX_OUTPUTS // 4 + 1)
    assert len(sanitize.outputs(texts)) == len(texts)
    assert "has 101 pieces, and at most 100 are shown" in sanitize.outputs(texts, 4)[0]["text"]
    long = [{"stream": "stdout", "text": "x" * 190_000}] * 10
    assert len(sanitize.outputs(long)) == 10
    assert "has 1.9 MB, and at most 524 kB are shown" in sanitize.outputs(long, 8)[0]["text"]


class Announced:
    """A reader with a frame that is announced, and not here yet."""

    def __init__(self, nbytes, here=0):
        self.nbytes, self.here = nbytes, here

    def __len__(self):
        return self.here

    def lengths(self):
        return 10, self.nbytes

    def next_frame(self):
        return None


def test_all_messages_together_have_a_limit(monkeypatch):
    """They are added up over all ranks, and a result that several ranks get counts once."""
    monkeypatch.setattr(broker, "MAX_HELD_BYTES", 4_000_000)
    ours, theirs = zip(*(socket.socketpair() for _ in range(3)), strict=True)
    between = Broker(list(ours), lambda *_: None, lambda *_: None)
    try:
        result = memoryview(bytes(1_000_000))
        for out in between._out:
            out.append(result)
        between._in = [Announced(1_000_000, 900_000), Announced(1_000_000, 1_000_000), Announced(1_200_000)]
        assert between._held_bytes() == 2_900_000
        assert between._frame(0) is None
        message = "it sent a message of 1.2 MB while the ranks had 2.9 MB in messages that are not received"
        with pytest.raises(ProtocolViolation, match=message):
            between._frame(2)
    finally:
        between.end()
        for end in theirs:
            end.close()


def test_limits_leave_room_for_right_answers():
    """The largest of all solutions, as measured; see `reply_limits` and `broker`."""
    part_20 = json.dumps([["send", 3, [1], [2], None]] * 40_000)
    assert reply_limits.excess(serialization.parts({"value": part_20})[0], 0, 1) is None
    part_08 = serialization.parts({"value": serialization.encode(np.ones(1_200_000))})
    assert reply_limits.excess(part_08[0], len(part_08[1]), 8) is None
    assert broker.MAX_PAYLOAD_BYTES > 4 * 13_000_000
