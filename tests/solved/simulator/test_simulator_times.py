"""The simulator's times and memory, on loops that are no answers."""

import asyncio
import json
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_loops import STATE, A, W, data_parallel

from course_lib.sim import (
    FREE_COMMUNICATION,
    H100,
    LAYER,
    Dist,
    Model,
    SimulationError,
    get_global_batch_list,
    get_model_theoretical_best_time,
    get_next_microbatch,
    get_training_stats,
    run,
    write_chrome_trace,
)
from course_lib.sim.core.hardware import GIB
from course_lib.sim.schedule import replay, stats
from course_lib.sim.schedule.check import left_over
from course_lib.sim.schedule.simulation import simulate
from course_lib.sim.schedule.trace import as_trace
from course_lib.trace.timeline import COMPUTING


def test_the_original_interface():
    dist = Dist(4)
    models = [Model(rank=i, dist=dist, num_layers=3, global_batch_size=8) for i in range(4)]

    async def main():
        return await asyncio.gather(*(data_parallel(model, 2) for model in models))

    out = asyncio.run(main())
    seconds, memory, rank = get_training_stats(out)
    assert seconds == max(m.time for m in models) > 0 and rank == 0
    first = models[0]
    assert (first.rank, first.world_size, first.num_layers, first.global_batch_size) == (0, 4, 3, 8)
    assert sorted(first.final_weights) == [0, 1, 2] and first.memory() == 3 * (W + STATE)
    # In the last backward: all weights, states and gradients; two activations and two gradients, of two samples each.
    assert memory == 3 * (W + STATE) + 3 * W + 4 * 2 * A
    assert [e.kind for e in first.log][:5] == ["input", "forward", "forward", "forward", "loss"]
    assert get_model_theoretical_best_time(first) == 3 * 8 * 1024 * 6 * 4096**2 / (4 * 989e12)
    one_line = run(data_parallel, world_size=4, num_layers=3, global_batch_size=8, batch_size=2)
    assert (one_line.time, one_line.memory, one_line.memory_rank) == (seconds, memory, rank)


