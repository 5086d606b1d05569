# ---
# jupyter:
#   course:
#     ranks: 1
# ---

# %% [markdown] tags=["slide"]
# # 19 One forward, one backward
#
# **You will build** `part3_training_loop`: a pipeline that works on many micro-batches at once, in 1F1B order.
#
# *{points} points. About 60 minutes.*

# %% Start the rank tags=["given"]
from course_lib import cluster, plots
from course_lib.sim import FREE_COMMUNICATION
from course_lib.sim.schedule import schedules
from course_lib.sim.schedule.check.one_forward_one_backward import OneForwardOneBackwardCheck

ranks = cluster.start(1)

# %% Set up the rank tags=["given", "skip"]
# %%px
import asyncio

from course_lib.utils import wording
from course_lib.sim import Dist, Model, get_global_batch_list

# %% Draw the two orders tags=["folded"]
gpipe = ["F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7"] * 4
one_forward_one_backward = [
    "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
    "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
    "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
    "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
]
schedules.draw({"GPipe": gpipe, "1F1B": one_forward_one_backward})

# %% [markdown] tags=["slide"]
# In part 18, one rank worked while the others waited. Now the batch is cut into m micro-batches, and rank 0 starts the second one while
# rank 1 works on the first. Two orders are shown above. In **GPipe**, all micro-batches go forward first (Huang et al., 2019, "GPipe:
# Efficient Training of Giant Neural Networks using Pipeline Parallelism"). In **1F1B**, a rank starts its first backward as soon as it can,
# and then alternates between forward and backward (Narayanan et al., 2021, "Efficient Large-Scale Language Model Training on GPU Clusters
# Using Megatron-LM", section 2.2).
#
# If each of the p ranks takes $t_f$ for the forward of a micro-batch and $t_b$ for its backward, and messages are free, both take
#
# $$ T = (m + p - 1)\,(t_f + t_b), \qquad \text{bubble fraction} = \frac{p - 1}{m + p - 1}. $$
#
# That is the fraction of the whole time T. The second paper divides by the ideal time $m\,(t_f + t_b)$ instead, and has $(p - 1)/m$.
#
# But look at what a rank has to keep: between its forward and its backward, a micro-batch is **in flight**, and its activations stay in
# memory. In GPipe, that is m micro-batches. In 1F1B, it is at most $p - \text{rank}$. (The GPipe of the paper also recomputes: of each
# micro-batch it keeps only a stage's input, and runs forward again in backward. Here, and in part 25, nothing is recomputed.)

# %% [markdown] tags=["slide"]
# ## A worked example: micro-batches in the storage
#
# A key in the storage can be a tuple: layer and micro-batch. Two ranks with one layer each run forward on three micro-batches in turn.


# %% Three micro-batches go forward tags=["slide"]
# %%px
async def forward_only(model):
    weights, _, activations, *_ = model.storage()
    weights[model.rank], _ = model.load_weights(model.rank)
    batches = get_global_batch_list(model.global_batch_size, batch_size=8)
    for k, samples in enumerate(batches):
        if model.rank == 0:
            activations[0, k] = model.get_input_activation(samples)
            activations[1, k] = model.forward(0, activations[0, k], weights[0])
            await model.send(1, activations.pop((1, k)))
        else:
            activations[1, k] = await model.receive(0)
            activations[2, k] = model.forward(1, activations[1, k], weights[1])
        now, held = wording.seconds(model.time), len(activations)
        print(f"rank {model.rank}, micro-batch {k}: {now}, activations: {held}")


dist = Dist(world_size=2, strict=True)
models = [Model(rank, dist, num_layers=2, global_batch_size=24) for rank in range(2)]
done = await asyncio.gather(*(forward_only(model) for model in models))

# %% [markdown] tags=["slide"]
# Messages between two ranks arrive in the order in which they were sent, so micro-batches need no labels.
#
# ## Your turn
#
# How many forwards does rank r do before its first backward? Look at the picture. After that the two alternate, until only backwards are
# left. The layers are split as in [part 18](18_pipeline.ipynb). Use the five dicts of `model.storage()` and `model.set_final_weight` again.
# One way to begin: write the forward and the backward of one micro-batch as two functions, then put their calls in order. The first check
# below looks at the order alone; you need no updates yet, and need not free anything.
#
# **The target.** The order is that of the picture. Where messages are free, a step may take $T$ plus the update of a rank's layers. The
# memory of rank r may hold its layers with gradients and optimizer states, and one more weight; one activation per layer for each of at
# most $p - r$ micro-batches in flight; and four more activations.


