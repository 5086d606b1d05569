"""Gradients are those of finite differences and of PyTorch; hooks fire when a gradient is final."""

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.autograd import (
    SGD,
    Adam,
    ArrayDataset,
    BatchNorm2d,
    Conv2d,
    DataLoader,
    Flatten,
    Linear,
    MaxPool2d,
    Module,
    Parameter,
    ReLU,
    Residual,
    Sequential,
    Tanh,
    Tensor,
    after_backward,
    cross_entropy,
    no_grad,
    operations,
)

SIZE = st.integers(1, 4)


def differences(function, arrays, step=1e-6):
    """The gradients of ``sum(function(*arrays) * weights)`` by finite differences, and by backward, in float64."""
    tensors = [Tensor(a.copy(), requires_grad=True) for a in arrays]
    out = function(*tensors)
    weights = np.random.default_rng(0).standard_normal(out.shape)
    (out * weights).sum().backward()

    def value(changed):
        return float((function(*[Tensor(a) for a in changed]).data * weights).sum())

    for i, (array, tensor) in enumerate(zip(arrays, tensors, strict=True)):
        slopes = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            moved = [[a.copy() for a in arrays] for _ in range(2)]
            moved[0][i][place] += step
            moved[1][i][place] -= step
            slopes[place] = (value(moved[0]) - value(moved[1])) / (2 * step)
        assert tensor.grad.shape == array.shape
        assert np.allclose(tensor.grad, slopes, rtol=1e-4, atol=1e-6 * max(1, np.abs(slopes).max()))


def broadcastable(data):
    """Two shapes that go together."""
    shape = tuple(data.draw(SIZE) for _ in range(data.draw(st.integers(1, 3))))
    other = tuple(1 if data.draw(st.booleans()) else n for n in shape)[data.draw(st.integers(0, len(shape) - 1)) :]
    return (shape, other) if data.draw(st.booleans()) else (other, shape)


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(0, 2**31))
@pytest.mark.parametrize("name", ["add", "multiply", "divide"])
def test_arithmetic_with_broadcasting(name, data, seed):
    random = np.random.default_rng(seed)
    one, other = broadcastable(data)
    differences(getattr(operations, name), [random.uniform(0.5, 2, one), random.uniform(0.5, 2, other)])


@settings(max_examples=15, deadline=None)
@given(SIZE, SIZE, SIZE, st.integers(0, 2**31))
def test_matrix_products_and_losses(n, k, m, seed):
    normal = np.random.default_rng(seed).standard_normal
    differences(operations.matmul, [normal((n, k)), normal((k, m))])
    differences(operations.linear, [normal((n, k)), normal((k, m)), normal(m)])
    labels = np.random.default_rng(seed).integers(0, m, n)
    differences(lambda z: cross_entropy(z, labels), [normal((n, m))])


@settings(max_examples=15, deadline=None)
@given(st.data(), st.integers(0, 2**31))
def test_elementwise_sums_and_shapes(data, seed):
    random = np.random.default_rng(seed)
    shape = tuple(data.draw(SIZE) for _ in range(3))
    x = random.uniform(0.2, 2, shape) * random.choice([-1, 1], shape)  # not where ReLU has its corner
    for function in (operations.tanh, operations.relu):
        differences(function, [x])
    axis = data.draw(st.sampled_from([None, 0, 1, 2, (0, 2)]))
    differences(lambda t: t.sum(axis) if axis is not None else t.sum().reshape(1), [x])
    differences(lambda t: t / t.sum(axis, keepdims=True), [np.abs(x)])
    differences(lambda t: t.reshape(-1), [x])
    differences(lambda t: (1.0 - t) * 2 / (t * t + 3) - (-t) + t.mean(), [x])