async def as_the_original_lab_does(model):
    """Its demonstration: one micro-batch a rank, and the sum over all ranks added to what a rank has."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for layer in range(model.num_layers):
        weights[layer], opt_states[layer] = model.load_weights(layer)
    samples = list(range(model.rank, model.global_batch_size, model.world_size))
    activations[0] = model.get_input_activation(samples)
    for layer in range(model.num_layers):
        activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
    grad_activations[model.num_layers] = model.loss(activations[model.num_layers])
    for layer in range(model.num_layers - 1, -1, -1):
        grad_weights[layer], grad_activations[layer] = model.backward(
            layer, activations[layer], grad_activations[layer + 1], weights[layer]
        )
        grad_weights[layer] += await model.all_reduce(grad_weights[layer], layer)
    for layer in range(model.num_layers):
        weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


def test_the_demonstration_of_the_original_lab_runs_and_one_warning_says_what_counts_twice():
    async def main(dist):
        models = [Model(rank=i, dist=dist, num_layers=3, global_batch_size=16) for i in range(4)]
        return await asyncio.gather(*(as_the_original_lab_does(model) for model in models))

    with pytest.warns(UserWarning) as said:
        models = asyncio.run(main(Dist(4)))
    (text,) = [str(one.message) for one in said]
    assert re.match(r"rank (\d), layer 2, .*: both gradients contain samples \1, .*: in the sum they would count twice", text)
    assert get_training_stats(models)[0] > 0 and sorted(models[3].final_weights) == [0, 1, 2]
    with pytest.raises(SimulationError, match=r"both gradients contain samples .*: in the sum they would count twice"):
        asyncio.run(main(Dist(4, strict=True)))
    with pytest.raises(SimulationError, match="would count twice"):
        run(as_the_original_lab_does, world_size=4, num_layers=3, global_batch_size=16)


def test_helpers_cut_the_batch():
    assert get_global_batch_list(8, 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    seen = [s for r in range(4) for batch in get_next_microbatch(24, 4, 4, r) for s in batch]
    assert sorted(seen) == list(range(24))
    assert next(get_next_microbatch(24, 4, 4, 1)) == [6, 7, 8, 9]
    with pytest.raises(ValueError, match="3 ranks cannot share 8 samples equally"):
        get_next_microbatch(8, 3, 1, 0)


def ring(nbytes, n):
    """Seconds of a ring all-gather, written out."""
    rate, latency = (450e9 * 0.65, 10e-6) if n <= 8 else (50e9 * 0.9, 20e-6)
    return (n - 1) * latency + (n - 1) / n * nbytes / rate


@pytest.mark.parametrize("n", [1, 2, 5, 8, 9, 64])
def test_collectives_take_what_the_ring_takes(n):
    async def loop(model):
        weight, _ = model.load_weights(0, model.rank, n)
        begun = [model.time]
        whole = await model.all_gather(weight, 0)
        begun.append(model.time)
        assert whole.nbytes == W and whole.whole
        activation = model.get_input_activation([model.rank])
        grad, _ = model.backward(0, activation, model.loss(model.forward(0, activation, whole)), whole)
        begun.append(model.time)
        mine = await model.reduce_scatter(grad, 0)
        begun.append(model.time)
        assert mine.samples == set(range(n)) and mine.nbytes == W / n
        await model.all_reduce(grad, 0)
        return [*begun, model.time]

    models = [Model(r, dist, 1, n) for dist in [Dist(n)] for r in range(n)]
    for times in asyncio.run(replay.gather_ranks([loop(m) for m in models])):
        assert np.isclose(times[1] - times[0], ring(W, n), rtol=1e-12, atol=0)
        assert np.isclose(times[3] - times[2], ring(W, n), rtol=1e-9, atol=0)
        assert np.isclose(times[4] - times[3], 2 * ring(W, n), rtol=1e-9, atol=0)


def test_compute_takes_the_larger_of_flop_and_bytes():
    flop = 2 * 4096**2 * 1024
    assert H100.compute(4 * flop, 0) == 4 * flop / (989e12 * 0.95)  # 137 GFLOP
    assert H100.compute(flop, 0) == flop / (989e12 * 0.9)  # 34 GFLOP
    assert H100.compute(2e9, 0) == 2e9 / (989e12 * 0.6) and H100.compute(1e6, 0) == 1e6 / (989e12 * 0.1)
    assert H100.compute(1e6, 3352e9) == 1.0
    (model,) = simulate(data_parallel, world_size=1, num_layers=1, global_batch_size=1)
    forward, backward = (e for e in model.log if e.kind in ("forward", "backward"))
    assert np.isclose(forward.end - forward.start, flop / (989e12 * 0.9)) and np.isclose(
        backward.end - backward.start, 2 * flop / (989e12 * 0.9)
    )


def test_a_send_is_buffered_and_a_receive_ends_no_earlier():
    async def loop(model):
        if model.rank == 0:
            activation = model.get_input_activation([0, 1])
            before = model.time
            await model.send(1, activation)
            sent = model.time
            assert np.isclose(sent - before, 10e-6 + 2 * A / (450e9 * 0.65))
            await model.receive(1)
            return sent, model.time
        weight, _ = model.load_weights(0)
        own = model.forward(0, model.get_input_activation(range(64)), weight)
        busy = model.time
        got = await model.receive(0)
        assert got.samples == {0, 1} and got.layer == 0
        received = model.time
        await model.send(0, own)
        return busy, received

    models = [Model(r, dist, 1, 64) for dist in [Dist(2)] for r in range(2)]
    (sent, ended), (busy, received) = asyncio.run(replay.gather_ranks([loop(m) for m in models]))
    assert sent < busy and received == busy, "it was there already"
    assert np.isclose(ended, received + 10e-6 + 64 * A / (450e9 * 0.65))


@pytest.mark.parametrize("late", [False, True])
def test_a_message_that_nobody_has_taken_is_held_by_its_sender(late):
    """Otherwise a loop could keep its activations on the way to a neighbour, and have no memory at all."""

    async def loop(model):
        weight, _ = model.load_weights(0)
        own = model.get_input_activation(range(32)) if model.rank == 0 else model.get_input_activation([32])
        if model.rank == 0:
            model.send(1, own)
            del own
            for _ in range(10):
                model.forward(0, model.get_input_activation([0]), weight)
            return
        for _ in range(200 if late else 0):
            model.forward(0, own, weight)
        await model.receive(0)

    models = [Model(r, dist, 1, 64) for dist in [Dist(2)] for r in range(2)]
    asyncio.run(replay.gather_ranks([loop(m) for m in models]))
    while_it_works = stats.memory_profile(models[0])[1][-3:]
    assert all((nbytes >= 33 * A) == late for nbytes in while_it_works), while_it_works / A


def test_an_exchange_runs_beside_what_is_computed():
    async def loop(model, overlap):
        weight, state = model.load_weights(0)
        activation = model.get_input_activation([model.rank])
        grad, _ = model.backward(0, activation, model.loss(model.forward(0, activation, weight)), weight)
        begun = model.time
        coming = model.all_reduce(grad, 0)
        if not overlap:
            total = await coming
        for _ in range(20):
            model.forward(0, activation, weight)
        if overlap:
            total = await coming
        weight, state = model.update(0, total, weight, state)
        model.set_final_weight(0, weight)
        return begun

    times = [run(loop, world_size=2, num_layers=1, global_batch_size=2, overlap=o).time for o in (False, True)]
    assert np.isclose(times[0] - times[1], 2 * ring(W, 2)), "all of it is hidden"


def test_exchanges_of_a_rank_follow_one_another():
    """Two collectives that are started at once share the stream."""

    async def loop(model):
        shards = [model.load_weights(i, model.rank, 2)[0] for i in range(2)]
        both = [model.all_gather(w, i) for i, w in enumerate(shards)]
        for one in both:
            await one
        return model.time

    models = [Model(r, dist, 2, 2) for dist in [Dist(2)] for r in range(2)]
    assert all(np.isclose(t, 2 * ring(W, 2)) for t in asyncio.run(replay.gather_ranks([loop(m) for m in models])))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_times_are_those_of_the_longest_path(data):
    """Random pipelines: each rank does its work in the order of a random topological order, and times follow from the dependencies."""
    ranks, batches = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    tasks = [(kind, r, k) for kind in "FB" for r in range(ranks) for k in range(batches)]
    needs = {t: set() for t in tasks}
    for kind, r, k in tasks:
        if kind == "F" and r:
            needs["F", r, k].add(("F", r - 1, k))
        if kind == "B":
            needs["B", r, k].add(("B", r + 1, k) if r + 1 < ranks else ("F", r, k))
            needs["B", r, k].add(("F", r, k))
    order, done = [], set()
    while len(order) < len(tasks):
        task = data.draw(st.sampled_from([t for t in tasks if t not in done and needs[t] <= done]))
        order.append(task)
        done.add(task)
    sizes = [data.draw(st.integers(1, 3)) for _ in range(batches)]
    samples = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])

    async def loop(model):
        r, last = model.rank, ranks - 1
        weight, _ = model.load_weights(r)
        inputs, grads = {}, {}
        # Messages come in the order in which the neighbour sends them.
        forward_in, backward_in = (
            [k for kind, who, k in order if kind == kind_ and who == from_] for kind_, from_ in (("F", r - 1), ("B", r + 1))
        )

        async def wanted(box, source, queue, k):
            while k not in box:
                box[queue.pop(0)] = await model.receive(source)
            return box.pop(k)

        outputs, came_f, came_b = {}, {}, {}
        for kind, who, k in order:
            if who != r:
                continue
            if kind == "F":
                inputs[k] = model.get_input_activation(samples[k].tolist()) if r == 0 else await wanted(came_f, r - 1, forward_in, k)
                outputs[k] = model.forward(r, inputs[k], weight)
                if r < last:
                    model.send(r + 1, outputs[k])
            else:
                out = model.loss(outputs[k]) if r == last else await wanted(came_b, r + 1, backward_in, k)
                _, grads[k] = model.backward(r, inputs[k], out, weight)
                if r:
                    model.send(r - 1, grads[k])

    hardware = FREE_COMMUNICATION
    models = simulate(loop, world_size=ranks, num_layers=ranks, global_batch_size=sum(sizes), hardware=hardware)
    expected, free = {}, [0.0] * ranks
    for task in order:
        kind, r, k = task
        flop = (1 if kind == "F" else 2) * LAYER.forward_flop(sizes[k])
        start = max([free[r], *(expected[t] for t in needs[task])])
        expected[task] = free[r] = start + hardware.compute(flop, 0)
    for model in models:
        own = [t for t in order if t[1] == model.rank]
        found = [e for e in model.log if e.kind in ("forward", "backward")]
        assert [(e.kind[0].upper(), min(e.samples)) for e in found] == [(t[0], int(samples[t[2]][0])) for t in own]
        assert np.allclose([e.end for e in found], [expected[t] for t in own], rtol=1e-12, atol=0)


def test_the_order_in_which_ranks_run_does_not_matter():
    async def together(order):
        models = [Model(r, dist, 3, 24) for dist in [Dist(12)] for r in range(12)]
        await asyncio.gather(*(data_parallel(models[r]) for r in order))
        return [m.time for m in models], get_training_stats(models)

    random = np.random.default_rng(0)
    assert len({str(asyncio.run(together(random.permutation(12)))) for _ in range(5)}) == 1


def test_a_record_plays_again_and_a_forged_one_does_not():
    sizes = dict(world_size=3, num_layers=2, global_batch_size=6)
    models = simulate(data_parallel, **sizes, batch_size=1)
    text = replay.export(models)
    again = replay.replay(text, **sizes)
    assert get_training_stats(again) == get_training_stats(models)
    assert [m.log for m in again] == [m.log for m in models]

    def forged(change):
        rows = json.loads(text)
        change(rows)
        return json.dumps(rows)

    def without(kind):
        return forged(lambda rows: [rank.__setitem__(slice(None), [r for r in rank if r[0] != kind]) for rank in rows])

    for bad in ("[]", "{}", "nonsense", "[[1]]", forged(lambda rows: rows[0].insert(5, ["forward", 0, [99], [98], None]))):
        with pytest.raises(SimulationError, match="not the record of a run"):
            replay.replay(bad, **sizes)
    for kind in ("backward", "add", "input"):
        with pytest.raises(SimulationError):
            replay.replay(without(kind), **sizes)
    with pytest.raises(SimulationError, match="no rank has set the final weight"):
        get_training_stats(replay.replay(without("final"), **sizes))
    twice = forged(lambda rows: rows[0].__setitem__(slice(8, 8), [["drop", 0], ["drop", 0]]))
    with pytest.raises(SimulationError, match="not the record of a run: ValueError: something that is not stored is dropped"):
        replay.replay(twice, **sizes)


async def hoards(model, batch_size):
    """`data_parallel`, which frees no activation."""
    storage, deleted = model.storage()[2], type(model.storage()[2]).__delitem__
    type(storage).__delitem__ = lambda self, key: None if self is storage else deleted(self, key)
    try:
        return await data_parallel(model, batch_size)
    finally:
        type(storage).__delitem__ = deleted


def test_what_a_loop_does_not_free_is_named():
    sizes = dict(world_size=1, num_layers=3, global_batch_size=4)
    for loop, said in ((data_parallel, ""), (hoards, "; when the step ends, it still stores the activation of layers 0–3")):
        (model,) = replay.replay(replay.export(simulate(loop, **sizes, batch_size=4)), **sizes)
        assert left_over(model) == said


def test_a_chrome_trace_has_what_the_format_asks_for(tmp_path):
    result = run(data_parallel, world_size=3, num_layers=2, global_batch_size=6)
    write_chrome_trace(result.models, tmp_path / "trace.json", global_batch_list=get_global_batch_list(6, 1))
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["displayTimeUnit"] in ("ms", "ns")
    needed = {
        "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
        "C": {"name", "ph", "ts", "pid", "args"},
        "M": {"name", "ph", "pid", "args"},
    }
    spans = {}
    for event in trace["traceEvents"]:
        assert needed[event["ph"]] <= set(event), event
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0
            spans.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] == "C":
            assert all(isinstance(v, float) for v in event["args"].values())
    for row in spans.values():
        row.sort()
        assert all(b[0] >= a[1] - 1e-6 for a, b in pairwise(row)), "events of a row do not overlap"
    names = {e["name"] for e in trace["traceEvents"] if e["ph"] == "X"}
    assert "forward 1, batch 5" in names and "all_reduce 0" in names
    peak = max(e["args"]["bytes"] for e in trace["traceEvents"] if e["ph"] == "C")
    assert peak == result.memory and result.memory < 80 * GIB
    assert max(e["ts"] + e["dur"] for e in trace["traceEvents"] if e["ph"] == "X") <= result.time * 1e6 + 1e-6


async def passes_on(model):
    """Rank 0 works on a sample and sends its output to the others, one after the other; the last one answers."""
    weight, _ = model.load_weights(0)
    if model.rank == 0:
        out = model.forward(0, model.get_input_activation([0]), weight)
        sends = [model.send(dest, out) for dest in range(1, model.world_size)]
        for send in sends:
            await send
        await model.receive(model.world_size - 1)
    else:
        came = await model.receive(0)
        if model.rank == model.world_size - 1:
            await model.send(0, came)


def test_a_run_is_a_trace_like_those_of_real_ranks():
    for models in (
        simulate(data_parallel, world_size=3, num_layers=2, global_batch_size=6, batch_size=2, slowdown={1: 2.0}),
        simulate(passes_on, world_size=3, num_layers=1, global_batch_size=1),
    ):
        found = as_trace(models, "A run")
        for model, summary in zip(models, found.summaries(), strict=True):
            assert summary.seconds[COMPUTING] == pytest.approx(stats.busy_seconds(model))
            assert sum(summary.seconds.values()) == pytest.approx(model.time)
        assert found.seconds == max(m.time for m in models)
        assert all(a.sent < a.received for a in found.arrows())
    slow, arrows = as_trace(simulate(data_parallel, world_size=3, num_layers=2, global_batch_size=6, slowdown={1: 2.0}), ""), found.arrows()
    assert slow.straggler()[0] == 1
    assert [(a.source, a.dest) for a in sorted(arrows, key=lambda a: a.sent)] == [(0, 1), (0, 2), (2, 0)]
    half = as_trace(models, "", until=found.seconds / 2)
    assert half.seconds == found.seconds / 2 and all(e.end <= half.seconds for r in half.ranks for e in r.events)


@pytest.mark.parametrize("n", [1, 4, 16, 64])
def test_a_result_draws_itself(n):
    result = run(data_parallel, world_size=n, num_layers=4, global_batch_size=n * 4)
    data, _ = result._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG") and "MFU" in data["text/plain"]
    share = sum(stats.busy_seconds(m) for m in result.models) / (n * result.time)
    assert np.isclose(result.bubble, 1 - share)