# %% Exercise: part3_training_loop tags=["exercise", "slide-50"]
# %%px
async def part3_training_loop(model, batch_size):
    """One training step of one rank in a pipeline, in 1F1B order.

    Parameters
    ----------
    model : sim.Model
        This rank. `world_size` divides `num_layers`; rank 0 has the first layers.
    batch_size : int
        Samples per micro-batch, for `get_global_batch_list`; the last may have fewer.

    Returns
    -------
    sim.Model
        The model. Every rank has set its layers' final weights, and its storage holds
        their updated weights and optimizer states, ready for the next step.

    Notes
    -----
    The step takes at most the time of the target above. Rank r holds at most its layers
    with gradients and optimizer states, and one more weight; one activation per layer
    for each of p - r micro-batches in flight; and 4 more activations.
    """
    ### BEGIN SOLUTION
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
        weights[layer], opt_states[layer] = model.update(layer, grad, weight, state)
        model.set_final_weight(layer, weights[layer])
    return model
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Half way: the order alone
#
# F2 is the forward of micro-batch 2, and B2 its backward. Run this as often as you like: it compares each rank's work with the picture, as
# far as your loop comes.

# %% Check the order tags=["given"]
check = OneForwardOneBackwardCheck("part3_training_loop", ranks)
check.order_alone(world_size=4, num_layers=4, global_batch_size=8, batch_size=1)

# %% [markdown] tags=["slide-50"]
# ## Does it work?
#
# Now the whole step: the order, the memory and, with free messages, the time.

# %% Check tags=["given"]
check = OneForwardOneBackwardCheck("part3_training_loop", ranks)
for sizes in (
    dict(world_size=1, num_layers=2, global_batch_size=4, batch_size=2),
    dict(world_size=4, num_layers=8, global_batch_size=64, batch_size=8),
):
    result = check.order(**sizes)
    check.in_flight(result, **sizes)
    check.passed()
    check.bubble(**sizes)
    check.passed()

# %% [markdown] tags=["slide"]
# ## See it
#
# First with free communication: the picture above, but drawn from your own loop, step by step. Press the button, or move the slider.

# %% Draw the ideal tags=["folded"]
sizes = dict(world_size=4, num_layers=8, global_batch_size=64, batch_size=8)
check.run(**sizes, hardware=FREE_COMMUNICATION).play("1F1B, free communication")

# %% [markdown] tags=["slide"]
# And on the simulated H100s, where every message takes time and both sides wait for it:

# %% Draw the schedule tags=["folded"]
sizes = dict(world_size=4, num_layers=8, global_batch_size=64, batch_size=8)
check.run(**sizes).draw("1F1B")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# More micro-batches make the bubble fraction smaller. But small micro-batches use the device poorly, and each one needs its own messages.
# What would you choose for eight ranks, sixteen layers and 256 samples?

# %% Draw the utilization tags=["folded"]
batch_sizes, samples = (1, 2, 4, 8, 16, 32), 256
sizes = dict(world_size=8, num_layers=16, global_batch_size=samples)
names = {b: f"{samples // b} micro-batches of {b}" for b in batch_sizes}
runs = {b: check.run(**sizes, batch_size=b) for b in batch_sizes}
mfu = {names[b]: 100 * run.utilisation for b, run in runs.items()}
title = "MFU of 1F1B, {world_size} ranks, {num_layers} layers"
plots.bars(mfu, title.format(**sizes) + f", {samples} samples", "%")

# %% [markdown] tags=["slide-50"]
# The memory depends on the size of a micro-batch, not on how many there are.

# %% Draw the memory tags=["folded"]
memory = {names[b]: run.memory for b, run in runs.items()}
plots.bars(memory, "Peak memory of a rank", "memory")

# %% [markdown] tags=["slide-50"]
# Here are sixteen ranks and 48 micro-batches. NVLink connects ranks 0 to 7 and 8 to 15; find the place where messages go over the network.

