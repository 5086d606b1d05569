"""The solved schedules have the times, the memory and the order that the formulas and papers give."""

import ast
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.check import CheckFailed
from course_lib.sim import FREE_COMMUNICATION, H100, LAYER, get_global_batch_list, run
from course_lib.sim.schedule import replay, schedules, score, stats
from course_lib.sim.schedule.check import one_forward_one_backward
from course_lib.sim.schedule.simulation import simulate
from grading.authoring import build

W, STATE, A = LAYER.weight_bytes(), LAYER.optimizer_bytes(), LAYER.activation_bytes(1)
# No cost but forward and backward: neither messages nor the update take time.
ONLY_COMPUTE = replace(FREE_COMMUNICATION, memory_bandwidth=float("inf"), efficiency=((1e9, 0.5), (0, float("inf"))))


async def gpipe(model, batch_size):
    """All forward, then all backward."""
    rank, last, layer = model.rank, model.world_size - 1, model.rank
    weight, state = model.load_weights(layer)
    batches = get_global_batch_list(model.global_batch_size, batch_size)
    inputs, outputs, total = [], [], None
    for samples in batches:
        inputs.append(await model.receive(rank - 1) if rank else model.get_input_activation(samples))
        outputs.append(model.forward(layer, inputs[-1], weight))
        if rank < last:
            await model.send(rank + 1, outputs[-1])
    for k in range(len(batches)):
        grad = await model.receive(rank + 1) if rank < last else model.loss(outputs[k])
        own, grad = model.backward(layer, inputs[k], grad, weight)
        total = own if total is None else total + own
        if rank:
            await model.send(rank - 1, grad)
    weight, state = model.update(layer, total, weight, state)
    model.set_final_weight(layer, weight)


@settings(max_examples=30, deadline=None)
@given(p=st.integers(1, 12), m=st.integers(1, 20), size=st.integers(1, 5))
def test_bubbles_of_gpipe_and_1f1b_are_those_of_the_formula(loops, p, m, size):
    sizes = dict(world_size=p, num_layers=p, global_batch_size=m * size, batch_size=size, hardware=ONLY_COMPUTE)
    for loop in (gpipe, loops["part3_training_loop"]):
        result = run(loop, **sizes)
        assert np.isclose(result.bubble, (p - 1) / (m + p - 1), rtol=1e-9, atol=1e-12)
        flying = [stats.in_flight(model) for model in result.models]
        assert flying == ([m] * p if loop is gpipe else [min(p - r, m) for r in range(p)])


def test_1f1b_has_the_order_of_the_paper(loops):
    """Figure 4 of Narayanan et al., 2021: four devices, eight micro-batches."""
    result = run(loops["part3_training_loop"], world_size=4, num_layers=8, global_batch_size=16, batch_size=2)
    numbers = stats.batch_numbers(result.models)
    got = ["".join(f"{kind[0]}{numbers[mask] + 1} " for kind, mask in stats.schedule(m)).split() for m in result.models]
    assert got[0] == ["f1", "f2", "f3", "f4", "b1", "f5", "b2", "f6", "b3", "f7", "b4", "f8", "b5", "b6", "b7", "b8"]
    assert got[3] == ["f1", "b1", "f2", "b2", "f3", "b3", "f4", "b4", "f5", "b5", "f6", "b6", "f7", "b7", "f8", "b8"]
    cell = next(c.source for c in build.build("19_1f1b").cells if "one_forward_one_backward = [" in c.source)
    drawn = ast.literal_eval(re.search(r"one_forward_one_backward = (\[.*?\])", cell, re.DOTALL)[1])
    assert [[f"{kind[0]}{k + 1}" for kind, k in schedules.parse_work(text)] for text in drawn] == got, (
        "the picture in part 19 shows another order"
    )


@pytest.mark.parametrize(("p", "m", "slow"), [(4, 8, 0), (4, 8, 2), (3, 9, 2), (5, 5, 4)])
def test_a_slow_stage_sets_the_pace_of_1f1b_and_adds_once_to_a_pipeline_with_the_whole_batch(loops, p, m, slow):
    sizes = dict(world_size=p, num_layers=p, global_batch_size=m, hardware=ONLY_COMPUTE)
    for times in (1.5, 4.0):
        whole = [run(loops["part2_training_loop"], **sizes, slowdown=slowed) for slowed in (None, {slow: times})]
        assert np.isclose(whole[1].time, whole[0].time * (p - 1 + times) / p)
        micro = [run(loops["part3_training_loop"], **sizes, batch_size=1, slowdown=slowed) for slowed in (None, {slow: times})]
        each = micro[0].time / (m + p - 1)
        assert micro[1].time >= (m * times + slow) * each * (1 - 1e-9), "ranks before it fill and drain, and it works on each micro-batch"
        again = replay.replay(replay.export(micro[1].models), **sizes, slowdown={slow: times})
        assert [model.time for model in again] == [model.time for model in micro[1].models]
    with pytest.raises(ValueError, match="slowdown"):
        run(loops["part2_training_loop"], **sizes, slowdown={p: 2})


