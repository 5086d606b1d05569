"""Stages whose backward is divided."""

import numpy as np
import pytest

from course_lib.gpt.model.decoder import Sizes, layers
from course_lib.gpt.model.divided_stage import DividedStage, take_paced_steps, undivided
from course_lib.gpt.model.stage import Stage
from course_lib.gpt.training.activation_memory import kept_by_divided
from course_lib.sim.llm.costs.schedule import work_orders
from course_lib.sim.schedule import schedules

SIZES = Sizes(vocabulary=7, width=6, heads=2, depth=2, length=5)


def back(stage, k, grad):
    stage.kept[k] = []

    def through(product, grad):
        stage.kept[k].append((product, grad))
        return grad @ product.weight.data.T

    return stage.back(k, grad, through)


def weights(stage, k):
    for product, grad in stage.kept.pop(k):
        found = np.einsum("bpi,bpo->io", product.x, grad)
        product.weight.grad = found if product.weight.grad is None else product.weight.grad + found


def divided(n=1, rank=0, dtype=np.float64, **functions):
    functions = functions or dict(backward_input=back, backward_weight=weights)
    return DividedStage(layers(SIZES, n, rank, dtype=dtype), SIZES.width, dtype, **functions)


def test_both_parts_together_are_the_backward():
    tokens, labels = np.random.default_rng(0).integers(0, 7, (2, 3, 5))
    for functions in {}, undivided(back, weights):
        own, whole = divided(**functions), Stage(layers(SIZES, dtype=np.float64), SIZES.width, np.float64)
        assert own.forward(0, tokens, labels) == whole.forward(0, tokens, labels)
        own.backward_input(0, 1.0)
        own.backward_weight(0)
        whole.backward(0, 1.0)
        assert own.order() == "F0 B0 W0"
        for (name, p), (other, q) in zip(own.named_parameters(), whole.named_parameters(), strict=True):
            assert name == other and np.allclose(p.grad, q.grad, atol=1e-13)


def test_less_is_kept_between_both_parts_than_before():
    tokens = np.zeros((2, 64), int)
    sizes = Sizes(7, 32, 2, 2, 64)
    stage = DividedStage(layers(sizes), 32, backward_input=back, backward_weight=weights)
    for _ in range(2):  # the first time, the gradients are allocated
        after_f, after_b = kept_by_divided(stage, tokens, tokens)
    products = 2 * 64 * 4 * sum(sum(p.shape) for name, p in stage.named_parameters() if p.data.ndim == 2 and not name.startswith("0."))
    assert products * 0.8 < after_b < products * 1.2 and after_b < 0.6 * after_f


def test_mistakes_are_named():
    tokens = np.zeros((2, 5), int)
    stage = divided()
    stage.forward(0, tokens, tokens)
    with pytest.raises(ValueError, match=r"backward is divided: backward_input\(0, grad\), and later backward_weight\(0\)"):
        stage.backward(0, 1.0)
    with pytest.raises(ValueError, match=r"stage\.back: micro-batch 3 has not been through forward"):
        stage.back(3, 1.0, None)
    with pytest.raises(ValueError, match=r"stage\.back: on the last rank grad is a number"):
        stage.back(0, None, None)
    with pytest.raises(ValueError, match=r"must return the gradient of the product's x, \(2, 5, 6\), float64; got \(2, 5, 7\), float64"):
        stage.back(0, 1.0, lambda product, grad: grad)


def test_paced_steps_take_their_time():
    class Alone:
        def Get_size(self):
            return 1

        def Get_rank(self):
            return 0

        def Barrier(self):
            pass

    done = []

    def step(stage, micro_batches, comm):
        for k, (tokens, labels) in enumerate(micro_batches):
            stage.forward(k, tokens, labels)
            stage.backward_input(k, 1.0)
            stage.backward_weight(k)
        done.append(stage.order())

    seconds = {"forward": 0.0, "backward": 0.0, "weight grad": 0.0}
    functions = dict(backward_input=back, backward_weight=weights)
    take_paced_steps(step, {"a": (functions, seconds), "b": (undivided(**functions), seconds)}, 2, Alone(), tries=2)
    assert done == ["F0 B0 W0 F1 B1 W1"] * 4


@pytest.mark.parametrize(("p", "m", "v"), [(4, 8, 1), (4, 8, 2), (4, 8, 4), (2, 6, 3)])
def test_interleaving_has_shorter_bubbles_and_holds_more(p, m, v):
    """Narayanan et al., 2021, section 2.2."""
    order = work_orders(p, v, m)
    times = schedules.schedule_times(order, schedules.units(order))
    assert max(work[-1][3] for work in times) == pytest.approx(3 * m + 3 * (p - 1) / v)
    held = schedules.most_held(order[0])
    assert held == pytest.approx(p if v == 1 else min(m, p + (p - 1) / v))
    trace = schedules.as_trace(times, "chunks")
    waits = sum(e.end - e.begin for r in trace.ranks for e in r.events if e.kind == "receive")
    ends = sum(r.end for r in trace.ranks)
    assert waits + p * 3 * m == pytest.approx(ends)  # a rank waits or works


def test_a_divided_backward_ends_sooner():
    text = ["F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W0 W1"]
    picture = schedules.draw({"1F1B": ["F0 F1 B0 B1", "F0 B0 F1 B1"], "ZB-H1": text})
    assert "1F1B: T = 9 units" in repr(picture) and "ZB-H1: T = 7 units" in repr(picture)
