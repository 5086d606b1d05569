"""The form in which values and arrays travel between ranks and the notebook, and what is refused."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from course_lib.engine import serialization

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def as_text(value):
    """A value that went over the wire as text, as a notebook's message does."""
    return serialization.decode(serialization.loads(serialization.dumps({"value": serialization.encode(value)}))["value"])


def as_bytes(value):
    """The same as text and bytes, as an isolated rank's reply does."""
    text, *arrays = serialization.parts({"value": serialization.encode(value)})
    return serialization.decode(serialization.loads(text)["value"], b"".join(arrays))


@given(plain)
def test_plain_values_come_through_the_wire(value):
    assert as_text(value) == as_bytes(value) == value


@given(hnp.arrays(st.sampled_from(["f4", "f8", "i8", "u1", "?", "c8"]), hnp.array_shapes(min_dims=0, min_side=0)))
def test_arrays_come_through_the_wire(array):
    for back in (as_text(array), as_bytes(array), as_bytes({1.5: (0, [array])})[1.5][1][0]):
        assert back.dtype == array.dtype and back.shape == array.shape and back.flags.writeable
        np.testing.assert_array_equal(back, array)


def test_an_array_is_sent_as_it_was_when_the_function_returned():
    array = np.zeros(3)
    reply = {"value": serialization.encode(array)}
    array[:] = 1  # as a collective does that ends later
    text, *arrays = serialization.parts(reply)
    for back in (
        serialization.decode(serialization.loads(serialization.dumps(reply))["value"]),
        serialization.decode(serialization.loads(text)["value"], b"".join(arrays)),
    ):
        assert back.tolist() == [0, 0, 0]


def test_what_has_no_form_is_refused_and_not_sent_as_bytes():
    for write in (serialization.dumps, serialization.parts):
        with pytest.raises(TypeError, match="ndarray cannot be written as JSON"):
            write({"outputs": [np.zeros(3)]})


def test_several_arrays_come_each_into_its_own_place():
    many = {np.float64(i): [np.full(i, i), (np.arange(4.0)[::2], np.int64(i))] for i in range(5)}
    for back in (as_text(many), as_bytes(many)):
        assert list(back) == list(many)
        for i, (first, (second, third)) in back.items():
            assert first.tolist() == [int(i)] * int(i) and second.tolist() == [0, 2] and not second.flags.c_contiguous and third == i


def test_what_is_not_plain_does_not_come_through():
    class Evil:
        def __reduce__(self):
            return (print, ("ran",))

    for value in (Evil(), np.array([Evil()]), print, {1: Evil()}):
        assert "Evil" in repr(as_text(value)) or "<" in repr(as_text(value))
    for forged in ({"array": "", "dtype": "O", "shape": [0]}, [1], 1.5):
        with pytest.raises((ValueError, TypeError)):
            serialization.decode(forged)


PRIME = (1 << 61) - 1  # numbers that differ by it have one hash


COLLIDING = {
    "numbers": [i * PRIME for i in range(20_000)],
    "complex": [
        serialization.loads(serialization.dumps(serialization.encode(np.complex128(complex(-1000003.0 * i, i))))) for i in range(20_000)
    ],
    "tuples": [{"tuple": [i * PRIME, 1]} for i in range(20_000)],
}


@pytest.mark.parametrize("kind", COLLIDING)
def test_a_dict_whose_keys_were_chosen_to_meet_takes_no_time(kind):
    began = time.process_time()
    found = serialization.decode({"dict": [[key, 0] for key in COLLIDING[kind]]})
    assert time.process_time() - began < 2 and "20,000 keys, more than 100 of which are not strings" in repr(found)


EMPTY = {"array": "", "dtype": "<f8", "layout": "C"}


@pytest.mark.parametrize(
    "forged",
    [
        {"float": "0x1p99999"},
        {"scalar": {"float": "0x1p99999"}},
        EMPTY | {"shape": [0, 1 << 61]},
        EMPTY | {"shape": [0, 1 << 61], "layout": "view"},
        EMPTY | {"shape": [1 << 100, 0]},
        EMPTY | {"shape": [0, *[1 << 20] * 4]},
        EMPTY | {"shape": [0] * 100_000},
        EMPTY | {"shape": [-1]},
        EMPTY | {"shape": 5},
        EMPTY | {"shape": {}},
        {"array": "", "dtype": "<f8"},
        {"array": 5, "dtype": "<f8", "shape": [0]},
        {"array": 24, "dtype": "<f8", "shape": [3]},
        {"list": [{"array": 16, "dtype": "<f8", "shape": [2]}] * 2},
        {"array": -8, "dtype": "<f8", "shape": [1]},
        {"array": 1 << 80, "dtype": "<f8", "shape": [1]},
        {"array": True, "dtype": "|u1", "shape": [1]},
        {"array": 16.0, "dtype": "<f8", "shape": [2]},
        {"dict": [[{"list": []}, 0]]},
        {"dict": 5},
        {"list": 5},
    ],
    ids=range(21),
)
def test_what_is_no_value_is_refused_and_not_tried(forged):
    with pytest.raises(ValueError, match="a rank"):
        serialization.decode(forged, bytes(16))


def test_keys_and_dtypes_that_take_long_do_not_come_through():
    members = [0] * 100_000
    for forged in (
        {"dict": [[{"tuple": members}, 0]]},
        {"dict": [[{"tuple": [{"tuple": members}]}, 0]]},
        {"array": "", "dtype": "f4," * 100_000, "shape": [0]},
        {"array": "", "dtype": ["f4"] * 100_000, "shape": [0]},
    ):
        with pytest.raises(ValueError, match="cannot come from a rank"):
            serialization.decode(forged)
    kept = {f"layer {i}": i for i in range(5000)} | {i: i for i in range(50)} | {(2, "F", None): 1, 0.5: 2, np.float32(3.5): 3}
    assert as_text(kept) == kept
