# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 32 Memory for time
#
# **You will build** `checkpoint`, which forgets what a part of a model computes in forward and computes it again in backward, and
# `segments`, which chooses the layers where that is worth it.
#
# *{points} points. About 60 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots, saving
from course_lib.check.recompute.check import RecomputeCheck
from course_lib.check.recompute.segments import SegmentsCheck

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np

from course_lib.autograd import Parameter, Tensor, no_grad
from course_lib.autograd.random_states import random_states
from course_lib.autograd.tensor import run_backward
from course_lib.check.recompute.segment import sum_over_ranks
from course_lib.collectives import Communicator
from course_lib.gpt.model import Sizes, layers
from course_lib.gpt.training import activation_memory
from course_lib.gpt.training.activation_memory import extra_seconds, peak_memory, step_memory
from course_lib.trace import span

everyone = Communicator()
rank = everyone.Get_rank()

# %% [markdown] tags=["slide"]
# Backward needs what forward has computed: the inputs of each product, the mask of each dropout. These **activations** pile up from the
# first layer to the last, and are freed in backward. Sharding the model (part 26) does not make them smaller. Here is the GPT of part 28,
# with each block split into attention and MLP. When does it hold most? What would double that: twice the layers, or twice the texts?

# %% Measure a step tags=["folded", "skip"]
# %%px
sizes = Sizes(vocabulary=64, width=128, heads=4, depth=6, length=128)
tokens = np.random.default_rng(rank).integers(0, 64, (2, sizes.length))
net = activation_memory.halves(layers(sizes))
everything = step_memory(net, [], None, tokens) if rank == 0 else None  # the others rest

# %% Draw the memory tags=["folded", "slide"]
held = {"nothing recomputed": ranks.pull("everything")[0]}
plots.memory_over_time(held, "What rank 0 keeps besides weights and gradients")

# %% [markdown] tags=["slide"]
# **Recomputation**, also called activation checkpointing, keeps only the input of a part of the model. When backward comes to it, its
# forward runs a second time, then its backward (Chen et al., 2016, "Training deep nets with sublinear memory cost"). For a whole model
# that is one more forward, about a third of a step's time. (Part 27's checkpoints are something else: files.)

# %% [markdown] tags=["slide-50"]
# ## A worked example: an operation with a backward of its own
#
# `Tensor.from_operation(data, inputs, backward)` makes the result of an operation: its array, the tensors it was computed from, and a
# function that turns the gradient of the result into a tuple with the gradient of each input, or `None` for one that has none. Inside
# `no_grad`, no graph is built and nothing is kept.
#
# `run_backward(y, grad)` goes from y back through its graph, given y's gradient, and adds to the `grad` of the tensors where it ends. You
# may call it while another backward is running. `y.backward()` also does what is left for the end of backward, as in part 14.

# %% Differentiate within an operation tags=["slide-50"]
# %%px --targets 0
x = Tensor(np.array([3.0, 4.0]))
inner = Tensor(x.data, requires_grad=True)  # a leaf: the graph begins here
run_backward(inner * inner, np.array([1.0, 10.0]))
print("the gradient that arrives:", inner.grad)
with no_grad():
    print("is there a graph?", (inner * inner).requires_grad)

# %% [markdown] tags=["slide-50"]
# ## A worked example: who drops what?
#
# Dropout draws a mask. The second forward must draw the same mask as the first, or the gradient belongs to another function. With tensor
# parallelism there are two kinds of masks: where ranks hold replicas of an array, all need the same mask; where each holds its own shard,
# each needs its own. So a rank has several generators, by name. `random_states.get()` returns the states of all of them, and
# `random_states.set(states)` puts them back. Which numbers below are the same on all ranks, and which are the same in both lines?

# %% Draw, put back, draw again tags=["slide-50"]
# %%px
random_states.seed(5, rank)
states = random_states.get()
for _ in range(2):
    for name in ("replicated", "sharded"):
        print(name, np.round(random_states[name].random(3), 2), end="  ")
    print()
    random_states.set(states)

# %% [markdown] tags=["slide-50"]
# ## Your turn: checkpoint
#
# Three things are easy to miss. The recomputed part must end at its inputs: backward of what came before is not its business. A model's
# first part gets tokens, which have no gradient, but its parameters want theirs: an operation is part of the graph only if one of its
# inputs requires a gradient (you may add one of your own). And a generator that is put back for the second forward must then continue where it was.


