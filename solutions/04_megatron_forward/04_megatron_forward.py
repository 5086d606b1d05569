# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 04 Megatron model parallelism, forward
#
# **You will build** the same layer with far less traffic, by splitting the second weight by rows:
# `megatron_collect_forward_input` and `megatron_collect_forward_output`.
#
# *{points} points. About 30 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots
from course_lib.check import Check
from course_lib.traffic import wire_bytes

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
# fc1 leaves each rank with a few *columns* of the hidden layer. Give the rank the *rows* of fc2's weight that belong to these hidden units,
# and it can multiply right away:
#
# $$ X W = \sum_{r} X_{\text{columns of rank } r} \, W_{\text{rows of rank } r} $$
#
# Each rank's product already has the shape of the whole output, but it is only one term of the sum: a *partial* output. This is how
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
# ## Your turn: the input of fc2
#
# What does a rank have to receive before it can multiply? Send no more than that.


# %% Exercise: megatron_collect_forward_input tags=["exercise"]
# %%px
def megatron_collect_forward_input(x, mp_comm, mp_size):
    """Give a rank the input it needs for fc2, whose weight is split by rows.

    Parameters
    ----------
    x : numpy.ndarray
        Shape ``(batch_size, part_in_dim)``: this rank's columns of the hidden layer.
        C-contiguous; do not modify it. You may return the array itself.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Number of ranks in it.

    Returns
    -------
    collected_x : numpy.ndarray
        What this rank multiplies by its rows of the weight, which have shape
        ``(part_in_dim, out_dim)``. The dtype of `x`, C-contiguous.
    """
    ### BEGIN SOLUTION
    return x
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Your turn: the output of fc2


# %% Exercise: megatron_collect_forward_output tags=["exercise"]
# %%px
def megatron_collect_forward_output(out, mp_comm, mp_size):
    """Turn the ranks' products into the output of fc2.

    Parameters
    ----------
    out : numpy.ndarray
        Shape ``(batch_size, out_dim)``: this rank's partial output.
        C-contiguous; do not modify it.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Number of ranks in it.

    Returns
    -------
    collected_out : numpy.ndarray
        Shape ``(batch_size, out_dim)``, the dtype of `out`, C-contiguous.
        The same on all ranks of the group.
    """
    ### BEGIN SOLUTION
    total = np.empty_like(out)
    mp_comm.Allreduce(out, total)
    return total
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?
#
# As in part 03, the functions that run on the ranks also return their argument.


# %% A call on each rank tags=["given", "skip"]
def collect_input(x, size):
    return megatron_collect_forward_input(x, mp_group(size), size), x


def collect_output(x, size):
    return megatron_collect_forward_output(x, mp_group(size), size), x


def compare_input(check, parts, size):
    """Call the function with each rank's part, and expect that part back and no traffic."""
    answers = ranks.call(collect_input, [dict(x=part, size=size) for part in parts], show=check.show)
    for r, (got, given) in enumerate(answers):
        check.array(given, parts[r], name="the argument, after the call,", rank=r, cause="an in-place operation, or swapped buffers")
        check.array(got, parts[r], name="the input of fc2", rank=r, cause="more columns than this rank's rows need", contiguous=True)
        check.sent(ranks.traffic[r], 0, name="the input of fc2", rank=r, cause="a rank may already have what it needs")


