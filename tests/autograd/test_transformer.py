"""The operations of a transformer: their gradients agree with finite differences and with PyTorch, also in 16 bits."""

import importlib.util
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.autograd import (
    Dropout,
    Embedding,
    LayerNorm,
    Parameter,
    RMSNorm,
    Tensor,
    concatenate,
    cross_entropy,
    functional,
    operations,
)
from tests.autograd.test_autograd import differences

SIZE = st.integers(1, 4)
SEED = st.integers(0, 2**31)


@settings(max_examples=15, deadline=None)
@given(SIZE, SIZE, SIZE, SIZE, SEED)
def test_stacks_of_matrices(n, k, m, stack, seed):
    normal = np.random.default_rng(seed).standard_normal
    differences(operations.matmul, [normal((stack, n, k)), normal((stack, k, m))])
    differences(operations.matmul, [normal((stack, n, k)), normal((k, m))])
    differences(operations.matmul, [normal((n, k)), normal((2, stack, k, m))])
    differences(operations.linear, [normal((2, stack, n, k)), normal((k, m)), normal(m)])


@settings(max_examples=20, deadline=None)
@given(st.data(), SEED)
def test_shapes(data, seed):
    random = np.random.default_rng(seed)
    shape = tuple(data.draw(SIZE) for _ in range(3))
    x = random.standard_normal(shape)
    for axes in itertools.permutations(range(3)):
        differences(lambda t, axes=axes: t.transpose(*axes), [x])
    differences(lambda t: t.transpose(), [x])
    differences(lambda t: t.transpose(0, -1, 1), [x])
    low, high = sorted(data.draw(st.integers(0, shape[1])) for _ in range(2))
    for index in (
        0,
        -1,
        slice(None, None, 2),
        (slice(None), slice(low, high)),
        (..., 0),
        (None, 0),
        (slice(None), 0, slice(None, None, -1)),
    ):
        differences(lambda t, index=index: t[index], [x])
    axis = data.draw(st.integers(0, 2))
    differences(lambda a, b: concatenate([a, b, a], axis), [x, random.standard_normal(shape)])


def test_an_index_that_is_no_slice_is_named():
    for index in ([0, 1], np.array([0]), True):
        with pytest.raises(TypeError, match="whole numbers and slices"):
            Tensor(np.ones((3, 3)))[index]


@settings(max_examples=20, deadline=None)
@given(SIZE, SIZE, st.integers(2, 5), SEED)
def test_norms_gelu_softmax_dropout_and_embeddings(n, m, width, seed):
    random = np.random.default_rng(seed)
    x, scale, shift = random.standard_normal((n, m, width)), random.standard_normal(width), random.standard_normal(width)
    differences(lambda *t: functional.layer_norm(*t, eps=1e-2), [x, scale, shift])
    differences(lambda *t: functional.rms_norm(*t, eps=1e-2), [x, scale])
    differences(functional.gelu, [3 * x])
    differences(functional.softmax, [x])
    differences(lambda t: functional.dropout(t, x > 0, 0.25), [x])
    ids = random.integers(0, n, (m, 3))
    differences(lambda table: functional.embedding(table, ids), [random.standard_normal((n, width))])


@settings(max_examples=15, deadline=None)
@given(SIZE, SIZE, st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), SEED)
def test_attention(batch, heads, positions, others, width, seed):
    normal = np.random.default_rng(seed).standard_normal
    q, k, v = (normal((batch, heads, positions, width)) for _ in range(3))
    differences(functional.attention, [q, k, v])
    k, v = normal((batch, heads, others, width)), normal((batch, heads, others, 2))
    differences(lambda *t: functional.attention(*t, causal=False), [q, k, v])


def test_a_position_sees_none_that_comes_later():
    normal = np.random.default_rng(0).standard_normal
    q, k, v = (normal((2, 6, 4)) for _ in range(3))
    before = functional.attention(Tensor(q), Tensor(k), Tensor(v)).data
    k[:, 4:], v[:, 4:] = 1e3, -1e3
    after = functional.attention(Tensor(q), Tensor(k), Tensor(v)).data
    assert np.array_equal(before[:, :4], after[:, :4]) and not np.allclose(before[:, 4:], after[:, 4:])


def test_scores_of_any_size_give_finite_weights():
    x = Tensor(np.array([[1e4, -1e4, 9999.0], [-1e30, 0.0, 1e30]]), requires_grad=True)
    out = functional.softmax(x)
    out.sum().backward()
    assert np.isfinite(out.data).all() and np.isfinite(x.grad).all() and np.allclose(out.data.sum(axis=1), 1)


def test_wrong_shapes_and_ids_get_a_sentence():
    def t(*shape):
        return Tensor(np.zeros(shape))

    with pytest.raises(ValueError, match="same d for q and k"):
        functional.attention(t(2, 3, 4), t(2, 3, 5), t(2, 3, 4))
    with pytest.raises(ValueError, match="as many positions"):
        functional.attention(t(2, 3, 4), t(2, 2, 4), t(2, 2, 4))
    with pytest.raises(IndexError, match="0 to 4"):
        functional.embedding(t(5, 2), np.array([1, 5]))
    with pytest.raises(IndexError, match="0 to 4"):
        functional.embedding(t(5, 2), np.array([-1]))
    with pytest.raises(IndexError, match="whole numbers"):
        functional.embedding(t(5, 2), np.array([1.0]))
    with pytest.raises(ValueError, match="the mask must have the shape"):
        functional.dropout(t(5, 2), np.ones(5, bool), 0.5)
    with pytest.raises(ValueError, match="rate"):
        functional.dropout(t(5), np.ones(5, bool), 1.0)


