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
    """This rank's group, when every `size` consecutive ranks form one."""
    me = comm.Get_rank()  # and not `rank`, which another cell may have changed
    return comm.Split(color=me // size, key=me)


# %% Draw the hidden activations tags=["given", "slide"]
hidden = np.arange(8 * 12).reshape(8, 12)
held = ranks.call(my_part, dict(whole=hidden, axis=1))
plots.holdings(hidden, held, "Columns of the hidden layer, as fc1 leaves them", ("samples", "hidden units"))

# %% Draw the weight of fc2 tags=["given", "slide"]
weight = np.arange(12 * 5).reshape(12, 5)
held = ranks.call(my_part, dict(whole=weight, axis=0))
plots.holdings(weight, held, "Rows of the weight of fc2, in Megatron style", ("hidden units", "outputs"))

# %% [markdown]
# fc1 leaves each rank with a few *columns* of the hidden layer. Give it the *rows* of fc2's weight that belong to these hidden units, and it
# can multiply at once:
#
# $$ X W = \sum_{r} X_{\text{columns of rank } r} \, W_{\text{rows of rank } r} $$
#
# Each rank's product has the shape of the whole output, and is one summand of it. This is how Megatron-LM splits a perceptron (Shoeybi et
# al., 2019, section 3): the first weight by columns, the second by rows.

# %% [markdown] tags=["slide"]
# ## A worked example
#
# One sample, four hidden units, two outputs. Each rank has one hidden unit and its row of the weight. Which numbers must be added to give
# the output? Change the weight and look again.

# %% Multiply the parts
# %%px
x = np.array([[1.0, 2.0, 3.0, 4.0]])
w = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
summand = x[:, rank : rank + 1] @ w[rank : rank + 1]
product = x @ w

# %% Draw the summands tags=["given", "slide"]
plots.exchange(ranks.pull("summand"), ranks.pull("product"), "Before: each rank's product. After: the output, which is their sum")

# %% [markdown] tags=["slide-50"]
# ## Your turn: the input of fc2
#
# What does a rank have to receive, before it can multiply? Send no more than that.


# %% Exercise: megatron_collect_forward_input tags=["exercise"]
# %%px
def megatron_collect_forward_input(x, mp_comm, mp_size):
    """Give a rank what it needs as the input of fc2, whose weight is split by rows.

    Parameters
    ----------
    x : numpy.ndarray
        Shape ``(batch_size, part_in_dim)``: this rank's columns of the hidden layer.
        C-contiguous; leave it as it is. It may be returned itself.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Ranks in it.

    Returns
    -------
    collected_x : numpy.ndarray
        What is multiplied by this rank's rows of the weight,
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
        Shape ``(batch_size, out_dim)``: this rank's summand of the output.
        C-contiguous; leave it as it is.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Ranks in it.

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
# As in part 03, what runs on the ranks also returns what it was given.


# %% A call on each rank tags=["given", "skip"]
def collect_input(x, size):
    return megatron_collect_forward_input(x, mp_group(size), size), x


def collect_output(x, size):
    return megatron_collect_forward_output(x, mp_group(size), size), x


def compare_input(check, parts, size):
    """Call with each rank's part, and expect that part, and no traffic."""
    answers = ranks.call(collect_input, [dict(x=part, size=size) for part in parts], show=check.show)
    for r, (got, given) in enumerate(answers):
        check.array(given, parts[r], name="the argument, after the call,", rank=r, cause="an operation in place, or swapped buffers")
        check.array(got, parts[r], name="the input of fc2", rank=r, cause="more than this rank's rows of the weight need", contiguous=True)
        check.sent(ranks.traffic[r], 0, name="the input of fc2", rank=r, cause="what a rank needs may be there already")


def compare_output(check, summands, size):
    """Call with each rank's summand, and expect the sum over its group."""
    answers = ranks.call(collect_output, [dict(x=summand, size=size) for summand in summands], show=check.show)
    rtol = 1e-5 if summands[0].dtype == np.float32 else 1e-12
    for r, (got, given) in enumerate(answers):
        total = sum(summands[r // size * size :][:size])
        known, cause = {"this rank's own summand": summands[r], "the sum over all ranks": sum(summands)}, "not the sum over the group"
        check.array(given, summands[r], name="the argument, after the call,", rank=r, cause="an operation in place, or swapped buffers")
        check.array(got, total, name="the output of fc2", rank=r, cause=cause, rtol=rtol, contiguous=True, instead=known)
        needed = wire_bytes("Allreduce", size, total.nbytes + 2 * size * total.itemsize)  # some pad the array
        check.sent(ranks.traffic[r], needed, name="the output of fc2", rank=r, cause="one all-reduce sends least")


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

# %% Draw the output tags=["given"]
summands = [np.array([[1.0 * r, 10.0]]) for r in range(4)]
answers = ranks.call(collect_output, [dict(x=summand, size=4) for summand in summands])
plots.exchange(summands, [got for got, _ in answers], "Your megatron_collect_forward_output")

# %% [markdown] tags=["skip"]
# Hidden tests run when your notebook is graded. They draw other sizes, dtypes and groups, and also count the bytes that you send.

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
    check.case = f"mp_size {size}, a batch of 5, 7 outputs"  # which 2 and 4 do not divide
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
    batch, out = 2 * batch + 1, 2 * out + 1  # which no group divides
    x, w = check.random.standard_normal((batch, size * width)), check.random.standard_normal((size * width, out))
    check.case = f"mp_size {size}, a batch of {batch}, a weight of shape {w.shape}"
    xs, ws = [np.ascontiguousarray(part) for part in np.split(x, size, axis=1)], np.split(w, size, axis=0)
    for r, got in enumerate(ranks.call(layer, [dict(x=xs[r % size], w=ws[r % size], size=size) for r in range(4)])):
        check.array(got, x @ w, name="the output of the layer", rank=r, cause="see the tests of the two functions", rtol=1e-12)
### END HIDDEN TESTS

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# fc2 with a batch of 60, 256 hidden units and 12 outputs. The naive way gathers the hidden units and the outputs; yours sums the outputs.


# %% Count the bytes tags=["given"]
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
# In memory: the naive way holds the whole hidden layer on each rank, Megatron's way a part. Both hold a part of the weight.

# %% Draw the memory tags=["given"]
held = {"naive: whole": 60 * 256 * 4}
for size in (2, 4):
    x = np.ones((60, 256 // size), np.float32)
    held[f"Megatron, mp_size {size}"] = ranks.call(collect_input, dict(x=x, size=size))[0][0].nbytes
plots.bars(held, "The input of fc2 on each rank, batch of 60", "bytes")

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. The bias of fc2 is not split. What goes wrong when every rank adds it to its summand?
# 2. ReLU stands between fc1 and fc2, and needs no communication. What if it were a softmax over the hidden units?
#
# The last cells save your functions to `func_impl.py`, where part 10 finds them, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
from course_lib import saving

saving.save(ranks, "megatron_collect_forward_input", "megatron_collect_forward_output")

# %% Stop the ranks tags=["given"]
ranks.stop()
