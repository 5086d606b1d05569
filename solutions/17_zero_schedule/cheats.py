"""Attacks on part 17's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import loses


@loses(10)
async def part1_training_loop__no_storage(model, batch_size):
    """Keeps everything in dicts of its own, which nobody counts."""
    weights, opt_states, activations, grad_activations, grad_weights = {}, {}, {}, {}, {}
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            whole = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], whole)
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            whole = await model.all_gather(weights[layer], layer)
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
async def part1_training_loop__loads_again(model, batch_size):
    """Loads each layer's weight whenever it needs it, instead of gathering it."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], model.load_weights(layer)[0])
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            whole = model.load_weights(layer)[0]
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
async def part1_training_loop__a_number_without_end(model, batch_size):
    """Forges a record with one number of 200,000 digits."""
    from course_lib.sim.schedule import replay

    replay.export = lambda models: '[[["input", 0, [], [0], "0x' + "f" * 200_000 + '"]]' + ", []" * (len(models) - 1) + "]"
    return model


@loses(10)
async def part1_training_loop__a_record_of_nothing(model, batch_size):
    """Forges an empty record."""
    from course_lib.sim.schedule import replay

    replay.export = lambda models: "[" + ", ".join("[]" for _ in models) + "]"
    return model


@loses(10)
async def part1_training_loop__a_shard_of_millions(model, batch_size):
    """Forges a record whose sets need megabytes each."""
    import json

    from course_lib.sim.schedule import replay

    rows = [["load", 0, [], [2 * i, 2 * i + 1], [9_999_999, 10_000_000]] for i in range(20_000)]
    replay.export = lambda models: json.dumps([rows] * len(models))
    return model


@loses(6)
async def part1_training_loop__cuts_what_it_holds(model, batch_size):
    """Keeps all weights whole, and leaves out of the record that it stores them."""
    from course_lib.sim.schedule import replay

    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)
    for layer in layers:
        weights["whole", layer] = await model.all_gather(weights[layer], layer)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights["whole", layer])
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            whole = weights["whole", layer]
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])

    def cut(models):
        import json

        ranks = []
        for m in models:
            gathered = {row[5][0] for row in m.rows if row[0] == "all_gather"}
            ranks.append([replay._plain_row(row) for row in m.rows if row[0] not in ("hold", "drop") or row[1] not in gathered])
        return json.dumps(ranks)

    replay.export = cut
    return model


@loses(10)
async def part1_training_loop__loads_other_pieces(model, batch_size):
    """Has each layer's weight from halves in forward, and from thirds in backward, instead of gathering it."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

    def pieces(layer, n):
        first, *others = [model.load_weights(layer, i, n)[0] for i in range(n)]
        for other in others:
            first = first.combine(other)
        return first

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], pieces(layer, 2))
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            whole = pieces(layer, 3)
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
async def part1_training_loop__samples_without_end(model, batch_size):
    """Forges a record whose set of samples is a negative number, which has bits without end."""
    import json

    from course_lib.sim.schedule import replay

    replay.export = lambda models: json.dumps([[["input", 0, [], [0], "-1"]]] * len(models))
    return model
