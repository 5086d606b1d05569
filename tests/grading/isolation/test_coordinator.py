"""The coordinator by itself: it does what MPI would do, tells no more than it must, and refuses what is no call."""

import json
import socket
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.collectives import calls
from course_lib.collectives.coordination.coordinator import Coordinator, ProtocolViolation
from course_lib.collectives.transport.frames import FRAME_LENGTHS, INITIAL_PAYLOAD_BYTES, FrameReader, encode_frame

OPERATIONS = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum}


BITS = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}


def busy(size):
    coordinator = Coordinator(size)
    for r in range(size):
        coordinator.begin(r, 1, (1 << size) - 1)
    return coordinator


def meet(coordinator, what, payloads, members=None, **more):
    """All members call; what each gets."""
    members, answers = members or list(range(coordinator.size)), []
    for r, payload in zip(members, payloads, strict=True):
        answers += coordinator.call(r, {"call": 1, "members": members, "signature": list(what), **more}, payload)
    return {r: (header, data) for r, header, data in answers}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_switch_reduces_as_numpy_does(data):
    n, size = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 6))
    dtype = np.dtype(data.draw(st.sampled_from(["f4", "f8", "i4", "u1", "c16"])))
    op = data.draw(st.sampled_from(["SUM", "PROD"] if dtype.kind == "c" else sorted(OPERATIONS | (BITS if dtype.kind in "iu" else {}))))
    arrays = [np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 4, size).astype(dtype) for _ in range(n)]
    want = arrays[0]
    for array in arrays[1:]:
        want = (OPERATIONS | BITS)[op](want, array).astype(dtype)
    what = (calls.ALLREDUCE, dtype.num, size, 1 + [name for name, _ in calls.REDUCTIONS].index(op))
    answers = meet(busy(n), what, [a.tobytes() for a in arrays])
    assert [np.array_equal(np.frombuffer(answers[r][1], dtype), want) for r in range(n)] == [True] * n


def test_a_split_tells_a_rank_who_is_in_its_group_and_no_more():
    wishes = [(5, 70), (123456, -3), (5, 10), (9, 0)]
    answers = meet(busy(4), (calls.SPLIT, -1, 0, 0), [struct.pack("<qq", *w) for w in wishes])
    for r, (color, _) in enumerate(wishes):
        rows = [struct.unpack_from("<qq", answers[r][1], 16 * i) for i in range(4)]
        assert [row[0] == color for row in rows] == [c == color for c, _ in wishes]
        told = {number for row in rows for number in row}
        assert told <= {color, ~color, 0, 1, 2, 3}, "a rank learned a number of another one's choice"
    first = [struct.unpack_from("<qq", answers[0][1], 16 * i) for i in (0, 2)]
    assert first[1][1] < first[0][1], "keys order the new group"


def test_collectives_without_data_are_noted_too():
    coordinator = busy(2)
    meet(coordinator, (calls.BARRIER, -1, 0, 0), [b""] * 2)
    meet(coordinator, (calls.SPLIT, -1, 0, 0), [struct.pack("<qq", 0, 0)] * 2)
    assert coordinator.messages(1) == [("Barrier", -1, 0), ("Split", -1, 0)]
    assert coordinator.sent(1) == [["Barrier", [0, 1], 1, 0]], "a split is no call of the student's"


def test_a_call_after_the_answer_is_refused():
    coordinator = busy(2)
    coordinator.finish(0, "")
    with pytest.raises(ProtocolViolation, match="nothing to do"):
        coordinator.call(0, {"call": 1, "members": [0], "signature": [1, 12, 1, 1]}, bytes(8))


