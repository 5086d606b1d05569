"""Answers to part 20: what other strategies score, wrong ones, and other right ones."""

from grading.authoring.answers import changes, loses, right

# Lines of the solution, and the same in other words: many of the answers are changes of these.
LINES = """
            mine, state = weights[layer].shard(place, size), opt_states[layer]
            shard, opt_states[layer] = model.update(layer, value, mine, state)
            under_way[layer] = "gather", model.all_gather(shard, layer, ranks=in_node)
        else:
            weights[layer] = value
            model.set_final_weight(layer, value)

    total, last = model.global_batch_size, model.num_layers
    micro_batches = list(get_next_microbatch(total, n, batch_size, model.rank))
    for samples in micro_batches:
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            x = activations[layer]
            activations[layer + 1] = model.forward(layer, x, weights[layer])
        grad_activations[last] = model.loss(activations.pop(last))
        for layer in reversed(layers):
            x, g = activations.pop(layer), grad_activations.pop(layer + 1)
            grad, grad_activations[layer] = model.backward(layer, x, g, weights[layer])
            grad_weights[layer] = grad_weights.get(layer, 0) + grad
            if samples is micro_batches[-1]:
                for above in sorted(under_way):  # another backward has run since
                    await go_on(above)
                grad = grad_weights.pop(layer)
                coming = model.reduce_scatter(grad, layer, ranks=in_node)
                under_way[layer] = "scatter", coming"""
IN_OTHER_WORDS = """
            shard, opt_states[layer] = model.update(layer, value, weights[layer].shard(place, size), opt_states[layer])
            under_way[layer] = "gather", model.all_gather(shard, layer, ranks=in_node)
        else:
            weights[layer] = value
            model.set_final_weight(layer, value)

    micro_batches = list(get_next_microbatch(model.global_batch_size, n, batch_size, model.rank))
    for samples in micro_batches:
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), weights[layer])
            grad_weights[layer] = grad_weights[layer] + grad if layer in grad_weights else grad
            if samples is micro_batches[-1]:
                for above in sorted(under_way):  # those of the layers above had a whole backward's time
                    await go_on(above)
                under_way[layer] = "scatter", model.reduce_scatter(grad_weights.pop(layer), layer, ranks=in_node)"""


