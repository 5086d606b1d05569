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

from course_lib import cluster, plots
from course_lib.check import Check
from course_lib.traffic import wire_bytes

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
# backward pass, the gradient $G$ of the output is whole on every rank, and three things follow from it:
#
# $$ \nabla W = X^T G, \qquad \nabla b = \sum_{\text{samples}} G, \qquad \nabla X = G \, W^T $$
#
# A rank has some columns of $W$. For $\nabla W$ and $\nabla b$ it needs the same columns of $G$, as in the picture. With these columns it
# can compute only one term of $\nabla X$, a *partial sum*:
#
# $$ G \, W^T = \sum_r G_{\text{columns of rank } r} \, (W_{\text{columns of rank } r})^T $$
#
# The sum has one column for each hidden unit, and on each rank fc1 needs only the columns of that rank's own hidden units. Adding up the
# terms and leaving each rank with its part of the sum is what a reduce-scatter does.

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
# Every rank already has all of it, so nothing is sent. A slice of columns is a view that is not contiguous; return a contiguous array.


# %% Exercise: naive_collect_backward_output tags=["exercise", "slide-50"]
# %%px
def naive_collect_backward_output(output_grad, mp_group_idx, mp_size):
    """Take a rank's columns of the gradient of fc2's output.

    Parameters
    ----------
    output_grad : numpy.ndarray
        Shape ``(batch_size, out_dim)``: the whole gradient. Do not modify it.
    mp_group_idx : int
        This rank's index in its model parallel group.
    mp_size : int
        Number of ranks in the group; it divides out_dim.

    Returns
    -------
    collected_output_grad : numpy.ndarray
        Shape ``(batch_size, out_dim // mp_size)``: this rank's columns.
        The dtype of `output_grad`, C-contiguous.
    """
    ### BEGIN SOLUTION
    part_out_dim = output_grad.shape[1] // mp_size
    start = mp_group_idx * part_out_dim
    return np.ascontiguousarray(output_grad[:, start : start + part_out_dim])
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Your turn: the gradient of the input


# %% Exercise: naive_collect_backward_x tags=["exercise"]
# %%px
def naive_collect_backward_x(grad_x, mp_comm, mp_size):
    """Add up the ranks' partial sums, and leave each rank with its columns.

    Parameters
    ----------
    grad_x : numpy.ndarray
        Shape ``(batch_size, in_dim)``: this rank's partial sum.
        C-contiguous; do not modify it.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Number of ranks in it; it divides in_dim.

    Returns
    -------
    collected_grad_x : numpy.ndarray
        Shape ``(batch_size, in_dim // mp_size)``: this rank's columns of the sum.
        The dtype of `grad_x`, C-contiguous.
    """
    ### BEGIN SOLUTION
    blocks = np.array(np.split(grad_x, mp_size, axis=1))
    mine = np.empty(blocks.shape[1:], grad_x.dtype)
    mp_comm.Reduce_scatter(blocks, mine)
    return mine
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?


# %% A call on each rank tags=["given", "skip"]
def collect_output(output_grad, index, size):
    return naive_collect_backward_output(output_grad, index, size), output_grad


def collect_x(grad_x, size):
    return naive_collect_backward_x(grad_x, mp_group(size), size), grad_x


def compare_output(check, whole, size):
    """Call the function with the whole gradient, and expect the columns that belong to the index."""
    indices = [(r + 1) % size for r in range(4)]
    answers = ranks.call(collect_output, [dict(output_grad=whole, index=i, size=size) for i in indices], show=check.show)
    for r, (got, given) in enumerate(answers):
        want = np.split(whole, size, axis=1)[indices[r]]
        name = f"the gradient of the output (mp_group_idx={indices[r]})"
        known = {f"the columns for index {i}": part for i, part in enumerate(np.split(whole, size, axis=1))}
        cause = "rows instead of columns, or a slice that starts in the wrong place"
        check.array(given, whole, name="the argument, after the call,", rank=r, cause="an in-place operation, or swapped buffers")
        check.array(got, want, name=name, rank=r, cause=cause, contiguous=True, instead=known)
        check.sent(ranks.traffic[r], 0, name=name, rank=r, cause="every rank already has the whole gradient")


