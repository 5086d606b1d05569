# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 05 Naive model parallelism, backward
#
# **You will build** the backward pass through the naive layer: `naive_collect_backward_output` and `naive_collect_backward_x`.
#
# *{points} points. About 40 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, placement, plots
from course_lib.check.model_parallel import on_ranks
from course_lib.check.model_parallel.backward import BackwardCheck

ranks = cluster.start(4)


def my_columns(whole):
    return np.split(whole, comm.Get_size(), axis=1)[rank]


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


# %% Draw the gradient of the output tags=["folded", "slide"]
whole = np.arange(8 * 12).reshape(8, 12)
held = ranks.call(my_columns, {"whole": whole})
plots.holdings(whole, held, "Each rank needs its own columns of the gradient of the output", ("samples", "outputs"))

# %% [markdown] tags=["slide"]
# In the forward pass, the ranks collected the input $X$ of fc2, multiplied it by their columns of $W$, and collected the output $Y$. In the
# backward pass, the gradient $G$ of the output is replicated, and three things follow from it:
#
# $$ \nabla W = X^T G, \qquad \nabla b = \sum_{\text{samples}} G, \qquad \nabla X = G \, W^T $$
#
# A rank has some columns of $W$. For $\nabla W$ and $\nabla b$ it needs the same columns of $G$, as in the picture. With these columns it
# can compute only one term of $\nabla X$, which is **partial**:
#
# $$ G \, W^T = \sum_r G_{\text{columns of rank } r} \, (W_{\text{columns of rank } r})^T $$
#
# The sum has one column for each hidden unit, and on each rank fc1 needs only the columns of that rank's own hidden units: **sharded**.

# %% [markdown] tags=["slide"]
# ## Each operator has a conjugate
#
# In the forward pass, $X$ and $Y$ made the same move, from sharded to replicated. Their gradients do not. All ranks used the whole of $X$,
# each for its own columns of $Y$, so each knows only one term of the gradient of $X$. But all ranks used $Y$ for the same work, the loss,
# so each knows the whole gradient of $Y$.

# %% Draw the lines of this part tags=["folded", "slide"]
lines = [placement.LAYER_OPERATORS[name] for name in ("naive input", "naive output")]
plots.operators(lines, "Part 03's lines, and what happens to the gradients", ranks=4, rows=False)

# %% [markdown] tags=["slide-50"]
# Here are the lines that this course needs. Each has a mirror: what is forward in one is backward in the other.
#
# | forward | | backward | |
# |---|---|---|---|
# | sharded → replicated, for different work | all-gather | partial → sharded | reduce-scatter |
# | sharded → replicated, for the same work | all-gather | replicated → sharded | slice |
# | replicated → sharded | slice | sharded → replicated | all-gather |
# | partial → replicated, for the same work | all-reduce | replicated → replicated | nothing |
# | replicated → replicated, for different work | nothing | partial → replicated | all-reduce |
# | partial → sharded | reduce-scatter | sharded → replicated | all-gather |
#
# "Different work" means: each rank has its own part of the weight, or its own samples. Part 24 adds the all-to-all, which is its own
# mirror.

# %% [markdown] tags=["slide"]
# ## A worked example
#
# `Reduce_scatter` cuts the *memory* of each send buffer into one block per rank, adds up block r of all buffers, and leaves the sum on rank
# r. Here, each rank has two samples of four numbers. Before you run the next cell: which numbers of the 2 by 4 arrays does rank 1 get?

# %% Reduce and scatter
# %%px
grad = np.array([[1, 2, 3, 4], [5, 6, 7, 8]]) * 10**rank
mine = np.empty((2, 1), grad.dtype)
comm.Reduce_scatter(grad, mine)

# %% Draw what MPI delivers tags=["folded", "slide"]
plots.exchange(ranks.pull("grad"), ranks.pull("mine"), "Reduce_scatter: rank 1 gets two numbers from the same sample")

# %% [markdown]
# Rank 1 has the third and fourth numbers of the first sample. It should have the second *column*: one number from each sample. So before
# you send the array, rearrange it so that each column is one block of memory.

# %% A column is not one block tags=["slide"]
# %%px --targets 0
column = grad[:, 1:2]
print("the array     ", grad.tolist())
print("second column ", column.tolist(), "contiguous:", column.flags.c_contiguous)
print("as blocks     ", np.array(np.split(grad, 4, axis=1)).tolist())

# %% [markdown] tags=["slide-50"]
# ## Your turn: the gradient of the output
#
# Replicated to sharded: every rank already has all of it, so nothing is sent. A slice of columns is a view that is not contiguous; return a
# contiguous array.


# %% Exercise: naive_collect_backward_output tags=["exercise", "slide-50"]
# %%px
def naive_collect_backward_output(output_grad, mp_group_idx, mp_size):
    """Take a rank's columns of the gradient of fc2's output.

    Parameters
    ----------
    output_grad : numpy.ndarray
        Shape ``(batch_size, out_dim)``: the whole gradient. Floating point or integer;
        do not modify it.
    mp_group_idx : int
        This rank's index in its model parallel group.
    mp_size : int
        Number of ranks in the group; it divides out_dim.

    Returns
    -------
    collected_output_grad : numpy.ndarray
        Shape ``(batch_size, out_dim // mp_size)``: this rank's columns.
        The dtype of `output_grad`, C-contiguous.

    Notes
    -----
    The hidden tests count calls: a rank must not ask for what it has. A slice of
    columns is a view with gaps, which MPI would misread, so copy it. (The original
    assignment accepts the view.)
    """
    ### BEGIN SOLUTION
    part_out_dim = output_grad.shape[1] // mp_size
    start = mp_group_idx * part_out_dim
    return np.ascontiguousarray(output_grad[:, start : start + part_out_dim])
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Your turn: the gradient of the input
#
# Partial to sharded.


