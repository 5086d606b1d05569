"""Values that the simulator did not make, or that were changed: a sentence, or the replay decides."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib import sim
from course_lib.sim.schedule import replay, stats
from course_lib.sim.schedule.simulation import simulate

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
        whole = change(model, "local", sums[layer])
        if whole is sums[layer] and whole.mask != model.all_samples:
            whole = await model.all_reduce(whole, layer)
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


# At which value, what is done to it, and what is said of that, while it runs or in the replay; nothing where it changes nothing there.
TAMPERS = {
    "a gradient of all samples": ("gradient", lambda m, v: changed(v, mask=m.all_samples), "both gradients contain samples"),
    "a gradient for the sum": ("local", lambda m, v: changed(v, mask=m.all_samples), "before all samples are in the gradient"),
    "a clone for the sum": ("local", lambda m, v: clone(v, mask=m.all_samples), "before all samples are in the gradient"),
    "a clone of another number": ("gradient", lambda m, v: clone(v, id=0), "this is not the record of a run"),
    "a clone that was never made": ("gradient", lambda m, v: clone(v, id=10_000), "IndexError"),
    "a weight that is updated": ("final", lambda m, v: changed(v, updated=True), ""),
    "a weight of another layer": ("weight", lambda m, v: changed(v, layer=0), "got the weight of layer 0"),
    "no bytes": ("activation", lambda m, v: changed(v, nbytes=0.0), ""),
    "held by nobody": ("activation", lambda m, v: changed(v, holds=-5), ""),
    "sizes": ("activation", lambda m, v: m.sizes.__setitem__(v.id, 0.0) or v, ""),
    "no time": ("activation", lambda m, v: late(m) or v, ""),
    "rows without time": ("final", lambda m, v: timeless(m) or v, ""),
    "nothing held": ("activation", lambda m, v: setattr(m, "held", 0.0) or v, ""),
    "another rank's": ("gradient", lambda m, v: changed(v, model=m.dist.models[0]), "is in the memory of rank 0"),
    "half of the weight": ("weight", lambda m, v: changed(v, shards=1, num_shards=2), "mismatched shards"),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_values_are_not_made_by_hand(kind):
    for arguments in ((), (0, 2, range(4), 4), (None, 0, 15)):
        with pytest.raises(sim.SimulationError, match="They come from load_weights"):
            kind(*arguments)
    with pytest.raises(sim.SimulationError, match="cannot be a new kind of value"):
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
            with pytest.raises(sim.SimulationError, match="cannot be copied"):
                copied(value)


@pytest.mark.parametrize("name", TAMPERS)
def test_what_is_changed_by_hand_gives_no_better_result(name):
    what, change, sentence = TAMPERS[name]
    honest = sim.run(loop, **SIZES)
    said = ""
    try:
        models = simulate(loop, **SIZES, tamper=lambda model, kind, value: change(model, value) if kind == what else value)
        result = sim.Result(replay.replay(replay.export(models), **SIZES))
    except (sim.SimulationError, IndexError) as error:
        said = f"{type(error).__name__}: {error}"
    assert sentence in said and bool(sentence) == bool(said)
    if not said:
        assert (result.time, result.memory) == (honest.time, honest.memory)


def test_a_loop_of_the_originals_kind_runs_without_a_limit_and_the_result_says_so(tmp_path):
    async def all_at_once(model):
        activations = model.storage()[2]
        for i in range(6):  # 16 GiB each
            activations[i] = model.get_input_activation(range(2048))

    models = simulate(all_at_once, world_size=4, num_layers=16, global_batch_size=2048, memory_limit=False)
    assert stats.over_capacity_text(models[0]) == "more than the device has: 96 GiB of 80 GiB"
    with pytest.raises(sim.OutOfMemory):
        simulate(all_at_once, world_size=4, num_layers=16, global_batch_size=2048)
    assert sim.Dist(2).memory_limit is False and sim.Dist(2, memory_limit=True).memory_limit
    sim.write_chrome_trace(models, tmp_path / "not" / "there" / "trace.json")
    assert (tmp_path / "not" / "there" / "trace.json").exists()


def held_row_by_row(model):
    """Compute the result of `stats.memory_profile` from the rows alone, one after the other."""
    rows, n = model.rows, len(model.sizes)
    touched = {row[1] for row in rows if row[0] == "hold"} | {used for row in rows if len(row) > 2 for used in row[4]}
    kept = {number for row in rows if row[0] == "load" for number in row[5] if number in touched}
    born, last, stored = [0] * n, [-1] * n, set()
    for i, row in enumerate(rows):
        kind = row[0]
        if kind in ("hold", "drop"):
            kept.discard(row[1])
            stored ^= {row[1]}
            last[row[1]] = i if kind == "drop" else last[row[1]]
            continue
        for number in row[4]:
            last[number] = i
        kept -= set(row[4]) if kind == "update" else set()
        for number in row[5] if kind != "load" else ():
            if kind != "all_gather":  # whose buffer is there since the call
                born[number] = i + (kind in ("add", "update", "all_reduce"))  # these are in place
            last[number] = max(last[number], i)
    for number in stored | kept:
        last[number] = len(rows) - 1
    held = [sum(size for size, b, e in zip(model.sizes, born, last, strict=True) if b <= i <= e) for i in range(len(rows))]
    return [held[i] for i, row in enumerate(rows) if row[0] not in ("hold", "drop", "add", "final", "call")]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1)), max_size=25))
def test_memory_is_that_of_the_rows_one_after_the_other(choices):
    async def wild(model):
        weights, opt_states, activations, _, grads = model.storage()
        inputs, left = [model.get_input_activation([i]) for i in range(2)], {}
        for layer in range(2):
            weights[layer], opt_states[layer] = model.load_weights(layer)
        model.load_weights(1, model.rank, 2)  # once more, and neither stored nor used
        for what, i in choices:
            if what == 0:
                activations[i] = inputs[i]
            elif what == 1:
                activations.pop(i, None)
            elif what == 2:
                left[i] = model.forward(0, inputs[i], weights[0])
            elif what == 3 and i in left:
                activations[i] = [left.pop(i), inputs[1 - i]]
            elif what == 4 and i in left:
                model.forward(1, left[i], weights[1])
            elif what == 5:
                await model.all_gather(weights[i].shard(model.rank, 2), i)
            elif what == 6:
                grads[i] = await model.all_reduce(half(model, inputs, weights), 0, [model.rank])
            elif what == 7:
                opt_states.pop(i, None)
            elif 0 in opt_states:
                whole = half(model, inputs, weights) + half(model, inputs[::-1], weights)
                weights[0], opt_states[0] = model.update(0, whole, weights[0], opt_states[0])
                break

    def half(model, inputs, weights):
        """The gradient of layer 0's weight, of the first input."""
        first = model.forward(0, inputs[0], weights[0])
        grad = model.loss(model.forward(1, first, weights[1]))
        _, grad = model.backward(1, first, grad, weights[1])
        return model.backward(0, inputs[0], grad, weights[0])[0]

    for model in simulate(wild, world_size=2, num_layers=2, global_batch_size=2):
        assert list(stats.memory_profile(model)[1]) == held_row_by_row(model)
