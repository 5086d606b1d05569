# ---
# jupyter:
#   course:
#     ranks: 1
# ---

# %% [markdown] tags=["slide"]
# # 29 Plan a run
#
# **You will build** `plan`: given a model and a cluster, it says how to share out the training, so that everything fits and a step is fast.
#
# *{points} points. About 60 minutes.*

# %% Start the rank tags=["given"]
from dataclasses import replace

from course_lib import cluster, wording
from course_lib.sim.llm import pictures, published
from course_lib.sim.llm.cluster import A100, H100, Cluster
from course_lib.sim.llm.cluster import cluster as devices
from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.transformer import GPT_175B, PRESETS, Transformer
from course_lib.sim.plan import report
from course_lib.sim.plan.checks import PlanCheck

ranks = cluster.start(1)

# %% Set up the rank tags=["given", "skip"]
# %%px
from course_lib import wording
from course_lib.sim.llm.closed import estimate
from course_lib.sim.llm.cluster import H100, Cluster
from course_lib.sim.llm.configuration import Configuration, problems
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.transformer import PRESETS

# %% [markdown] tags=["slide"]
# Parts 16 to 20 counted one matrix as a layer. Here the simulator knows the transformer's layer, as you built it in parts 21 to 26, with all
# that can be chosen: tensor, pipeline and data parallel, micro-batches, recomputation, who has the optimizer's state. A `Transformer` has the
# model's sizes, a `Cluster` its devices and links, and a `Configuration` says how they go together.

# %% Look at a step tags=["slide"]
# %%px
model, place = PRESETS["7b"], Cluster(H100, 8)
step = simulate(model, place, Configuration(tensor=2, data=4, sequence_parallel=True))
print(f"{model.parameters() / 1e9:.1f} billion parameters")
print(f"{wording.seconds(step.seconds)}, MFU {step.utilisation:.1%}")
print(f"{wording.memory(step.peak)} on a device. Does that fit? {step.fits}")

# %% [markdown] tags=["slide-50"]
# ## How far can it be trusted?
#
# Four models, each trained in two ways, were timed on up to 512 devices, and published. The device's and the network's figures are from data
# sheets. Two numbers are fitted, to the two runs of the smallest model: how near to its peak the device comes in a matrix product, and the
# seconds of a step that are no layer's. What does the table say about the other six?

# %% Compare with what was measured tags=["given", "slide-50"]
times = published.times()
print(published.table(times, published.SOURCE, "s"))
published.picture(times)

# %% [markdown] tags=["slide-50"]
# ## A worked example: when does an axis get bound by its exchanges?
#
# A tensor parallel rank does $1 / t$ of a layer's arithmetic, and exchanges as much as before. So from some $t$ on, it mostly waits: sooner where
# the model is narrow, and where a group is larger than a node of 8 and needs the network. Which width would you want for $t = 8$?