@settings(max_examples=12, deadline=None)
@given(st.data(), st.integers(0, 2**31))
def test_convolution_pooling_and_normalisation(data, seed):
    normal = np.random.default_rng(seed).standard_normal
    kernel, padding = data.draw(st.sampled_from([(1, 0), (1, 1), (2, 0), (3, 0), (3, 1)]))
    n, c, out, h, w = (data.draw(st.integers(1, 3)) for _ in range(5))
    h, w = h + kernel - 1, w + kernel - 1
    differences(lambda x, k: operations.conv2d(x, k, padding), [normal((n, h, w, c)), normal((kernel, kernel, c, out))])
    size = data.draw(st.integers(1, 2))
    differences(lambda x: operations.max_pool2d(x, size), [normal((n, size * h, size * w, c))])
    shape = (n + 1, h, w, c)

    def norm(x, scale, shift):
        flat = x.data.reshape(-1, c)
        return operations.batch_norm(x, scale, shift, flat.mean(axis=0), flat.var(axis=0), 1e-3)

    differences(norm, [normal(shape), normal(c), normal(c)])


def small_net(random, dtype=np.float64):
    common = dict(random=random, dtype=dtype)
    block = Sequential(Conv2d(4, 4, padding=1, **common), BatchNorm2d(4, dtype=dtype), ReLU())
    return Sequential(
        Conv2d(3, 4, padding=1, **common),
        BatchNorm2d(4, dtype=dtype),
        ReLU(),
        MaxPool2d(),
        Residual(block),
        Flatten(),
        Linear(36, 5, **common),
        Tanh(),
    )


