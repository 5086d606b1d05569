"""Values that the simulator did not make, or that were changed: a sentence, or the replay decides."""

import copy
import pickle

import pytest

from course_lib import sim
from course_lib.sim import record, stats
from course_lib.sim.simulation import simulate

SIZES = dict(world_size=2, num_layers=2, global_batch_size=4)
KINDS = (sim.Weight, sim.OptState, sim.Activation, sim.ActivationGrad, sim.WeightGrad)


async def loop(model, tamper=None):
    """Data parallel, in two micro-batches; `tamper` gets at each value that comes up."""
    weights, opt_states, activations, _, _ = model.storage()
    change = tamper or (lambda model, what, value: value)
    for layer in range(2):
        weight, state = model.load_weights(layer)
        weights[layer], opt_states[layer] = change(model, "weight", weight), change(model, "state", state)
    sums = {}
    for samples in sim.get_next_microbatch(4, 2, 1, model.rank):
        activations[0] = change(model, "input", model.get_input_activation(samples))
        for layer in range(2):
            activations[layer + 1] = change(model, "activation", model.forward(layer, activations[layer], weights[layer]))
        grad = change(model, "loss", model.loss(activations.pop(2)))
        for layer in (1, 0):
            found, grad = model.backward(layer, activations.pop(layer), grad, weights[layer])
            found = change(model, "gradient", found)
            sums[layer] = sums[layer] + found if layer in sums else found
    for layer in range(2):
        whole = change(model, "sum", await model.all_reduce(sums[layer], layer))
        weights[layer], opt_states[layer] = model.update(layer, whole, weights[layer], opt_states[layer])
        model.set_final_weight(layer, change(model, "final", weights[layer]))
    return model


def clone(value, **changes):
    """As good a copy as Python allows, with some slots changed."""
    made = object.__new__(type(value))
    for kind in type(value).__mro__:
        for slot in getattr(kind, "__slots__", ()):
            setattr(made, slot, getattr(value, slot))
    for slot, to in changes.items():
        setattr(made, slot, to)
    return made


def changed(value, **changes):
    for slot, to in changes.items():
        setattr(value, slot, to)
    return value


def late(model):
    model.time = 0.0


def timeless(model):
    model.rows[:] = [(*row[:2], 0.0, 0.0, *row[4:]) if len(row) > 2 else row for row in model.rows]


TAMPERS = {
    "a gradient of all samples": ("gradient", lambda m, v: changed(v, mask=m.all_samples)),
    "a sum of all samples": ("sum", lambda m, v: changed(v, mask=m.all_samples)),
    "a clone of all samples": ("sum", lambda m, v: clone(v, mask=m.all_samples)),
    "a clone of another number": ("gradient", lambda m, v: clone(v, id=0)),
    "a clone that was never made": ("gradient", lambda m, v: clone(v, id=10_000)),
    "a weight that is updated": ("final", lambda m, v: changed(v, updated=True)),
    "a weight of another layer": ("weight", lambda m, v: changed(v, layer=0)),
    "no bytes": ("activation", lambda m, v: changed(v, nbytes=0.0)),
    "held by nobody": ("activation", lambda m, v: changed(v, holds=-5)),
    "sizes": ("activation", lambda m, v: m.sizes.__setitem__(v.id, 0.0) or v),
    "no time": ("activation", lambda m, v: late(m) or v),
    "rows without time": ("final", lambda m, v: timeless(m) or v),
    "nothing held": ("activation", lambda m, v: setattr(m, "held", 0.0) or v),
    "another rank's": ("gradient", lambda m, v: changed(v, model=m.dist.models[0])),
    "half of the weight": ("weight", lambda m, v: changed(v, shards=1, num_shards=2)),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_values_are_not_made_by_hand(kind):
    for given in ((), (0, 2, range(4), 4), (None, 0, 15)):
        with pytest.raises(sim.SimulationError, match="they come from load_weights"):
            kind(*given)
    with pytest.raises(sim.SimulationError, match="is to be a new kind of value"):
        type("Mine", (kind,), {})
    empty = kind.__new__(kind)
    model = sim.Model(0, sim.Dist(1), 2, 4)
    weight, state = model.load_weights(0)
    for use in (
        lambda: model.update(0, empty, weight, state),
        lambda: model.forward(0, empty, weight),
        lambda: model.storage()[0].update(x=empty),
    ):
        with pytest.raises(sim.SimulationError):
            use()


def test_values_are_not_copied():
    model = sim.Model(0, sim.Dist(1), 2, 4)
    for value in (*model.load_weights(0), model.get_input_activation([0])):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps, lambda value: copy.deepcopy({0: [value]})):
            with pytest.raises(sim.SimulationError, match="is to be copied"):
                copied(value)


@pytest.mark.parametrize("name", TAMPERS)
def test_what_is_changed_by_hand_gives_no_better_result(name):
    what, change = TAMPERS[name]
    honest = sim.run(loop, **SIZES)
    try:
        models = simulate(loop, **SIZES, tamper=lambda model, kind, value: change(model, value) if kind == what else value)
        text = record.export(models)
    except (sim.SimulationError, KeyError, IndexError):
        return  # it was found at once
    try:
        result = sim.Result(record.replay(text, **SIZES))
    except sim.SimulationError:
        return
    assert (result.time, result.memory) == (honest.time, honest.memory)


def test_a_loop_of_the_originals_kind_runs_without_a_limit_and_the_result_says_so(tmp_path):
    async def all_at_once(model):
        activations = model.storage()[2]
        for i in range(6):  # 16 GiB each
            activations[i] = model.get_input_activation(range(2048))

    models = simulate(all_at_once, world_size=4, num_layers=16, global_batch_size=2048, memory_limit=False)
    assert stats.over(models[0]) == "more than the device has: 96 GiB of 80 GiB"
    with pytest.raises(sim.OutOfMemory):
        simulate(all_at_once, world_size=4, num_layers=16, global_batch_size=2048)
    assert sim.Dist(2).memory_limit is False and sim.Dist(2, memory_limit=True).memory_limit
    sim.write_chrome_trace(models, tmp_path / "not" / "there" / "trace.json")
    assert (tmp_path / "not" / "there" / "trace.json").exists()
