# ---
# jupyter:
#   course:
#     ranks: 1
# ---

# %% [markdown] tags=["slide"]
# # 18 A pipeline
#
# **You will build** `part2_training_loop`: the layers are split over the ranks, and the whole batch is passed on from rank to rank.
#
# *{points} points. About 40 minutes.*

# %% Start the rank tags=["given"]
from course_lib import cluster, plots
from course_lib.sim.schedule.check.pipeline import PipelineScheduleCheck

ranks = cluster.start(1)

# %% Set up the rank tags=["given", "skip"]
# %%px
import asyncio

from course_lib.utils import wording
from course_lib.sim import Dist, Model

# %% [markdown] tags=["slide"]
# In **pipeline parallel** training, a rank holds only some of the layers: with 4 ranks and 8 layers, rank 0 has layers 0 and 1, rank 1 has
# layers 2 and 3, and so on. Nothing is gathered or reduced. All that crosses a link is one activation on the way forward and one gradient
# on the way back:
#
# $$ \text{rank } 0 \xrightarrow{\;x_2\;} \text{rank } 1 \xrightarrow{\;x_4\;} \text{rank } 2 \xrightarrow{\;x_6\;} \text{rank } 3 $$
#
# $$ \text{rank } 0 \xleftarrow{\;g_2\;} \text{rank } 1 \xleftarrow{\;g_4\;} \text{rank } 2 \xleftarrow{\;g_6\;} \text{rank } 3 $$
#
# Activation $x_i$ is the input of layer $i$, and $g_i$ is its gradient. For comparison: with one sample, $x_i$ takes 8 MiB, and a layer's
# weight takes 32 MiB.
#
# Elsewhere, **naive model parallelism** means this part's pipeline: the layers are on several devices, the whole batch passes through, and
# one device computes at a time. Parts [03](03_naive_forward.ipynb) and [05](05_naive_backward.ipynb) use the word for something else, a way
# to split one layer.

# %% [markdown] tags=["slide"]
# ## A worked example: a message
#
# A `send` is **buffered**: the sender continues as soon as the message has left, whether or not anyone is waiting for it. A `receive` never
# finishes before the send does. In the example, rank 0 first has little to do and rank 1 a lot; then it is the other way round. Predict the
# times, given that
#
# {parts_of_the_example}


# %% A message tags=["slide"]
# %%px
async def message(model, work):
    weight, _ = model.load_weights(0)
    own = model.get_input_activation(range(64))
    for _ in range(work[model.rank]):
        model.forward(0, own, weight)
    if model.rank == 0:
        print(f"rank 0 sends at {wording.seconds(model.time)}", end=", ")
        await model.send(1, own)
        print(f"continues at {wording.seconds(model.time)}", end=". ")
    else:
        print(f"rank 1 asks for it at {wording.seconds(model.time)}", end=", has the ")
        got = await model.receive(0)
        print(f"{got.name} of layer {got.layer} at {wording.seconds(model.time)}.")


for work in ((1, 4), (4, 1)):
    dist = Dist(world_size=2, strict=True)
    models = [Model(r, dist, num_layers=1, global_batch_size=64) for r in range(2)]
    done = await asyncio.gather(*(message(model, work) for model in models))

# %% [markdown] tags=["slide"]
# What a rank sends also stays in its own storage until you take it out. And the message takes up memory on the sender until the receiver
# asks for it.
#
# ## Your turn
#
# Every rank runs forward and backward once, with all samples. The first rank has the input, and the last one has the loss. As in parts
# [16](16_training_step.ipynb) and [17](17_zero_schedule.ipynb), `model.storage()` gives you the five dicts, and `model.set_final_weight`
# reports the result.
#
# **The target.** A step takes $T = T_\text{compute} + T_\text{comm}$, one thing after the other. Compute is forward and backward of all
# layers, and the update of one rank's layers. Communication consists of the input and one message each way between neighbors. Your step may
# take that long. A rank's memory may hold its own layers with their gradients and optimizer states, one activation for each of these
# layers, and four more for whatever is being computed.


# %% Exercise: part2_training_loop tags=["exercise", "slide-50"]
# %%px
async def part2_training_loop(model):
    """One training step of one rank in a pipeline.

    The rank has ``num_layers / world_size`` layers, and all samples.

    Parameters
    ----------
    model : sim.Model
        This rank. `world_size` divides `num_layers`; rank 0 has the first layers.

    Returns
    -------
    sim.Model
        The model. Every rank has set its layers' final weights, and its storage holds
        their updated weights and optimizer states, ready for the next step.

    Notes
    -----
    The step takes at most the time of the target above. A rank holds at most its layers
    with gradients and optimizer states, one activation per layer, and 4 more. It sends
    one message to each neighbor.
    """
    ### BEGIN SOLUTION
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
        weights[layer], opt_states[layer] = model.update(layer, grad, weight, state)
        model.set_final_weight(layer, weights[layer])
    return model
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?


# %% Check tags=["given"]
check = PipelineScheduleCheck("part2_training_loop", ranks)
for sizes in ((1, 3, 4), (2, 2, 4), (4, 8, 64)):
    check.step(*sizes)
    check.passed()

# %% [markdown] tags=["slide"]
# ## See it

