# ---
# jupyter:
#   course:
#     ranks: 1
# ---

# %% [markdown] tags=["slide"]
# # 29 Plan a run
#
# **You will build** `plan`: given a model and a cluster, it says how to split up the training so that everything fits and a step is fast.
#
# *{points} points. About 60 minutes.*

# %% Start the rank tags=["given"]
from dataclasses import replace
from course_lib import cluster
from course_lib.utils import wording
from course_lib.sim.llm import pictures, reference_data
from course_lib.sim.llm.cluster import A100_DEVICE, H100_DEVICE, Cluster
from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.transformer import GPT_175B, MODEL_PRESETS, Transformer
from course_lib.sim.plan import report, table
from course_lib.sim.plan.check import PlanCheck
from course_lib.sim.plan.explorer import Explorer

ranks = cluster.start(1)

# %% Set up the rank tags=["given", "skip"]
# %%px
from course_lib.utils import wording
from course_lib.sim.llm.analytic import estimate
from course_lib.sim.llm.cluster import H100_DEVICE, Cluster
from course_lib.sim.llm.configuration import Configuration, problems
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.transformer import MODEL_PRESETS, Transformer

# %% [markdown] tags=["slide"]
# In parts [16](16_training_step.ipynb) to [20](20_custom_strategy.ipynb), a layer was a single matrix. Here the simulator knows transformer
# layers like those that you built in parts [21](21_tensor_parallel.ipynb) to [26](26_fsdp.ipynb). A `Transformer` has the sizes of the
# model. A `Cluster` has devices and links. A `Configuration` says how the training is split up over the devices:
#
# | field | what it says | part |
# |---|---|---|
# | `tensor`, `pipeline`, `data` | devices along each axis; their product is the number of devices | 21, 25, 07 and 13 |
# | `micro_batch` | texts that go through the pipeline together | 19 |
# | `interleave` (printed as v) | pieces of the model on each pipeline rank: more pieces, shorter bubbles, more messages | new |
# | `sequence_parallel` | tensor parallel ranks also split the positions | 22 |
# | `recompute` | what backward computes again: `"none"`, `"selective"` (attention's scores) or `"full"` (the layer) | 20 |
# | `sharded_optimizer` | data parallel ranks shard the optimizer state | 09 |
#
# With `pipeline=4` and `interleave=2`, rank 0 has the first and the fifth of 8 layers: each micro-batch comes by twice.
# There are more fields, such as for experts and very long texts (`help(Configuration)`); this part does not need them.

# %% Look at a step tags=["slide"]
# %%px
model, place = MODEL_PRESETS["7b"], Cluster(H100_DEVICE, 8)
step = simulate(model, place, Configuration(tensor=2, data=4, sequence_parallel=True))
print(f"{model.parameters() / 1e9:.1f} billion parameters")
print(f"{wording.seconds(step.seconds)}, MFU {step.utilisation:.1%}")
print(f"{wording.memory(step.peak)} on a device. Does that fit? {step.fits}")

# %% [markdown] tags=["slide-50"]
# ## How far can you trust it?
#
# Others have timed four models on up to 512 devices: each once with full recomputation, and once with `sequence_parallel` and selective
# recomputation. Peak rates come from data sheets. How close devices get to them is partly assumed; `make validate`, in the course folder,
# says where, and how much that matters. One number is fitted to the two runs of the smallest model: how close to its peak a device comes
# in a matrix product. What does the table say about the other six?

# %% Compare with what was measured tags=["folded", "slide-50"]
times = reference_data.times()
print(reference_data.table(times, reference_data.SOURCE, "s"))

# %% Draw them tags=["folded", "slide-50"]
reference_data.picture(times)

# %% [markdown] tags=["slide-50"]
# ## A worked example: when is an axis bound by communication?
#
# For each byte that it sends, a device has a certain number of FLOP to do. Sending the byte takes the link some time. If the device could
# do more FLOP in that time, it waits for the link: this is the **roofline** model. A layer of width $h$ takes about $72\, s b h^2$ FLOP,
# forward and backward, for $b$ texts of $s$ positions (not counting attention's scores). So each axis has this many FLOP per byte:
#
# - tensor: four all-reduces of $2 s b h$ bytes, and only a $t$-th of the FLOP: $4.5\, h / (t - 1)$;
# - pipeline: one activation each way for the $l$ layers of a rank, and a $t$-th of the FLOP: $18\, h\, l / t$ if each of the $t$ tensor
#   parallel ranks sends all of it. With *scatter/gather* (Narayanan et al., 2021, "Efficient large-scale language model training on GPU
#   clusters using Megatron-LM", section 4.1), each sends a $t$-th, and the node gathers the parts: $18\, h\, l$;
# - data: an all-reduce of 4 bytes per parameter, once per step: about $0.75$ for each token that the rank has processed.
#
# Which axis may leave the node, and which one must not?


