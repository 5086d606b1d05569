# ---
# jupyter:
#   course:
#     ranks: 1
# ---

# %% [markdown] tags=["slide"]
# # 16 A training step, simulated
#
# **You will see** one training step of a large model on 4, 16 and 64 devices: who computes when, who waits, and what fills the memory. In
# parts 17 to 20, you write the loop that each rank runs, and a simulator tells you what it costs.
#
# *Nothing to grade. About 35 minutes.*

# %% Start the rank tags=["given"]
from course_lib import cluster, plots
from course_lib.plots import alpha_beta

ranks = cluster.start(1)

# %% Set up the rank tags=["given", "skip"]
# %%px
from pathlib import Path

from course_lib import sim
from course_lib.utils import wording
from course_lib.plots import alpha_beta
from course_lib.sim import get_next_microbatch

# %% [markdown] tags=["slide"]
# ## What is simulated
#
# The model is a stack of identical layers, each of which is a single $4096 \times 4096$ matrix. It works on sequences of 1024 tokens, in
# half precision. The device is an H100 with 80 GiB and a peak of 989 TFLOP/s. There are no actual matrices: the simulator
# counts FLOP (floating-point operations) and bytes, and advances a **virtual clock**. A layer's forward takes $2 \cdot 4096^2$ FLOP per
# token, its backward twice as many. Communication takes as long as the ring algorithm would: over NVLink, the fast link within a group of 8
# devices, or over the network beyond that. A weight takes 16 bytes: 2, its gradient 2, the optimizer's state 12.
#
# A loop is judged by two numbers. **MFU**, model FLOPs utilization, is the time that the FLOP would take at the devices' peak, divided by
# the time that the step really takes. **Memory** is the most that any rank holds at once.

# %% [markdown] tags=["slide"]
# ## What a loop can do
#
# | | |
# |---|---|
# | `model.storage()` | five dicts: weights, optimizer states, activations, activation gradients, weight gradients |
# | `model.rank`, `world_size`, `num_layers`, `global_batch_size` | this rank; the number of ranks, layers, and samples per step |
# | `get_next_microbatch(global_batch_size, world_size, batch_size, rank)` | this rank's samples, in micro-batches |
# | `model.load_weights(layer, shard, num_shards)` | a layer's weight and optimizer state from the previous step, or a shard of them |
# | `model.get_input_activation(samples)` | the input of layer 0 |
# | `model.forward(layer, activation, weight)` | the input of layer + 1 |
# | `model.loss(activation)` | the gradient of the last output |
# | `model.backward(layer, activation, grad_activation, weight)` | the gradients of the weight and of the input |
# | `model.update(layer, weight_grad, weight, opt_state)` | the optimizer's step: the new weight and the new state |
# | `model.set_final_weight(layer, weight)` | reports the result |
# | `await model.all_reduce(value, layer)`, `all_gather`, `reduce_scatter` | collectives over all ranks |
# | `await model.send(dest, value)`, `await model.receive(source)` | messages between two ranks |
#
# Whatever is in the five dicts takes up the rank's memory, and whatever you delete is freed.

# %% [markdown] tags=["slide"]
# ## A worked example: data parallel training
#
# Each rank has all the weights and a share of the samples, which it processes in micro-batches. It adds up their gradients (**gradient
# accumulation**), and at the end all ranks all-reduce them. `await` only marks a point where a rank may have to wait for others, and
# `async` marks a function that has such points.


# %% Data parallel training tags=["slide"]
# %%px
async def train_ddp(model, batch_size):
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, last = range(model.num_layers), model.num_layers
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)

    total, n = model.global_batch_size, model.world_size
    for samples in get_next_microbatch(total, n, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            weight = weights[layer]
            activations[layer + 1] = model.forward(layer, activations[layer], weight)
        # pop takes a value out of the storage: nothing needs it after this operation.
        grad_activations[last] = model.loss(activations.pop(last))
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(
                layer,
                activations.pop(layer),
                grad_activations.pop(layer + 1),
                weights[layer],
            )
            if layer in grad_weights:
                grad = grad_weights[layer] + grad
            grad_weights[layer] = grad
        del grad_activations[0]

    for layer in layers:
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)
        weights[layer], opt_states[layer] = model.update(
            layer,
            grad_weights.pop(layer),
            weights[layer],
            opt_states[layer],
        )
        model.set_final_weight(layer, weights[layer])
    return model


# %% Run it on four ranks tags=["slide"]
# %%px
settings = dict(world_size=4, num_layers=8, global_batch_size=64)
result = sim.run(train_ddp, **settings, batch_size=4)
print(result)
result

# %% [markdown] tags=["slide"]
# Each row is a rank, and each box is a micro-batch with its number. At the grey box a rank waits for its inputs, and at the dark blue ones
# for an all-reduce. There it computes nothing, and that is a **bubble**. The thin bars below a row are communication. Backward takes twice
# as long as forward. At the bottom is the memory: where does it rise, and where does it fall?
#
# ## Freeing memory
#
# This loop is the same, except for what it leaves in the storage. Predict the memory before you run it: one sample's activation has
# $1024 \cdot 4096$ numbers of 2 bytes each, which makes 8 MiB.


