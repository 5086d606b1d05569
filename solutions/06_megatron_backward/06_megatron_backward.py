# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 06 Megatron model parallelism, backward
#
# **You will build** the backward pass through Megatron's fc2: `megatron_collect_backward_output` and `megatron_collect_backward_x`. Both
# are short to write. The point is to find out which line of part 05's table each of them is, and why.
#
# *{points} points. About 20 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, placement, plots
from course_lib.check.model_parallel import on_ranks
from course_lib.check.model_parallel.backward import BackwardCheck

ranks = cluster.start(4)


def my_part_of_grad_x(grad, weight):
    rows = np.split(weight, comm.Get_size(), axis=0)[rank]
    return grad @ rows.T


# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np

from course_lib.collectives import Communicator

comm = Communicator()
rank = comm.Get_rank()


def mp_group(size):
    """This rank's group, when the ranks are divided into groups of `size` consecutive ranks."""
    return comm.Split(color=comm.Get_rank() // size, key=comm.Get_rank())


# %% Draw what a rank computes tags=["folded", "slide"]
grad = np.eye(8)
weight = np.arange(12.0 * 8).reshape(12, 8)
parts = ranks.call(my_part_of_grad_x, dict(grad=grad, weight=weight))
plots.holdings(grad @ weight.T, parts, "G times the transposed rows of W, as each rank computes it", ("samples", "hidden units"))

# %% [markdown]
# In part 04, each rank had some *rows* of fc2's weight, and an all-reduce computed the output $Y = \sum_r X_r W_r$. Its gradient $G$ is
# replicated. If $G_r$ is the gradient of the term $X_r W_r$, then
#
# $$ \nabla W_r = X_r^T \, G_r, \qquad \nabla X_r = G_r \, W_r^T $$
#
# The picture shows $G \, W_r^T$ for actual matrices on your four ranks. Which numbers does fc1 need on each rank?

# %% [markdown] tags=["slide"]
# ## A worked example
#
# What is $G_r$, the gradient of one rank's partial output? Is it $G$, a part of it, or a fraction? We slightly change one number in one
# rank's partial output, and see by how much this changes a loss that is computed from the sum. Write down your guess first. Then try other
# ranks and other places.

# %% Move one number tags=["slide"]
# %%px
summand = np.full((2, 3), 1.0 + rank)


def loss_when(who, place, change):
    """The loss when one rank changes one number in its partial output.

    The loss is half the sum of the squares of the output.
    """
    moved = summand.copy()
    if rank == who:
        moved[place] += change
    output = np.empty_like(moved)
    comm.Allreduce(moved, output)
    return np.sum(output**2) / 2


slope = (loss_when(2, (0, 1), 1e-3) - loss_when(2, (0, 1), -1e-3)) / 2e-3
print("slope", round(slope, 6), "   G at that place: 1 + 2 + 3 + 4 =", 10.0)

# %% [markdown] tags=["slide-50"]
# ## Your turn: from the gradient of the output to that of fc1's output
#
# Your two functions stand before and after the product with $W_r^T$. They belong to the lines of part 04, and their collectives are left
# for you to fill in. Send no more than needed. What you return may be the argument itself or a new array, but do not modify the argument.

# %% Draw the lines of this part tags=["folded"]
lines = [placement.LAYER_OPERATORS[name] for name in ("megatron input", "megatron output")]
plots.operators(lines, "Part 04's lines, and what happens to the gradients", ranks=4, rows=False, ask="backward")


# %% Exercise: megatron_collect_backward_output tags=["exercise"]
# %%px
def megatron_collect_backward_output(output_grad, mp_group_idx, mp_size):
    """Give a rank the gradient of its partial output of fc2.

    Parameters
    ----------
    output_grad : numpy.ndarray
        Shape ``(batch_size, out_dim)``: the output's gradient, replicated.
        Floating point or integer, C-contiguous; do not modify it.
    mp_group_idx : int
        This rank's index in its model parallel group.
    mp_size : int
        Number of ranks in the group.

    Returns
    -------
    collected_output_grad : numpy.ndarray
        What this rank multiplies by the transpose of its rows, which have shape
        ``(part_in_dim, out_dim)``. The dtype of `output_grad`, C-contiguous.

    Notes
    -----
    The hidden tests count calls: a rank must not ask for what it has.
    """
    ### BEGIN SOLUTION
    return output_grad
    ### END SOLUTION


# %% Exercise: megatron_collect_backward_x tags=["exercise"]
# %%px
def megatron_collect_backward_x(grad_x, mp_comm, mp_size):
    """Give a rank the gradient of its own hidden units.

    Parameters
    ----------
    grad_x : numpy.ndarray
        Shape ``(batch_size, part_in_dim)``: the gradient times the transpose of this
        rank's rows. Floating point or integer, C-contiguous; do not modify it.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Number of ranks in it.

    Returns
    -------
    collected_grad_x : numpy.ndarray
        What fc1 needs on this rank. The dtype of `grad_x`, C-contiguous.

    Notes
    -----
    The hidden tests count calls: a rank must not ask for what it has.
    """
    ### BEGIN SOLUTION
    return grad_x
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?
#
# The last check does the multiplication between your two functions, and compares the result with the gradient of the whole layer.

# %% Check tags=["given"]
both = ("megatron_collect_backward_output", "megatron_collect_backward_x")
for size in (4, 2):
    BackwardCheck(f"{both[0]}, mp_size={size}", ranks).same_output(both[0], size).passed()
    BackwardCheck(f"{both[1]}, mp_size={size}", ranks).same_input(both[1], size).passed()
    BackwardCheck(f"the whole layer, mp_size={size}", ranks).layer("megatron", size).passed()

# %% [markdown] tags=["slide"]
# ## See it
#
# Here your two functions run before and after the product, on real ranks: each rank ends up with the gradient of its own hidden units.

# %% Draw the gradient of the input tags=["folded"]
rows = np.split(weight, 4, axis=0)
given = dict(style="megatron", grad=grad, size=4)
held = ranks.call(on_ranks.backward, [dict(w=rows[r], **given) for r in range(4)])
plots.holdings(grad @ weight.T, held, "The gradient of the hidden layer, as your functions leave it", ("samples", "hidden units"))

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# Here is everything that a model parallel step exchanges in fc2, forward and backward. The naive way makes the exchanges of parts 03 and
# 05; Megatron's way makes the one of part 04, plus any that your two functions make. Change the layer: with a hidden layer that is four
# times as wide as the output, what is the ratio?


# %% Count the bytes tags=["folded"]
batch, hidden_units, outputs = 60, 256, 12


def megatron(batch, hidden_units, outputs, size):
    out = np.ones((batch, outputs), np.float32)
    mp_group(size).Allreduce(out, np.empty_like(out))
    rows = np.ones((hidden_units // size, outputs), np.float32)
    on_ranks.backward("megatron", out, rows, size)


def naive(batch, hidden_units, outputs, size):
    group = mp_group(size)
    for columns in (hidden_units, outputs):
        part = np.ones((batch, columns // size), np.float32)
        group.Allgather(part, np.empty((size, *part.shape), np.float32))
    grad_x, mine = np.ones((batch, hidden_units), np.float32), np.ones((batch, hidden_units // size), np.float32)
    group.Reduce_scatter(grad_x, mine)


moved = []
for step in (megatron, naive):
    ranks.call(step, dict(batch=batch, hidden_units=hidden_units, outputs=outputs, size=4))
    moved.append(ranks.traffic[0])
title = f"What rank 0 sends in a step through fc2, {batch} x {hidden_units} to {outputs}, mp_size 4"
plots.traffic(moved, title, ["Megatron", "naive"])

# %% [markdown] tags=["slide-50"]
# And memory? In both styles a rank keeps a quarter of the hidden layer's gradient, but on the way there the naive style holds all of it.


# %% Draw the memory tags=["folded"]
def naive_gradient(grad, columns):
    return grad @ columns.T  # with this rank's columns of the weight: a term for all hidden units


w, g = np.ones((hidden_units, outputs), np.float32), np.ones((batch, outputs), np.float32)
parts = dict(style="megatron", grad=g, w=w[: hidden_units // 4], size=4)
held = {"Megatron": ranks.call(on_ranks.backward, parts)[0].nbytes}
held["naive"] = ranks.call(naive_gradient, dict(grad=g[:, : outputs // 4], columns=w[:, : outputs // 4]))[0].nbytes
plots.bars(held, f"Hidden layer's gradient on a rank, at its largest, batch of {batch}, float32", "bytes")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - **Megatron-LM**: these backwards are in `_ReduceFromModelParallelRegion` (`megatron/core/tensor_parallel/mappings.py`). The one before
#   fc1 (question 1) is `_CopyToModelParallelRegion`. `ColumnParallelLinear` starts that all-reduce asynchronously and computes the weight's
#   gradient meanwhile (`allreduce_dgrad` in `layers.py`). Ours waits.
# - **DeepSpeed**: `RowParallel` and `ColumnParallel` in `deepspeed/module_inject/layers.py` are the same pair.
# - **PyTorch**: `torch.distributed.nn.functional.all_reduce` all-reduces in backward, too. So it is *not* the operator of part 04: with a
#   replicated gradient, it multiplies by the number of ranks.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. fc1 is the first layer. If there were a layer before it, what would fc1's backward pass have to exchange? Which line of part 05's table
#    is that? (In Shoeybi et al., 2019, section 3, it is the operator f. You build it in part 21.)
# 2. A transformer block has two such pairs of layers. How many all-reduces does a step need per block?
#
# The last cells save your functions to `func_impl.py`, where part 10 finds them, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
from course_lib import saving

saving.save(ranks, "megatron_collect_backward_output", "megatron_collect_backward_x")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes, dtypes and groups, and also count the bytes you send.

# %% Test: the gradient of the output tags=["test"] points=4
### BEGIN HIDDEN TESTS
function = "megatron_collect_backward_output"
check = BackwardCheck(function, ranks, show=False).same_output(function, 1, 2, 4)
### END HIDDEN TESTS

# %% Test: the gradient of the input tags=["test"] points=4
### BEGIN HIDDEN TESTS
function = "megatron_collect_backward_x"
check = BackwardCheck(function, ranks, show=False).same_input(function, 1, 2, 4)
### END HIDDEN TESTS

# %% Test: the whole layer tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = BackwardCheck("the whole layer", ranks, show=False).layer("megatron", 1, 2, 4)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