class OneRank:
    """Calls functions as the rank would."""

    def call(self, function, arguments):
        return [function(**arguments)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((), None),
        (("model.update(layer, grad, weight, state)", "model.update(layer, grad, weight, None)"), None),
        (("min(last - rank, len", "min(last, len"), "rank 1 from piece of work 4 on"),
        (("if rank == last:", "if False:"), "did not get to the last backward. The loop stopped with"),
        (None, "must be defined with `async def`"),
    ],
)
def test_half_way_only_the_order_counts(loops, monkeypatch, capsys, change, says):
    source = next(c.source for c in build.build("19_1f1b").cells if "async def part3_training_loop" in c.source).removeprefix("%%px\n")
    if change is None:
        source = "def part3_training_loop(model, batch_size): pass"
    elif change:
        assert change[0] in source
        source = source.replace(*change)
    space = dict(get_global_batch_list=get_global_batch_list)
    exec(source, space)
    monkeypatch.setattr(one_forward_one_backward, "part3_training_loop", space["part3_training_loop"], raising=False)
    check = one_forward_one_backward.OneForwardOneBackwardCheck("part3_training_loop", OneRank())
    if says is None:
        check.order_alone(world_size=4, num_layers=4, global_batch_size=8, batch_size=1)
        assert "The order is right on every rank" in capsys.readouterr().out
        return
    with pytest.raises(CheckFailed, match=re.escape(says)):
        check.order_alone(world_size=4, num_layers=4, global_batch_size=8, batch_size=1)


@pytest.mark.parametrize(("n", "layers", "size"), [(2, 3, 1), (4, 12, 2), (16, 5, 1), (64, 8, 1)])
def test_zero_holds_its_shards_and_what_is_gathered(loops, n, layers, size):
    """While the top layer goes backward: all activations with two gradients, the whole weight and its gradient. With two
    micro-batches, the shards of all gradients are there."""
    result = run(loops["part1_training_loop"], world_size=n, num_layers=layers, global_batch_size=2 * n * size, batch_size=size)
    expected = layers * (2 * W + STATE) / n + 2 * W + (layers + 2) * size * A
    assert np.isclose(result.memory, expected, rtol=1e-12)
    one = run(loops["part1_training_loop"], world_size=n, num_layers=layers, global_batch_size=n * size, batch_size=size)
    assert result.memory - one.memory <= layers * W / n


def test_zero_takes_three_exchanges_a_layer_and_micro_batch(loops):
    hardware = replace(H100, host=FREE_COMMUNICATION.host)
    result = run(loops["part1_training_loop"], world_size=16, num_layers=6, global_batch_size=64, batch_size=2, hardware=hardware)
    flop = LAYER.forward_flop(2)
    exchange = 15 * 20e-6 + 15 / 16 * W / 45e9
    compute = flop / (0.9 * 989e12) + 2 * flop / (0.95 * 989e12)
    update = 6 * (3 * W + 2 * STATE) / 16 / 3352e9
    assert np.isclose(result.time, 2 * 6 * (compute + 3 * exchange) + update, rtol=1e-9)


def test_the_pipeline_passes_the_batch_on(loops):
    result = run(loops["part2_training_loop"], world_size=4, num_layers=8, global_batch_size=32, hardware=ONLY_COMPUTE)
    assert np.isclose(result.bubble, 3 / 4) and [sorted(m.final_weights) for m in result.models] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_the_custom_strategy_gets_full_points_on_both_clusters_and_runs_on_others(loops):
    for sizes in score.SETTINGS:
        result = run(loops["part4_training_loop"], **sizes)
        assert score.score(result) == score.BEST, result
    for sizes in (dict(world_size=4, num_layers=8), dict(world_size=12, num_layers=3), dict(world_size=1, num_layers=2)):
        result = run(loops["part4_training_loop"], global_batch_size=48, batch_size=4, **sizes)
        assert all(sorted(m.final_weights) == list(range(sizes["num_layers"])) for m in result.models)


def test_every_loop_plays_again_from_its_record(loops):
    for name, more in (
        ("part1_training_loop", {"batch_size": 2}),
        ("part2_training_loop", {}),
        ("part3_training_loop", {"batch_size": 3}),
        ("part4_training_loop", {"batch_size": 4}),
    ):
        sizes = dict(world_size=4, num_layers=8, global_batch_size=24)
        models = simulate(loops[name], **sizes, **more)
        again = replay.replay(replay.export(models), **sizes)
        assert stats.get_training_stats(again) == stats.get_training_stats(models)
