# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 04 Megatron model parallelism, forward
#
# **You will build** the same layer with the second weight split by rows, not by columns: `megatron_collect_forward_input` and
# `megatron_collect_forward_output`. How much less that sends depends on the layer, as you will see.
#
# *{points} points. About 30 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, placement, plots
from course_lib.check.model_parallel import on_ranks
from course_lib.check.model_parallel.forward import ForwardCheck

ranks = cluster.start(4)


def my_part(whole, axis):
    return np.split(whole, comm.Get_size(), axis=axis)[rank]


# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np

from course_lib.collectives import Communicator

comm = Communicator()
rank = comm.Get_rank()


def mp_group(size):
    """This rank's group, when the ranks are divided into groups of `size` consecutive ranks."""
    me = comm.Get_rank()  # not `rank`, because another cell may have changed it
    return comm.Split(color=me // size, key=me)


# %% Draw the hidden activations tags=["folded", "slide"]
hidden = np.arange(8 * 12).reshape(8, 12)
held = ranks.call(my_part, dict(whole=hidden, axis=1))
plots.holdings(hidden, held, "Columns of the hidden layer, as fc1 leaves them", ("samples", "hidden units"))

# %% Draw the weight of fc2 tags=["folded", "slide"]
weight = np.arange(12 * 5).reshape(12, 5)
held = ranks.call(my_part, dict(whole=weight, axis=0))
plots.holdings(weight, held, "Rows of the weight of fc2, in Megatron style", ("hidden units", "outputs"))

# %% [markdown]
# fc1 leaves each rank with a few *columns* of the hidden layer. Now give the rank the *rows* of fc2's weight that belong to these hidden
# units. The product is a sum with one term for each rank:
#
# $$ X W = \sum_{r} X_{\text{columns of rank } r} \, W_{\text{rows of rank } r} $$
#
# Each rank's product already has the shape of the whole output, but it is only one term of the sum: the output is **partial**. This is how
# Megatron-LM splits a perceptron (Shoeybi et al., 2019, section 3): the first weight by columns, the second by rows.

# %% [markdown] tags=["slide"]
# ## A worked example
#
# One sample, four hidden units, two outputs. Each rank has one hidden unit and the matching row of the weight. Which numbers have to be
# added to get the output? Change the weight and look again.

# %% Multiply the parts
# %%px
x = np.array([[1.0, 2.0, 3.0, 4.0]])
w = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
summand = x[:, rank : rank + 1] @ w[rank : rank + 1]
product = x @ w

# %% Draw the summands tags=["folded", "slide"]
plots.exchange(ranks.pull("summand"), ranks.pull("product"), "Before: each rank's product. After: the output, which is their sum")

# %% [markdown] tags=["slide-50"]
# ## Your turn: from fc1 to the output of fc2
#
# Your two functions stand before and after the product. These are their lines of part 03's table, without the collectives: fill in the
# question marks. Send no more than needed. What you return may be the argument itself or a new array, but do not modify the argument.

# %% Draw the lines of this part tags=["folded"]
lines = [placement.LAYER_OPERATORS[name] for name in ("megatron input", "megatron output")]
plots.operators(lines, "What your two functions do to an array", ranks=4, rows=False, passes=["forward"], ask="forward")


# %% Exercise: megatron_collect_forward_input tags=["exercise"]
# %%px
def megatron_collect_forward_input(x, mp_comm, mp_size):
    """Give a rank the input it needs for fc2, whose weight is split by rows.

    Parameters
    ----------
    x : numpy.ndarray
        Shape ``(batch_size, part_in_dim)``: this rank's columns of the hidden layer.
        Floating point or integer, C-contiguous; do not modify it.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Number of ranks in it.

    Returns
    -------
    collected_x : numpy.ndarray
        What this rank multiplies by its rows of the weight, which have shape
        ``(part_in_dim, out_dim)``. The dtype of `x`, C-contiguous.

    Notes
    -----
    The hidden tests count calls: a rank must not ask for what it has.
    """
    ### BEGIN SOLUTION
    return x
    ### END SOLUTION


# %% Exercise: megatron_collect_forward_output tags=["exercise"]
# %%px
def megatron_collect_forward_output(out, mp_comm, mp_size):
    """Turn the ranks' products into the output of fc2.

    Parameters
    ----------
    out : numpy.ndarray
        Shape ``(batch_size, out_dim)``: this rank's partial output.
        Floating point or integer, C-contiguous; do not modify it.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Number of ranks in it.

    Returns
    -------
    collected_out : numpy.ndarray
        Shape ``(batch_size, out_dim)``, the dtype of `out`, C-contiguous.
        The same on all ranks of the group.

    Notes
    -----
    A rank sends at most what one all-reduce of `out` sends, and 64 bytes. It makes at
    most 8 calls of the communicator.
    """
    ### BEGIN SOLUTION
    total = np.empty_like(out)
    mp_comm.Allreduce(out, total)
    return total
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?
#
# The last check does the multiplication between your two functions, and compares the result with the product on one rank.

# %% Check tags=["given"]
both = ("megatron_collect_forward_input", "megatron_collect_forward_output")
for size in (4, 2):
    ForwardCheck(f"{both[0]}, mp_size={size}", ranks).own_columns(both[0], size).passed()
    ForwardCheck(f"{both[1]}, mp_size={size}", ranks).summed(both[1], size).passed()
    ForwardCheck(f"the whole layer, mp_size={size}", ranks).layer("megatron", size).passed()

# %% [markdown] tags=["slide"]
# ## See it

# %% Draw the output tags=["folded"]
summands = [np.array([[1.0 * r, 10.0]]) for r in range(4)]
given = [dict(function=both[1], array=summand, size=4) for summand in summands]
plots.exchange(summands, [got for got, _ in ranks.call(on_ranks.collect, given)], "Your megatron_collect_forward_output")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# The naive way gathers the hidden units and the outputs, each once; yours sums the outputs, which counts twice. So the ratio depends on the
# layer: naive over Megatron is (hidden + outputs) / (2 outputs). Here are two layers: a perceptron's, with 256 hidden units and 12 outputs
# (part 10's has 10, which four ranks cannot share), and the second matrix of a transformer's MLP, which has four times as many hidden units
# as outputs. Change them, and the batch.


# %% Count the bytes tags=["folded"]
batch = 60
layers = {"perceptron": (256, 12), "transformer": (256, 64)}  # hidden units, outputs


def naive(x, out, size):
    group = mp_group(size)
    for part in (x, out):
        group.Allgather(part, np.empty((size, *part.shape), part.dtype))


moved, labels = [], []
for name, (hidden_units, outputs) in layers.items():
    x, out = (np.ones((batch, columns // 4), np.float32) for columns in (hidden_units, outputs))
    rows = np.ones((hidden_units // 4, outputs), np.float32)
    ranks.call(on_ranks.forward, dict(style="megatron", x=x, w=rows, size=4))
    moved.append(ranks.traffic[0])
    ranks.call(naive, dict(x=x, out=out, size=4))
    moved.append(ranks.traffic[0])
    labels += [f"{name}, Megatron", f"{name}, naive"]
plots.traffic(moved, f"What rank 0 sends in the forward pass of fc2, batch of {batch}, 4 ranks", labels)

# %% [markdown] tags=["slide-50"]
# And memory? The naive way holds the whole hidden layer on each rank, Megatron's way only a part of it. Both hold only a part of the
# weight.

# %% Draw the memory tags=["folded"]
batch, hidden_units = 60, 256
held = {"naive: whole": batch * hidden_units * 4}
for size in (2, 4):
    x = np.ones((batch, hidden_units // size), np.float32)
    answers = ranks.call(on_ranks.collect, dict(function=both[0], array=x, size=size))
    held[f"Megatron, mp_size {size}"] = answers[0][0].nbytes
plots.bars(held, f"The input of fc2 on each rank, batch of {batch}", "bytes")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - **Megatron-LM**: `RowParallelLinear(input_is_parallel=True)` in `megatron/core/tensor_parallel/layers.py` is this fc2. It ends with
#   `reduce_from_tensor_model_parallel_region`, and adds the bias, which is not split, after it.
# - **PyTorch**: `RowwiseParallel` (`torch/distributed/tensor/parallel/style.py`): input `Shard(-1)`, output `Replicate()`. `nn.Linear`
#   stores its weight as (out, in), so there the split of our rows is `Shard(1)`. Asked for a sharded output, it reduce-scatters (part 22).
# - **DeepSpeed**: `LinearAllreduce` in `deepspeed/module_inject/layers.py`.
# - **JAX**: in `shard_map`, `jax.lax.psum(x @ w, "mp")`; under `jax.jit`, the compiler adds the all-reduce itself.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. The bias of fc2 is not split. What goes wrong if every rank adds it to its partial output?
# 2. The ReLU between fc1 and fc2 needs no communication. What if it were a softmax over the hidden units?
#
# The last cells save your functions to `func_impl.py`, where part 10 finds them, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
from course_lib import saving

saving.save(ranks, "megatron_collect_forward_input", "megatron_collect_forward_output")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes, dtypes and groups, and also count the bytes you send.

# %% Test: the input tags=["test"] points=5
### BEGIN HIDDEN TESTS
function = "megatron_collect_forward_input"
check = ForwardCheck(function, ranks, show=False).own_columns(function, 1, 2, 4)
### END HIDDEN TESTS

# %% Test: the output tags=["test"] points=7
### BEGIN HIDDEN TESTS
function = "megatron_collect_forward_output"
check = ForwardCheck(function, ranks, show=False).summed(function, 1, 2, 3, 4)
### END HIDDEN TESTS

# %% Test: the whole layer tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = ForwardCheck("the whole layer", ranks, show=False).layer("megatron", 1, 2, 4)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
