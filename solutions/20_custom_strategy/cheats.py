"""Attacks on part 20's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import loses


@loses(25)
async def part4_training_loop__gathers_nothing(model, batch_size):
    """Stores nothing and gathers nothing: each weight is loaded anew, and each rank updates its shard."""
    layers, n = range(model.num_layers), model.world_size
    coming, sums = {}, {}
    batches = list(get_next_microbatch(model.global_batch_size, n, batch_size, model.rank))
    for samples in batches:
        activations = [model.get_input_activation(samples)]
        for layer in layers:
            activations.append(model.forward(layer, activations[-1], model.load_weights(layer)[0]))
        grad = model.loss(activations.pop())
        for layer in reversed(layers):
            grad_weight, grad = model.backward(layer, activations.pop(), grad, model.load_weights(layer)[0])
            sums[layer] = sums[layer] + grad_weight if layer in sums else grad_weight
            if samples is batches[-1]:
                coming[layer] = model.reduce_scatter(sums.pop(layer), layer)
    for layer in reversed(layers):
        weight, _ = model.update(layer, await coming.pop(layer), *model.load_weights(layer, model.rank, n))
        model.set_final_weight(layer, weight)
    return model


@loses(25)
async def part4_training_loop__renames_what_it_loaded(model, batch_size):
    """Leaves out the last gathering, and calls in the record what it loaded by the numbers of other values."""
    from course_lib.sim.schedule import replay

    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, n, coming = range(model.num_layers), model.world_size, {}
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    batches = list(get_next_microbatch(model.global_batch_size, n, batch_size, model.rank))
    for samples in batches:
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), weights[layer])
            grad_weights[layer] = grad_weights[layer] + grad if layer in grad_weights else grad
            if samples is batches[-1]:
                coming[layer] = model.reduce_scatter(grad_weights.pop(layer), layer)
        del grad_activations[0]
    for layer in reversed(layers):
        mine = await coming.pop(layer)
        shards = weights[layer].shard(model.rank, n), opt_states[layer].shard(model.rank, n)
        weights[layer], opt_states[layer] = model.update(layer, mine, *shards)
        model.set_final_weight(layer, weights[layer])

    def renamed(models):
        import json

        ranks = []
        for m in models:
            begun = [number for row in m.rows if row[0] == "load" for number in row[5]]
            passing = [number for row in m.rows if row[0] == "backward" for number in row[5]][: len(begun)]
            begun = begun[: len(passing)]
            new = dict(zip([*begun, *passing], [*passing, *begun], strict=True))
            rows = []
            for row in map(replay._plain_row, m.rows):
                if len(row) == 2:
                    rows.append([row[0], new.get(row[1], row[1])])
                else:
                    used, made = ([new.get(number, number) for number in numbers] for numbers in row[2:4])
                    rows.append([row[0], row[1], used, made, row[4]])
            ranks.append(rows)
        return json.dumps(ranks)

    replay.export = renamed
    return model


@loses(25)
async def part4_training_loop__makes_a_gradient(model, batch_size):
    """Makes the gradients of all samples by itself, out of nothing."""
    from course_lib.sim.core.values import WeightGrad

    weights, opt_states, _, _, _ = model.storage()
    for layer in range(model.num_layers):
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)
        grad = WeightGrad(model, layer, model.all_samples, 1 << model.rank, model.world_size)
        weights[layer], opt_states[layer] = model.update(layer, grad, weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(25)
async def part4_training_loop__claims_all_samples(model, batch_size):
    """Computes one sample a rank, and has its values say that it was all of them."""
    weights, opt_states, _, _, _ = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    activations = [model.get_input_activation([model.rank])]
    for layer in layers:
        activations.append(model.forward(layer, activations[-1], weights[layer]))
    grad = model.loss(activations.pop())
    for layer in reversed(layers):
        grad_weight, grad = model.backward(layer, activations.pop(), grad, weights[layer])
        grad_weight.mask = model.all_samples
        weights[layer], opt_states[layer] = model.update(layer, grad_weight, weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(25)
async def part4_training_loop__exchanges_with_itself(model, batch_size):
    """Reduces among itself alone, which is quick."""
    weights, opt_states, _, _, _ = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    activations = [model.get_input_activation(range(model.rank, model.global_batch_size, model.world_size))]
    for layer in layers:
        activations.append(model.forward(layer, activations[-1], weights[layer]))
    grad = model.loss(activations.pop())
    for layer in reversed(layers):
        grad_weight, grad = model.backward(layer, activations.pop(), grad, weights[layer])
        grad_weight = await model.all_reduce(grad_weight, layer, ranks=[model.rank])
        weights[layer], opt_states[layer] = model.update(layer, grad_weight, weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(25)
async def part4_training_loop__on_faster_devices(model, batch_size):
    """Part 16, on devices and links that it makes a thousand times as fast."""
    import dataclasses

    from course_lib.sim.core import hardware

    for device in (model.dist.hardware, *hardware.HARDWARE_PRESETS.values()):
        for field in dataclasses.fields(device):
            value = getattr(device, field.name)
            if isinstance(value, float):
                object.__setattr__(device, field.name, value * 1000)

    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), weights[layer])
            grad_weights[layer] = grad_weights[layer] + grad if layer in grad_weights else grad
        del grad_activations[0]
    for layer in layers:
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(25)
async def part4_training_loop__a_record_without_end(model, batch_size):
    """Hands in a record of a million loads a rank."""
    import json

    from course_lib.sim.schedule import replay

    rows = [["load", 0, [], [2 * i, 2 * i + 1], [0, 1]] for i in range(20_000)]
    replay.export = lambda models: json.dumps([rows] * len(models))
    return model


@loses(25)
async def part4_training_loop__groups_of_a_million(model, batch_size):
    """Hands in a record whose exchange is among the same rank, a million times."""
    import json

    from course_lib.sim.schedule import replay

    rows = [["load", 0, [], [0, 1], [0, 1]], ["call", 0, [0], [2], ["all_gather", [0] * 1_000_000]]]
    replay.export = lambda models: json.dumps([rows, *([[]] * (len(models) - 1))])
    return model