# %% Draw the pipeline tags=["folded"]
sizes = dict(world_size=4, num_layers=8, global_batch_size=64)
check.run(**sizes).draw("A pipeline with the whole batch")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# Most of the picture is hatched: one rank computes while the others wait. The **bubble fraction** is the part of the ranks' time in which they
# compute nothing. Even with free messages it is $(p - 1)/p$ for p ranks. Here are eight layers on more and more ranks:

# %% Draw the utilization by ranks tags=["folded"]
world_sizes, sizes = (1, 2, 4, 8), dict(num_layers=8, global_batch_size=64)
runs = {f"world_size {n}": check.run(world_size=n, **sizes) for n in world_sizes}
mfu = {name: 100 * run.utilisation for name, run in runs.items()}
title = "MFU of the pipeline, {num_layers} layers, {global_batch_size} samples"
plots.bars(mfu, title.format(**sizes), "%")

# %% [markdown] tags=["slide-50"]
# And more and more layers on four ranks:

# %% Draw the utilization by layers tags=["folded"]
numbers_of_layers, sizes = (4, 8, 16, 32), dict(world_size=4, global_batch_size=64)
runs = {f"{n} layers": check.run(num_layers=n, **sizes) for n in numbers_of_layers}
mfu = {name: 100 * run.utilisation for name, run in runs.items()}
title = "MFU of the pipeline, {world_size} ranks, {global_batch_size} samples"
plots.bars(mfu, title.format(**sizes), "%")

# %% [markdown] tags=["slide-50"]
# But the pipeline does spread out the memory: no two ranks have the same layer, and the activations are split up as well.

# %% Draw the memory tags=["folded"]
world_sizes, sizes = (1, 2, 4, 8), dict(num_layers=8, global_batch_size=64)
runs = {f"world_size {n}": check.run(world_size=n, **sizes) for n in world_sizes}
memory = {name: run.memory for name, run in runs.items()}
title = "Peak memory of a rank, {num_layers} layers, {global_batch_size} samples"
plots.bars(memory, title.format(**sizes), "memory")

# %% [markdown] tags=["slide-50"]
# Here are sixteen ranks with two layers each. The staircase is the pipeline.

# %% Draw sixteen ranks tags=["folded"]
sizes = dict(world_size=16, num_layers=32, global_batch_size=64)
check.run(**sizes).draw(f"A pipeline of {sizes['world_size']} ranks")

# %% [markdown] tags=["slide-50"]
# ## One slow stage
#
# Now one rank computes more slowly than the others: its device is throttled, say, or it has the heavier layers. Open the cell, choose the
# rank and how many times as long it takes, and predict two numbers before you run it: the time T and the bubble fraction.

# %% Slow down a stage tags=["folded"]
slow_rank, times_as_long = 1, 3  # change these
sizes = dict(world_size=4, num_layers=8, global_batch_size=64)
slow = check.run(**sizes, slowdown={slow_rank: times_as_long})
slow.draw(f"Rank {slow_rank} takes {times_as_long} times as long")

# %% [markdown] tags=["skip"]
# T grows by the extra time of that one stage. The bubble fraction gets smaller, because the slow rank counts as busy. MFU shows that the
# step is worse: it counts only the operations that the model needs. In part 19, all ranks work at once, and a slow stage makes the others
# wait in every round.

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - **PyTorch**: a rank's layers are a `PipelineStage` (`torch/distributed/pipelining/stage.py`); `pipeline` splits a model at each
#   `SplitPoint`.
# - **Megatron-LM**: this part's messages are `recv_forward`, `send_forward`, `recv_backward` and `send_backward`
#   (`megatron/core/pipeline_parallel/p2p_communication.py`).
# - **DeepSpeed**: `PipelineModule` (`deepspeed/runtime/pipe/module.py`). Its `partition_method` is `"parameters"` by default: it balances
#   parameters, so stages may differ in their number of layers. Ours all have equally many.
# - **JAX**: `jax.lax.ppermute` in a `jax.shard_map` sends to the next device (`docs/notebooks/shard_map.md`). All devices run the same
#   program at the same time, so stages are alike, or chosen with `jax.lax.switch`; ours branch on the rank.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. With four ranks, MFU stays below a quarter of what one rank reaches, and gets closer to it with more layers. Why a quarter, and where
#    does the rest go?
# 2. Doubling the number of samples does not help either. What if rank 0 did not wait for its last sample before passing the first one on?
#    (Part 19.)
# 3. All ranks have the same peak memory, but they reach it at different times. When does each rank reach it, and why does it not matter
#    that the last rank has the loss?
#
# The last cell stops the rank.

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They run on 1 to 16 ranks, draw the number of samples, and check time and memory.

# %% Test: the layers are split tags=["test"] points=8
### BEGIN HIDDEN TESTS
check = PipelineScheduleCheck("part2_training_loop", ranks, show=False)
for world_size, depth in ((1, 1), (2, 1), (3, 2), (5, 3), (17, 1), (8, 2)):
    check.split(world_size, world_size * depth, int(check.random.integers(1, 20)))
### END HIDDEN TESTS

# %% Test: time and memory tags=["test"] points=7
### BEGIN HIDDEN TESTS
check = PipelineScheduleCheck("part2_training_loop", ranks, show=False)
for world_size, depth in ((1, 6), (4, 5), (8, 6), (16, 3)):
    check.step(world_size, world_size * depth, int(check.random.integers(8, 40)))
### END HIDDEN TESTS

# %% Stop the rank tags=["given"]
ranks.stop()