def compare_x(check, summands, size):
    """Call the function with each rank's partial sum, and expect its columns of the sum over its group."""
    answers = ranks.call(collect_x, [dict(grad_x=summand, size=size) for summand in summands], show=check.show)
    rtol = 1e-5 if summands[0].dtype == np.float32 else 1e-12
    for r, (got, given) in enumerate(answers):
        total = sum(summands[r // size * size :][:size])
        want = np.split(total, size, axis=1)[r % size]
        known = {f"the columns of rank {i} of the group": part for i, part in enumerate(np.split(total, size, axis=1))}
        known["the columns of this rank's own partial sum"] = np.split(summands[r], size, axis=1)[r % size]
        cause = "the blocks that MPI cuts are not columns, a block is not transposed back afterwards, or the sum is not over the group"
        check.array(given, summands[r], name="the argument, after the call,", rank=r, cause="an in-place operation, or swapped buffers")
        check.array(got, want, name="the gradient of the input", rank=r, cause=cause, rtol=rtol, contiguous=True, instead=known)
        needed = wire_bytes("Reduce_scatter", size, given.nbytes)
        check.sent(ranks.traffic[r], needed, name="the gradient of the input", rank=r, cause="one reduce-scatter is enough")


# %% Check tags=["given"]
for size in (4, 2):
    whole = np.arange(3 * 8, dtype=np.float32).reshape(3, 8)
    check = Check(f"naive_collect_backward_output, mp_size={size}")
    compare_output(check, whole, size)
    check.passed()
    check = Check(f"naive_collect_backward_x, mp_size={size}")
    compare_x(check, [whole * 100**r for r in range(4)], size)
    check.passed()

# %% [markdown] tags=["slide"]
# ## See it
#
# This is what your functions leave on each rank: its own columns and nothing else.

# %% Draw the gradient of the input tags=["folded"]
whole = np.arange(8 * 12.0).reshape(8, 12)
held = [got for got, _ in ranks.call(collect_x, [dict(grad_x=whole * (r == 0), size=4) for r in range(4)])]
plots.holdings(whole, held, "The gradient of the hidden layer, as your function leaves it", ("samples", "hidden units"))

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# An all-reduce followed by a slice would give the same result. Here is what a rank sends for a batch of 60 and 256 hidden units.


# %% Count the bytes tags=["folded"]
def all_reduce_and_slice(grad_x, size):
    total = np.empty_like(grad_x)
    comm.Allreduce(grad_x, total)
    return np.split(total, size, axis=1)[rank]


grad_x, moved = np.ones((60, 256), np.float32), []
for function in (collect_x, all_reduce_and_slice):
    ranks.call(function, dict(grad_x=grad_x, size=4))
    moved.append(ranks.traffic[0])
plots.traffic(moved, "What rank 0 sends for the gradient of the hidden layer", ["your function", "all-reduce, slice"])

# %% [markdown] tags=["slide-50"]
# And memory? The partial sum is as large as the gradient would be without model parallelism. Only a quarter of that stays.

# %% Draw the memory tags=["folded"]
held = {"partial sum": grad_x.nbytes, "what stays": ranks.call(collect_x, dict(grad_x=grad_x, size=4))[0][0].nbytes}
plots.bars(held, "Gradient of the hidden layer on each rank, batch of 60, 4 ranks", "bytes")

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. The forward pass all-gathers, and the backward pass reduce-scatters. Is that a coincidence? What is the backward pass of an all-reduce?
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
check = Check("naive_collect_backward_output", show=False)
for size in (1, 2, 4):
    for dtype in (np.float32, np.float64):
        batch, width = check.sizes(2, 2, 9)
        check.case = f"mp_size {size}, a batch of {batch}, {size * width} outputs, {np.dtype(dtype)}"
        compare_output(check, check.random.standard_normal((batch, size * width)).astype(dtype), size)
### END HIDDEN TESTS

# %% Test: the gradient of the input tags=["test"] points=10
### BEGIN HIDDEN TESTS
check = Check("naive_collect_backward_x", show=False)
for size in (1, 2, 4):
    for dtype in (np.float32, np.float64):
        batch, width = check.sizes(2, 2, 9)
        check.case = f"mp_size {size}, a batch of {batch}, {size * width} hidden units, {np.dtype(dtype)}"
        compare_x(check, [check.random.standard_normal((batch, size * width)).astype(dtype) for _ in range(4)], size)
### END HIDDEN TESTS


# %% Test: the whole layer tags=["test"] points=4
### BEGIN HIDDEN TESTS
def back(grad, w, size):
    group = mp_group(size)
    return naive_collect_backward_x(naive_collect_backward_output(grad, group.Get_rank(), size) @ w.T, group, size)


check = Check("the whole layer", show=False)
for size in (1, 2, 4):
    batch, width, out = check.sizes(3, 2, 9)
    grad, w = check.random.standard_normal((batch, size * out)), check.random.standard_normal((size * width, size * out))
    check.case = f"mp_size {size}, a batch of {batch}, a weight of shape {w.shape}"
    parts = [np.ascontiguousarray(part) for part in np.split(w, size, axis=1)]
    for r, got in enumerate(ranks.call(back, [dict(grad=grad, w=parts[r % size], size=size) for r in range(4)])):
        want = np.split(grad @ w.T, size, axis=1)[r % size]
        check.array(got, want, name="the gradient of the layer's input", rank=r, cause="see the tests of the two functions", rtol=1e-12)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
