# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 03 Naive model parallelism, forward
#
# **You will build** the two functions that let four ranks compute one layer together: `naive_collect_forward_input` and
# `naive_collect_forward_output`.
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
# So the ranks collect $X$ before fc2, and they collect $Y$ after it. That is the naive way. It is correct, but it sends a lot of data.

# %% [markdown] tags=["slide"]
# ## A worked example
#
# `Allgather` brings the parts together. But MPI knows nothing about rows and columns: it puts the *memory* of rank 0 first, then that of
# rank 1, and so on. Here, each rank has two hidden units of the same two samples. Before you run the next cells: where in `received` is the
# second sample?

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
# The result must be **C-contiguous**, that is, stored row by row in memory, because MPI needs it that way in the next exchange. `x.copy()`
# always is, and `np.ascontiguousarray` copies only if it has to.


# %% Exercise: naive_collect_forward_input tags=["exercise", "slide-50"]
# %%px
def naive_collect_forward_input(x, mp_comm, mp_size):
    """Collect the input of fc2: the columns of all ranks, side by side in rank order.

    Parameters
    ----------
    x : numpy.ndarray
        Shape ``(batch_size, part_in_dim)``: this rank's columns.
        C-contiguous; do not modify it.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Number of ranks in it.

    Returns
    -------
    collected_x : numpy.ndarray
        Shape ``(batch_size, part_in_dim * mp_size)``, the dtype of `x`,
        C-contiguous. The same on all ranks of the group.
    """
    ### BEGIN SOLUTION
    parts = np.empty((mp_size, *x.shape), x.dtype)
    mp_comm.Allgather(x, parts)
    return np.concatenate(list(parts), axis=1)
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Your turn: the output of fc2
#
# Now each rank has its columns of the output, for all samples.


# %% Exercise: naive_collect_forward_output tags=["exercise", "slide-50"]
# %%px
def naive_collect_forward_output(out, mp_comm, mp_size):
    """Collect the output of fc2: the columns of all ranks, side by side in rank order.

    Parameters
    ----------
    out : numpy.ndarray
        Shape ``(batch_size, part_out_dim)``: this rank's columns.
        C-contiguous; do not modify it.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Number of ranks in it.

    Returns
    -------
    collected_out : numpy.ndarray
        Shape ``(batch_size, part_out_dim * mp_size)``, the dtype of `out`,
        C-contiguous. The same on all ranks of the group.
    """
    ### BEGIN SOLUTION
    parts = np.empty((mp_size, *out.shape), out.dtype)
    mp_comm.Allgather(out, parts)
    return np.ascontiguousarray(parts.transpose(1, 0, 2)).reshape(len(out), -1)
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?
#
# `collect_input` and `collect_output` run on each rank and call your functions. They also return their argument, so that the check can see
# whether you modified it.


# %% A call on each rank tags=["given", "skip"]
def collect_input(x, size):
    return naive_collect_forward_input(x, mp_group(size), size), x


def collect_output(x, size):
    return naive_collect_forward_output(x, mp_group(size), size), x


