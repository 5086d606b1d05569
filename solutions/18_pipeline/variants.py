"""Answers to part 18: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# Lines of the solution, and the same in other words: many of the answers are changes of these.
LINES = """
        x = activations[layer]
        activations[layer + 1] = model.forward(layer, x, weights[layer])

    if rank == last:
        grad_activations[layers.stop] = model.loss(activations.pop(layers.stop))
    else:
        await model.send(rank + 1, activations.pop(layers.stop))
        grad_activations[layers.stop] = await model.receive(rank + 1)
    for layer in reversed(layers):
        x, g = activations.pop(layer), grad_activations.pop(layer + 1)
        grad, grad_activations[layer] = model.backward(layer, x, g, weights[layer])
        grad_weights[layer] = grad
    grad = grad_activations.pop(layers.start)
    if rank > 0:
        await model.send(rank - 1, grad)

    for layer in layers:
        grad, weight, state = grad_weights.pop(layer), weights[layer], opt_states[layer]
        weights[layer], opt_states[layer] = model.update(layer, grad, weight, state)"""
IN_OTHER_WORDS = """
        activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])

    if rank == last:
        grad_activations[layers.stop] = model.loss(activations.pop(layers.stop))
    else:
        await model.send(rank + 1, activations.pop(layers.stop))
        grad_activations[layers.stop] = await model.receive(rank + 1)
    for layer in reversed(layers):
        grad_weights[layer], grad_activations[layer] = model.backward(
            layer, activations.pop(layer), grad_activations.pop(layer + 1), weights[layer]
        )
    grad = grad_activations.pop(layers.start)
    if rank > 0:
        await model.send(rank - 1, grad)

    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])"""


@loses(15)
@changes(
    """
    layers = range(rank * depth, rank * depth + depth)
    for layer in layers:""",
    """
    layers = range(rank * depth, rank * depth + depth)
    for layer in range(model.num_layers):""",
)
async def part2_training_loop__every_layer():
    """Every rank loads all layers."""


@loses(15)
@changes(
    "model.rank, model.world_size - 1",
    "model.world_size - 1 - model.rank, model.world_size - 1",
    "activations[layers.start] = await model.receive(rank - 1)",
    "activations[layers.start] = await model.receive(model.rank + 1)",
    "await model.send(rank + 1, activations.pop(layers.stop))",
    "await model.send(model.rank - 1, activations.pop(layers.stop))",
    "model.receive(rank + 1)",
    "model.receive(model.rank - 1)",
    "await model.send(rank - 1, grad)",
    "await model.send(model.rank + 1, grad)",
)
async def part2_training_loop__reversed():
    """Rank 0 has the last layers."""


@loses(15)
async def part2_training_loop__round_robin(model):
    """Layers dealt out like cards, sent from rank to rank for each."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, n = model.rank, model.world_size
    layers = range(rank, model.num_layers, n)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    for layer in layers:
        if layer == 0:
            activations[0] = model.get_input_activation(range(model.global_batch_size))
        elif n > 1:
            activations[layer] = await model.receive((rank - 1) % n)
        activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        if layer + 1 < model.num_layers and n > 1:
            await model.send((rank + 1) % n, activations.pop(layer + 1))
    for layer in reversed(layers):
        if layer + 1 == model.num_layers:
            grad_activations[layer + 1] = model.loss(activations.pop(layer + 1))
        elif n > 1:
            grad_activations[layer + 1] = await model.receive((rank + 1) % n)
        grad_weights[layer], grad_activations[layer] = model.backward(
            layer, activations.pop(layer), grad_activations.pop(layer + 1), weights[layer]
        )
        if layer > 0 and n > 1:
            await model.send((rank - 1) % n, grad_activations.pop(layer))
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(7)
@changes(
    LINES,
    IN_OTHER_WORDS,
    "model.loss(activations.pop(layers.stop))",
    "model.loss(activations[layers.stop])",
    "await model.send(rank + 1, activations.pop(layers.stop))",
    "await model.send(rank + 1, activations[layers.stop])",
    """
        grad_weights[layer], grad_activations[layer] = model.backward(
            layer, activations.pop(layer), grad_activations.pop(layer + 1), weights[layer]
        )""",
    """
        grad_weights[layer], grad_activations[layer] = model.backward(
            layer, activations[layer], grad_activations[layer + 1], weights[layer]
        )""",
)
async def part2_training_loop__keeps_activations():
    """Frees nothing."""


