"""Answers to part 19: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import loses, right


@loses(18)
async def part3_training_loop__gpipe(model, batch_size):
    """All forward, then all backward."""
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

    for k in range(len(batches)):
        await forward(k)
    for k in range(len(batches)):
        await backward(k)

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(18)
async def part3_training_loop__last_first(model, batch_size):
    """All forward, then backward from the last micro-batch on."""
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

    for k in range(len(batches)):
        await forward(k)
    for k in reversed(range(len(batches))):
        await backward(k)

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(18)
async def part3_training_loop__one_by_one(model, batch_size):
    """A micro-batch goes forward and backward before the next one begins: no pipeline at all."""
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

    for k in range(len(batches)):
        await forward(k)
        await backward(k)

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(18)
async def part3_training_loop__one_ahead_too_many(model, batch_size):
    """One more forward at the start."""
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

    ahead = min(last - rank + 1, len(batches))
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


@loses(18)
async def part3_training_loop__one_ahead_too_few(model, batch_size):
    """One forward less at the start."""
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

    ahead = max(0, min(last - rank - 1, len(batches)))
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
async def part3_training_loop__all_alike(model, batch_size):
    """Every rank sends as many ahead as rank 0."""
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

    ahead = min(last, len(batches))
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


@loses(7)
async def part3_training_loop__keeps_activations(model, batch_size):
    """Frees no activation of a micro-batch."""
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
            await model.send(rank + 1, activations[layers.stop, k])

    async def backward(k):
        if rank == last:
            grad_activations[layers.stop] = model.loss(activations[layers.stop, k])
        else:
            grad_activations[layers.stop] = await model.receive(rank + 1)
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(layer, activations[layer, k], grad_activations.pop(layer + 1), weights[layer])
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


@loses(7)
async def part3_training_loop__keeps_the_gradients(model, batch_size):
    """Keeps the gradients of all activations."""
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
            grad_activations[layers.stop, k] = model.loss(activations.pop((layers.stop, k)))
        else:
            grad_activations[layers.stop, k] = await model.receive(rank + 1)
        for layer in reversed(layers):
            grad, grad_activations[layer, k] = model.backward(
                layer, activations.pop((layer, k)), grad_activations[layer + 1, k], weights[layer]
            )
            grad_weights[layer] = grad_weights[layer] + grad if layer in grad_weights else grad
        grad = grad_activations[layers.start, k]
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


@loses(7)
async def part3_training_loop__late_gradients(model, batch_size):
    """Sends the gradient only after the next forward."""
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
            late.append(grad)

    late = []

    async def flush():
        while late:
            await model.send(rank - 1, late.pop())

    ahead = min(last - rank, len(batches))
    for k in range(ahead):
        await forward(k)
    for k in range(len(batches)):
        if k + ahead < len(batches):
            await forward(k + ahead)
        await flush()
        await backward(k)
        if k + ahead + 1 >= len(batches):
            await flush()

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(7)
async def part3_training_loop__goes_forward_twice(model, batch_size):
    """Goes forward once more before each backward, in vain."""
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
        model.forward(layers.start, activations[layers.start, k], weights[layers.start])
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
async def part3_training_loop__last_gradient(model, batch_size):
    """Keeps the gradient of the last micro-batch only."""
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
            grad_weights[layer] = grad
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
async def part3_training_loop__first_batches(model, batch_size):
    """Leaves out the last micro-batch."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, last = model.rank, model.world_size - 1
    depth = model.num_layers // model.world_size
    layers = range(rank * depth, rank * depth + depth)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    batches = get_global_batch_list(model.global_batch_size, batch_size)[:-1]

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
async def part3_training_loop__mixed_up(model, batch_size):
    """One key for all micro-batches."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, last = model.rank, model.world_size - 1
    depth = model.num_layers // model.world_size
    layers = range(rank * depth, rank * depth + depth)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    batches = get_global_batch_list(model.global_batch_size, batch_size)

    async def forward(k):
        if rank == 0:
            activations[0] = model.get_input_activation(batches[k])
        else:
            activations[layers.start] = await model.receive(rank - 1)
        for layer in layers:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        if rank < last:
            await model.send(rank + 1, activations[layers.stop])

    async def backward(k):
        if rank == last:
            grad_activations[layers.stop] = model.loss(activations[layers.stop])
        else:
            grad_activations[layers.stop] = await model.receive(rank + 1)
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(layer, activations[layer], grad_activations.pop(layer + 1), weights[layer])
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
async def part3_training_loop__updates_each(model, batch_size):
    """Updates after each micro-batch."""
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
            weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(25)
async def part3_training_loop__deadlock(model, batch_size):
    """The last rank waits for a gradient, too."""
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
        if rank > last:
            grad_activations[layers.stop] = model.loss(activations.pop((layers.stop, k)))
        else:
            grad_activations[layers.stop] = await model.receive((rank + 1) % model.world_size)
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
async def part3_training_loop__no_final_weight(model, batch_size):
    """Does not say what came out."""
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
    return model


@right
async def part3_training_loop__p_minus_rank(model, batch_size):
    """Fills the pipeline with p - rank, and then goes backward and forward in turn."""
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

    first = min(model.world_size - rank, len(batches))
    for k in range(first):
        await forward(k)
    for k in range(first, len(batches)):
        await backward(k - first)
        await forward(k)
    for k in range(len(batches) - first, len(batches)):
        await backward(k)

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@right
async def part3_training_loop__queue(model, batch_size):
    """A queue of micro-batches in flight."""
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

    flying, todo = [], list(range(len(batches)))
    while todo or flying:
        if todo and len(flying) < model.world_size - rank:
            flying.append(todo.pop(0))
            await forward(flying[-1])
        else:
            await backward(flying.pop(0))

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@right
async def part3_training_loop__sends_beside(model, batch_size):
    """Messages leave while the rank computes."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, last = model.rank, model.world_size - 1
    depth = model.num_layers // model.world_size
    layers = range(rank * depth, rank * depth + depth)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    batches = get_global_batch_list(model.global_batch_size, batch_size)

    leaving = []

    async def go(message):
        while leaving:
            await leaving.pop(0)
        leaving.append(message)

    async def forward(k):
        if rank == 0:
            activations[0, k] = model.get_input_activation(batches[k])
        else:
            activations[layers.start, k] = await model.receive(rank - 1)
        for layer in layers:
            activations[layer + 1, k] = model.forward(layer, activations[layer, k], weights[layer])
        if rank < last:
            await go(model.send(rank + 1, activations.pop((layers.stop, k))))

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
            await go(model.send(rank - 1, grad))

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
    for message in leaving:
        await message
    return model


@right
async def part3_training_loop__last_batch_first(model, batch_size):
    """Takes the micro-batches from the end."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, last = model.rank, model.world_size - 1
    depth = model.num_layers // model.world_size
    layers = range(rank * depth, rank * depth + depth)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    batches = get_global_batch_list(model.global_batch_size, batch_size)[::-1]

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