# %% The same, without freeing tags=["slide"]
# %%px
async def train_without_freeing(model, batch_size):
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    layers, last = range(model.num_layers), model.num_layers
    for layer in layers:
        weights[layer], opt_states[layer] = model.load_weights(layer)
    total, n = model.global_batch_size, model.world_size
    for samples in get_next_microbatch(total, n, batch_size, model.rank):
        activations[0] = model.get_input_activation(samples)
        for layer in layers:
            weight = weights[layer]
            activations[layer + 1] = model.forward(layer, activations[layer], weight)
        grad_activations[last] = model.loss(activations[last])
        for layer in reversed(layers):
            grad, grad_activations[layer] = model.backward(
                layer,
                activations[layer],
                grad_activations[layer + 1],
                weights[layer],
            )
            if layer in grad_weights:
                grad = grad_weights[layer] + grad
            grad_weights[layer] = grad
    for layer in layers:
        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)
        weights[layer], opt_states[layer] = model.update(
            layer,
            grad_weights[layer],
            weights[layer],
            opt_states[layer],
        )
        model.set_final_weight(layer, weights[layer])
    return model


kept = sim.run(train_without_freeing, **settings, batch_size=4)
memory = {"freed as soon as possible": result.memory, "nothing freed": kept.memory}

# %% Draw the memory tags=["folded", "slide"]
plots.bars(ranks.pull("memory")[0], "Peak memory of a rank, 4 ranks, 8 layers, micro-batches of 4", "memory")

# %% [markdown] tags=["slide-50"]
# ## The size of a micro-batch
#
# Larger micro-batches need more memory. Up to a point, they also use the device better, because small matrix products do not fill it; but a
# rank waits longer for its first input. Where would you stop?

# %% Several sizes
# %%px
sizes = (1, 2, 4, 8, 16)
runs = [sim.run(train_ddp, **settings, batch_size=b) for b in sizes]
by_size = [
    {f"micro-batches of {b}": get(r) for b, r in zip(sizes, runs, strict=True)}
    for get in (lambda r: 100 * r.utilisation, lambda r: r.memory)
]

# %% Draw utilization by size tags=["folded", "slide-50"]
plots.bars(ranks.pull("by_size")[0][0], "MFU of data parallel training, 4 ranks, 8 layers, 64 samples", "%")

# %% Draw memory by size tags=["folded", "slide-50"]
plots.bars(ranks.pull("by_size")[0][1], "Peak memory of a rank", "memory")

# %% [markdown] tags=["slide-50"]
# ## When a loop is wrong
#
# The simulator knows what each value belongs to: which layer, which samples, which shards. A loop that cannot be a real training step ends
# with a message that says why. Here, one of four ranks leaves early. Change the loop and see what else the simulator says: for instance,
# let rank 2 skip only the all-reduce.


# %% A rank that leaves early tags=["slide-50"]
# %%px
async def one_rank_leaves(model):
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    weights[0], opt_states[0] = model.load_weights(0)
    activations[0] = model.get_input_activation([model.rank])
    activations[1] = model.forward(0, activations[0], weights[0])
    grad = model.loss(activations[1])
    grad_weights[0], _ = model.backward(0, activations[0], grad, weights[0])
    if model.rank == 2:
        return
    grad_weights[0] = await model.all_reduce(grad_weights[0], 0)
    weights[0], opt_states[0] = model.update(
        0,
        grad_weights[0],
        weights[0],
        opt_states[0],
    )


try:
    sim.run(one_rank_leaves, world_size=4, num_layers=1, global_batch_size=4)
except sim.SimulationError as error:
    print(error)

# %% [markdown] tags=["slide-all"]
# ## More ranks
#
# The same loop on 16 ranks: twice as many as NVLink connects. Every rank has 16 samples, as before. Where does the time go?

# %% Sixteen ranks
# %%px
sim.run(train_ddp, world_size=16, num_layers=8, global_batch_size=256, batch_size=4)

# %% [markdown] tags=["slide-all"]
# And here are 64 ranks. Each row is still a rank, but there is no room for the numbers. While a layer's gradients are being all-reduced,
# all ranks are idle.

# %% Sixty-four ranks
# %%px
sim.run(train_ddp, world_size=64, num_layers=32, global_batch_size=2048, batch_size=32)

# %% [markdown] tags=["slide-50"]
# ## When does a step wait for the network?
#
# In part 00, an all-reduce of $n$ bytes took $T(n) = \alpha + n/\beta$. The simulated links follow the same law, so `alpha_beta.fit` finds
# both numbers here, too. For one layer, a rank with $B$ samples per step compares
#
# - **computing**: $6 \cdot 4096^2$ FLOP per token, forward and backward, at 95% of the peak: the time grows with $B$;
# - **communicating**: $\alpha + 2 \cdot 4096^2 / \beta$ for the gradient, 2 bytes per weight: the same for any $B$.
#
# Per byte of gradient, that is an **arithmetic intensity** of $3 \cdot 1024 \, B$ FLOP. Both times are equal where it reaches the FLOP that the
# device can do in the time of a byte, $T(n)/n$. With fewer samples, a step waits for the network, however well the loop is written.