@loses(7)
@changes(
    LINES,
    IN_OTHER_WORDS,
    "    grad = grad_activations.pop(layers.start)",
    """
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    grad = grad_activations.pop(layers.start)""",
    """
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model""",
    "    return model",
)
async def part2_training_loop__update_first():
    """Updates before it passes the gradient on."""


@loses(7)
@changes(
    "        activations[layers.start] = await model.receive(rank - 1)",
    """
        await model.receive(rank - 1)
        activations[layers.start] = await model.receive(rank - 1)""",
    "        await model.send(rank + 1, activations.pop(layers.stop))",
    """
        await model.send(rank + 1, activations[layers.stop])
        await model.send(rank + 1, activations.pop(layers.stop))""",
)
async def part2_training_loop__twice():
    """Sends every message twice."""


@loses(15)
async def part2_training_loop__micro_batches(model):
    """Sample by sample instead of the whole batch at once."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, last = model.rank, model.world_size - 1
    depth = model.num_layers // model.world_size
    layers = range(rank * depth, rank * depth + depth)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    for k in range(model.global_batch_size):
        activations[layers.start, k] = model.get_input_activation([k]) if rank == 0 else await model.receive(rank - 1)
        for layer in layers:
            activations[layer + 1, k] = model.forward(layer, activations[layer, k], weights[layer])
        if rank < last:
            await model.send(rank + 1, activations.pop((layers.stop, k)))
    for k in range(model.global_batch_size):
        grad_activations[layers.stop] = model.loss(activations.pop((layers.stop, k))) if rank == last else await model.receive(rank + 1)
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(
                layer, activations.pop((layer, k)), grad_activations.pop(layer + 1), weights[layer]
            )
            grad_weights[layer] = grad_weights[layer] + grad if layer in grad_weights else grad
        grad = grad_activations.pop(layers.start)
        if rank > 0:
            await model.send(rank - 1, grad)
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
    return model


@loses(15)
@changes("if rank == last:", "if True:")
async def part2_training_loop__no_loss_at_the_end():
    """Every rank asks for the loss."""


@loses(15)
@changes(
    """
        await model.send(rank + 1, activations.pop(layers.stop))
        grad_activations[layers.stop] = await model.receive(rank + 1)""",
    """
        grad_activations[layers.stop] = await model.receive(rank + 1)
        await model.send(rank + 1, activations.pop(layers.stop))""",
)
async def part2_training_loop__deadlock():
    """Waits for the gradient before it sends the activation."""


@loses(15)
async def part2_training_loop__forward_only(model):
    """Goes forward, and no further."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    rank, last = model.rank, model.world_size - 1
    depth = model.num_layers // model.world_size
    layers = range(rank * depth, rank * depth + depth)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    if rank == 0:
        activations[0] = model.get_input_activation(range(model.global_batch_size))
    else:
        activations[layers.start] = await model.receive(rank - 1)
    for layer in layers:
        activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])

    return model


@loses(15)
@changes(
    """
    grad = grad_activations.pop(layers.start)
    if rank > 0:
        await model.send(rank - 1, grad)
""",
    "",
)
async def part2_training_loop__keeps_the_gradient():
    """Does not pass the gradient on."""


@loses(15)
@changes("activations[layers.start] = await model.receive(rank - 1)", "activations[layers.start] = model.receive(rank - 1)")
async def part2_training_loop__no_await():
    """Forgets to wait for what it receives."""


@loses(15)
@changes(
    LINES,
    IN_OTHER_WORDS,
    "        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])",
    """
        before = weights[layer]
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])""",
    "model.set_final_weight(layer, weights[layer])",
    "model.set_final_weight(layer, before)",
)
async def part2_training_loop__first_weights():
    """Reports the weights from before the update."""


