"""Answers to part 17: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# Lines of the solution, and the same in other words: many of the answers are changes of these.
LINES = """
    layers, last = range(model.num_layers), model.num_layers
    rank, n = model.rank, model.world_size
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer, rank, n)

    for samples in get_next_microbatch(model.global_batch_size, n, batch_size, rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            whole = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], whole)
        grad_activations[last] = model.loss(activations.pop(last))
        for layer in reversed(layers):
            whole = await model.all_gather(weights[layer], layer)
            x, g = activations.pop(layer), grad_activations.pop(layer + 1)
            grad, grad_activations[layer] = model.backward(layer, x, g, whole)
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights.get(layer, 0) + mine
        del grad_activations[0]

    for layer in layers:
        grad, weight, state = grad_weights.pop(layer), weights[layer], opt_states[layer]
        weights[layer], opt_states[layer] = model.update(layer, grad, weight, state)"""
IN_OTHER_WORDS = """
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
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])"""


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
@changes(
    LINES,
    IN_OTHER_WORDS,
    "        weights[layer], opt_states[layer] = model.load_weights(layer, model.rank, model.world_size)",
    """
        weights[layer], _ = model.load_weights(layer, model.rank, model.world_size)
        _, opt_states[layer] = model.load_weights(layer)""",
    "        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])",
    """
        whole, grad = await model.all_gather(weights[layer], layer), await model.all_gather(grad_weights.pop(layer), layer)
        whole, opt_states[layer] = model.update(layer, grad, whole, opt_states[layer])
        weights[layer] = whole.shard(model.rank, model.world_size)""",
)
async def part1_training_loop__optimizer_whole():
    """Every rank keeps the whole optimizer state, and updates everything."""


@loses(6)
@changes(
    LINES,
    IN_OTHER_WORDS,
    """
            whole = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], whole)""",
    """
            weights["whole", layer] = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], weights["whole", layer])""",
    """
            whole = await model.all_gather(weights[layer], layer)
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)""",
    """
            grad, grad_activations[layer] = model.backward(
                layer, activations.pop(layer), grad_activations.pop(layer + 1), weights.pop(("whole", layer))
            )""",
)
async def part1_training_loop__keeps_the_weights():
    """Gathered weights stay in the storage until the micro-batch ends."""


@loses(6)
@changes(
    LINES,
    IN_OTHER_WORDS,
    "        activations[0] = model.get_input_activation(samples)",
    """
        kept = []
        activations[0] = model.get_input_activation(samples)""",
    """
            whole = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], whole)""",
    """
            kept.append(await model.all_gather(weights[layer], layer))
            activations[layer + 1] = model.forward(layer, activations[layer], kept[layer])""",
    """
            whole = await model.all_gather(weights[layer], layer)
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)""",
    "            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), kept.pop())",
)
async def part1_training_loop__keeps_them_in_a_list():
    """Gathered weights stay in a list of its own, which is memory as well."""


@loses(6)
@changes(
    "mine = await model.reduce_scatter(grad, layer)", "mine = (await model.all_reduce(grad, layer)).shard(model.rank, model.world_size)"
)
async def part1_training_loop__all_reduce():
    """Reduces whole gradients and cuts its shard out of them."""


@loses(6)
@changes(
    LINES,
    IN_OTHER_WORDS,
    """
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine""",
    "            grad_weights[layer] = grad_weights[layer] + grad if layer in grad_weights else grad",
    "        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])",
    """
        grad_weights[layer] = await model.reduce_scatter(grad_weights[layer], layer)
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])""",
)
async def part1_training_loop__whole_gradients():
    """Adds up whole gradients, and scatters them in the end."""


@loses(6)
@changes(
    "        for layer in reversed(layers):",
    """
        for layer in reversed(layers):
            await model.all_gather(weights[layer], layer)""",
)
async def part1_training_loop__three_gathers():
    """Gathers every layer once more."""


@loses(6)
@changes(
    LINES,
    IN_OTHER_WORDS,
    "activations.pop(model.num_layers)",
    "activations[model.num_layers]",
    "model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)",
    "model.backward(layer, activations[layer], grad_activations[layer + 1], whole)",
)
async def part1_training_loop__keeps_the_activations():
    """Frees no activation before the next micro-batch."""


@loses(6)
@changes(
    LINES,
    IN_OTHER_WORDS,
    "for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):",
    "for samples in get_next_microbatch(model.global_batch_size, model.world_size, model.global_batch_size, model.rank):",
)
async def part1_training_loop__one_batch():
    """Takes all samples at once."""


@loses(10)
@changes(LINES, IN_OTHER_WORDS, "grad_weights[layer] + mine if layer in grad_weights else mine", "mine")
async def part1_training_loop__last_batch_only():
    """Keeps the gradient of the last micro-batch only."""


@loses(10)
@changes(
    "        del grad_activations[0]",
    """
        del grad_activations[0]
        break""",
)
async def part1_training_loop__first_batch_only():
    """Stops after one micro-batch."""


@loses(10)
@changes("mine = await model.reduce_scatter(grad, layer)", "mine = grad.shard(model.rank, model.world_size)")
async def part1_training_loop__no_reduction():
    """Cuts a shard out of its own gradient."""


@loses(10)
@changes("model.set_final_weight(layer, weights[layer])", "pass")
async def part1_training_loop__no_final_weight():
    """Does not say what came out."""


@loses(10)
@changes(LINES, IN_OTHER_WORDS, "model.load_weights(layer, model.rank, model.world_size)", "model.load_weights(layer, 0, model.world_size)")
async def part1_training_loop__first_shard():
    """All ranks load shard 0."""


@loses(10)
@changes(
    LINES,
    IN_OTHER_WORDS,
    "weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])",
    "weights[layer], _ = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])",
)
async def part1_training_loop__drops_the_state():
    """Throws the new optimizer state away."""


@loses(10)
@changes(
    LINES,
    IN_OTHER_WORDS,
    "        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])",
    """
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        if model.rank > 0:
            del weights[layer]
            continue""",
)
async def part1_training_loop__one_rank_is_final():
    """Only rank 0 keeps what came out."""


@loses(10)
@changes("mine = await model.reduce_scatter(grad, layer)", "mine = model.reduce_scatter(grad, layer)")
async def part1_training_loop__no_await():
    """Forgets to wait for the gradient."""


@loses(10)
@changes(
    LINES,
    IN_OTHER_WORDS,
    "            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)",
    """
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)
            if model.rank == model.world_size - 1 > 0:
                return model""",
)
async def part1_training_loop__leaves():
    """The last rank does not scatter its gradients."""


@loses(10)
@changes(
    LINES,
    IN_OTHER_WORDS,
    """
    for layer in layers:
        weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])""",
    """
        for layer in layers:
            weights[layer], opt_states[layer] = model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])
            model.set_final_weight(layer, weights[layer])""",
)
async def part1_training_loop__updates_each_batch():
    """Updates after every micro-batch."""


@loses(10)
@changes(
    """
            whole = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], whole)""",
    "            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])",
)
async def part1_training_loop__forward_on_shards():
    """Computes with its shard."""


@right
@changes(
    """
        for layer in layers:
            whole = await model.all_gather(weights[layer], layer)""",
    """
        coming = model.all_gather(weights[0], 0)
        for layer in layers:
            whole = await coming
            if layer + 1 < model.num_layers:
                coming = model.all_gather(weights[layer + 1], layer + 1)""",
)
async def part1_training_loop__prefetch():
    """Gathers the next layer while this one computes."""


@right
@changes(
    LINES,
    IN_OTHER_WORDS,
    "    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):",
    """
    under_way = {}

    async def collect(layer):
        mine = await under_way.pop(layer)
        grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):""",
    """
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine""",
    """
            if layer + 1 < model.num_layers:
                await collect(layer + 1)
            under_way[layer] = model.reduce_scatter(grad, layer)
        await collect(0)""",
)
async def part1_training_loop__overlapped_scatter():
    """Scatters a gradient while the layer below is computed."""


@right
@changes(
    LINES,
    IN_OTHER_WORDS,
    "    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):",
    """
    import asyncio

    under_way = []

    async def collect():
        layer, task = under_way.pop(0)
        mine = await task
        grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine

    for samples in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):""",
    """
            mine = await model.reduce_scatter(grad, layer)
            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine""",
    """
            under_way.append((layer, asyncio.ensure_future(model.reduce_scatter(grad, layer))))
            if len(under_way) > 1:
                await collect()
        await collect()""",
)
async def part1_training_loop__tasks():
    """The same with tasks of asyncio."""


@right
@changes(
    LINES,
    IN_OTHER_WORDS,
    """
            whole = await model.all_gather(weights[layer], layer)
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)""",
    """
            if layer < model.num_layers - 1:
                whole = await model.all_gather(weights[layer], layer)
            grad, grad_activations[layer] = model.backward(layer, activations.pop(layer), grad_activations.pop(layer + 1), whole)""",
)
async def part1_training_loop__keeps_the_last():
    """The last layer, which backward begins with, is gathered once."""


@right
@changes(
    LINES,
    IN_OTHER_WORDS,
    """
            whole = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], whole)""",
    """
            weights["whole"] = await model.all_gather(weights[layer], layer)
            activations[layer + 1] = model.forward(layer, activations[layer], weights["whole"])
            del weights["whole"]""",
    "            grad_weights[layer] = grad_weights[layer] + mine if layer in grad_weights else mine",
    """
            grad_weights.setdefault("sums", {})
            sums = dict(grad_weights["sums"])
            sums[layer] = sums[layer] + mine if layer in sums else mine
            grad_weights["sums"] = sums""",
    "grad_weights.pop(layer)",
    'grad_weights["sums"][layer]',
)
async def part1_training_loop__own_keys():
    """Everything in the storage, under keys of its own."""


@loses(10)
@changes(
    "    for samples in get_next_microbatch(",
    "    first = {}\n    for samples in get_next_microbatch(",
    "grad_weights[layer] = grad_weights.get(layer, 0) + mine",
    "grad_weights[layer] = first[layer] + mine if layer in first else first.setdefault(layer, mine)",
)
async def part1_training_loop__first_and_last():
    """Adds each gradient to the first one, and not to the sum."""


@loses(10)
@changes(
    "weights[layer], opt_states[layer] = model.update",
    "new, opt_states[layer] = model.update",
    "set_final_weight(layer, weights[layer])",
    "set_final_weight(layer, new)",
)
async def part1_training_loop__keeps_the_old_weights():
    """The storage has the weights from before the step."""


@loses(6)
@changes(
    "    for samples in get_next_microbatch(model.global_batch_size, n, batch_size, rank):",
    """
    share = model.global_batch_size // n
    m = -(-share // batch_size)
    for k in range(m):
        samples = range(rank * share + k * share // m, rank * share + (k + 1) * share // m)""",
)
async def part1_training_loop__even_micro_batches():
    """Micro-batches of nearly equal sizes."""