def test_dropout_keeps_the_mean_and_rests_in_evaluation():
    layer, x = Dropout(0.25, np.random.default_rng(0)), Tensor(np.ones((200, 200), np.float32))
    out = layer(x)
    assert out.dtype == np.float32 and abs(out.data.mean() - 1) < 0.02 and set(np.unique(out.data)) == {0, np.float32(4 / 3)}
    assert layer.eval()(x) is x


class Block:
    """Attention and an MLP on a stream of embeddings, for a comparison; the parameters by name."""

    def __init__(self, dtype, width=8, heads=2, vocabulary=11, positions=5):
        random = np.random.default_rng(3)
        self.heads = heads
        shapes = dict(table=(vocabulary, width), place=(positions, width), one=(width,), two=(width,), three=(width,), four=(width,))
        shapes |= dict(qkv=(width, 3 * width), out=(width, width), up=(width, 4 * width), up_b=(4 * width,), down=(4 * width, width))
        self.arrays = {name: (0.5 * random.standard_normal(shape)).astype(dtype) for name, shape in shapes.items()}
        self.ids, self.labels = random.integers(0, vocabulary, (3, positions)), random.integers(0, vocabulary, 3 * positions)

    def ours(self):
        p = {name: Parameter(array.copy()) for name, array in self.arrays.items()}
        batch, positions = self.ids.shape
        x = functional.embedding(p["table"], self.ids) + p["place"]
        h = functional.layer_norm(x, p["one"], p["two"]) @ p["qkv"]
        h = h.reshape(batch, positions, 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
        h = functional.attention(h[0], h[1], h[2]).transpose(0, 2, 1, 3).reshape(batch, positions, -1)
        x = x + h @ p["out"]
        h = functional.rms_norm(x, p["three"])
        x = x + functional.gelu(operations.linear(h, p["up"], p["up_b"])) @ p["down"]
        x = functional.layer_norm(x, p["four"], p["four"])
        loss = cross_entropy((x @ p["table"].transpose()).reshape(batch * positions, -1), self.labels)
        loss.backward()
        return loss.item(), {name: q.grad for name, q in p.items()}

    def theirs(self):
        import torch
        from torch.nn import functional

        p = {name: torch.tensor(array, requires_grad=True) for name, array in self.arrays.items()}
        batch, positions = self.ids.shape
        x = functional.embedding(torch.tensor(self.ids), p["table"]) + p["place"]
        width = x.shape[-1]
        h = functional.layer_norm(x, (width,), p["one"], p["two"]) @ p["qkv"]
        h = h.reshape(batch, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = functional.scaled_dot_product_attention(h[0], h[1], h[2], is_causal=True).permute(0, 2, 1, 3).reshape(batch, positions, -1)
        x = x + h @ p["out"]
        h = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * p["three"]
        x = x + functional.gelu(h @ p["up"] + p["up_b"], approximate="tanh") @ p["down"]
        x = functional.layer_norm(x, (width,), p["four"], p["four"])
        loss = functional.cross_entropy((x @ p["table"].T).reshape(batch * positions, -1), torch.tensor(self.labels))
        loss.backward()
        return loss.item(), {name: q.grad.numpy() for name, q in p.items()}


if importlib.util.find_spec("torch"):  # where it is not, conftest.py says so

    @pytest.mark.parametrize(("dtype", "close"), [(np.float64, 1e-11), (np.float32, 2e-5)])
    def test_a_block_against_pytorch(dtype, close):
        block = Block(dtype)
        (loss, grads), (theirs, wanted) = block.ours(), block.theirs()
        assert abs(loss - theirs) < close
        for name, grad in grads.items():
            assert grad.dtype == dtype and np.allclose(grad, wanted[name], rtol=0, atol=close * max(1, np.abs(wanted[name]).max())), name


def half_types():
    import ml_dtypes

    return [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


@pytest.mark.parametrize("dtype", half_types(), ids=str)
def test_a_block_in_16_bits_is_near_the_one_in_32(dtype):
    block = Block(np.float32)
    loss, wanted = block.ours()
    block.arrays = {name: array.astype(dtype) for name, array in block.arrays.items()}
    found, grads = block.ours()
    near = 30 * float(np.finfo(np.float16).eps if dtype == np.float16 else 2.0**-7)
    assert abs(found - loss) < near
    for name, grad in grads.items():
        assert grad.dtype == dtype and np.allclose(grad.astype(np.float32), wanted[name], rtol=0, atol=near * np.abs(wanted[name]).max()), (
            name
        )


def test_modules_know_their_parameters():
    assert [n for n, _ in LayerNorm(3).named_parameters()] == ["weight", "bias"]
    assert [n for n, _ in RMSNorm(3).named_parameters()] == ["weight"]
    table = Embedding(5, 3)
    out = table(np.array([[1, 1], [4, 0]]))
    out.sum().backward()
    assert out.shape == (2, 2, 3) and table.weight.grad[:, 0].tolist() == [1, 2, 0, 0, 1]


def test_a_cast_takes_the_gradient_back():
    x = Tensor(np.ones(3, np.float16), requires_grad=True)
    operations.cast(x, np.float32).sum().backward()
    assert x.grad.dtype == np.float16 and x.grad.tolist() == [1, 1, 1]
