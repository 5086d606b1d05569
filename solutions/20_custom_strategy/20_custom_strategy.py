# ---
# jupyter:
#   course:
#     ranks: 1
# ---

# %% [markdown] tags=["slide"]
# # 20 Your own strategy
#
# **You will build** `part4_training_loop`: the fastest training step you can come up with that fits into memory.
#
# *{points} points, awarded by score. Take as long as you like; two hours is typical.*

# %% Start the rank tags=["given"]
from course_lib import cluster, plots
from course_lib.utils import wording
from course_lib.sim.schedule import score
from course_lib.sim.schedule.check import ScheduleCheck

ranks = cluster.start(1)

# %% Set up the rank tags=["given", "skip"]
# %%px
import asyncio

from course_lib.utils import wording
from course_lib.sim import Dist, Model, get_global_batch_list, get_next_microbatch

# %% [markdown] tags=["slide"]
# Anything that a real training step could do is allowed. Your loop is graded on two clusters, each with 2048 samples and `batch_size=64`:
# **32 ranks and 64 layers**, and **64 ranks and 32 layers**. So it has to work with fewer ranks than layers, and with more. Your
# micro-batches may have a size other than `batch_size`.
#
# | points | 5 | 4 | 3 | 2 | 1 |
# |---|---|---|---|---|---|
# | minimum MFU, 32 ranks | 80% | 77.5% | 75% | 72.5% | 70% |
# | minimum MFU, 64 ranks | 80% | 70% | 60% | 55% | 50% |
#
# | maximum memory of any rank | 60 GiB | 69 GiB | 80 GiB |
# |---|---|---|---|
# | points | 5 | 4 | 3 |
#
# The score on a cluster is 0.75 times the MFU points plus 0.25 times the memory points, or 0 if there are no MFU points. Your points are
# the mean of the two scores, times 5.
#
# Here is what the loops from earlier parts reach. As they stand, none of them earns any points.
#
# {earlier_loops}

# %% [markdown] tags=["slide-50"]
# ## Three tools
#
# **Overlap.** If you call an exchange without `await`, it starts and then runs while the rank computes. `await` its result when you need
# it. A rank's exchanges run one after another, as on a single stream. Without overlap, a step takes $T = T_\text{compute} + T_\text{comm}$;
# with perfect overlap, $T = \max(T_\text{compute}, T_\text{comm})$.


# %% Overlap tags=["slide-50"]
# %%px
async def overlap(model, late):
    weight, _ = model.load_weights(0, model.rank, model.world_size)
    other, _ = model.load_weights(1)
    samples = model.get_input_activation(range(8))
    activation = model.forward(0, samples, model.load_weights(0)[0])
    begun = model.time
    coming = model.all_gather(weight, 0)
    if not late:
        await coming
    for _ in range(4):
        model.forward(1, activation, other)
    if late:
        await coming
    if model.rank == 0:
        when = "late" if late else "right away"
        print(f"awaited {when}: {wording.seconds(model.time - begun)}")


for late in (False, True):
    dist = Dist(world_size=16, strict=True)
    models = [Model(rank, dist, 2, 64) for rank in range(16)]
    done = await asyncio.gather(*(overlap(model, late) for model in models))

# %% [markdown] tags=["slide-50"]
# **Groups.** A collective takes `ranks=`, the ranks that take part. NVLink connects ranks 0 to 7, 8 to 15, and so on. It is six and a half
# times as fast as the network and has half the latency: the time before the first byte arrives, which a ring pays at every step.


# %% Groups tags=["slide-50"]
# %%px
async def gather_in(model, groups):
    ranks = next(group for group in groups if model.rank in group)
    weight, _ = model.load_weights(0, list(ranks).index(model.rank), len(ranks))
    await model.all_gather(weight, 0, ranks=ranks)
    return model.time


everyone, nodes = [range(32)], [range(n, n + 8) for n in range(0, 32, 8)]
across = [range(first, 32, 8) for first in range(8)]
ways = {
    "all 32 ranks": everyone,
    "8 ranks of one node": nodes,
    "4 ranks on different nodes": across,
}
for name, groups in ways.items():
    dist = Dist(world_size=32, strict=True)
    models = [Model(rank, dist, 1, 64) for rank in range(32)]
    times = await asyncio.gather(*(gather_in(model, groups) for model in models))
    print(f"gathering a weight across {name}: {wording.seconds(max(times))}")

# %% [markdown] tags=["slide-50"]
# **Recomputation.** If you have dropped an activation, you can get it back by running forward again from one that you kept. This saves
# memory, but costs time that does not count as useful: one more forward, half as long as a backward. If you recompute everything,
# $T_\text{compute}$ grows by a third.
#
# ## Your turn
#
# First write down, for both clusters: how long does a rank compute, how long do its exchanges take, and which of them can be hidden?