def compare(check, function, name, whole, size):
    """Split `whole`, of shape (groups, batch, columns), among the ranks of each group, call the function, and expect all of it back."""
    parts = [np.ascontiguousarray(np.split(whole[r // size], size, axis=1)[r % size]) for r in range(4)]
    answers = ranks.call(function, [dict(x=part, size=size) for part in parts], show=check.show)
    for r, answer in enumerate(answers):
        got, given = answer
        group = parts[r // size * size :][:size]
        known = {
            "the parts as MPI delivers them, one after the other": np.ravel(group).reshape(whole[0].shape),
            "only this rank's own part": parts[r],
        }
        known["the parts stacked on top of each other"] = np.concatenate(group)
        cause = "parts stacked on top of each other, or in the wrong order"
        check.array(given, parts[r], name="the argument, after the call,", rank=r, cause="an in-place operation, or swapped buffers")
        check.array(got, whole[r // size], name=name, rank=r, cause=cause, contiguous=True, instead=known)
        needed = wire_bytes("Allgather", size, whole[0].nbytes)
        check.sent(ranks.traffic[r], needed, name=name, rank=r, cause="one all-gather of the parts is enough")


# %% Check tags=["given"]
for size in (4, 2):
    whole = np.arange(4 // size * 3 * 8, dtype=np.float32).reshape(4 // size, 3, 8)
    for function, name in ((collect_input, "naive_collect_forward_input"), (collect_output, "naive_collect_forward_output")):
        check = Check(f"{name}, mp_size={size}")
        compare(check, function, f"the result of {name}", whole, size)
        check.passed()

# %% [markdown] tags=["slide"]
# ## See it
#
# This is what your function really leaves on each rank: now every rank has all the columns.

# %% Draw the collected input tags=["folded"]
whole = np.arange(8 * 12.0).reshape(8, 12)
answers = ranks.call(collect_input, [dict(x=np.ascontiguousarray(whole[:, 3 * r : 3 * r + 3]), size=4) for r in range(4)])
plots.holdings(whole, [got for got, _ in answers], "After your all-gather, each rank holds all the columns", ("samples", "hidden units"))

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# There is another way: each rank writes its columns into an array of zeros, and the ranks all-reduce that array. The result is just as
# correct. Here is what a rank sends for a batch of 60 samples and 256 hidden units.


# %% Count the bytes tags=["folded"]
def padded(x, size):
    whole = np.zeros((len(x), size * x.shape[1]), x.dtype)
    whole[:, rank * x.shape[1] :][:, : x.shape[1]] = x
    comm.Allreduce(whole.copy(), whole)
    return whole.nbytes


x, moved = np.ones((60, 64), np.float32), []
for function in (collect_input, padded):
    ranks.call(function, dict(x=x, size=4))
    moved.append(ranks.traffic[0])
plots.traffic(moved, "What rank 0 sends to collect the input of fc2", ["your function", "zeros and all-reduce"])

# %% [markdown] tags=["slide-50"]
# And memory? After the all-gather, each rank holds as many hidden units as it would without any model parallelism.

# %% Draw the memory tags=["folded"]
collected = ranks.call(collect_input, dict(x=x, size=4))[0][0]
plots.bars({"its columns": x.nbytes, "collected": collected.nbytes}, "Hidden units on each rank, batch of 60, 4 ranks", "bytes")

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. The traffic grows with the batch, not with the weight. For which layers is this cheaper than sending the weights?
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
check = Check("naive_collect_forward_input", show=False)
for size in (1, 2, 4):
    for dtype in (np.float32, np.float64):
        batch, width = check.sizes(2, 2, 9)
        whole = check.random.standard_normal((4 // size, batch, size * width)).astype(dtype)
        check.case = f"mp_size {size}, a batch of {batch}, {width} columns on each rank, {whole.dtype}"
        compare(check, collect_input, "the collected input", whole, size)
### END HIDDEN TESTS

# %% Test: the collected output tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = Check("naive_collect_forward_output", show=False)
for size in (1, 2, 4):
    for dtype in (np.float32, np.float64):
        batch, width = check.sizes(2, 2, 9)
        whole = check.random.standard_normal((4 // size, batch, size * width)).astype(dtype)
        check.case = f"mp_size {size}, a batch of {batch}, {width} columns on each rank, {whole.dtype}"
        compare(check, collect_output, "the collected output", whole, size)
### END HIDDEN TESTS


# %% Test: the whole layer tags=["test"] points=3
### BEGIN HIDDEN TESTS
def layer(x, w, size):
    group = mp_group(size)
    return naive_collect_forward_output(naive_collect_forward_input(x, group, size) @ w, group, size)


check = Check("the whole layer", show=False)
for size in (1, 2, 4):
    batch, width, out = check.sizes(3, 2, 9)
    x, w = check.random.standard_normal((batch, size * width)), check.random.standard_normal((size * width, size * out))
    check.case = f"mp_size {size}, a batch of {batch}, a weight of shape {w.shape}"
    xs, ws = ([np.ascontiguousarray(part) for part in np.split(whole, size, axis=1)] for whole in (x, w))
    for r, got in enumerate(ranks.call(layer, [dict(x=xs[r % size], w=ws[r % size], size=size) for r in range(4)])):
        check.array(got, x @ w, name="the output of the layer", rank=r, cause="see the tests of the two functions", rtol=1e-12)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
