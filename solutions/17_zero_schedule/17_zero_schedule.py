# ---
# jupyter:
#   course:
#     ranks: 1
# ---

# %% [markdown] tags=["slide"]
# # 17 ZeRO as a schedule
#
# **You will build** `part1_training_loop`: data parallel training in which weights, gradients and optimizer states are sharded, so that n
# ranks together hold one copy of each.
#
# *{points} points. About 40 minutes.*

# %% Start the rank tags=["given"]
from course_lib import cluster, plots
from course_lib.sim.schedule.check.zero import ZeroScheduleCheck

ranks = cluster.start(1)

# %% Set up the rank tags=["given", "skip"]
# %%px
import asyncio

from course_lib.sim import Dist, Model, get_next_microbatch

# %% [markdown] tags=["slide"]
# In part 16, every rank held the whole model. A layer has $4096^2$ weights: 32 MiB in half precision, 32 MiB more for their gradients, and
# 192 MiB for the optimizer, which keeps 12 bytes per weight. The optimizer's part is the largest, and every rank computes the same update
# with it.
#
# | per layer, each of n ranks holds | weights | gradients | optimizer states |
# |---|---|---|---|
# | data parallel | 32 MiB | 32 MiB | 192 MiB |
# | ZeRO stage 3 | 32 MiB / n | 32 MiB / n | 192 MiB / n |
#
# To compute a layer, a rank needs the whole weight. So it gathers the weight just before using it and frees it right after, once in forward
# and again in backward.

# %% [markdown] tags=["slide"]
# ## A worked example: shards
#
# `load_weights(layer, shard, num_shards)` loads one shard. In the example, two ranks share two layers: each rank loads half of each layer,
# gathers layer 0, and looks at its memory. Printing a value shows what it holds.


# %% Shards of two layers
# %%px
async def gather_one(model):
    weights, opt_states, *_ = model.storage()
    rank, n = model.rank, model.world_size
    for layer in range(2):
        weights[layer], opt_states[layer] = model.load_weights(layer, rank, n)
    before = model.memory()
    weights["whole"] = await model.all_gather(weights[0], 0)
    after = model.memory()
    more = (after - before) / 2**20
    print(f"rank {rank}: {weights[0]} and {weights['whole']}, {more:g} MiB more")


dist = Dist(world_size=2, strict=True)
models = [Model(rank, dist, num_layers=2, global_batch_size=2) for rank in range(2)]
done = await asyncio.gather(*(gather_one(model) for model in models))

# %% [markdown] tags=["slide"]
# `reduce_scatter(value, layer)` shards the gradients: rank i gets shard i of the sum over all ranks' samples. Gradients of the same shard
# can be added, and `update` takes shards, as long as the weight, the gradient and the state belong to the same shard.
#
# **What counts as memory.** Everything in the storage, and whatever a variable holds for as long as an operation still needs it. A gathered
# weight in a variable is freed after its last use, even without `del`.
#
# ## Your turn
#
# In each micro-batch, a rank gathers every weight twice and reduce-scatters every gradient once. More communication costs time, and less
# costs memory. From [part 16](16_training_step.ipynb) you know `model.storage()` with its five dicts, and `model.set_final_weight`, which
# reports the result.
#
# **The target.** Without overlap, a step takes $T = T_\text{compute} + T_\text{comm}$. Compute is forward and backward of each layer and
# micro-batch, and the update of the rank's shards. Communication consists of the input of each micro-batch, and two all-gathers and a
# reduce-scatter for each layer and micro-batch. Your step may take that long. A rank's memory may hold its shards, the activations of one
# micro-batch (one per layer and four more), and five whole weights.


# %% Exercise: part1_training_loop tags=["exercise", "slide-50"]
# %%px
async def part1_training_loop(model, batch_size):
    """One training step of one rank, with ZeRO stage 3.

    Weights, gradients and optimizer states are sharded over all ranks.

    Parameters
    ----------
    model : sim.Model
        This rank. It gets its samples from `get_next_microbatch`, as in part 16.
    batch_size : int
        Samples per micro-batch.

    Returns
    -------
    sim.Model
        The model. Every rank has set its shard of each final weight, and its storage
        holds its shards of the updated weights and optimizer states, ready for the next
        step.

    Notes
    -----
    The step takes at most the time of the target above. A rank holds at most its
    shards, one activation of a micro-batch per layer and 4 more, and 5 whole weights.
    """
    ### BEGIN SOLUTION
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
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
        weights[layer], opt_states[layer] = model.update(layer, grad, weight, state)
        model.set_final_weight(layer, weights[layer])
    return model
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?
#
# The loop runs on the rank. The simulator in this notebook then replays what it did, and the check judges the replay.


# %% Check tags=["given"]
check = ZeroScheduleCheck("part1_training_loop", ranks)
for sizes in (
    dict(world_size=1, num_layers=2, global_batch_size=4, batch_size=4),
    dict(world_size=2, num_layers=3, global_batch_size=4, batch_size=2),
    dict(world_size=4, num_layers=8, global_batch_size=64, batch_size=4),
):
    check.step(**sizes)
    check.passed()