# %% Draw sixteen ranks tags=["folded"]
sizes = dict(world_size=16, num_layers=32, global_batch_size=384, batch_size=8)
check.run(**sizes).draw(f"1F1B on {sizes['world_size']} ranks")

# %% [markdown] tags=["slide-50"]
# Part 18's slow stage again. There, T grew by the extra time of that stage, once. Here it is different: who sets the pace now?

# %% Slow down a stage tags=["folded"]
slow_rank, times_as_long = 1, 2  # change these
sizes = dict(world_size=4, num_layers=8, global_batch_size=64, batch_size=8)
slow = check.run(**sizes, slowdown={slow_rank: times_as_long})
slow.draw(f"1F1B, rank {slow_rank} takes {times_as_long} times as long")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - **PyTorch**: `ScheduleGPipe`, `Schedule1F1B` and `ScheduleInterleaved1F1B` (`torch/distributed/pipelining/schedules.py`). Its warm-up
#   has $p - r$ forwards, counting the first of those that alternate.
# - **Megatron-LM**: `forward_backward_pipelining_without_interleaving` (`megatron/core/pipeline_parallel/schedules.py`) warms up with
#   $p - r - 1$; interleaving (question 3) is `--num-layers-per-virtual-pipeline-stage`. A send and a receive go together, as in
#   `send_forward_recv_backward`; ours are one after the other.
# - **DeepSpeed**: `TrainSchedule` (`deepspeed/runtime/pipe/schedule.py`); `num_pipe_buffers` is our $p - r$, but at least 2.
# - **JAX**: the pipeline of `docs/notebooks/shard_map.md` is GPipe's: the gradient of a loop of forwards runs all backwards after it.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. The formula gives GPipe and 1F1B the same time. Why does everybody use 1F1B?
# 2. In the picture with messages (*See it*), a rank waits for a message in every round. Which calls could it start earlier and await later?
# 3. If each rank had two pieces of the model (say, layers 0 and 4 of 8 for rank 0 of 4), the time in bubbles would be half as long
#    (interleaved 1F1B, section 2.2 of the second paper): 15.8% of T instead of 27.3%, for p = 4 and m = 8. What would it cost?
#
# The last cell stops the rank.

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They run on 1 to 16 ranks and draw the number of micro-batches.

# %% Test: the order on every rank tags=["test"] points=11
### BEGIN HIDDEN TESTS
check = OneForwardOneBackwardCheck("part3_training_loop", ranks, show=False)
cases = ((1, 2, 3, 2), (2, 1, 1, 3), (3, 2, 2, 2), (4, 1, 9, 1), (5, 2, 3, 2), (8, 1, 8, 3), (17, 1, 20, 1))
for world_size, depth, batches, batch_size in cases:
    batches = batches + int(check.random.integers(0, 2))
    total = batches * batch_size - int(check.random.integers(min(2, batch_size - 1), batch_size))  # the last micro-batch is smaller
    check.order(world_size=world_size, num_layers=world_size * depth, global_batch_size=total, batch_size=batch_size)
### END HIDDEN TESTS

# %% Test: micro-batches in flight tags=["test"] points=7
### BEGIN HIDDEN TESTS
check = OneForwardOneBackwardCheck("part3_training_loop", ranks, show=False)
for world_size, depth, batches, batch_size in ((1, 3, 12, 2), (4, 4, 12, 2), (8, 2, 4, 4), (6, 3, 14, 4)):
    batches = batches + int(check.random.integers(0, 3))
    sizes = dict(world_size=world_size, num_layers=world_size * depth, global_batch_size=batches * batch_size, batch_size=batch_size)
    check.in_flight(check.run(**sizes), **sizes)
### END HIDDEN TESTS

# %% Test: the bubbles tags=["test"] points=7
### BEGIN HIDDEN TESTS
check = OneForwardOneBackwardCheck("part3_training_loop", ranks, show=False)
for world_size, depth, batches, batch_size in ((1, 1, 4, 1), (2, 3, 5, 2), (4, 2, 16, 4), (8, 1, 3, 1), (16, 2, 32, 2)):
    batches = batches + int(check.random.integers(0, 3))
    sizes = dict(world_size=world_size, num_layers=world_size * depth, global_batch_size=batches * batch_size, batch_size=batch_size)
    check.bubble(**sizes)
### END HIDDEN TESTS

# %% Stop the rank tags=["given"]
ranks.stop()