def test_a_whole_network_against_finite_differences():
    random = np.random.default_rng(1)
    model, x, y = small_net(random), random.standard_normal((3, 6, 6, 3)), random.integers(0, 5, 3)
    loss = cross_entropy(model(x), y)
    loss.backward()
    for name, p in model.named_parameters():
        for place in list(np.ndindex(p.shape))[:: max(1, p.data.size // 7)]:
            slope = 0.0
            for change in (1e-6, -1e-6):
                p.data[place] += change
                slope += cross_entropy(model(x), y).item() / (2 * change)
                p.data[place] -= change
            assert abs(slope - p.grad[place]) < 1e-6, name


def test_a_hook_that_returns_another_shape_is_named_with_its_line():
    w = Tensor(np.ones((3, 2)), requires_grad=True)

    def flat(grad):
        return grad.ravel()

    remove = w.register_hook(flat)
    line = flat.__code__.co_firstlineno
    with pytest.raises(
        ValueError, match=rf"flat, .*, line {line}\) must return .* of shape \(3, 2\), or None; got an array of shape \(6,\)"
    ):
        w.sum().backward()
    remove()
    w.register_hook(lambda grad: 3.0)
    with pytest.raises(ValueError, match=r"or None; got 3\.0"):
        w.sum().backward()


def test_hooks_fire_as_soon_as_a_gradient_is_final():
    order = []
    shared, last, unused = (Parameter(np.full((2, 2), v)) for v in (1.0, 2.0, 3.0))
    shared.register_hook(lambda g: order.append(("shared", g.copy())))
    last.register_hook(lambda g: order.append(("last", g.copy())))
    unused.register_hook(lambda g: order.append(("unused", g)))
    x = Tensor(np.eye(2))
    hidden = (x @ shared) @ shared  # two uses: final only after the second
    out = (hidden @ last).sum()
    after_backward_ran = []
    last.register_hook(lambda g: after_backward(lambda: after_backward_ran.append(len(order))))
    out.backward()
    assert [name for name, _ in order] == ["last", "shared"] and after_backward_ran == [2]
    assert np.array_equal(order[1][1], shared.grad) and unused.grad is None
    assert np.array_equal(shared.grad, np.full((2, 2), 16.0))


def test_a_hook_may_replace_or_change_the_gradient_and_can_be_removed():
    w = Parameter(np.ones(3))
    remove = w.register_hook(lambda g: g * 10)
    w.register_hook(lambda g: g.__iadd__(1))  # in place
    (w * 2.0).sum().backward()
    assert w.grad.tolist() == [21.0] * 3
    remove()
    (w * 2.0).sum().backward()
    assert w.grad.tolist() == [24.0] * 3, "gradients add up until they are forgotten"
    with pytest.raises(ValueError, match="has no gradient"):
        Tensor(np.ones(2)).register_hook(print)


def test_gradients_of_two_leaves_share_no_memory():
    a, b = Parameter(np.ones(3)), Parameter(np.ones(3))
    (a + b).sum().backward()
    a.grad += 1
    assert b.grad.tolist() == [1.0] * 3


def test_what_is_wrong_gets_a_sentence():
    w = Parameter(np.ones((2, 2), np.float32))
    with pytest.raises(ValueError, match="only a single number, such as a loss"):
        (w * 1.0).backward()
    loss = (w * 1.0).sum()
    loss.backward()
    with pytest.raises(ValueError, match="its backward has been called before"):
        loss.backward()
    with no_grad():
        assert not (w * 2.0).requires_grad
    with pytest.raises(TypeError, match="only floating point tensors"):
        Parameter(np.ones(2, int))
    with pytest.raises(ValueError, match=r"Linear: the input must have shape \(batch, 2\); got \(3, 5\)"):
        Linear(2, 2)(np.ones((3, 5)))
    with pytest.raises(ValueError, match=r"\(batch, height, width, 3\)"):
        Conv2d(3, 4)(np.ones((1, 3, 8, 8)))
    with pytest.raises(ValueError, match="an optimizer needs parameters"):
        SGD([], 0.1)
    with pytest.raises(ValueError, match="the number of labels must equal the number of samples"):
        ArrayDataset(np.ones(3), np.ones(2))


def test_dtype_stays_what_it_is():
    model, random = small_net(np.random.default_rng(0), np.float32), np.random.default_rng(0)
    loss = cross_entropy(model(random.standard_normal((2, 6, 6, 3), np.float32)), np.array([0, 1]))
    (loss * 0.5 + 1.0).backward()
    assert loss.dtype == np.float32 and all(p.grad.dtype == np.float32 for p in model.parameters())
    for optimizer in (SGD(model.parameters(), 0.1, 0.9, 1e-3), Adam(model.parameters(), weight_decay=1e-3)):
        optimizer.step()
        assert all(p.data.dtype == np.float32 for p in model.parameters())


def test_modules_know_their_parameters_and_modes():
    class Tied(Module):
        def __init__(self):
            self.first = Linear(3, 3, bias=False)
            self.rest = [Linear(3, 2), BatchNorm2d(2)]
            self.again = self.first
            self.scales = [Parameter(np.ones(1)), Parameter(np.ones(2))]

    model = Tied()
    names = [name for name, _ in model.named_parameters()]
    assert names == ["scales.0", "scales.1", "first.weight", "rest.0.weight", "rest.0.bias", "rest.1.weight", "rest.1.bias", "again.weight"]
    assert len(model.parameters()) == 7, "a shared one counts once"
    assert not model.eval().rest[1].training and model.train().rest[1].training
    x = np.random.default_rng(0).normal(3, 2, (200, 1, 1, 2)).astype(np.float32)
    for _ in range(60):
        model.rest[1](x)
    model.eval()
    out = model.rest[1](x).data
    assert np.allclose(out.mean(axis=(0, 1, 2)), 0, atol=0.05) and np.allclose(out.std(axis=(0, 1, 2)), 1, atol=0.05)


def test_loaders_shuffle_by_their_seed():
    data = ArrayDataset(np.arange(10), np.arange(10) * 2)
    one, two = (DataLoader(data, 3, shuffle=True, seed=5) for _ in range(2))
    epochs = [[x.tolist() for x, _ in one] for _ in range(2)]
    assert epochs[0] == [x.tolist() for x, _ in two] and epochs[0] != epochs[1]
    assert sorted(v for batch in epochs[0] for v in batch) == list(range(10))
    assert all(np.array_equal(2 * x, y) for x, y in one)
    assert [len(x) for x, _ in DataLoader(data, 4, drop_last=True)] == [4, 4] and len(DataLoader(data, 4)) == 3


if importlib.util.find_spec("torch"):  # where it is not, conftest.py says so

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_network_and_optimizers_agree_with_torch(dtype):
        import torch
        from torch import nn

        random = np.random.default_rng(2)
        ours = small_net(random, np.dtype(dtype))

        class Add(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, x):
                return x + self.inner(x)

        class Flat(nn.Module):
            def forward(self, x):
                return x.permute(0, 2, 3, 1).reshape(len(x), -1)

        block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        theirs = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            Add(block),
            Flat(),
            nn.Linear(36, 5),
            nn.Tanh(),
        ).to(getattr(torch, dtype))

        def as_torch(array):
            turned = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
            return torch.from_numpy(np.ascontiguousarray(turned))

        pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
        with torch.no_grad():
            for p, q in pairs:
                q.copy_(as_torch(p.data))
        rtol = 2e-4 if dtype == "float32" else 1e-10
        for make in (
            lambda p, lib: lib.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
            lambda p, lib: lib.Adam(p, lr=1e-2, betas=(0.8, 0.99), weight_decay=1e-2),
        ):
            import course_lib.autograd as autograd

            mine, other = make(ours.parameters(), autograd), make(theirs.parameters(), torch.optim)
            for _ in range(5):
                x, y = random.standard_normal((4, 6, 6, 3)).astype(dtype), random.integers(0, 5, 4)
                mine.zero_grad()
                other.zero_grad()
                loss = cross_entropy(ours(x), y)
                expected = nn.functional.cross_entropy(theirs(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())), torch.from_numpy(y))
                loss.backward()
                expected.backward()
                assert np.isclose(loss.item(), expected.item(), rtol=rtol)
                mine.step()
                other.step()
        for p, q in pairs:
            want = as_torch(p.data).numpy()
            assert np.allclose(q.detach().numpy(), want, rtol=0, atol=10 * rtol * np.abs(want).max())
        theirs.eval()
        with torch.no_grad():
            want = theirs(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).numpy()
        assert np.allclose(ours.eval()(x).data, want, rtol=0, atol=20 * rtol)