# %% Exercise: part4_training_loop tags=["exercise", "slide-50"]
# %%px
async def part4_training_loop(model, batch_size):
    """One training step on one rank, done any way you like.

    Parameters
    ----------
    model : sim.Model
        This rank.
    batch_size : int
        A size for the micro-batches; you may choose another.

    Returns
    -------
    sim.Model
        The model. The final weights of all layers are set, and each rank's storage
        holds the updated version of the weights and optimizer states it started with.
    """
    ### BEGIN SOLUTION
    # Data parallel. Each gradient is reduce-scattered within its node, its shards are
    # summed across nodes and used for the update, and the new weight is gathered within
    # the node, all while the backward of the layers below is running. Optimizer states
    # are sharded within a node.
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, n = range(model.num_layers), model.world_size
    size = 8 if n % 8 == 0 else 1
    node, place = model.rank // size, model.rank % size
    in_node, across = range(node * size, node * size + size), range(place, n, size)
    for layer in layers:
        weights[layer], _ = model.load_weights(layer)
        _, opt_states[layer] = model.load_weights(layer, place, size)

    under_way = {}  # by layer: which exchange, and its pending result

    async def go_on(layer):
        """Take the result of a layer's exchange, and start the next one."""
        what, coming = under_way.pop(layer)
        value = await coming
        if what == "scatter":
            under_way[layer] = "reduce", model.all_reduce(value, layer, ranks=across)
        elif what == "reduce":
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
                under_way[layer] = "scatter", coming
        del grad_activations[0]
    while under_way:
        for layer in sorted(under_way):
            await go_on(layer)
    return model
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## How does it do?

# %% Check tags=["given"]
check = ScheduleCheck("part4_training_loop", ranks)
for settings in score.SETTINGS:
    result = check.run(**settings)
    print(f"{result}: score {score.score(result):.2f} of {score.BEST:g}")

# %% [markdown] tags=["slide"]
# ## See it
#
# Where do ranks not compute? Those are the places to work on.

# %% Draw 32 ranks tags=["folded"]
sizes = score.SETTINGS[0]  # or dict(world_size=..., num_layers=..., and so on)
check.run(**sizes).draw("{world_size} ranks, {num_layers} layers".format(**sizes))

# %% Draw 64 ranks tags=["folded", "slide"]
sizes = score.SETTINGS[1]
check.run(**sizes).draw("{world_size} ranks, {num_layers} layers".format(**sizes))

# %% [markdown] tags=["slide"]
# With four ranks and eight layers, you can see the details.

# %% Draw four ranks tags=["folded"]
sizes = dict(world_size=4, num_layers=8, global_batch_size=64, batch_size=16)
check.run(**sizes).draw("{world_size} ranks, {num_layers} layers".format(**sizes))

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# This is the peak memory of your loop, next to the whole state that a rank without any sharding would hold: weights, gradients and
# optimizer states.

# %% Draw the memory tags=["folded"]
settings = score.SETTINGS  # or a list of dicts of your own
name = "{world_size} ranks, {num_layers} layers".format
memory = {name(**s): check.run(**s).memory for s in settings}
layers = [s["num_layers"] for s in settings]
state = {f"{n} layers, state only": n * score.STATE_BYTES for n in layers}
plots.bars(memory | state, "Peak memory of a rank", "memory")

# %% [markdown] tags=["slide-all"]
# ## The leaderboard
#
# Your class may have a leaderboard, built when the notebooks are graded. It shows the handle you choose here, not your name.

# %% Your handle
# %%px
handle = "anonymous"

# %% Leaderboard entry tags=["given"]
score.LeaderboardEntry(ranks)

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - **PyTorch**: `fully_shard` on a two-dimensional mesh shards over its second axis and replicates over the first (HSDP): our groups within
#   and across nodes. Recomputation is `torch.utils.checkpoint.checkpoint`.
# - **DeepSpeed**: `zero_hpz_partition_size` and `mics_shard_size` (`deepspeed/runtime/zero/config.py`) shard within smaller groups.
# - **Megatron-LM**: `--overlap-grad-reduce` and `--overlap-param-gather` overlap what their names say;
#   `--num-distributed-optimizer-instances` shards the optimizer state within smaller groups; `--recompute-granularity` recomputes.
# - **JAX**: groups are the axes of a mesh, named in `psum_scatter` or `all_gather`; recomputation is `jax.checkpoint`.
# - What differs: a device's transfers and its computation share its memory bandwidth; in the simulator, overlap is free.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. Which of your choices would you undo if the network were as fast as NVLink? And which if a device had only 16 GiB?
# 2. MFU counts a recomputed forward as waste. When is it worth it anyway?
# 3. What does the simulator leave out that would hurt your strategy most on a real cluster?
#
# The last cell stops the rank.

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded: the same two clusters, the same score.

# %% Test: 32 ranks and 64 layers tags=["test"] points=12.5
### BEGIN HIDDEN TESTS
check = ScheduleCheck("part4_training_loop", ranks, show=False)
float(12.5 * score.score(check.run(**score.SETTINGS[0])) / score.BEST)
### END HIDDEN TESTS

# %% Test: 64 ranks and 32 layers tags=["test"] points=12.5
### BEGIN HIDDEN TESTS
check = ScheduleCheck("part4_training_loop", ranks, show=False)
float(12.5 * score.score(check.run(**score.SETTINGS[1])) / score.BEST)
### END HIDDEN TESTS

# %% Stop the rank tags=["given"]
ranks.stop()