# %% [markdown] tags=["slide"]
# ## See it

# %% Draw the schedule tags=["folded"]
sizes = dict(world_size=4, num_layers=8, global_batch_size=64, batch_size=4)
check.run(**sizes).draw("ZeRO stage 3")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# This is the most that a rank holds when n ranks share a model with 48 layers. The state, 12 GiB, shrinks with n; the activations of a
# micro-batch and a few whole weights do not. In data parallel training, every rank would need as much as the first bar shows, however many
# ranks there are.

# %% Draw the memory tags=["folded"]
world_sizes = (1, 4, 16, 64)
sizes = dict(num_layers=48, global_batch_size=64, batch_size=1)
runs = {f"world_size {n}": check.run(world_size=n, **sizes) for n in world_sizes}
memory = {name: run.memory for name, run in runs.items()}
title = "Peak memory of a rank, {num_layers} layers, micro-batches of {batch_size}"
plots.bars(memory, title.format(**sizes), "memory")

# %% [markdown] tags=["slide-50"]
# You pay for this in time: every micro-batch moves every weight twice and every gradient once, whatever its size. Its compute grows with
# its size. So small micro-batches are mostly $T_\text{comm}$, and MFU is low.

# %% Draw the utilization tags=["folded"]
batch_sizes = (1, 4, 16, 64)
sizes = dict(world_size=16, num_layers=8, global_batch_size=1024)
runs = {f"micro-batches of {b}": check.run(batch_size=b, **sizes) for b in batch_sizes}
mfu = {name: 100 * run.utilisation for name, run in runs.items()}
samples = sizes["global_batch_size"] // sizes["world_size"]
title = f"MFU of ZeRO stage 3, {sizes['world_size']} ranks, {samples} samples per rank"
plots.bars(mfu, title, "%")

# %% [markdown] tags=["slide-50"]
# With small micro-batches on sixteen ranks, most of the time goes into communication.

# %% Draw sixteen ranks tags=["folded"]
sizes = dict(world_size=16, num_layers=8, global_batch_size=1024, batch_size=16)
check.run(**sizes).draw(f"ZeRO stage 3, micro-batches of {sizes['batch_size']}")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - **PyTorch**: `fully_shard` (FSDP2, `torch/distributed/fsdp/_fully_shard/_fully_shard.py`). `reshard_after_forward=True` frees a weight
#   after forward and gathers it again in backward, as here. `set_requires_gradient_sync(False)` adds up whole gradients instead.
# - **DeepSpeed**: ZeRO stage 3. `PartitionedParameterCoordinator` (`runtime/zero/partitioned_param_coordinator.py`) gathers in
#   `fetch_sub_module`, ahead of time up to `stage3_prefetch_bucket_size` parameters, and frees in `release_sub_module`.
# - **Megatron-LM**: `megatron/core/distributed/fsdp`, with `--data-parallel-sharding-strategy optim_grads_params`.
# - **JAX**: `jax.lax.all_gather` in a `jax.shard_map`; its backward is `psum_scatter`, and `jax.remat` gathers again (see
#   `docs/notebooks/shard_map.md`). What differs from ours: frameworks overlap the next gather with compute (question 1).
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. The next layer's weight could be gathered while the current layer is being computed. What does that cost, and when does it hide all of
#    the communication? (A call without `await` starts a collective; `await` its result later.)
# 2. Stages 1 and 2 of ZeRO keep the weights whole. Up to what micro-batch size would you prefer them to stage 3?
#
# The last cell stops the rank.

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They run on 1 to 16 ranks, draw the numbers of layers and micro-batches, and check time and
# memory.

# %% Test: it is a training step tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = ZeroScheduleCheck("part1_training_loop", ranks, show=False)
for world_size, num_layers, batch_size in ((1, 1, 1), (2, 5, 3), (3, 2, 2), (8, 4, 2), (17, 3, 1)):
    for batches in (1, *check.sizes(1, 2, 4)):
        sizes = dict(world_size=world_size, num_layers=num_layers, global_batch_size=world_size * batch_size * batches)
        check.run(**sizes, batch_size=batch_size)
### END HIDDEN TESTS

# %% Test: time and memory tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = ZeroScheduleCheck("part1_training_loop", ranks, show=False)
for world_size, batch_size in ((4, 4), (3, 2), (6, 3), (8, 1), (16, 2), (8, 5)):
    num_layers, batches = int(check.random.integers(14, 20)), int(check.random.integers(2, 4))
    sizes = dict(world_size=world_size, num_layers=num_layers, global_batch_size=world_size * batch_size * batches)
    check.step(**sizes, batch_size=batch_size)
result = check.step(world_size=4, num_layers=24, global_batch_size=40, batch_size=4)  # the last micro-batch is smaller
### END HIDDEN TESTS

# %% Stop the rank tags=["given"]
ranks.stop()
