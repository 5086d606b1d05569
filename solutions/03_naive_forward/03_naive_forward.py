# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 03 Naive model parallelism, forward
#
# **You will build** the two functions that let four ranks compute one layer together: `naive_collect_forward_input` and
# `naive_collect_forward_output`. On the way you get three words for how an array lies on a group of ranks; all later parts use them.
#
# *{points} points. About 45 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, placement, plots
from course_lib.check.model_parallel import on_ranks
from course_lib.check.model_parallel.forward import ForwardCheck

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


# %% Draw the hidden activations tags=["folded", "slide"]
whole = np.arange(8 * 12).reshape(8, 12)
held = ranks.call(my_columns, {"whole": whole})
plots.holdings(whole, held, "After fc1, each rank holds its columns of the hidden layer", ("samples", "hidden units"))

# %% [markdown]
# With `mp_size=4`, part 02 gives each rank a quarter of the columns of fc1's weight. So each rank computes a quarter of the columns of the
# output of the first layer, **fc1**, for all samples in the batch. In the picture, four ranks share 12 hidden units.
#
# The second layer, **fc2**, has a weight that is split by columns as well. To multiply by its columns, a rank needs *all* hidden units:
#
# $$ Y = X W, \qquad Y_{\text{columns of rank } r} = X \, W_{\text{columns of rank } r} $$
#
# So the ranks collect $X$ before fc2, and they collect $Y$ after it. That is correct, but it sends a lot of data, and so CMU's
# assignment, which this exercise follows, calls it naive. Elsewhere, "naive model parallelism" often means something else: whole
# layers on different devices, each waiting for the one before. Here, that is where part 18 starts.

# %% [markdown] tags=["slide"]
# ## Three words
#
# Of every array we ask, for each group of ranks, how it is placed there. It is
#
# - **replicated**: each rank has all of it;
# - **sharded** along a dimension: each rank has a part, in the order of the ranks;
# - **partial**: each rank has an array of full size, which is one term of a sum. The array itself is the sum, and no rank has it yet.
#
# If you mistake partial for replicated, nothing crashes. The results are just wrong.

# %% Draw the three placements tags=["folded", "slide"]
kinds = placement.replicated, placement.sharded(1), placement.partial
plots.kinds({kind.name: {"mp": kind} for kind in kinds}, {"mp": 4}, "One matrix on four ranks, placed in three ways")

# %% [markdown] tags=["slide-50"]
# The placement can be found from what the ranks hold. What does the next cell print for the hidden layer in the first picture? And for
# `[whole] * 4`, or `[whole / 4] * 4`?

# %% Which placement is it?
print(*placement.kinds_of(held, whole))

# %% [markdown] tags=["slide"]
# A collective takes an array from one placement to another:
#
# | from | to | by |
# |---|---|---|
# | sharded | replicated | all-gather |
# | partial | replicated | all-reduce |
# | partial | sharded | reduce-scatter |
# | replicated | sharded | nothing is sent: each rank takes its slice |
#
# Each function of parts 03 to 07 does one line of this table, or leaves the array as it is. Find out what the ranks have and what they
# need, and you know what to call. Part 05 adds the other half of each line: what happens to the gradient. Here are the two lines of this
# part.

# %% Draw the lines of this part tags=["folded", "slide-50"]
lines = [placement.LAYER_OPERATORS[name] for name in ("naive input", "naive output")]
plots.operators(lines, "What your two functions do to an array", ranks=4, rows=False, passes=["forward"])

# %% [markdown] tags=["slide"]
# ## A worked example
#
# `Allgather` brings the parts together. Given plain contiguous arrays, MPI knows nothing about rows and columns: it puts the *memory* of
# rank 0 first, then that of rank 1, and so on. Here, each rank has two hidden units of the same two samples. Before you run the next cells:
# where in `received` is the second sample?

# %% Gather the parts
# %%px
# Row 0 is the first sample, row 1 the second.
part = np.array([[1, 2], [11, 12]]) + 2 * rank
received = np.empty((4, 2, 2), part.dtype)
comm.Allgather(part, received)