@loses(15)
@changes(
    LINES,
    IN_OTHER_WORDS,
    "weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])",
    "weights[layer], _ = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])",
)
async def part2_training_loop__drops_the_state():
    """Throws the new optimizer state away."""


@right
async def part2_training_loop__variables(model):
    """In variables instead of the storage."""
    weights, opt_states, *_ = model.storage()
    rank, last, depth = model.rank, model.world_size - 1, model.num_layers // model.world_size
    layers = range(rank * depth, rank * depth + depth)
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    x = await model.receive(rank - 1) if rank else model.get_input_activation(range(model.global_batch_size))
    inputs = []
    for layer in layers:
        inputs.append(x)
        x = model.forward(layer, x, weights[layer])
    if rank < last:
        await model.send(rank + 1, x)
        grad = await model.receive(rank + 1)
    else:
        grad = model.loss(x)
    grads = {}
    for layer in reversed(layers):
        grads[layer], grad = model.backward(layer, inputs.pop(), grad, weights[layer])
    if rank:
        await model.send(rank - 1, grad)
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grads[layer], weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])


@right
@changes(
    "await model.send(rank - 1, grad)",
    "leaving = model.send(rank - 1, grad)",
    "    return model",
    """
    if rank > 0:
        await leaving
    return model""",
)
async def part2_training_loop__sends_while_updating():
    """The gradient leaves while the rank updates."""


@right
@changes(
    "    if rank == 0:",
    """
    coming = model.receive(rank - 1) if rank > 0 else None
    back = model.receive(rank + 1) if rank < last else None
    if rank == 0:""",
    "activations[layers.start] = await model.receive(rank - 1)",
    "activations[layers.start] = await coming",
    "grad_activations[layers.stop] = await model.receive(rank + 1)",
    "grad_activations[layers.stop] = await back",
)
async def part2_training_loop__asks_early():
    """Asks for what it will receive at the start."""


@loses(15)
@changes(
    "weights[layer], opt_states[layer] = model.update",
    "new, opt_states[layer] = model.update",
    "set_final_weight(layer, weights[layer])",
    "set_final_weight(layer, new)",
)
async def part2_training_loop__keeps_the_old_weights():
    """The storage has the weights from before the step."""


@loses(15)
@changes(
    """
    if rank == 0:
        activations[0] = model.get_input_activation(range(model.global_batch_size))
    else:
        activations[layers.start] = await model.receive(rank - 1)""",
    """
    x = model.get_input_activation(range(model.global_batch_size))
    if rank > 0:
        x = await model.receive(rank - 1)
    activations[layers.start] = x""",
)
async def part2_training_loop__input_on_all():
    """Every rank loads the input."""


@loses(15)
@changes(
    "        await model.send(rank + 1, activations.pop(layers.stop))\n",
    """
        await model.send(rank + 1, activations.pop(layers.stop))
        for layer in layers[:-1]:
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
""",
)
async def part2_training_loop__forward_while_it_waits():
    """Runs forward again while it waits for the gradient."""


@loses(15)
@changes(
    "        model.set_final_weight(layer, weights[layer])\n    return model",
    """
        if rank > 0:
            await model.send(0, weights[layer])
        else:
            model.set_final_weight(layer, weights[layer])
    if rank == 0:
        for layer in range(depth, model.num_layers):
            model.set_final_weight(layer, await model.receive(layer // depth))
    return model""",
)
async def part2_training_loop__rank_0_has_them_all():
    """Rank 0 sets all final weights."""


@loses(7)
@changes(
    "        await model.send(rank - 1, grad)\n",
    """
        await model.send(rank - 1, grad)
        for below in range(rank - 1):
            await model.send(below, grad)
""",
    "    return model",
    """
    for above in range(rank + 2, last + 1):
        await model.receive(above)
    return model""",
)
async def part2_training_loop__gradient_to_all():
    """Sends the gradient to all ranks below."""