# %% Count what a layer waits tags=["slide-50"]
def waits(hidden, tensor):
    """The part of a layer's time that goes to tensor parallel exchanges."""
    from course_lib.sim.llm.layer import layer

    model = Transformer("a model", 1, hidden, heads=hidden // 128)
    place = devices("a100", 32)
    cost = layer(model, place.device, place.link(tensor, 1), Configuration(tensor))
    return cost.exchanged / (cost.forward + cost.backward)


tensors, widths = (2, 4, 8, 16, 32), (4096, 8192, 16384)
for hidden in widths:
    shares = ", ".join(f"t {t}: {waits(hidden, t):.0%}" for t in tensors)
    print(f"width {hidden:5}: {shares}")

# %% [markdown] tags=["slide-50"]
# ## What fills the memory?
#
# The same model on the same devices, by kind: what falls with which axis? The dotted line is what a device has.

# %% Draw the memory tags=["given", "slide-50"]
small = replace(PRESETS["22b"], batch=64)
ways = {
    "t 8": Configuration(tensor=8, data=2),
    "t 8, recompute": Configuration(tensor=8, data=2, recompute="full"),
    "t 8, sequence": Configuration(tensor=8, data=2, sequence_parallel=True),
    "t 4 × p 2": Configuration(tensor=4, pipeline=2, data=2),
    "p 8": Configuration(pipeline=8, data=2),
    "p 8, sharded": Configuration(pipeline=8, data=2, sharded_optimizer=True),
}
steps = {name: simulate(small, devices("a100", 16), c) for name, c in ways.items()}
pictures.memory(steps, "22B on 16 devices: the fullest rank")

# %% [markdown] tags=["slide-50"]
# ## Your turn: plan
#
# Three functions are there. `problems(model, cluster, c)` gives sentences about what does not fit together: nothing, if all is well.
# `estimate(model, cluster, c)` gives about how many seconds a step takes, and how many bytes a device then holds; it takes a fraction of a
# millisecond, and is a few per cent off. `simulate` is exact, as far as the simulator is, and takes longer.
#
# How many configurations are there for 1,024 devices? Which can you leave out without looking at them?


# %% Exercise: plan tags=["exercise", "slide-50"]
# %%px
def plan(model, cluster):
    """The fastest configuration that fits into memory; in a few seconds.

    Parameters
    ----------
    model : Transformer
        `layers`, `heads`, `batch` (texts of a step) and others, see its help.
    cluster : Cluster
        `gpus`, all of which are to be used; `node`, how many of them a node has;
        `device.memory`, bytes.

    Returns
    -------
    Configuration
        With tensor, pipeline, data, interleave, micro_batch, sequence_parallel,
        recompute ("none", "selective" or "full") and sharded_optimizer.
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
                for micro_batch in (1, 2, 4, 8, 16):
                    grid = (tensor, pipeline, data, interleave, micro_batch)
                    if any(problems(model, cluster, Configuration(*grid))):
                        continue
                    for sequence in {False, tensor > 1}:
                        for recompute in ("none", "selective", "full"):
                            # To share the optimizer only saves, where it can be shared.
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
for name, device, gpus in (("7b", A100, 16), ("22b", A100, 64), ("70b", H100, 256)):
    step, times_best = check.choose(PRESETS[name], Cluster(device, gpus))
    chosen[name] = step
    print(f"{name} on {gpus}: {step.configuration}")
    print(f"   {wording.seconds(step.seconds)}, {times_best:.2f} times the best step")

# %% [markdown] tags=["skip"]
# Hidden tests run when your notebook is graded. They draw models and clusters: sizes, memory, links. What you choose must fit. Then points
# go by its step: all of them up to 1.05 times the best step, none from 1.5 times on. A search that takes longer than a minute is ended, and the course's own search is not there meanwhile.

# %% Test: small clusters tags=["test"] points=10
### BEGIN HIDDEN TESTS
check = PlanCheck(ranks, show=False)
float(10 * check.score(5, (8, 16, 24, 32)))
### END HIDDEN TESTS

# %% Test: large clusters tags=["test"] points=10
### BEGIN HIDDEN TESTS
check = PlanCheck(ranks, show=False)
float(10 * check.score(4, (64, 96, 128, 256, 512)))
### END HIDDEN TESTS

# %% [markdown] tags=["slide"]
# ## All grids
#
# GPT-3's size, 175 billion parameters, on 1,024 devices. Each box is a grid, with the fastest of its configurations. Hatched: nothing fits.

# %% Draw the map tags=["given", "slide"]
large, place = replace(GPT_175B, batch=1536), devices("a100", 1024)
pictures.grids(report.grid_times(large, place), "175B on 1,024 × A100, seconds a step")

# %% [markdown] tags=["slide"]
# ## The winner
#
# A step of what `plan` chooses: where does it wait, and what fills the memory when?

# %% Draw the winner tags=["given", "slide"]
winner, _ = check.choose(large, place)
winner = simulate(large, place, winner.configuration)
pictures.timeline(winner, f"{winner.configuration}")

# %% [markdown] tags=["slide-50"]
# ## What does it cost?
#
# 300 billion tokens, as GPT-3 has seen. Put in what a GPU costs you for an hour.

# %% Count days and money tags=["slide-50"]
price, tokens = 2.0, 300e9  # of a GPU and an hour, in your currency
days = tokens / winner.tokens / 86400
gpu_days = days * place.gpus
print(f"{days:.1f} days on {place.gpus} devices: {gpu_days:,.0f} GPU-days")
print(f"{gpu_days * 24 * price:,.0f} at {price:g} a GPU-hour")

# %% [markdown] tags=["slide"]
# ## From a shell
#
# ```
# python -m course_lib.sim plan --model 70b --gpus 512 --device h100
# ```
#
# prints the best five, and writes a report and a trace for Perfetto. A model and a cluster of your own go into a small file: `--help`.
#
# ## Questions worth arguing about
#
# 1. The network becomes four times slower. Which axes shrink, and which grow?
# 2. What does the simulator leave out that would cost most on a real cluster?
# 3. Twice as many devices, the same batch. Why is a step not twice as fast?
#
# The last cell stops the rank.

# %% Stop the rank tags=["given"]
ranks.stop()