# %% Count FLOP for a byte tags=["slide-50"]
name, texts, device = "22b", 512, A100_DEVICE  # numbers to play with
grid = Configuration(tensor=8, pipeline=4, data=16)


def flop_for_a_byte(model, c):
    """FLOP per byte for each axis, by the formulas above; with scatter/gather."""
    tokens, layers = model.batch * model.sequence / c.data, model.layers / c.pipeline
    found = {}
    if c.tensor > 1:
        found[f"tensor {c.tensor}"] = 4.5 * model.hidden / (c.tensor - 1)
    if c.pipeline > 1:
        found[f"pipeline {c.pipeline}"] = 18 * model.hidden * layers
    return found | {f"data {c.data}": 0.75 * tokens}


model = replace(MODEL_PRESETS[name], batch=texts)
links = {"within a node": device.inside, "network": device.network}
peak = device.flops * device.matrix
roofs = {link: peak / to.bandwidth / to.efficiency for link, to in links.items()}
points = flop_for_a_byte(model, grid)
for what, flop in (points | roofs).items():
    print(f"{what}: {flop:,.0f} FLOP per byte")

# %% Draw the roofline tags=["folded", "slide-50"]
pictures.roofline(points, roofs, f"{name.upper()}, {texts:,} texts of {model.sequence:,} tokens per step, on {device.name}")

# %% [markdown] tags=["slide-50"]
# Whatever lies to the right of a roof's corner *can* be hidden behind computation, but is not always: a tensor parallel rank needs the sum
# before it can continue, so it waits, and its communication simply adds to its time. And with fewer texts per step, data moves to the left.

# %% [markdown] tags=["slide-50"]
# ## What fills the memory?
#
# Here is the same model with 64 texts per step on 16 of these devices, by kind of memory: what shrinks with which axis, and what does not?
# The dotted line is a device's memory. Weights, gradients and optimizer state take 18 bytes per parameter here, two more than in parts 16
# to 20: gradients are added up in 32 bits, as in Megatron-LM. Change the numbers, or add a way.

# %% Draw the memory tags=["folded", "slide-50"]
gpus, batch = 16, 64  # numbers to play with; so are the ways
small = replace(MODEL_PRESETS["22b"], batch=batch)
ways = {
    "t 4": Configuration(tensor=4, data=4),
    "t 8": Configuration(tensor=8, data=2),
    "t 8, recompute": Configuration(tensor=8, data=2, recompute="full"),
    "t 8, sequence": Configuration(tensor=8, data=2, sequence_parallel=True),
    "t 4 × p 2": Configuration(tensor=4, pipeline=2, data=2),
    "p 8": Configuration(pipeline=8, data=2),
    "p 8, sharded": Configuration(pipeline=8, data=2, sharded_optimizer=True),
}
steps = {name: simulate(small, Cluster(A100_DEVICE, gpus), c) for name, c in ways.items()}
pictures.memory(steps, f"22B, {batch} texts per step, on {gpus} devices: the fullest rank")

# %% [markdown] tags=["slide-50"]
# ## Your turn: plan
#
# You have three functions.
#
# - `problems(model, cluster, c)` returns a list of sentences about what does not fit together; it is empty if all is well.
# - `estimate(model, cluster, c)` returns about how many seconds a step takes, and how many bytes a device holds. It takes about a tenth of a
#   millisecond. Its seconds are mostly within 2%, and at worst 10% off; its bytes are within 1%.
# - `simulate(model, cluster, c)` is as exact as the simulator gets, and takes a hundred times as long, or more. It returns a step with
#   `seconds`, `peak`, `fits` and its `configuration`.
#
# There are thousands of configurations for 1,024 devices. Which ones can you rule out without looking at them?


