"""The formats of mixed precision: every bit pattern, ties, and what is beyond a format."""

import numpy as np
import pytest

from course_lib.autograd import Linear, Tensor
from course_lib.autograd.mixed_precision import FORMATS, Rounded, decode, encode

PATTERNS = np.arange(1 << 16, dtype=np.uint16)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_value_of_a_format_stays_as_it_is(dtype):
    values = decode(PATTERNS, dtype)
    there = ~np.isnan(values)
    assert values.dtype == np.float32 and np.array_equal(encode(values, dtype)[there], PATTERNS[there])
    assert np.isnan(decode(encode(values[~there], dtype), dtype)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_number_is_rounded_to_the_nearest_value_and_a_tie_to_the_even_one(dtype):
    values = decode(PATTERNS, dtype).astype(float)
    finite = np.sort(values[np.isfinite(values) & (values > 0)])
    low, high = finite[:-1], finite[1:]
    for share, want in ((0.49, low), (0.51, high)):
        assert np.array_equal(decode(encode((low + share * (high - low)).astype(np.float32), dtype), dtype), want.astype(np.float32))
    ties = encode(((low + high) / 2).astype(np.float32), dtype)
    assert not np.any(ties & 1)
    assert np.array_equal(encode(-finite.astype(np.float32), dtype), encode(finite.astype(np.float32), dtype) | 0x8000)


def test_what_is_beyond_a_format():
    x = np.array([65519, 65520, -1e6, np.inf, np.nan], np.float32)
    assert np.array_equal(
        decode(encode(x, "float16"), "float16"), np.array([65504, np.inf, -np.inf, np.inf, np.nan], np.float32), equal_nan=True
    )
    largest = np.array([np.finfo(np.float32).max], np.float32)
    assert decode(encode(largest, "bfloat16"), "bfloat16")[0] == np.inf


@pytest.mark.parametrize("dtype", FORMATS)
def test_any_shape_and_a_new_array(dtype):
    for x in (np.float32([[1, 2], [3, 4]]).T, np.zeros((0, 3), np.float32), np.array(1.5, np.float32), np.ones(9, np.float32)[::2]):
        bits = encode(x, dtype)
        assert bits.shape == x.shape and not np.shares_memory(bits, x) and np.array_equal(decode(bits, dtype), x)


@pytest.mark.parametrize("arguments", [(np.ones(2), "float16"), ([1.0], "bfloat16"), (np.ones(2, np.float16), "float16")])
def test_other_arrays_get_a_sentence(arguments):
    with pytest.raises(TypeError, match="encode takes a float32 array"):
        encode(*arguments)
    with pytest.raises(TypeError, match="decode takes uint16 arrays"):
        decode(*arguments)


def test_another_format_gets_a_sentence():
    for function in (encode, decode):
        with pytest.raises(ValueError, match="must be one of 'float32', 'float16', 'bfloat16'; got 'int8'"):
            function(np.ones(2, np.float32), "int8")


def test_a_layer_passes_on_rounded_values_and_gets_a_rounded_gradient():
    layer = Linear(1, 1, bias=False)
    layer.weight.data[:] = 1 / 3
    out = Rounded(layer, "float16")(Tensor(np.ones((1, 1), np.float32)))
    out.backward(np.full((1, 1), 1e-8, np.float32))
    assert out.item() == np.float16(1 / 3) and layer.weight.grad.item() == 0