@loses(25)
async def part4_training_loop__data_parallel(model, batch_size):
    """Part 16: nothing overlaps."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        # pop takes a value out of the storage: after this operation nobody needs it.
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
async def part4_training_loop__all_samples_on_every_rank(model, batch_size):
    """Each sample counts once for every rank."""
    from course_lib.sim import get_global_batch_list

    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    for samples in get_global_batch_list(model.global_batch_size, batch_size):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        # pop takes a value out of the storage: after this operation nobody needs it.
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
async def part4_training_loop__zero(model, batch_size):
    """Part 17: nothing overlaps, and more to exchange."""
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


@loses(3.75)
async def part4_training_loop__one_ring(model, batch_size):
    """Part 16, with the exchanges beside the computing, in one ring over all ranks."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, coming = range(model.num_layers), {}
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        # pop takes a value out of the storage: after this operation nobody needs it.
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), weights[layer])
            grad_weights[layer] = grad_weights[layer] + grad if layer in grad_weights else grad
            if samples[-1] == (model.rank + 1) * (model.global_batch_size // model.world_size) - 1:
                coming[layer] = model.all_reduce(grad_weights.pop(layer), layer)
        del grad_activations[0]

    for layer in reversed(layers):
        grad_weights[layer] = await coming.pop(layer)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(25)
async def part4_training_loop__pipeline(model, batch_size):
    """Part 19: 1F1B with the given micro-batches does not work with more ranks than layers; nor is it faster than part 16's."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, last = model.rank, model.world_size - 1
    depth = model.num_layers // model.world_size
    layers = range(rank * depth, rank * depth + depth)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    batches = get_global_batch_list(model.global_batch_size, batch_size)

    async def forward(k):
        if rank == 0:
            activations[0, k] = model.get_input_activation(batches[k])
        else:
            activations[layers.start, k] = await model.receive(rank - 1)
        for layer in layers:
            activations[layer + 1, k] = model.forward(layer, activations[layer, k], weights[layer])
        if rank < last:
            await model.send(rank + 1, activations.pop((layers.stop, k)))

    async def backward(k):
        if rank == last:
            grad_activations[layers.stop] = model.loss(activations.pop((layers.stop, k)))
        else:
            grad_activations[layers.stop] = await model.receive(rank + 1)
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(
                layer, activations.pop((layer, k)), grad_activations.pop(layer + 1), weights[layer]
            )
            grad_weights[layer] = grad_weights[layer] + grad if layer in grad_weights else grad
        grad = grad_activations.pop(layers.start)
        if rank > 0:
            await model.send(rank - 1, grad)

    ahead = min(last - rank, len(batches))
    for k in range(ahead):
        await forward(k)
    for k in range(len(batches)):
        if k + ahead < len(batches):
            await forward(k + ahead)
        await backward(k)

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(25)
async def part4_training_loop__keeps_everything(model, batch_size):
    """Part 16, and frees nothing: too much for the device with 64 layers."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        # pop takes a value out of the storage: after this operation nobody needs it.
        grad_activations[model.num_layers] = model.loss(activations[model.num_layers])
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(layer, activations[layer], grad_activations[layer + 1], weights[layer])
            grad_weights[layer] = grad_weights[layer] + grad if layer in grad_weights else grad

    for layer in layers:
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(25)
async def part4_training_loop__no_average(model, batch_size):
    """Every rank trains on its own samples."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        # pop takes a value out of the storage: after this operation nobody needs it.
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers))
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), weights[layer])
            grad_weights[layer] = grad_weights[layer] + grad if layer in grad_weights else grad
        del grad_activations[0]

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(25)
@changes("model.all_reduce(value, layer, ranks=across)", "model.all_gather(value, layer, ranks=[model.rank])")
async def part4_training_loop__half_of_the_nodes():
    """Forgets the exchange across nodes."""


@loses(25)
@changes(
    """
    while under_way:
        for layer in sorted(under_way):
            await go_on(layer)
""",
    "",
)
async def part4_training_loop__leaves_early():
    """Does not wait for the last exchanges."""


@loses(25)
@changes(
    """
            weights[layer] = value
            model.set_final_weight(layer, value)""",
    """
            if place == 0:
                weights[layer] = value
                model.set_final_weight(layer, value)
            else:
                del weights[layer]""",
)
async def part4_training_loop__node_ends():
    """One rank of each node keeps the new weights."""


@loses(25)
@changes("shard, opt_states[layer]", "shard, _")
async def part4_training_loop__old_state():
    """Keeps the old optimizer states."""


@loses(25)
async def part4_training_loop__one_layer_short(model, batch_size):
    """Leaves out the last layer."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers = range(model.num_layers - 1)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        # pop takes a value out of the storage: after this operation nobody needs it.
        grad_activations[model.num_layers] = model.loss(activations.pop(model.num_layers - 1))
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
@changes(
    LINES,
    IN_OTHER_WORDS,
    "micro_batches = list(get_next_microbatch(model.global_batch_size, n, batch_size, model.rank))",
    "micro_batches = list(get_next_microbatch(model.global_batch_size // 2, n, batch_size, model.rank))",
)
async def part4_training_loop__half_of_the_batch():
    """Looks at half of the samples."""


@right
@changes(
    LINES,
    IN_OTHER_WORDS,
    """
        weights[layer], _ = model.load_weights(layer)
        _, opt_states[layer] = model.load_weights(layer, place, size)""",
    "        weights[layer], opt_states[layer] = model.load_weights(layer)",
    """
            shard, opt_states[layer] = model.update(layer, value, weights[layer].shard(place, size), opt_states[layer])
            under_way[layer] = "gather", model.all_gather(shard, layer, ranks=in_node)""",
    '            under_way[layer] = "gather", model.all_gather(value, layer, ranks=in_node)',
    """
            weights[layer] = value
            model.set_final_weight(layer, value)""",
    """
            weights[layer], opt_states[layer] = model.update(layer, value, weights[layer], opt_states[layer])
            model.set_final_weight(layer, weights[layer])""",
)
async def part4_training_loop__whole_states():
    """Optimizer states are not sharded, and the gradients gathered again."""


@right
@changes(
    LINES,
    IN_OTHER_WORDS,
    "            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])",
    """
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
            if layer % 8 == 7:
                del activations[layer]""",
    "        for layer in reversed(layers):",
    """
        for layer in reversed(layers):
            if layer not in activations:
                activations[layer] = model.forward(layer - 1, activations[layer - 1], weights[layer - 1])""",
)
async def part4_training_loop__recomputes():
    """Drops the activation of every eighth layer, and goes forward again."""


@right
@changes(
    LINES,
    IN_OTHER_WORDS,
    "micro_batches = list(get_next_microbatch(model.global_batch_size, n, batch_size, model.rank))",
    "micro_batches = list(get_next_microbatch(model.global_batch_size, n, batch_size // 2, model.rank))",
)
async def part4_training_loop__smaller_batches():
    """Micro-batches of half the size."""


@loses(25)
@changes(
    "            weights[layer] = value\n",
    "",
)
async def part4_training_loop__keeps_the_old_weights():
    """The storage has the weights from before the step."""
