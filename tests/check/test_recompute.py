"""Part 32's check of `checkpoint`: its plain NumPy agrees with autograd, and each case that it draws tells right from wrong."""

import numpy as np
import pytest

from course_lib.autograd import Linear, Sequential, Tanh, Tensor
from course_lib.autograd.random_states import RandomStates
from course_lib.check.recompute import segment
from course_lib.check.recompute.check import SCHEDULE, RecomputeCheck
from course_lib.engine import traffic_gates
from course_lib.gpt.model import Sizes, layers
from course_lib.gpt.training.activation_memory import halves, run_layers


class Alone:
    """A group of one rank."""

    def Allreduce(self, mine, total):
        total[...] = mine


def test_a_segment_in_numpy_has_the_gradients_of_autograd(monkeypatch):
    random = np.random.default_rng(0)
    numbers = iter([2.0, -1.0])
    monkeypatch.setattr(traffic_gates, "pass_gate", lambda: next(numbers))
    table, w0, w1 = (random.integers(-2, 3, shape).astype(float) for shape in ((4, 3), (3, 5), (5, 5)))
    v, m0, m1 = (random.integers(-2, 3, (2, 6, 5)).astype(float) for _ in range(3))
    tokens, grad = random.integers(0, 4, (2, 6)), random.integers(-2, 3, (2, 6, 5)).astype(float)
    states = RandomStates()
    states.seed(1, 0)
    masks = [[states["sharded"].random((2, 6, 5)) >= segment.RATE] for _ in range(2)]
    states.seed(1, 0)
    own = [segment.SegmentArrays(w0, table, v, m0, 2), segment.SegmentArrays(w1, None, None, m1, -1)]
    modules = [segment.Segment(one.weight, one.table, Alone(), [states["sharded"]]) for one in own]
    given = Tensor(v, requires_grad=True)
    x = modules[0](Tensor(tokens), given, Tensor(m0), 2)
    out = modules[1](x, x, Tensor(m1), -1)
    out.backward(grad)
    _, middle, _ = segment.forward([own[0]], [tokens], [2.0], [masks[0]])
    _, want, _ = segment.forward([own[1]], middle, [-1.0], [masks[1]])
    assert np.array_equal(out.data, want[0])
    at = segment.backward([own[1]], middle, [-1.0], [masks[1]], [grad])
    assert segment.backward([own[0]], [tokens], [2.0], [masks[0]], at) == [None]
    for got, want in (
        (modules[0].table.grad, own[0].grads["table"]),
        (modules[0].weight.grad, own[0].grads["weight"]),
        (modules[1].weight.grad, own[1].grads["weight"]),
        (given.grad, own[0].grads["v"]),
    ):
        assert np.array_equal(got, want)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("nested", [False, True])
def test_each_case_has_gradients_everywhere_that_nothing_recomputed_would_change(size, nested):
    check = RecomputeCheck("checkpoint", None, show=False)
    for zero in (False, True):
        case, _ = check._draw_telling(list(range(size)), np.float64, zero, (1, "router", [[], ["sharded"], ["router"]], nested))
        for what, i in SCHEDULE:
            if what == "B":
                _, right, kept = case.found[i]
                assert all(np.any(grad) for one in right for grad in one.values())
                assert any(not np.array_equal(a[name], b[name]) for a, b in zip(right, kept, strict=True) for name in a)


def test_layers_in_ranges_are_called_in_order():
    net, called = Sequential(Linear(3, 3), Tanh(), Linear(3, 3), Tanh(), Tanh()).modules, []

    def noting(function, x):
        called.append([type(layer).__name__ for layer in function.modules])
        return function(x)

    x = Tensor(np.ones((2, 3), np.float32))
    want = Sequential(*net)(x).data
    assert np.array_equal(run_layers(net, [(0, 1), (2, 4)], noting, x).data, want)
    assert called == [["Linear"], ["Linear", "Tanh"]]


def test_halves_of_blocks_compute_what_the_blocks_do():
    net, tokens = layers(Sizes(7, 8, 2, 2, 5)), np.random.default_rng(0).integers(0, 7, (2, 5))
    assert np.array_equal(Sequential(*net)(tokens).data, Sequential(*halves(net))(tokens).data)
    assert len(halves(net)) == 6
