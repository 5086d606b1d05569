"""The simulator's messages about loops that are not training steps."""

import asyncio
import contextlib
import time
from dataclasses import replace

import pytest
from sim_loops import SMALL, STATE, A, W, data_parallel

from course_lib.sim import H100, Deadlock, Dist, MissingValue, Model, OutOfMemory, SimulationError, get_training_stats, run
from course_lib.sim.schedule.simulation import simulate


def broken(change):
    """A data parallel step of two ranks in which something is changed."""

    async def loop(model):
        weights, opt_states, activations, grad_activations, grad_weights = model.storage()
        for i in range(2):
            weights[i], opt_states[i] = model.load_weights(i)
        activations[0] = model.get_input_activation([2 * model.rank, 2 * model.rank + 1])
        for i in range(2):
            activations[i + 1] = model.forward(i, activations[i], weights[i])
        grad_activations[2] = model.loss(activations[2])
        await change(model, *model.storage())
        for i in (1, 0):
            grad_weights[i], grad_activations[i] = model.backward(i, activations[i], grad_activations[i + 1], weights[i])
        for i in range(2):
            grad = await model.all_reduce(grad_weights[i], i)
            weights[i], opt_states[i] = model.update(i, grad, weights[i], opt_states[i])
            model.set_final_weight(i, weights[i])

    return loop