# %% Draw what MPI delivers tags=["folded", "slide"]
plots.exchange(ranks.pull("part"), ranks.pull("received"), "Allgather: the parts come one after the other")

# %% [markdown]
# The first sample is 1, 2, 3 ... 8. In `received`, its numbers are not next to each other: `received[r]` is the part of rank r. What you
# want is an array of shape `(2, 8)` whose row 0 is the first sample. Both `np.concatenate` and `np.transpose` can help. (`%%px --targets 0`
# runs a cell on rank 0 only.)

# %% Put the parts side by side tags=["slide"]
# %%px --targets 0
print(received[0])
print(received[1])
print(np.concatenate([received[0], received[1]], axis=1))

# %% [markdown] tags=["slide-50"]
# ## Your turn: the input of fc2
#
# The result must be **C-contiguous**, that is, stored row by row in memory, because the next exchange needs it that way. The method
# `x.copy()` always gives such an array, and `np.ascontiguousarray(x)` copies only if it has to.


# %% Exercise: naive_collect_forward_input tags=["exercise", "slide-50"]
# %%px
def naive_collect_forward_input(x, mp_comm, mp_size):
    """Collect the input of fc2: the columns of all ranks, side by side in rank order.

    Parameters
    ----------
    x : numpy.ndarray
        Shape ``(batch_size, part_in_dim)``: this rank's columns.
        Floating point or integer, C-contiguous; do not modify it.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Number of ranks in it.

    Returns
    -------
    collected_x : numpy.ndarray
        Shape ``(batch_size, part_in_dim * mp_size)``, the dtype of `x`,
        C-contiguous. The same on all ranks of the group.

    Notes
    -----
    A rank sends at most what one all-gather of the parts sends, and 64 bytes. It makes
    at most 8 calls of the communicator.
    """
    ### BEGIN SOLUTION
    parts = np.empty((mp_size, *x.shape), x.dtype)
    mp_comm.Allgather(x, parts)
    return np.concatenate(list(parts), axis=1)
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Your turn: the output of fc2, as a question of memory
#
# The second line of the table is the same, and so is the collective. So think about memory this time. An array's *strides* say how many
# numbers one step along each axis skips. A transpose changes the strides and moves nothing: it is a *view*. Only a copy moves numbers.
# Guess the four lines that the next cell prints, above all the last one.