# %% Where both take equally long tags=["slide-50"]
# %%px
busy = 0.95  # part of the peak that a rank reaches while it computes
groups = (4, 16, 64)  # ranks


def equal_at(alpha, beta, flops):
    """Samples per rank at which computing takes as long as communicating."""
    communicate = alpha + sim.LAYER.weight_bytes() / beta
    compute = 3 * sim.LAYER.forward_flop(1) / flops  # forward and backward
    return communicate / compute


sizes, ridges = [8 * 4**i for i in range(13)], {}
for n in groups:
    link = sim.H100.link(range(n))
    alpha, beta = alpha_beta.fit(sizes, [link.all_reduce(s, n) for s in sizes])
    ridges[f"{n} ranks"] = b = equal_at(alpha, beta, busy * sim.H100.flops)
    print(f"{n} ranks: {1e6 * alpha:.0f} microseconds, {beta / 1e9:.0f} GB/s,", end=" ")
    print(f"{b:.1f} samples, {3 * sim.LAYER.tokens * b:,.0f} FLOP per byte")

# %% [markdown] tags=["slide-50"]
# The two limits form a **roofline** (Williams et al., 2009): below the ridge, MFU is limited by the network and grows with $B$; beyond it, by
# the device. It is a best case, in which all communication is hidden behind computation. `train_ddp` hides nothing. How far below the roof
# will it be at the ridge, where both times are equal?

# %% Simulate steps of several sizes
# %%px
samples = (1, 4, 16, 64)  # per rank


def percent_of_peak(n, b):
    shape = dict(world_size=n, num_layers=8, global_batch_size=n * b)
    return 100 * sim.run(train_ddp, **shape, batch_size=min(b, 4)).utilisation


reached = {f"{n} ranks": [percent_of_peak(n, b) for b in samples] for n in groups}

# %% Draw the roofline tags=["folded", "slide-50"]
title = "What a data parallel step can reach, and what the loop reaches; 8 layers"
parts = (ranks.pull(name)[0] for name in ("ridges", "samples", "reached"))
alpha_beta.draw_roofline(*parts, title, 100 * ranks.pull("busy")[0])

# %% [markdown] tags=["skip"]
# On 64 ranks, most of $T(n)$ is $\alpha$: 126 steps of the ring at 20 microseconds each, 2.5 of 4.0 ms. Several layers in one bucket would
# pay it once. What does `equal_at` say for the two numbers of your own machine from part 00, and 20 GFLOP/s for a processor core?

# %% [markdown] tags=["slide-all"]
# ## Look closer
#
# The next cell writes a Chrome trace, a file with the whole timeline that you can zoom into. Open it at
# [ui.perfetto.dev](https://ui.perfetto.dev) (it stays on your machine) or at `chrome://tracing`. Every rank has a row for what it computes,
# one for what it communicates, one for what it waits for, and one for its memory.

# %% Write a trace
# %%px
result.trace("train_ddp.json")
size = wording.size(Path("train_ddp.json").stat().st_size)
print("Written next to this notebook: train_ddp.json,", size)

# %% [markdown] tags=["skip"]
# In a script of your own, without `sim.run`, you would first write `models = [Model(rank, dist, ...) for rank in ...]`, then
# `await asyncio.gather(*(train_ddp(model, 4) for model in models))`, and finally `get_training_stats(models)`.

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: gradient accumulation is `DistributedDataParallel.no_sync()` around all micro-batches but the last. Its all-reduces run during
#   the last backward; in `train_ddp` they come after it. `torch.profiler` writes the same kind of trace (`export_chrome_trace`).
# - JAX: `jax.profiler.trace` writes one for Perfetto; a compiled function's `memory_analysis()` and `cost_analysis()` predict bytes and FLOP.
# - Megatron-LM: `--log-throughput` prints TFLOP/s per GPU from `num_floating_point_operations` (`megatron/training/training.py`): divided by
#   the peak, that is MFU. `overlap_grad_reduce` hides the all-reduce, and is off by default.
# - DeepSpeed: `FlopsProfiler` (`deepspeed/profiling/flops_profiler/profiler.py`) counts what the modules execute.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. With 64 ranks, the last gradient is ready when backward ends, but the gradient of the last *layer* is ready long before that. What
#    could the ranks do with that time? (You can try it in part 20.)
# 2. Each rank holds all the optimizer states, 12 bytes per weight, and all ranks compute the same update. What would you do about it? (Part
#    17.)
# 3. DDP hides the all-reduce behind backward. With four micro-batches per step, how much of the step's computation can it hide it behind?
#
# The last cell stops the rank.

# %% Stop the rank tags=["given"]
ranks.stop()