BAD_CALLS = {
    "a group without itself": dict(members=[1]),
    "a rank that does not exist": dict(members=[0, 7]),
    "a rank twice": dict(members=[0, 0]),
    "no group": dict(members="all"),
    "no call": dict(signature=[1, 2]),
    "an unknown operation": dict(signature=[77, 12, 1, 1]),
    "a text for a number": dict(signature=["1", 12, 1, 1]),
    "a negative size": dict(members=[0], signature=[1, 12, -5, 1]),
    "another size than it says": dict(members=[0], signature=[1, 12, 9, 1]),
    "an unknown dtype": dict(members=[0], signature=[1, 99, 1, 1]),
    "an unknown reduction": dict(members=[0], signature=[1, 12, 1, 15]),
    "a root that does not exist": dict(members=[0], signature=[6, 12, 1, 16 * 9]),
    "parts that do not fit": dict(members=[0], signature=[3, 12, 1, 1], counts=[5]),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_an_invalid_call_is_refused(name):
    header = {"call": 1, "members": [0, 1], "signature": [1, 12, 1, 1], **BAD_CALLS[name]}
    with pytest.raises(ProtocolViolation):
        busy(2).call(0, header, bytes(8))


def test_a_reduction_of_their_own_is_counted_as_what_it_is():
    own = calls.USER_DEFINED
    for operation in (calls.ALLREDUCE, calls.REDUCE_SCATTER):
        coordinator = busy(4)
        meet(coordinator, (operation, np.dtype(float).num, 8, own), [bytes(64)] * 4, counts=[2] * 4)
        assert [entry[3] for entry in coordinator.sent(0)] == [4 * 64], "everybody got everything"


def test_of_what_a_rank_sends_no_more_is_kept_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr("course_lib.collectives.coordination.traffic_counter.MAX_KEPT_BYTES", 1000)
    monkeypatch.setattr("course_lib.collectives.coordination.traffic_counter.MAX_KEPT_ARRAYS", 5)
    number = np.dtype(float).num
    for size, kept in ((1, 5), (30, 4), (200, 0)):
        coordinator, part = busy(2), np.arange(size, dtype=float)
        coordinator.begin(1, 1, 3, None, True)
        for _ in range(9):
            meet(coordinator, (calls.ALLGATHER, number, size, 0), [part.tobytes()] * 2)
        assert coordinator.arrays(0) is None and len(coordinator.arrays(1)) == kept
        assert all(np.array_equal(array, part) for array in coordinator.arrays(1))


SOLO = {"members": [0, 1], "signature": [calls.IALLREDUCE, 12, 8, 1], "start": True}  # number 12: float64


def test_what_nobody_joins_is_sent_as_well():
    """A start opens a gate as soon as it is begun, so it must stand in the traffic, too, whether others come or not."""
    coordinator = busy(3)
    coordinator.begin(0, 1, 7, [(64.0, 0.25), (129.0, 0.5)])
    coordinator.call(0, {**SOLO, "call": 1}, bytes(64))
    assert coordinator.gate(0) == (64, 64, 0.25) and coordinator.sent(0) == [["Allreduce", [0, 1], 1, 64]]
    coordinator.call(0, {**SOLO, "members": [1, 0], "call": 2}, bytes(64))  # in an order in which nobody else comes
    assert coordinator.gate(0) == (128, 129, 0.0)
    coordinator.call(1, {**SOLO, "call": 1}, bytes(64))
    assert sorted(coordinator.sent(0)) == [["Allreduce", [0, 1], 1, 64], ["Allreduce", [1, 0], 1, 64]], "once, also when others come"
    assert coordinator.sent(1) == [["Allreduce", [0, 1], 1, 64]]
    coordinator.begin(0, 2, 7)
    assert not coordinator.sent(0)


@pytest.mark.parametrize("what", [[calls.IALLREDUCE, 12, -1, 1], [calls.IALLREDUCE, 99, 8, 1], [calls.ALLTOALLV, -1, 8, 0]])
def test_a_start_with_invalid_numbers_is_refused_before_anybody_joins(what):
    with pytest.raises(ProtocolViolation, match="unknown dtype"):
        busy(2).call(0, {**SOLO, "signature": what, "call": 1}, bytes(64))


def test_there_is_an_end_to_what_a_rank_may_start_alone():
    """Empty calls cost no bytes, but places; and each is begun in the same time, however many there are."""
    coordinator = busy(2)
    with pytest.raises(ProtocolViolation, match="more collectives than there is room for"):
        for number in range(10_000):
            coordinator.call(0, {**SOLO, "signature": [calls.IALLREDUCE, 12, 0, 1], "call": number}, b"")
    with pytest.raises(ProtocolViolation, match="more collectives than there is room for"):
        for number in range(10_000):
            coordinator.call(
                1, {**SOLO, "members": [1, 0], "signature": [calls.IALLREDUCE, 12, 1 << 20, 1], "call": number}, bytes(8 << 20)
            )
    assert number == 32
    for r in (0, 1):
        coordinator.begin(r, 2, 3)
    for number in range(10_000):  # what others join takes no place
        for r in (0, 1):
            coordinator.call(r, {**SOLO, "members": [1, 0], "call": number}, bytes(64))


def test_there_is_an_end_to_messages_that_nobody_receives():
    message = {"members": [0, 1], "peers": [1]}
    for size, most in ((0, 4000), (1 << 20, 8)):
        coordinator, what = busy(2), [calls.SEND, 12, size, 0]
        with pytest.raises(ProtocolViolation, match="more messages than are received"):
            for number in range(10_000):
                coordinator.call(0, {**message, "signature": what, "call": number}, bytes(8 * size))
        assert number == most
    for number in range(100):  # 800 MB, each received at once
        coordinator = coordinator if number else busy(2)
        coordinator.call(0, {**message, "signature": what, "call": number}, bytes(8 * size))
        coordinator.call(1, {**message, "peers": [0], "signature": [calls.RECV, *what[1:]], "call": number}, b"")


MESSAGE = {"call": 1, "members": [0, 1], "peers": [1]}


@pytest.mark.parametrize("tag", [1 << 15, 1 << 40, -1])
def test_a_tag_is_no_place_for_numbers(tag):
    with pytest.raises(ProtocolViolation):
        busy(2).call(0, {**MESSAGE, "signature": [calls.SEND, 12, 1, tag]}, bytes(8))


def test_what_a_tag_carries_is_counted():
    coordinator = busy(2)
    for number, (tag, size) in enumerate([(0, 1), (5, 1), (5, 0)]):
        coordinator.call(0, {**MESSAGE, "call": number, "signature": [calls.SEND, 12, size, tag]}, bytes(8 * size))
    assert coordinator.sent(0) == [["Send", [0, 1], 3, 8 + 8 + 2 + 2]]


@pytest.mark.parametrize("what", [(calls.SPLIT, -1, 1, 0), (calls.BARRIER, -1, 5, 0), (calls.BARRIER, 12, 0, 0)])
def test_a_call_that_carries_nothing_cannot_say_that_it_does(what):
    with pytest.raises(ProtocolViolation, match="data with an operation that takes none"):
        busy(2).call(0, {"call": 1, "members": [0, 1], "signature": list(what)}, bytes(16 if what[0] == calls.SPLIT else 0))


def test_many_calls_that_carry_nothing_are_counted():
    for operation, payload, counts in ((calls.SPLIT, bytes(16), None), (calls.ALLTOALLV, b"", [0, 0])):
        coordinator, dtype = busy(2), -1 if operation == calls.SPLIT else 12
        for _ in range(40):
            meet(coordinator, (operation, dtype, 0 if counts is None else 7, 0), [payload] * 2, counts=counts)
        assert sum(entry[3] for entry in coordinator.sent(0) if entry[0] == "Allgather") == 8 * 16, "the first 32 are free"


def test_who_sends_another_size_than_it_says_is_blamed_and_not_who_comes_last():
    for what, right, wrong in (
        ((calls.ALLREDUCE, 12, 3, 1), 24, 0),
        ((calls.BCAST, 12, 3, 16), 24, 16),
        ((calls.GATHER, 12, 3, 32), 24, 48),
        ((calls.SCATTER, 12, 3, 16), 48, 24),
        ((calls.SPLIT, -1, 0, 0), 16, 8),
    ):
        header = {"call": 1, "members": [0, 1], "signature": list(what)}
        with pytest.raises(ProtocolViolation, match="size differs from the announced one"):
            busy(2).call(0, header, bytes(wrong))
        busy(2).call(0, header, bytes(right))
    with pytest.raises(ProtocolViolation, match="size differs from the announced one"):  # where only the root has something to send
        busy(2).call(1, {"call": 1, "members": [0, 1], "signature": [calls.BCAST, 12, 3, 16]}, bytes(24))


def test_what_a_rank_has_in_messages_to_itself_is_known():
    coordinator, what = busy(2), [calls.SEND, 12, 4, 0]
    for number, to in enumerate([0, 0, 1]):
        coordinator.call(0, {**MESSAGE, "call": number, "peers": [to], "signature": what}, bytes(32))
    assert (coordinator.buffered(0), coordinator.buffered(1)) == (64, 0)
    for number in range(2):
        coordinator.call(0, {**MESSAGE, "call": -1 - number, "peers": [0], "signature": [calls.RECV, *what[1:]]}, b"")
    assert coordinator.buffered(0) == 64, "the most"
    coordinator.begin(0, 1, 3)
    assert coordinator.buffered(0) == 0


def test_kept_is_what_others_get():
    number, part = np.dtype(float).num, np.arange(4.0)
    coordinator = Coordinator(2)
    coordinator.begin(0, 1, 3, None, True)
    coordinator.begin(1, 1, 3, None, True)
    meet(coordinator, (calls.ALLREDUCE, number, 4, 1), [part.tobytes()], members=[0])
    coordinator.call(0, {**MESSAGE, "peers": [0], "signature": [calls.SEND, number, 4, 0]}, part.tobytes())
    meet(coordinator, (calls.GATHER, number, 4, 16), [part.tobytes()] * 2)
    assert [a.tolist() for a in coordinator.arrays(0)] == [] and [a.tolist() for a in coordinator.arrays(1)] == [part.tolist()]
    meet(coordinator, (calls.ALLTOALL, number, 4, 0), [part.tobytes()] * 2)
    assert [a.tolist() for a in coordinator.arrays(0)] == [[2.0, 3.0]] and coordinator.arrays(1)[1].tolist() == [0.0, 1.0]
    meet(coordinator, (calls.SCATTER, number, 2, 16), [part.tobytes(), b""])
    meet(coordinator, (calls.ALLTOALLV, number, 4, 0), [part.tobytes()] * 2, counts=[3, 1])
    assert [a.tolist() for a in coordinator.arrays(0)][1:] == [[2.0, 3.0], [3.0]] and coordinator.arrays(1)[2].tolist() == [0.0, 1.0, 2.0]


def test_nothing_is_kept_of_a_header_but_what_is_needed():
    coordinator = busy(2)
    coordinator.call(0, {**SOLO, "call": 1, "junk": ["x"] * 100, "counts": [["y"]], "place": "z" * 10_000}, bytes(64))
    (_, arrival), *_ = coordinator._rendezvous.of(0)
    assert arrival.header == {"signature": tuple(SOLO["signature"]), "call": 1, "counts": None}


def test_who_replies_while_it_waits_after_an_error_spoils_nothing():
    coordinator = busy(3)
    what = {"members": [0, 1, 2], "signature": [calls.ALLREDUCE, 12, 3, 1]}
    for r in (0, 1):
        coordinator.call(r, {**what, "call": 1}, bytes(24))
    answers = coordinator.call(2, {**what, "signature": [calls.ALLREDUCE, 12, 4, 1], "call": 1}, bytes(32))
    assert {answer["error"] for _, answer, _ in answers} == {"MismatchError"}
    coordinator.call(1, {"call": 2, "members": [0, 1, 2], "signature": [calls.BARRIER, -1, 0, 0], "place": "x"}, b"")
    coordinator.finish(1, "")
    coordinator.finish(2, "")
    coordinator.call(0, {"call": 2, "members": [0, 1, 2], "peers": [1], "signature": [calls.RECV, 12, 3, 0], "place": "y"}, b"")
    coordinator.wait(0, 2, "y")
    assert not coordinator.deadlocked(0.0)
    assert [(r, a["error"]) for r, a, _ in coordinator.deadlocked(1.0)] == [(0, "DeadlockError")]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 65_536, 65_537, 300_000])), min_size=1, max_size=4), st.data())
@settings(max_examples=30, deadline=None)
def test_frames_come_as_they_were_sent_in_whatever_pieces(frames, data):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        incoming, found = FrameReader(theirs), []
        sent = [({"number": number}, bytes([number]) * size) for number, size in frames]
        stream = b"".join(piece for header, payload in sent for piece in encode_frame(header, payload[:7], payload[7:]))
        while stream:
            piece, stream = stream[: (many := data.draw(st.sampled_from([11, 4_000, 100_000])))], stream[many:]
            ours.sendall(piece)
            while len(piece):
                piece = piece[incoming.receive() :]
                while frame := incoming.next_frame():
                    found.append((json.loads(frame[0]), bytes(frame[1])))
        assert found == sent and len(incoming) == 0


def test_an_announced_payload_takes_no_memory_before_it_comes():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        incoming = FrameReader(theirs)
        ours.sendall(FRAME_LENGTHS.pack(2, 128 << 20) + b"{}" + b"x" * 100)
        assert incoming.receive() and incoming.next_frame() is None and len(incoming) == 100
        ours.sendall(b"x" * 100)
        assert incoming.receive() == 100 and len(incoming._payload) <= 2 * INITIAL_PAYLOAD_BYTES