def compare_output(check, summands, size):
    """Call the function with each rank's partial output, and expect the sum over its group."""
    answers = ranks.call(collect_output, [dict(x=summand, size=size) for summand in summands], show=check.show)
    rtol = 1e-5 if summands[0].dtype == np.float32 else 1e-12
    for r, (got, given) in enumerate(answers):
        total = sum(summands[r // size * size :][:size])
        known, cause = {"this rank's partial output": summands[r], "the sum over all ranks": sum(summands)}, "a sum over the wrong group"
        check.array(given, summands[r], name="the argument, after the call,", rank=r, cause="an in-place operation, or swapped buffers")
        check.array(got, total, name="the output of fc2", rank=r, cause=cause, rtol=rtol, contiguous=True, instead=known)
        needed = wire_bytes("Allreduce", size, total.nbytes + 2 * size * total.itemsize)  # some answers pad the array
        check.sent(ranks.traffic[r], needed, name="the output of fc2", rank=r, cause="one all-reduce is enough")


# %% Check tags=["given"]
for size in (4, 2):
    parts = [np.arange(12, dtype=np.float32).reshape(3, 4) + 100 * r for r in range(4)]
    check = Check(f"megatron_collect_forward_input, mp_size={size}")
    compare_input(check, parts, size)
    check.passed()
    check = Check(f"megatron_collect_forward_output, mp_size={size}")
    compare_output(check, parts, size)
    check.passed()

# %% [markdown] tags=["slide"]
# ## See it

# %% Draw the output tags=["folded"]
summands = [np.array([[1.0 * r, 10.0]]) for r in range(4)]
answers = ranks.call(collect_output, [dict(x=summand, size=4) for summand in summands])
plots.exchange(summands, [got for got, _ in answers], "Your megatron_collect_forward_output")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# Take fc2 with a batch of 60, 256 hidden units and 12 outputs. The naive way gathers the hidden units and the outputs; yours sums the
# outputs.


# %% Count the bytes tags=["folded"]
def megatron(x, w, size):
    group = mp_group(size)
    megatron_collect_forward_output(megatron_collect_forward_input(x, group, size) @ w, group, size)


def naive(x, out, size):
    group = mp_group(size)
    for part in (x, out):
        group.Allgather(part, np.empty((size, *part.shape), part.dtype))


moved, labels = [], []
for size in (2, 4):
    x, w, out = np.ones((60, 256 // size), np.float32), np.ones((256 // size, 12), np.float32), np.ones((60, 12 // size), np.float32)
    for name, function, arguments in (("Megatron", megatron, dict(x=x, w=w)), ("naive", naive, dict(x=x, out=out))):
        ranks.call(function, arguments | {"size": size})
        moved.append(ranks.traffic[0])
        labels.append(f"{name}, mp_size {size}")
plots.traffic(moved, "What rank 0 sends in the forward pass of fc2", labels)

# %% [markdown] tags=["slide-50"]
# And memory? The naive way holds the whole hidden layer on each rank, Megatron's way only a part of it. Both hold only a part of the
# weight.

# %% Draw the memory tags=["folded"]
held = {"naive: whole": 60 * 256 * 4}
for size in (2, 4):
    x = np.ones((60, 256 // size), np.float32)
    held[f"Megatron, mp_size {size}"] = ranks.call(collect_input, dict(x=x, size=size))[0][0].nbytes
plots.bars(held, "The input of fc2 on each rank, batch of 60", "bytes")

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
check = Check("megatron_collect_forward_input", show=False)
for size in (1, 2, 4):
    for dtype in (np.float32, np.float64):
        batch, width = check.sizes(2, 2, 9)
        check.case = f"mp_size {size}, a batch of {batch}, {width} columns on each rank, {np.dtype(dtype)}"
        compare_input(check, [check.random.standard_normal((batch, width)).astype(dtype) for _ in range(4)], size)
### END HIDDEN TESTS

# %% Test: the output tags=["test"] points=7
### BEGIN HIDDEN TESTS
check = Check("megatron_collect_forward_output", show=False)
for size in (1, 2, 4):
    for dtype in (np.float32, np.float64):
        batch, width = check.sizes(2, 5, 12)
        check.case = f"mp_size {size}, a batch of {batch}, {width} outputs, {np.dtype(dtype)}"
        compare_output(check, [check.random.standard_normal((batch, width)).astype(dtype) for _ in range(4)], size)
    check.case = f"mp_size {size}, a batch of 5, 7 outputs"  # neither 2 nor 4 divides these
    compare_output(check, list(check.random.standard_normal((4, 5, 7))), size)
### END HIDDEN TESTS


# %% Test: the whole layer tags=["test"] points=3
### BEGIN HIDDEN TESTS
def layer(x, w, size):
    group = mp_group(size)
    return megatron_collect_forward_output(megatron_collect_forward_input(x, group, size) @ w, group, size)


check = Check("the whole layer", show=False)
for size in (1, 2, 4):
    width, batch, out = check.sizes(3, 2, 6)
    batch, out = 2 * batch + 1, 2 * out + 1  # no group size divides these
    x, w = check.random.standard_normal((batch, size * width)), check.random.standard_normal((size * width, out))
    check.case = f"mp_size {size}, a batch of {batch}, a weight of shape {w.shape}"
    xs, ws = [np.ascontiguousarray(part) for part in np.split(x, size, axis=1)], np.split(w, size, axis=0)
    for r, got in enumerate(ranks.call(layer, [dict(x=xs[r % size], w=ws[r % size], size=size) for r in range(4)])):
        check.array(got, x @ w, name="the output of the layer", rank=r, cause="see the tests of the two functions", rtol=1e-12)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