# %% Exercise: checkpoint tags=["exercise", "slide-50"]
# %%px
def checkpoint(function, *inputs):
    """Call a function, and keep nothing but its inputs for backward.

    Parameters
    ----------
    function : callable
        Returns a Tensor. It may use parameters, whose gradients are added to their
        `grad`, draw from any generator in `random_states`, and call collectives.
    *inputs : Tensor or other
        Tensors with or without a gradient, also of whole numbers, and anything else.

    Returns
    -------
    Tensor
        What `function(*inputs)` returns, with the same gradients. The function is
        called once now, and once in backward, when the gradient of its result is there.
        The generators of `random_states` go on as if it had been called once.
        It calls no collective itself. Until then, it holds only `inputs`. A step holds
        at most 2 arrays more than `peak_memory` says.
    """
    ### BEGIN SOLUTION
    states = random_states.get()
    with no_grad():
        data = function(*inputs).data
    where = [i for i, one in enumerate(inputs) if isinstance(one, Tensor)]

    def backward(grad):
        again = list(inputs)
        for i in where:
            again[i] = Tensor(inputs[i].data, requires_grad=inputs[i].requires_grad)
        now = random_states.get()
        random_states.set(states)
        out = function(*again)
        random_states.set(now)
        run_backward(out, grad)
        return (*(again[i].grad for i in where), None)

    anchor = Tensor(np.empty(0), requires_grad=True)
    return Tensor.from_operation(data, (*(inputs[i] for i in where), anchor), backward)
    ### END SOLUTION


# %% Check checkpoint tags=["given"]
check = RecomputeCheck("checkpoint", ranks).gradients(4).gradients(4, nested=True)
check.random_states(4).collectives(4).memory().passed()

# %% [markdown] tags=["slide"]
# ## A worked example: collectives are called again
#
# Below, a layer adds up something over all ranks, as normalization over the whole batch does. How many all-reduces do you expect in a step
# without recomputation, and how many with it? Which ones in the trace are recomputed? What happens if one rank does not recompute?

# %% Define a layer tags=["slide"]
# %%px
weight = Parameter(np.random.default_rng(rank).standard_normal((256, 256)) / 16)


def layer(x):
    h = x @ weight
    return h - sum_over_ranks(h, everyone) * (1 / everyone.Get_size())


x = Tensor(np.ones((64, 256)), requires_grad=True)

# %% Trace a step tags=["slide"]
# %%px --trace # Two layers with an all-reduce each, both recomputed
everyone.Barrier()
with span("forward"):
    loss = checkpoint(layer, checkpoint(layer, x)).sum()
with span("backward"):
    loss.backward()

# %% [markdown] tags=["slide-50"]
# ## Your turn: segments
#
# `layer_costs` measures four numbers for each layer: the `seconds` of its forward; `kept`, the bytes that it keeps for backward, including
# `input`, those of its input; and `work`, further bytes that its backward needs while it runs. They are the same on all ranks: the largest
# of any rank. (Why should a rank not use its own?)
#
# Recompute the layers from `start` to `stop` - 1 together, as one **range**: before its backward, it holds the input of its first layer.
# In its backward, it holds what all its layers keep. So if the layers before a range hold $H$ bytes, the backward of its layer $j$ needs
#
# $$H + \sum_{i = \text{start}}^{j} \text{kept}_i + \text{work}_j$$
#
# For a layer that is not recomputed, the same holds with $\text{start} = j$. In $H$ it counts with all that it has kept, a range only with
# the input of its first layer. `peak_memory(costs, ranges)` is the largest of these, and
# `extra_seconds(costs, ranges)` the time. Why not simply recompute everything, as one range?