# %% Exercise: plan tags=["exercise", "slide-50"]
# %%px
def plan(model, cluster):
    """The fastest configuration that fits into memory.

    Parameters
    ----------
    model : Transformer
        `layers`, `heads`, `batch` (texts per step) and more: help(Transformer).
    cluster : Cluster
        `gpus`, all of which must be used; `node`, how many of them a node has;
        `device.memory`, in bytes; and more: help(Cluster).

    Returns
    -------
    Configuration
        With tensor, pipeline, data, interleave, micro_batch, sequence_parallel,
        recompute ("none", "selective" or "full") and sharded_optimizer.

    Notes
    -----
    Where memory decides, a step may take 1.5 times as long as the best. Elsewhere, you
    get full points up to 1.04 times, and none from 1.08 times on. A search is stopped
    after 30 seconds.
    """
    ### BEGIN SOLUTION
    found = []

    def divisors(whole):
        return [n for n in range(1, whole + 1) if whole % n == 0]

    for tensor in divisors(cluster.gpus):
        if tensor > cluster.node:
            break
        for pipeline in divisors(cluster.gpus // tensor):
            if model.layers % pipeline:
                continue
            data = cluster.gpus // tensor // pipeline
            for interleave in divisors(model.layers // pipeline):
                for micro_batch in divisors(model.batch)[:12]:
                    grid = (tensor, pipeline, data, interleave, micro_batch)
                    if any(problems(model, cluster, Configuration(*grid))):
                        continue
                    for sequence in {False, tensor > 1}:
                        for recompute in ("none", "selective", "full"):
                            # Sharding the optimizer state can only save memory.
                            c = Configuration(*grid, sequence, recompute, data > 1)
                            seconds, nbytes = estimate(model, cluster, c)
                            if nbytes < 1.03 * cluster.device.memory:
                                found.append((seconds, len(found), c))
    some = [simulate(model, cluster, c, keep=False) for *_, c in sorted(found)[:20]]
    fitting = [step for step in some if step.fits]
    return min(fitting, key=lambda step: step.seconds).configuration
    ### END SOLUTION


# %% Check plan tags=["given"]
check = PlanCheck(ranks)
chosen = {}
for name, device, gpus in (("7b", A100_DEVICE, 16), ("22b", A100_DEVICE, 64), ("70b", H100_DEVICE, 256)):
    step, times_best = check.choose(MODEL_PRESETS[name], Cluster(device, gpus))
    chosen[name] = step
    print(f"{name} on {gpus}: {step.configuration}")
    print(f"   {wording.seconds(step.seconds)}, {times_best:.2f} times the best step:", end=" ")
    print(f"{check.worth(times_best):.0%} of the points")

# %% Draw a cluster at random, as the hidden tests do tags=["folded", "skip"]
drawn, place = check.draw("small", "interleave")
step, times_best = check.choose(drawn, place)
print(f"{drawn.layers} layers of width {drawn.hidden} on {place.gpus} × {place.device.name}")
print(f"with {wording.memory(place.device.memory)} each: {step.configuration}")
print(f"{wording.seconds(step.seconds)}, {times_best:.2f} times the best step:", end=" ")
print(f"{check.worth(times_best):.0%} of the points")

# %% [markdown] tags=["slide"]
# ## All grids
#
# Here is a model the size of GPT-3, with 175 billion parameters, on 1,024 devices. Each box is a grid, with its fastest configuration
# according to `estimate`. The stronger the grey, the faster. Hatched: nothing fits into memory. Empty: the model cannot be cut that
# way. Tensor parallel ranks stay within a node of 8.

# %% Draw the map tags=["folded", "slide"]
large, place = replace(GPT_175B, batch=1536), Cluster(A100_DEVICE, 1024)
pictures.grids(report.grid_times(large, place), "175B on 1,024 × A100, seconds per step")

# %% [markdown] tags=["slide"]
# ## The winner
#
# Here is a step of the configuration that `plan` chooses: where does it wait, and what fills the memory when? Thin bars below a
# stage are what is in flight: messages to the next stage, and at the end what replicas exchange. Tensor parallel exchanges are part of forward and backward.

# %% Draw the winner tags=["folded", "slide"]
winner = simulate(large, place, check.choose(large, place)[0].configuration)
pictures.timeline(winner, f"{winner.configuration}")

# %% [markdown] tags=["slide-50"]
# ## What does it cost?
#
# The cell below assumes 300 billion tokens, as many as GPT-3 saw. Put in what a GPU costs you per hour.

# %% Count days and money tags=["slide-50"]
price, tokens = 2.0, 300e9  # per GPU per hour, in your currency
print(report.whole_run(winner, tokens, price))

# %% [markdown] tags=["skip"]
# ## Try it
#
# Here is the 22B model on 16 devices again, each step simulated. Move a slider: what limits the step now? With "plain", the memory
# shows what each axis saves. "As the search chooses it" includes ZeRO 2 and 3, which `plan` does not have here.

# %% Move the sliders tags=["folded", "skip"]
batches, lengths = (32, 64, 128), (1024, 2048, 4096)  # texts per step, tokens per text
Explorer(table.build(small, Cluster(A100_DEVICE, 16), batches, lengths))

# %% [markdown] tags=["slide"]
# ## From a shell
#
# `python -m course_lib.sim plan --model deepseek-v3 --gpus 2048 --device h100` prints the five best configurations, says why the first is
# the best and what would change that, and writes a report and a trace for Perfetto. It also searches axes that `plan` does not have here:
# experts, context, ZeRO 2 and 3. With `--page`, it writes a page with sliders instead. `--help` shows how to describe your own
# model and cluster in a small file.

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - Megatron-LM: you choose, with `--tensor-model-parallel-size`, `--num-layers-per-virtual-pipeline-stage` (our `interleave`, counted in
#   layers), `--recompute-granularity` and `--use-distributed-optimizer` (our `sharded_optimizer`). It reports what to expect:
#   `megatron/training/theoretical_memory_usage.py` has 18 bytes per parameter, or 6 + 12 / d with the distributed optimizer.
# - DeepSpeed: `deepspeed/autotuning` searches over ZeRO stages and micro-batch sizes. It estimates the memory, and then measures
#   short runs on the real cluster, where `plan` simulates. It does not choose tensor or pipeline sizes.
# - PyTorch: torchtitan's `ParallelDims` takes the sizes of all axes and checks that they fit; choosing them is up to you.
#
# </details>

# %% [markdown]
# ## Questions worth arguing about
#
# 1. The network becomes four times slower. Which axes shrink, and which grow?
# 2. What does the simulator leave out that would cost the most on a real cluster?
# 3. With twice as many devices and the same batch, why is a step not twice as fast?

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They draw models and clusters at random. In each, something different matters: the pieces
# of the model, the size of the micro-batches, how positions are split, how exact the memory estimate is. The cell below draws a similar
# case.
#
# - Memory, 4 points each for small and large clusters: your choice must fit where few do, and take at most 1.5 times as long as the best.
# - Speed, 6 points each: your slowest choice counts. You get full points up to 1.04 times the best step, and none at 1.08 times or more.
# - Your choice counts, not how you found it: `estimate` alone may suffice. A search is stopped after 30 seconds, even on a slow machine.
# - You may read the course's own search, `course_lib/sim/plan/search.py`. It leaves out what matters in some of the cases, and it is not
#   available on the rank while your notebook is graded.

# %% Test: memory, small clusters tags=["test"] points=4
### BEGIN HIDDEN TESTS
from grading.authoring.cases.plan import CASES

check = PlanCheck(ranks, CASES, show=False).fits("small")
### END HIDDEN TESTS

# %% Test: speed, small clusters tags=["test"] points=6
### BEGIN HIDDEN TESTS
from grading.authoring.cases.plan import CASES

check = PlanCheck(ranks, CASES, show=False)
float(6 * check.score("small"))
### END HIDDEN TESTS

# %% Test: memory, large clusters tags=["test"] points=4
### BEGIN HIDDEN TESTS
from grading.authoring.cases.plan import CASES

check = PlanCheck(ranks, CASES, show=False).fits("large")
### END HIDDEN TESTS

# %% Test: speed, large clusters tags=["test"] points=6
### BEGIN HIDDEN TESTS
from grading.authoring.cases.plan import CASES

check = PlanCheck(ranks, CASES, show=False)
float(6 * check.score("large"))
### END HIDDEN TESTS

# %% Stop the rank tags=["given"]
ranks.stop()
