"""Answers to part 19: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# Lines of the solution, and the same in other words: many of the answers are changes of these.
LINES = """
            x = activations[layer, k]
            activations[layer + 1, k] = model.forward(layer, x, weights[layer])
        if rank < last:
            await model.send(rank + 1, activations.pop((layers.stop, k)))

    async def backward(k):
        if rank == last:
            g = model.loss(activations.pop((layers.stop, k)))
        else:
            g = await model.receive(rank + 1)
        grad_activations[layers.stop] = g
        for layer in reversed(layers):
            x, g = activations.pop((layer, k)), grad_activations.pop(layer + 1)
            grad, grad_activations[layer] = model.backward(layer, x, g, weights[layer])
            grad_weights[layer] = grad_weights.get(layer, 0) + grad
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
        grad, weight, state = grad_weights.pop(layer), weights[layer], opt_states[layer]
        weights[layer], opt_states[layer] = model.update(layer, grad, weight, state)"""
IN_OTHER_WORDS = """
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
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])"""


@loses(18)
@changes(
    """
    ahead = min(last - rank, len(batches))
    for k in range(ahead):""",
    "    for k in range(len(batches)):",
    """
        if k + ahead < len(batches):
            await forward(k + ahead)
""",
    "",
)
async def part3_training_loop__gpipe():
    """All forward, then all backward."""


@loses(18)
@changes(
    """
    ahead = min(last - rank, len(batches))
    for k in range(ahead):""",
    "    for k in range(len(batches)):",
    """
    for k in range(len(batches)):
        if k + ahead < len(batches):
            await forward(k + ahead)""",
    "    for k in reversed(range(len(batches))):",
)
async def part3_training_loop__last_first():
    """All forward, then backward from the last micro-batch on."""


@loses(18)
@changes(
    """
    ahead = min(last - rank, len(batches))
    for k in range(ahead):
        await forward(k)
    for k in range(len(batches)):
        if k + ahead < len(batches):
            await forward(k + ahead)""",
    """
    for k in range(len(batches)):
        await forward(k)""",
)
async def part3_training_loop__one_by_one():
    """A micro-batch goes forward and backward before the next one begins: no pipeline at all."""


@loses(18)
@changes("ahead = min(last - rank, len(batches))", "ahead = min(last - rank + 1, len(batches))")
async def part3_training_loop__one_ahead_too_many():
    """One more forward at the start."""


@loses(18)
@changes("ahead = min(last - rank, len(batches))", "ahead = max(0, min(last - rank - 1, len(batches)))")
async def part3_training_loop__one_ahead_too_few():
    """One forward less at the start."""


@loses(25)
@changes("ahead = min(last - rank, len(batches))", "ahead = min(last, len(batches))")
async def part3_training_loop__all_alike():
    """Every rank sends as many ahead as rank 0."""


@loses(7)
@changes(
    "await model.send(rank + 1, activations.pop((layers.stop, k)))",
    "await model.send(rank + 1, activations[layers.stop, k])",
    "model.loss(activations.pop((layers.stop, k)))",
    "model.loss(activations[layers.stop, k])",
    "activations.pop((layer, k))",
    "activations[layer, k]",
)
async def part3_training_loop__keeps_activations():
    """Frees no activation of a micro-batch."""


@loses(7)
@changes(
    LINES,
    IN_OTHER_WORDS,
    "grad_activations[layers.stop] = model.loss(activations.pop((layers.stop, k)))",
    "grad_activations[layers.stop, k] = model.loss(activations.pop((layers.stop, k)))",
    "grad_activations[layers.stop] = await model.receive(rank + 1)",
    "grad_activations[layers.stop, k] = await model.receive(rank + 1)",
    """
            grad, grad_activations[layer] = model.backward(
                layer, activations.pop((layer, k)), grad_activations.pop(layer + 1), weights[layer]
            )""",
    """
            grad, grad_activations[layer, k] = model.backward(
                layer, activations.pop((layer, k)), grad_activations[layer + 1, k], weights[layer]
            )""",
    "grad = grad_activations.pop(layers.start)",
    "grad = grad_activations[layers.start, k]",
)
async def part3_training_loop__keeps_the_gradients():
    """Keeps the gradients of all activations."""


@loses(7)
@changes(
    "            await model.send(rank - 1, grad)",
    """
            late.append(grad)

    late = []

    async def flush():
        while late:
            await model.send(rank - 1, late.pop())""",
    "        await backward(k)",
    """
        await flush()
        await backward(k)
        if k + ahead + 1 >= len(batches):
            await flush()""",
)
async def part3_training_loop__late_gradients():
    """Sends the gradient only after the next forward."""


@loses(7)
@changes(
    "        for layer in reversed(layers):",
    """
        model.forward(layers.start, activations[layers.start, k], weights[layers.start])
        for layer in reversed(layers):""",
)
async def part3_training_loop__goes_forward_twice():
    """Goes forward once more before each backward, in vain."""


@loses(25)
@changes(LINES, IN_OTHER_WORDS, "grad_weights[layer] + grad if layer in grad_weights else grad", "grad")
async def part3_training_loop__last_gradient():
    """Keeps the gradient of the last micro-batch only."""


@loses(25)
@changes(
    "batches = get_global_batch_list(model.global_batch_size, batch_size)",
    "batches = get_global_batch_list(model.global_batch_size, batch_size)[:-1]",
)
async def part3_training_loop__first_batches():
    """Leaves out the last micro-batch."""


@loses(25)
@changes(
    LINES,
    IN_OTHER_WORDS,
    "activations[0, k] = model.get_input_activation(batches[k])",
    "activations[0] = model.get_input_activation(batches[k])",
    "activations[layers.start, k] = await model.receive(rank - 1)",
    "activations[layers.start] = await model.receive(rank - 1)",
    "activations[layer + 1, k] = model.forward(layer, activations[layer, k], weights[layer])",
    "activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])",
    "await model.send(rank + 1, activations.pop((layers.stop, k)))",
    "await model.send(rank + 1, activations[layers.stop])",
    "model.loss(activations.pop((layers.stop, k)))",
    "model.loss(activations[layers.stop])",
    "activations.pop((layer, k))",
    "activations[layer]",
)
async def part3_training_loop__mixed_up():
    """One key for all micro-batches."""


@loses(25)
@changes(
    "        await backward(k)",
    """
        await backward(k)
        for layer in layers:
            weights[layer], opt_states[layer] = model.update(layer, grad_weights[layer], weights[layer], opt_states[layer])""",
)
async def part3_training_loop__updates_each():
    """Updates after each micro-batch."""


@loses(25)
@changes("if rank == last:", "if rank > last:", "model.receive(rank + 1)", "model.receive((rank + 1) % model.world_size)")
async def part3_training_loop__deadlock():
    """The last rank waits for a gradient, too."""


@loses(25)
@changes("        model.set_final_weight(layer, weights[layer])\n", "")
async def part3_training_loop__no_final_weight():
    """Does not say what came out."""


@right
@changes(
    "ahead = min(last - rank, len(batches))",
    "first = min(model.world_size - rank, len(batches))",
    "for k in range(ahead):",
    "for k in range(first):",
    """
    for k in range(len(batches)):
        if k + ahead < len(batches):
            await forward(k + ahead)""",
    """
    for k in range(first, len(batches)):
        await backward(k - first)
        await forward(k)
    for k in range(len(batches) - first, len(batches)):""",
)
async def part3_training_loop__p_minus_rank():
    """Fills the pipeline with p - rank, and then goes backward and forward in turn."""


@right
@changes(
    """
    ahead = min(last - rank, len(batches))
    for k in range(ahead):
        await forward(k)
    for k in range(len(batches)):
        if k + ahead < len(batches):
            await forward(k + ahead)
        await backward(k)""",
    """
    flying, todo = [], list(range(len(batches)))
    while todo or flying:
        if todo and len(flying) < model.world_size - rank:
            flying.append(todo.pop(0))
            await forward(flying[-1])
        else:
            await backward(flying.pop(0))""",
)
async def part3_training_loop__queue():
    """A queue of micro-batches in flight."""


@right
@changes(
    "    batches = get_global_batch_list(model.global_batch_size, batch_size)",
    """
    batches = get_global_batch_list(model.global_batch_size, batch_size)

    leaving = []

    async def go(message):
        while leaving:
            await leaving.pop(0)
        leaving.append(message)""",
    "await model.send(rank + 1, activations.pop((layers.stop, k)))",
    "await go(model.send(rank + 1, activations.pop((layers.stop, k))))",
    "await model.send(rank - 1, grad)",
    "await go(model.send(rank - 1, grad))",
    "    return model",
    """
    for message in leaving:
        await message
    return model""",
)
async def part3_training_loop__sends_beside():
    """Messages leave while the rank computes."""


@right
@changes(
    "batches = get_global_batch_list(model.global_batch_size, batch_size)",
    "batches = get_global_batch_list(model.global_batch_size, batch_size)[::-1]",
)
async def part3_training_loop__last_batch_first():
    """Takes the micro-batches from the end."""


@loses(25)
@changes(
    "weights[layer], opt_states[layer] = model.update",
    "new, opt_states[layer] = model.update",
    "set_final_weight(layer, weights[layer])",
    "set_final_weight(layer, new)",
)
async def part3_training_loop__keeps_the_old_weights():
    """The storage has the weights from before the step."""


@loses(11)
@changes(
    "    batches = get_global_batch_list(model.global_batch_size, batch_size)\n",
    """
    total = model.global_batch_size
    m = -(-total // batch_size)
    batches = [range(k * total // m, (k + 1) * total // m) for k in range(m)]
""",
)
async def part3_training_loop__even_micro_batches():
    """Micro-batches of nearly equal sizes."""


@loses(11)
@changes(
    """
        if rank == 0:
            activations[0, k] = model.get_input_activation(batches[k])
        else:
            activations[layers.start, k] = await model.receive(rank - 1)""",
    """
        x = model.get_input_activation(batches[k])
        if rank > 0:
            x = await model.receive(rank - 1)
        activations[layers.start, k] = x""",
)
async def part3_training_loop__input_on_all():
    """Every rank loads the input."""


@loses(7)
@changes(
    "        await backward(k)\n",
    """
        elif rank < last and depth > 1:
            for layer in layers[:-1]:
                activations[layer + 1, k] = model.forward(layer, activations[layer, k], weights[layer])
        await backward(k)
""",
)
async def part3_training_loop__forward_again():
    """Runs forward again in the idle time at the end."""