# %% What moves, and what does not tags=["slide-50"]
# %%px --targets 0
view = received[0].T
for array in (received[0], view, view.copy(), np.copy(view)):
    strides = [stride // array.itemsize for stride in array.strides]
    print(array.tolist(), "strides", strides, "contiguous:", array.flags.c_contiguous)

# %% [markdown]
# The function `np.copy` keeps the order in which its argument is stored; the method `.copy()` does not.
#
# Now collect the output without `concatenate`. `received` has the axes (ranks, samples, columns). In which order must they be, so that each
# row of the result is one piece of memory? And when is anything copied? There is another way, too: rearrange `out` *before* the exchange,
# so that MPI's order is the right one.


# %% Exercise: naive_collect_forward_output tags=["exercise", "slide-50"]
# %%px
def naive_collect_forward_output(out, mp_comm, mp_size):
    """Collect the output of fc2: the columns of all ranks, side by side in rank order.

    Parameters
    ----------
    out : numpy.ndarray
        Shape ``(batch_size, part_out_dim)``: this rank's columns.
        Floating point or integer, C-contiguous; do not modify it.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Number of ranks in it.

    Returns
    -------
    collected_out : numpy.ndarray
        Shape ``(batch_size, part_out_dim * mp_size)``, the dtype of `out`,
        C-contiguous. The same on all ranks of the group.

    Notes
    -----
    A rank sends at most what one all-gather of the parts sends, and 64 bytes. It makes
    at most 8 calls of the communicator.
    """
    ### BEGIN SOLUTION
    parts = np.empty((mp_size, *out.shape), out.dtype)
    mp_comm.Allgather(out, parts)
    return np.ascontiguousarray(parts.transpose(1, 0, 2)).reshape(len(out), -1)
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?

# %% Check tags=["given"]
for function in ("naive_collect_forward_input", "naive_collect_forward_output"):
    for size in (4, 2):
        ForwardCheck(f"{function}, mp_size={size}", ranks).gathered(function, size).passed()

# %% [markdown] tags=["slide"]
# ## See it
#
# This is what your function really leaves on each rank: now every rank has all the columns.

# %% Draw the collected input tags=["folded"]
whole = np.arange(8 * 12.0).reshape(8, 12)
given = dict(function="naive_collect_forward_input", size=4)
parts = [np.ascontiguousarray(part) for part in np.split(whole, 4, axis=1)]
answers = ranks.call(on_ranks.collect, [dict(array=part, **given) for part in parts])
plots.holdings(whole, [got for got, _ in answers], "After your all-gather, each rank holds all the columns", ("samples", "hidden units"))

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# There is another way: each rank writes its columns into an array of zeros, and the ranks all-reduce that array. The result is just as
# correct. Here is what a rank sends in each case. Change the numbers: what does twice the batch do?


# %% Count the bytes tags=["folded"]
batch, hidden_units = 60, 256


def padded(array, size, function=None):
    whole = np.zeros((len(array), size * array.shape[1]), array.dtype)
    whole[:, rank * array.shape[1] :][:, : array.shape[1]] = array
    comm.Allreduce(whole.copy(), whole)


x, moved = np.ones((batch, hidden_units // 4), np.float32), []
for collect in (on_ranks.collect, padded):
    ranks.call(collect, dict(array=x, **given))
    moved.append(ranks.traffic[0])
title = f"What rank 0 sends to collect the input of fc2, {batch} x {hidden_units} float32"
plots.traffic(moved, title, ["your function", "zeros and all-reduce"])

# %% [markdown] tags=["slide-50"]
# And memory? After the all-gather, each rank holds as many hidden units as it would without any model parallelism.

# %% Draw the memory tags=["folded"]
collected = ranks.call(on_ranks.collect, dict(array=x, **given))[0][0]
plots.bars({"its columns": x.nbytes, "collected": collected.nbytes}, f"Hidden units on each rank, batch of {batch}, 4 ranks", "bytes")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - **PyTorch**: a `DTensor` has our three placements, `Replicate()`, `Shard(dim)` and `Partial()`
#   (`torch/distributed/tensor/placement_types.py`). Its `redistribute` goes from one to another by the lines of our table, and by an
#   all-to-all from one sharded dimension to another.
# - **Megatron-LM**: `megatron/core/tensor_parallel/mappings.py` has both lines of this part, along the last dimension:
#   `all_gather_last_dim_from_tensor_parallel_region` (X) and `gather_from_tensor_model_parallel_region` (Y). They differ in backward.
#   `ColumnParallelLinear(gather_output=True)` collects its output; Megatron's own MLP does not (part 04).
# - **JAX**: `jax.lax.all_gather(x, "mp", axis=1, tiled=True)` concatenates. Without `tiled`, it stacks on a new axis, as `received` here.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. What is collected grows with the batch, not with the weight. Count the numbers that fc2 collects, input *and* output. For which batches
#    is that less than collecting fc2's weight instead?
# 2. Every rank computes with all hidden units. What would have to be different about fc2 for a rank to need only its own?
#
# The last cells save your functions to `func_impl.py`, where part 10 finds them, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
from course_lib import saving

saving.save(ranks, "naive_collect_forward_input", "naive_collect_forward_output")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes, dtypes and groups, and also count the bytes you send.

# %% Test: the collected input tags=["test"] points=6
### BEGIN HIDDEN TESTS
function = "naive_collect_forward_input"
check = ForwardCheck(function, ranks, show=False).gathered(function, 1, 2, 3, 4)
### END HIDDEN TESTS

# %% Test: the collected output tags=["test"] points=6
### BEGIN HIDDEN TESTS
function = "naive_collect_forward_output"
check = ForwardCheck(function, ranks, show=False).gathered(function, 1, 2, 3, 4)
### END HIDDEN TESTS

# %% Test: the whole layer tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = ForwardCheck("the whole layer", ranks, show=False).layer("naive", 1, 2, 4)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