# %% Measure the layers tags=["experiment", "slide-50"]
# %%px
costs = activation_memory.layer_costs(net, tokens, everyone)
n, each = len(costs), [(i, i + 1) for i in range(len(costs))]
if rank == 0:
    for i in (0, 1, 2, n - 1):
        print(i, type(net[i]).__name__, costs[i])
    for ranges in ([], each, [(0, n)], [(0, n // 2), (n // 2, n)]):
        print(f"{peak_memory(costs, ranges) / 1e6:.1f} MB for", ranges)

# %% [markdown] tags=["slide-50"]
# With 28 layers there are billions of choices. But for what comes after layer $i$, of all choices for the layers up to $i$ that hold the
# same number of bytes, only the fastest matters. Bytes are whole multiples of 100 kB, or of 1 MB in most hidden tests, so few occur.


# %% Exercise: segments tags=["exercise", "slide-50"]
# %%px
def segments(costs, budget):
    """The ranges of layers to recompute, so that the peak fits and the time is least.

    Parameters
    ----------
    costs : list of LayerCost
        With `seconds`, `kept`, `input` and `work`; up to 28 layers.
    budget : int
        Bytes. If no choice fits, raise a ValueError. A call takes at most 20 s.

    Returns
    -------
    list of (int, int)
        (start, stop), in order, without overlaps. peak_memory(costs, ranges) is at most
        `budget`. extra_seconds(costs, ranges) is at most 1% above the least.
    """
    ### BEGIN SOLUTION
    # For the layers before each one: by bytes held, the least time and its ranges.
    best = [{} for _ in range(len(costs) + 1)]
    best[0][0] = 0.0, []

    def reach(i, held, seconds, ranges):
        if seconds < best[i].get(held, (np.inf,))[0]:
            best[i][held] = seconds, ranges

    for i, cost in enumerate(costs):
        for held, (seconds, ranges) in best[i].items():
            if held + cost.kept + cost.work <= budget:
                reach(i + 1, held + cost.kept, seconds, ranges)
            here = held
            for stop in range(i + 1, len(costs) + 1):
                here += costs[stop - 1].kept
                seconds += costs[stop - 1].seconds
                if here + costs[stop - 1].work > budget:
                    break
                reach(stop, held + cost.input, seconds, [*ranges, (i, stop)])
    if not best[-1]:
        raise ValueError(f"no choice of layers fits into {budget:,} bytes.")
    return min(best[-1].values(), key=lambda found: found[0])[1]
    ### END SOLUTION


# %% Check segments tags=["given"]
SegmentsCheck("segments", ranks).fits(0.05, 0.3).fast(0.1, 0.3, 0.6).many(20).passed()

# %% [markdown] tags=["slide"]
# ## What it costs
#
# The same step in three ways, measured on rank 0: nothing is recomputed, each layer is, or only what `segments` chooses for a budget. Try
# a smaller share, down to 0.3. Does the time that it costs grow as fast as the memory shrinks?

# %% Measure three ways tags=["folded", "skip"]
# %%px
share = 0.5  # of the memory without recomputation: a number to play with
budget = int(share * peak_memory(costs, []))
chosen = segments(costs, budget)
ways = {"nothing": [], "each layer": each, "chosen": chosen}
steps, times = {}, {}
for name, some in 3 * [*ways.items()] if rank == 0 else ():  # in turn: a busy moment hits all
    steps[name] = step_memory(net, some, checkpoint, tokens)
    times[name] = min(times.get(name, np.inf), 1000 * steps[name]["took"])

# %% Draw memory over time tags=["folded", "slide"]
print("ranges that segments has chosen:", ranks.pull("chosen")[0])
title = "What rank 0 keeps during a step, by what it recomputes"
plots.memory_over_time(ranks.pull("steps")[0], title, ranks.pull("budget")[0])

# %% Draw the time tags=["folded", "slide-50"]
plots.bars(ranks.pull("times")[0], "A step on rank 0, by what is recomputed", "ms")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `torch.utils.checkpoint.checkpoint`. With `use_reentrant=True` it is an autograd function like yours, and gives no gradients at
#   all if no input requires one. With `use_reentrant=False` it recomputes when a saved tensor is first asked for. `preserve_rng_state`
#   keeps the random states. `checkpoint_sequential` cuts a model into equal segments.
# - Megatron-LM: `tensor_parallel/random.py` has `CheckpointFunction`, and `CudaRNGStatesTracker` for the random states.
#   `--recompute-granularity selective` recomputes attention's core by default (Korthikanti et al., 2022, "Reducing activation
#   recomputation in large transformer models"); with `full`, `--recompute-method uniform` or `block` says which layers.
# - JAX: `jax.checkpoint`, also `jax.remat`; a policy such as `dots_saveable` says what is kept.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. With $n$ equal layers in ranges of $k$, the peak is about $n / k$ inputs and $k$ layers. Which $k$ is best?
# 2. Recomputed layers with tensor parallelism send everything twice in forward. Which results would you keep, to avoid that?
#
# The last cells save your functions to `transformer_impl.py`, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
saving.save(ranks, "checkpoint", "segments")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes, groups, generators and layers, and look at each process's memory.

# %% Test: gradients, and one more forward tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = RecomputeCheck("checkpoint", ranks, show=False).gradients(4).gradients(3, np.float32, whole=False)
check = check.gradients(2, whole=False).gradients(1).gradients(4, nested=True).gradients(2, nested=True)
### END HIDDEN TESTS

# %% Test: random states tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = RecomputeCheck("random states", ranks, show=False).random_states(4).random_states(2, np.float32)
check = check.random_states(4, nested=True).random_states(1, nested=True)
### END HIDDEN TESTS

# %% Test: collectives on all ranks tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = RecomputeCheck("collectives", ranks, show=False).collectives(4).collectives(2).collectives(3, nested=True)
### END HIDDEN TESTS

# %% Test: memory tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = RecomputeCheck("memory", ranks, show=False).memory()
### END HIDDEN TESTS

# %% Test: ranges that fit tags=["test"] points=2
### BEGIN HIDDEN TESTS
from grading.authoring.cases.recompute import draw_case

check = SegmentsCheck("segments", ranks, draw_case, show=False).fits(0.02, 0.1, 0.3)
### END HIDDEN TESTS

# %% Test: the least time tags=["test"] points=4
### BEGIN HIDDEN TESTS
from grading.authoring.cases.recompute import draw_case

check = SegmentsCheck("segments", ranks, draw_case, show=False).fast(0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