@pytest.mark.parametrize("function", [operations.tanh, operations.relu, lambda x: x * x, lambda x: 1 / x])
def test_a_single_number_has_gradients_too(function):
    x = Tensor(np.array(0.5), requires_grad=True)
    function(x).backward()
    eps = 1e-6
    slope = (function(Tensor(np.array(0.5 + eps))).item() - function(Tensor(np.array(0.5 - eps))).item()) / (2 * eps)
    assert x.grad.shape == () and np.isclose(x.grad, slope)


def test_no_gradient_by_one_way_does_not_stop_the_others():
    """An operation that has none for one input: what that input was made from gets its gradient by other ways all the same."""
    x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    doubled = x * 2.0
    inner = doubled + 1.0
    chosen = Tensor.from_operation(doubled.data + inner.data, (doubled, inner), lambda grad: (grad, None))
    chosen.sum().backward()
    assert np.array_equal(x.grad, [2.0, 2.0])


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (lambda g: g, r"an array of shape \(2,\)"),
        (lambda g: (g, g), "tuple of 2"),
        (lambda g: None, "NoneType"),
        (lambda g: [], "list of 0"),
    ],
)
def test_an_operations_backward_that_returns_something_else_is_named(result, got):
    x = Tensor(np.ones(2), requires_grad=True)
    with pytest.raises(
        TypeError, match=rf"test_autograd.py, line \d+\) must return a tuple with a gradient for each input, 1 here; got {got}"
    ):
        Tensor.from_operation(x.data, (x,), result).backward(np.ones(2))


@pytest.mark.parametrize(("part", "got"), [(np.zeros((2, 6)), r"\(2, 6\)"), (np.zeros(()), r"\(\)"), (1.0, "1.0")])
def test_a_gradient_of_another_shape_is_named_with_the_line_of_its_backward(part, got):
    x = Tensor(np.zeros((2, 3)), requires_grad=True)
    out = Tensor.from_operation(x.data, (x,), lambda grad: (part,))
    with pytest.raises(
        ValueError, match=rf"test_autograd.py, line \d+\) must return a gradient of the shape of its input, \(2, 3\); got {got}"
    ):
        out.backward(np.zeros((2, 3)))