WRONG = {
    "w[5]": r"rank \d, layer 5, at .*: weights\[5\] does not exist: it was never stored on this rank \(load_weights",
    "m.forward(1, a[0], w[1])": r"rank \d, layer 1, at .*: forward got the activation of layer 0; it needs the input of layer 1",
    "m.forward(1, a[1], w[0])": "forward got the weight of layer 0",
    "m.forward(2, a[2], w[1])": "there is no layer 2: the layers are 0 to 1",
    "m.forward(0, a[0], m.load_weights(0, 1, 2)[0])": "forward needs the whole weight; got shard 1 of 2. An all_gather",
    "m.forward(0, a[0], None)": "forward: the weight must be a weight; got NoneType",
    "m.forward(0, a[0], o[0])": "forward: the weight must be a weight; got an optimizer state",
    "m.loss(a[1])": "loss needs the output of the last layer, the activation of layer 2; got that of layer 1",
    "m.backward(0, a[0], ga[2], w[0])": "backward got the gradient of layer 2; it needs that of the layer's output, layer 1",
    "m.backward(1, m.forward(0, m.get_input_activation([3]), w[0]), ga[2], w[1])": "samples 3 and the gradient of samples .* do not match",
    "m.get_input_activation([4])": "give at least one sample, from 0 to 3; got sample 4",
    "m.get_input_activation([])": "at least one sample, from 0 to 3; got none",
    "m.get_input_activation([1, 1])": "a sample occurs twice",
    "m.get_input_activation(3)": "samples must be whole numbers, in a list",
    "m.load_weights(0, 2, 2)": "shard must be a whole number from 0 to num_shards - 1; got shard=2, num_shards=2",
    "m.update(1, m.backward(1, a[1], ga[2], w[1])[0], w[1], o[1])": r"2 of 4 are missing \(2, 3\). Add those of all micro-batches",
    "m.set_final_weight(0, w[0])": "the weight from before the update",
    "w.__setitem__(0, 5)": "must be a weight, an optimizer state, an activation or a gradient; got int",
    "w.__setitem__(0, m.all_reduce(m.backward(1, a[1], ga[2], w[1])[0], 1))": "not awaited: write `await` before it",
    "m.send(m.rank, a[0])": "dest must be another rank, 0 to 1",
    "m.all_reduce(w[0], 0)": "all_reduce: the value must be a gradient of the weight; got a weight",
    "m.all_gather(w[0], 1)": "all_gather got a weight of layer 0",
    "m.all_gather(w[0], 0, ranks=[0, 7])": "the ranks are 0 to 1",
    "m.all_gather(w[0], 0, ranks=[1 - m.rank])": "which do not include this rank",
    "m.backward(1, a[1], ga[2], w[1])[0] + m.backward(0, a[0], m.backward(1, a[1], ga[2], w[1])[1], w[0])[0]": "cannot be added",
    "(await m.all_gather(w[0], 0)) and m.all_gather(w[1], 1)": "all_gather was started and never awaited",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_loop_gets_a_sentence(wrong):
    code = compile(f"async def change(m, w, o, a, ga, gw):\n    return {wrong}", "test", "exec")
    namespace = {}
    exec(code, namespace)
    with pytest.raises(SimulationError, match=WRONG[wrong]) as caught:
        run(broken(namespace["change"]), **SMALL)
    assert "rank" in str(caught.value)


def test_update_twice_mismatched_shards_and_a_missing_final_weight():
    async def loop(model, what):
        weights, opt_states, *_ = model.storage()
        weights[0], opt_states[0] = model.load_weights(0)
        activation = model.get_input_activation([0])
        grad, _ = model.backward(0, activation, model.loss(model.forward(0, activation, weights[0])), weights[0])
        if what == "shards":
            model.update(0, grad.shard(0, 2), weights[0].shard(1, 2), opt_states[0].shard(1, 2))
        weights[0], opt_states[0] = model.update(0, grad, weights[0], opt_states[0])
        if what == "twice":
            model.update(0, grad, weights[0], opt_states[0])
        if what == "half":
            model.set_final_weight(0, weights[0].shard(1, 2))

    for what, said in {
        "shards": r"mismatched shards \(gradient of the weight: 0 of 2, weight: 1 of 2, optimizer state: 1 of 2\)",
        "twice": "update a second time in one step",
        "half": "layer 0: the final weight is not complete: no rank has set shard 0 of 2",
        "none": "layer 0: no rank has set the final weight",
    }.items():
        with pytest.raises(SimulationError, match=said):
            run(loop, world_size=1, num_layers=1, global_batch_size=1, what=what)


def test_when_nothing_can_move_it_says_what_each_rank_waits_for():
    async def missing(model):
        weight, _ = model.load_weights(0)
        if model.rank == 3:
            return
        if model.rank == 2:
            await model.receive(0)
        await model.all_gather(weight, 0)

    began = time.process_time()
    with pytest.raises(Deadlock) as caught:
        run(missing, world_size=4, num_layers=1)
    assert time.process_time() - began < 1  # it does not wait
    said = str(caught.value)
    first = missing.__code__.co_firstlineno
    assert f"ranks 0, 1 wait (since 0 s, line {first + 6} of missing) in all_gather of layer 0 for ranks 2, 3" in said
    assert f"rank 2 waits (since 0 s, line {first + 5} of missing) to receive from rank 0, which has not sent" in said
    assert "rank 3 has finished" in said


@pytest.mark.parametrize("exchange", ["all_reduce", "reduce_scatter"])
def test_a_sample_counts_once_in_a_sum(exchange):
    async def loop(model, twice):
        weight, state = model.load_weights(0)
        taken = range(4) if twice else range(2 * model.rank, 2 * model.rank + 2)
        first = model.get_input_activation(taken)
        grad, _ = model.backward(0, first, model.loss(model.forward(0, first, weight)), weight)
        grad = await getattr(model, exchange)(grad, 0)
        if exchange == "all_reduce":
            model.set_final_weight(0, model.update(0, grad, weight, state)[0])
        else:
            mine, _ = model.update(0, grad, weight.shard(model.rank, 2), state.shard(model.rank, 2))
            model.set_final_weight(0, await model.all_gather(mine, 0))

    said = "this rank's and another rank's gradient contain samples 0–3: in the sum they would count twice"
    with pytest.raises(SimulationError, match=f"rank . layer 0, .*{said}".replace("rank . ", "rank ., ")):
        run(loop, world_size=2, num_layers=1, global_batch_size=4, twice=True)
    assert run(loop, world_size=2, num_layers=1, global_batch_size=4, twice=False).time > 0


def test_what_nobody_has_loaded_is_said_where_it_can_be_known():
    async def forgets_the_sum(model):  # rank 1 has not begun yet: of its samples nothing is known
        weight, state = model.load_weights(0)
        first = model.get_input_activation(range(2 * model.rank, 2 * model.rank + 2))
        grad, _ = model.backward(0, first, model.loss(model.forward(0, first, weight)), weight)
        model.update(0, grad, weight, state)

    async def forgets_samples(model):
        weight, state = model.load_weights(model.rank)
        if model.rank == 0:
            await model.send(1, model.forward(0, model.get_input_activation(range(2)), weight))
            await model.receive(1)
        else:
            came = await model.receive(0)
            grad, _ = model.backward(1, came, model.loss(model.forward(1, came, weight)), weight)
            model.update(1, grad, weight, state)

    for loop, layers, said in (
        (forgets_the_sum, 1, "and reduce over all ranks"),
        (forgets_samples, 2, "has loaded the input of samples 2, 3"),
    ):
        with pytest.raises(SimulationError, match=rf"2 of 4 are missing \(2, 3\)\. .*{said}"):
            run(loop, world_size=2, num_layers=layers, global_batch_size=4)


def test_recomputing_each_layer_from_the_first_is_not_endless():
    async def loop(model):
        layers = [model.load_weights(i) for i in range(model.num_layers)]
        first = model.get_input_activation([0])

        def at(layer):
            value = first
            for i in range(layer):
                value = model.forward(i, value, layers[i][0])
            return value

        grad = model.loss(at(model.num_layers))
        for i in reversed(range(model.num_layers)):
            of_weight, grad = model.backward(i, at(i), grad, layers[i][0])
            model.set_final_weight(i, model.update(i, of_weight, *layers[i])[0])

    assert run(loop, world_size=1, num_layers=256, global_batch_size=1).time > 0


def test_a_gradient_is_added_once():
    async def loop(model):
        weight, _ = model.load_weights(0)
        first = model.get_input_activation(range(2))
        grad, _ = model.backward(0, first, model.loss(model.forward(0, first, weight)), weight)
        grad + grad

    with pytest.raises(SimulationError, match="both gradients contain samples 0, 1: in the sum they would count twice"):
        run(loop, world_size=1, num_layers=1, global_batch_size=2)


def test_a_loop_without_end_is_stopped_with_its_line():
    async def loop(model):
        weight, _ = model.load_weights(0)
        while True:
            model.forward(0, model.get_input_activation(range(2)), weight)

    with pytest.raises(
        SimulationError, match=r"rank 0, layer 0, at .*: 10,40. operations, and forward with samples 0, 1 once more"
    ) as caught:
        run(loop, world_size=1, num_layers=1, global_batch_size=2)
    assert "loop" in [entry.name for entry in caught.traceback]


def test_what_was_started_is_awaited_and_nothing_else():
    async def loop(model):
        weight, _ = model.load_weights(0)
        coming, tasks = model.all_gather(weight, 0), []
        with pytest.raises(AttributeError, match=r"<all_gather, started; await it .*has no result: write `value = await pending`"):
            coming.result()
        with pytest.raises(TypeError, match="a coroutine was expected, got <all_gather, started; await it when you need its result>"):
            tasks.append(asyncio.create_task(coming))
        await coming
        model.set_final_weight(0, weight)

    with pytest.raises(SimulationError):  # it is no training step
        run(loop, world_size=2, num_layers=1)


def test_a_rank_that_only_receives_is_named_with_the_line_of_its_helper():
    async def theirs(model):
        await model.receive(1)

    async def loop(model):
        if model.rank == 0:
            await theirs(model)

    with pytest.raises(Deadlock) as caught:
        run(loop, world_size=2, num_layers=1)
    line = theirs.__code__.co_firstlineno + 1
    assert f"rank 0 waits (since 0 s, line {line} of theirs) to receive from rank 1" in str(caught.value)


def test_a_deadlock_in_a_plain_event_loop_ends_too():
    async def main():
        models = [Model(r, dist, 1, 2) for dist in [Dist(2)] for r in range(2)]

        async def each(model):
            weight, _ = model.load_weights(0)
            await asyncio.sleep(0.05 * model.rank)  # something that is not the simulator's
            if model.rank == 1:
                await model.receive(0)
            await model.all_gather(weight, 0)

        await asyncio.wait_for(asyncio.gather(*(each(m) for m in models)), 5)

    with pytest.raises(Deadlock, match=r"rank 1 waits .* to receive from rank 0"):
        asyncio.run(main())


def test_ranks_that_make_different_calls():
    async def loop(model):
        weights = [model.load_weights(i, model.rank, 2)[0] for i in range(2)]
        first = model.rank  # rank 1 begins with layer 1
        await model.all_gather(weights[first], first)

    with pytest.raises(SimulationError, match=r"rank 1, layer 1, at 0 s: all_gather of Weight\(layer 1.* while rank 0 calls all_gather of"):
        run(loop, **SMALL)


def test_memory_above_the_device_says_what_is_held():
    with pytest.raises(
        OutOfMemory, match=r"rank 0, at .*: out of memory: .*, but H100 80 GB has 80 GiB. The rank holds .*opt_states 12 GiB \(64\)"
    ):
        run(data_parallel, world_size=1, num_layers=64, global_batch_size=256, batch_size=256)

    async def hides(model):
        """Keeps activations in a list of its own: they count when they are used."""
        weight, state = model.load_weights(0)
        kept = [model.forward(0, model.get_input_activation([i]), weight) for i in range(16)]
        inputs = [model.get_input_activation([i]) for i in range(16)]
        total = None
        for first, last in zip(inputs, kept, strict=True):
            grad, _ = model.backward(0, first, model.loss(last), weight)
            total = grad if total is None else total + grad
        weight, state = model.update(0, total, weight, state)
        model.set_final_weight(0, weight)

    held = run(hides, world_size=1, num_layers=1, global_batch_size=16).memory
    assert held >= W + STATE + 32 * A
    with pytest.raises(OutOfMemory, match="Some of it was in variables"):
        run(hides, world_size=1, num_layers=1, global_batch_size=16, hardware=replace(H100, memory=held - 1))


def test_the_storage_keeps_account_however_it_is_changed():
    model = Model(0, Dist(1), 3, 4)
    weights, _, activations, *_ = model.storage()
    w = [model.load_weights(i)[0] for i in range(3)]
    weights[0] = w[0]
    weights["again"] = w[0]
    assert model.memory() == W, "the same memory, once"
    weights.update({1: w[1]}, again=w[2])
    assert model.memory() == 3 * W
    weights[0] = w[1]
    assert model.memory() == 2 * W and weights.pop("again") is w[2] and weights.pop("again", None) is None
    assert weights.popitem()[1] is w[1] and model.memory() == W
    weights |= {7: w[2]}
    assert weights.setdefault(7) is w[2] and model.memory() == 2 * W
    activations["all"] = [model.get_input_activation([i]) for i in range(4)]
    assert model.memory() == 2 * W + 4 * A
    del activations["all"]
    weights.clear()
    assert model.memory() == 0 and not weights
    with pytest.raises(MissingValue):
        weights.pop(0)
    with pytest.raises(KeyError):
        del weights[0]


def test_a_value_of_another_rank_has_to_be_sent():
    dist, found = Dist(2), {}
    one, two = (Model(r, dist, 1, 2) for r in range(2))
    found["weight"] = one.load_weights(0)[0]
    with pytest.raises(SimulationError, match="is a weight of rank 0: it has to be sent here first"):
        two.storage()[0][0] = found["weight"]
    with pytest.raises(SimulationError, match="forward: the weight is in the memory of rank 0"):
        two.forward(0, two.get_input_activation([0]), found["weight"])


def test_bad_sizes_and_loops_that_are_not_async():
    for bad in (dict(world_size=0), dict(num_layers=0), dict(global_batch_size=0), dict(world_size="2")):
        with pytest.raises(ValueError, match=r"must be|is the number"):
            run(data_parallel, **SMALL | bad)
    with pytest.raises(SimulationError, match="not_async must be defined with `async def`"):

        def not_async(model):
            return model

        run(not_async, **SMALL)
    for part in (simulate(data_parallel, **SMALL)[:1], [None, None], []):
        with pytest.raises(ValueError, match="expected the models of all ranks"):
            get_training_stats(part)


def test_an_interrupt_ends_an_endless_loop_and_leaves_nothing(capfd):
    import os
    import signal
    import threading

    async def endless(model):
        model.load_weights(0)
        while True:
            await asyncio.sleep(0)

    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run(endless, **SMALL)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("lost", [False, True])
def test_an_interrupt_between_two_steps_of_a_loop_hangs_nothing(capfd, lost):
    def interrupt(loop):
        if lost:
            loop._ready.clear()  # as if the interrupt came when the loop had just taken a rank's next step from there
        raise KeyboardInterrupt

    async def endless(model):
        if model.rank == 0:
            asyncio.get_running_loop().call_soon(interrupt, asyncio.get_running_loop())
        while True:
            with contextlib.suppress(asyncio.CancelledError):  # it does not even end when it is told to
                await asyncio.sleep(0)

    with pytest.raises(KeyboardInterrupt):
        run(endless, **SMALL)
    assert capfd.readouterr().err == ""
