"""A loop that several tests simulate."""

from course_lib.sim import LAYER, get_next_microbatch

W, STATE, A = LAYER.weight_bytes(), LAYER.optimizer_bytes(), LAYER.activation_bytes(1)
SMALL = dict(world_size=2, num_layers=2, global_batch_size=4)


async def data_parallel(model, batch_size=1):
    """As in part 16, written as the original lab would: everything in the storage."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    for i in range(model.num_layers):
        weights[i], opt_states[i] = model.load_weights(i)
    for batch in get_next_microbatch(model.global_batch_size, model.world_size, batch_size, model.rank):
        activations[0] = model.get_input_activation(batch)
        for i in range(model.num_layers):
            activations[i + 1] = model.forward(i, activations[i], weights[i])
        grad_activations[model.num_layers] = model.loss(activations[model.num_layers])
        for i in range(model.num_layers - 1, -1, -1):
            grad, grad_activations[i] = model.backward(i, activations[i], grad_activations[i + 1], weights[i])
            if i in grad_weights:
                grad_weights[i] += grad
            else:
                grad_weights[i] = grad
            del activations[i + 1], grad_activations[i + 1]
        del activations[0], grad_activations[0]
    for i in range(model.num_layers):
        grad_weights[i] = await model.all_reduce(grad_weights[i], i)
        weights[i], opt_states[i] = model.update(i, grad_weights[i], weights[i], opt_states[i])
        model.set_final_weight(i, weights[i])
        del grad_weights[i]
    return model