# %% Exercise: naive_collect_backward_x tags=["exercise"]
# %%px
def naive_collect_backward_x(grad_x, mp_comm, mp_size):
    """Add up the ranks' terms of the gradient, and leave each rank with its columns.

    Parameters
    ----------
    grad_x : numpy.ndarray
        Shape ``(batch_size, in_dim)``, partial: this rank's term of the sum.
        Floating point or integer, C-contiguous; do not modify it.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Number of ranks in it; it divides in_dim.

    Returns
    -------
    collected_grad_x : numpy.ndarray
        Shape ``(batch_size, in_dim // mp_size)``: this rank's columns of the sum.
        The dtype of `grad_x`, C-contiguous.

    Notes
    -----
    A rank sends at most what one reduce-scatter of `grad_x` sends, and 64 bytes. It
    makes at most 8 calls of the communicator.
    """
    ### BEGIN SOLUTION
    blocks = np.array(np.split(grad_x, mp_size, axis=1))
    mine = np.empty(blocks.shape[1:], grad_x.dtype)
    mp_comm.Reduce_scatter(blocks, mine)
    return mine
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?

# %% Check tags=["given"]
both = ("naive_collect_backward_output", "naive_collect_backward_x")
for size in (4, 2):
    BackwardCheck(f"{both[0]}, mp_size={size}", ranks).sliced(both[0], size).many(both[0]).passed()
    BackwardCheck(f"{both[1]}, mp_size={size}", ranks).scattered(both[1], size).passed()

# %% [markdown] tags=["slide"]
# ## See it
#
# This is what your `naive_collect_backward_x` leaves on each rank: the columns of its own hidden units and nothing else.

# %% Draw the gradient of the input tags=["folded"]
whole = np.arange(8 * 12.0).reshape(8, 12)
given = dict(function=both[1], size=4)
answers = ranks.call(on_ranks.collect, [dict(array=whole * (r == 0), **given) for r in range(4)])
held = [got for got, _ in answers]
plots.holdings(whole, held, "The gradient of the hidden layer, as your function leaves it", ("samples", "hidden units"))

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# An all-reduce followed by a slice would give the same result. Here is what a rank sends in each case. Change the numbers.


# %% Count the bytes tags=["folded"]
batch, hidden_units = 60, 256


def all_reduce_and_slice(array, size, function=None):
    total = np.empty_like(array)
    comm.Allreduce(array, total)
    return np.split(total, size, axis=1)[rank]


grad_x, moved = np.ones((batch, hidden_units), np.float32), []
for collect in (on_ranks.collect, all_reduce_and_slice):
    ranks.call(collect, dict(array=grad_x, **given))
    moved.append(ranks.traffic[0])
title = f"What rank 0 sends for the gradient of the hidden layer, {batch} x {hidden_units}"
plots.traffic(moved, title, ["your function", "all-reduce, slice"])

# %% [markdown] tags=["slide-50"]
# And memory? A rank's term of the sum is as large as the gradient would be without model parallelism. Only a quarter of that stays.

# %% Draw the memory tags=["folded"]
stays = ranks.call(on_ranks.collect, dict(array=grad_x, **given))[0][0]
held = {"term of the sum": grad_x.nbytes, "what stays": stays.nbytes}
plots.bars(held, f"Gradient of the hidden layer on each rank, batch of {batch}, 4 ranks", "bytes")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - **Megatron-LM** has a class for each line of the table, in `megatron/core/tensor_parallel/mappings.py`. Those of this part are
#   `_AllGatherFromTensorParallelRegion` (backward: reduce-scatter) and `_GatherFromModelParallelRegion` (backward: a split). Which one is
#   right depends on what comes after it, and is the caller's choice.
# - **PyTorch**: `torch.distributed.nn.functional.all_gather` always takes the sum over the ranks in backward: right for X. For Y, whose
#   gradient is replicated, it gives the number of ranks times too much. With a `DTensor`, the gradient's placement decides.
# - **JAX**: the transpose of `all_gather` is `psum_scatter` (`jax/_src/lax/parallel.py`).
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. For X, forward all-gathers and backward reduce-scatters; for Y, forward all-gathers and backward takes a slice. Why do two all-gathers
#    have different conjugates? What happens to the gradient if you take the wrong one?
# 2. The gradient of the weight needs no exchange within the model parallel group. Why not?
#
# The last cells save your functions to `func_impl.py`, where part 10 finds them, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
from course_lib import saving

saving.save(ranks, "naive_collect_backward_output", "naive_collect_backward_x")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes, dtypes and groups, and also count the bytes you send.

# %% Test: the gradient of the output tags=["test"] points=6
### BEGIN HIDDEN TESTS
function = "naive_collect_backward_output"
check = BackwardCheck(function, ranks, show=False).sliced(function, 1, 2, 4).many(function)
### END HIDDEN TESTS

# %% Test: the gradient of the input tags=["test"] points=10
### BEGIN HIDDEN TESTS
function = "naive_collect_backward_x"
check = BackwardCheck(function, ranks, show=False).scattered(function, 1, 2, 3, 4)
### END HIDDEN TESTS

# %% Test: the whole layer tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = BackwardCheck("the whole layer", ranks, show=False).layer("naive", 1, 2, 4)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
