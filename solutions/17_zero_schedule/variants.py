"""Answers to part 17: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right


@loses(6)
async def part1_training_loop__data_parallel(model, batch_size):
    """Shards nothing."""
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


@loses(6)
async def part1_training_loop__stage_1(model, batch_size):
    """Shards the optimizer states only."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], _ = model.load_weights(layer)
        _, opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

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
        mine = await model.reduce_scatter(grad_weights.pop(layer), layer)
        shard, opt_states[layer] = model.update(layer, mine, weights[layer].shard(model.rank, model.world_size), opt_states[layer])
        weights[layer] = await model.all_gather(shard, layer)
        model.set_final_weight(layer, weights[layer])
    return model


@loses(6)
async def part1_training_loop__optimizer_whole(model, batch_size):
    """Every rank keeps the whole optimizer state, and updates everything."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], _ = model.load_weights(layer, model.rank, model.world_size)
        _, opt_states[layer] = model.load_weights(layer)

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
        del grad_activations[0]

    for layer in layers:
        whole, grad = await model.all_gather(weights[layer], layer), await model.all_gather(grad_weights.pop(layer), layer)
        whole, opt_states[layer] = model.update(layer, grad, whole, opt_states[layer])
        weights[layer] = whole.shard(model.rank, model.world_size)
        model.set_final_weight(layer, weights[layer])
    return model


@loses(6)
async def part1_training_loop__keeps_the_weights(model, batch_size):
    """Gathered weights stay in the storage until the micro-batch ends."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            weights["whole", layer] = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], weights["whole", layer])
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(
                layer, activations.pop(layer), grad_activations.pop(layer + 1), weights.pop(("whole", layer))
            )
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(6)
async def part1_training_loop__keeps_them_in_a_list(model, batch_size):
    """Gathered weights stay in a list of its own, which is memory as well."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        kept = []
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            kept.append(await model.all_gather(weights[layer], layer))
            activations[layer + 1] = model.forward(layer, activations[layer], kept[layer])
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), kept.pop())
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(6)
async def part1_training_loop__all_reduce(model, batch_size):
    """Reduces whole gradients and cuts its shard out of them."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
            mine = (await model.all_reduce(grad, layer)).shard(model.rank, model.world_size)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(6)
async def part1_training_loop__whole_gradients(model, batch_size):
    """Adds up whole gradients, and scatters them in the end."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
            grad_weights[layer] = grad_weights[layer] + grad if layer in grad_weights else grad
        del grad_activations[0]

    for layer in layers:
        grad_weights[layer] = await model.reduce_scatter(grad_weights[layer], layer)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(6)
async def part1_training_loop__three_gathers(model, batch_size):
    """Gathers every layer once more."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
            await model.all_gather(weights[layer], layer)
            whole = await model.all_gather(weights[layer], layer)
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(6)
async def part1_training_loop__keeps_the_activations(model, batch_size):
    """Frees no activation before the next micro-batch."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            whole = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], whole)
        grad_activations[model.num_layers] = model.loss(activations[model.num_layers])
        for layer in reversed(layers):
            whole = await model.all_gather(weights[layer], layer)
            grad, grad_activations[layer] = model.backward(layer, activations[layer], grad_activations[layer + 1], whole)
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(6)
async def part1_training_loop__one_batch(model, batch_size):
    """Takes all samples at once."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, model.global_batch_size, model.rank):
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
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
async def part1_training_loop__last_batch_only(model, batch_size):
    """Keeps the gradient of the last micro-batch only."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
            grad_weights[layer] = mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
async def part1_training_loop__first_batch_only(model, batch_size):
    """Stops after one micro-batch."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
        del grad_activations[0]
        break

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
async def part1_training_loop__no_reduction(model, batch_size):
    """Cuts a shard out of its own gradient."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
            mine = grad.shard(model.rank, model.world_size)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
async def part1_training_loop__no_final_weight(model, batch_size):
    """Does not say what came out."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        pass
    return model


@loses(10)
async def part1_training_loop__first_shard(model, batch_size):
    """All ranks load shard 0."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, 0, model.world_size)

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
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
async def part1_training_loop__drops_the_state(model, batch_size):
    """Throws the new optimizer state away."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
        del grad_activations[0]

    for layer in layers:
        weights[layer], _ = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
async def part1_training_loop__one_rank_is_final(model, batch_size):
    """Only rank 0 keeps what came out."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        if model.rank > 0:
            del weights[layer]
            continue
        model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
async def part1_training_loop__no_await(model, batch_size):
    """Forgets to wait for the gradient."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
            mine = model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
async def part1_training_loop__leaves(model, batch_size):
    """The last rank does not scatter its gradients."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
            if model.rank == model.world_size - 1 > 0:
                return model
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
async def part1_training_loop__updates_each_batch(model, batch_size):
    """Updates after every micro-batch."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
        del grad_activations[0]
        for layer in layers:
            weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
            model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
async def part1_training_loop__forward_on_shards(model, batch_size):
    """Computes with its shard."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            whole = await model.all_gather(weights[layer], layer)
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@right
async def part1_training_loop__prefetch(model, batch_size):
    """Gathers the next layer while this one computes."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        coming = model.all_gather(weights[0], 0)
        for layer in layers:
            whole = await coming
            if layer + 1 < model.num_layers:
                coming = model.all_gather(weights[layer + 1], layer + 1)
            activations[layer + 1] = model.forward(layer, activations[layer], whole)
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            whole = await model.all_gather(weights[layer], layer)
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@right
async def part1_training_loop__overlapped_scatter(model, batch_size):
    """Scatters a gradient while the layer below is computed."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

    under_way = {}

    async def collect(layer):
        mine = await under_way.pop(layer)
        grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            whole = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], whole)
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            whole = await model.all_gather(weights[layer], layer)
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)
            if layer + 1 < model.num_layers:
                await collect(layer + 1)
            under_way[layer] = model.reduce_scatter(grad, layer)
        await collect(0)
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@right
async def part1_training_loop__tasks(model, batch_size):
    """The same with tasks of asyncio."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

    import asyncio

    under_way = []

    async def collect():
        layer, task = under_way.pop(0)
        mine = await task
        grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            whole = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], whole)
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            whole = await model.all_gather(weights[layer], layer)
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)
            under_way.append((layer, asyncio.ensure_future(model.reduce_scatter(grad, layer))))
            if len(under_way) > 1:
                await collect()
        await collect()
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@right
async def part1_training_loop__keeps_the_last(model, batch_size):
    """The last layer, which backward begins with, is gathered once."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
            if layer < model.num_layers - 1:
                whole = await model.all_gather(weights[layer], layer)
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@right
async def part1_training_loop__own_keys(model, batch_size):
    """Everything in the storage, under keys of its own."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            weights["whole"] = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], weights["whole"])
            del weights["whole"]
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            whole = await model.all_gather(weights[layer], layer)
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)
            mine = await model.reduce_scatter(grad, layer)
            grad_weights.setdefault("sums", {})
            sums = dict(grad_weights["sums"])
            sums[layer] = sums[layer] + mine if layer in sums else mine
            grad_weights["sums"] = sums
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights["sums"][layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(10)
@changes(
    "    for samples in get_next_microbatch(",
    "    first = {}\n    for samples in get_next_microbatch(",
    "grad_weights[layer] = grad_weights.get(layer, 0) + mine",
    "grad_weights[layer] = first[layer] + mine if layer in first else first.setdefault(layer, mine)",
)
async def part1_training_loop__first_and_last():
    """Adds each gradient to the first one, and not to the sum."""
