# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 06 Megatron model parallelism, backward
#
# **You will build** the backward pass through Megatron's fc2: `megatron_collect_backward_output` and `megatron_collect_backward_x`. It is
# short. The point is to understand why so little is needed.
#
# *{points} points. About 20 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots
from course_lib.check import Check

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
# whole on every rank. Now look at a single term: $X_r W_r$ enters $Y$ with a factor of one, so the gradient of each *term* is also $G$.
#
# $$ \nabla W_r = X_r^T \, G, \qquad \nabla X_r = G \, W_r^T $$
#
# The picture shows $G \, W_r^T$ for actual matrices on your four ranks. Compare it with what fc1 needs on each rank.

# %% [markdown] tags=["slide"]
# ## A worked example
#
# Is the gradient of a partial output really $G$? We slightly change one number in one rank's partial output and see how this changes a loss
# that is computed from the sum. Try other ranks and other places.

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
# ## Your turn: the gradient of the output


# %% Exercise: megatron_collect_backward_output tags=["exercise"]
# %%px
def megatron_collect_backward_output(output_grad, mp_group_idx, mp_size):
    """Give a rank the gradient of its partial output of fc2.

    Parameters
    ----------
    output_grad : numpy.ndarray
        Shape ``(batch_size, out_dim)``: the output's gradient, the same on every rank.
        C-contiguous; do not modify it. You may return the array itself.
    mp_group_idx : int
        This rank's index in its model parallel group.
    mp_size : int
        Number of ranks in the group.

    Returns
    -------
    collected_output_grad : numpy.ndarray
        Shape ``(batch_size, out_dim)``, the dtype of `output_grad`, C-contiguous.
    """
    ### BEGIN SOLUTION
    return output_grad
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Your turn: the gradient of the input


# %% Exercise: megatron_collect_backward_x tags=["exercise"]
# %%px
def megatron_collect_backward_x(grad_x, mp_comm, mp_size):
    """Give a rank the gradient of its own hidden units.

    Parameters
    ----------
    grad_x : numpy.ndarray
        Shape ``(batch_size, part_in_dim)``: the gradient times the transpose of this
        rank's rows. C-contiguous; do not modify it. You may return the array itself.
    mp_comm : Communicator
        This rank's model parallel group.
    mp_size : int
        Number of ranks in it.

    Returns
    -------
    collected_grad_x : numpy.ndarray
        What fc1 needs on this rank. The dtype of `grad_x`, C-contiguous.
    """
    ### BEGIN SOLUTION
    return grad_x
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?
#
# The check multiplies as the layer does and compares the result with the gradient of the whole layer.


# %% A call on each rank tags=["given", "skip"]
def collect_output(array, index, size):
    return megatron_collect_backward_output(array, index, size), array


def collect_x(array, index, size):
    return megatron_collect_backward_x(array, mp_group(size), size), array


def layer(grad, rows, size):
    group = mp_group(size)
    own = megatron_collect_backward_output(grad, group.Get_rank(), size)
    return megatron_collect_backward_x(own @ rows.T, group, size)


def compare(check, function, arrays, size, name, cause):
    """Call the function with an array on each rank, and expect what the layer needs and no traffic."""
    answers = ranks.call(function, [dict(array=a, index=r % size, size=size) for r, a in enumerate(arrays)], show=check.show)
    for r, (got, given) in enumerate(answers):
        check.array(given, arrays[r], name="the argument, after the call,", rank=r, cause="an in-place operation, or swapped buffers")
        check.array(got, arrays[r], name=name, rank=r, cause=cause, contiguous=True)
        check.sent(ranks.traffic[r], 0, name=name, rank=r, cause="a rank may already have what it needs")


def compare_layer(check, batch, width, out, size, rtol):
    """Compare the gradient of the layer's input with the unsharded product."""
    grad, w = check.random.standard_normal((batch, out)), check.random.standard_normal((size * width, out))
    rows = np.split(w, size, axis=0)
    for r, got in enumerate(ranks.call(layer, [dict(grad=grad, rows=rows[r % size], size=size) for r in range(4)], show=check.show)):
        want = np.split(grad @ w.T, size, axis=1)[r % size]
        check.array(
            got, want, name="the gradient of the hidden units", rank=r, cause="a rank needs the gradient of its own hidden units", rtol=rtol
        )


OUTPUT = "the gradient of the output", "the naive way takes a slice; here every partial output has the same gradient"
INPUT = "the gradient of the input", "each rank computes the whole gradient of its own hidden units, not a partial sum"

# %% Check tags=["given"]
for size in (4, 2):
    arrays = [np.arange(12, dtype=np.float32).reshape(3, 4) for r in range(4)]
    for function, said in ((collect_output, OUTPUT), (collect_x, INPUT)):
        check = Check(f"megatron_{function.__name__.replace('collect', 'collect_backward')}, mp_size={size}")
        compare(check, function, arrays, size, *said)
        check.passed()
    check = Check(f"the whole layer, mp_size={size}")
    compare_layer(check, 3, 2, 5, size, 1e-12)
    check.passed()

# %% [markdown] tags=["slide"]
# ## See it
#
# Here your two functions run before and after the product, on real ranks: each rank ends up with the gradient of its own hidden units.

# %% Draw the gradient of the input tags=["folded"]
rows = np.split(weight, 4, axis=0)
held = ranks.call(layer, [dict(grad=grad, rows=rows[r], size=4) for r in range(4)])
plots.holdings(grad @ weight.T, held, "The gradient of the hidden layer, as your functions leave it", ("samples", "hidden units"))

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# Here is everything that a model parallel step exchanges in fc2, forward and backward, for a batch of 60, 256 hidden units and 12 outputs.
# The naive way makes the exchanges of parts 03 and 05; Megatron's way makes the one of part 04, plus any that your two functions make.


# %% Count the bytes tags=["folded"]
def megatron(size):
    group = mp_group(size)
    out = np.ones((60, 12), np.float32)
    group.Allreduce(out, np.empty_like(out))
    grad_x = megatron_collect_backward_output(out, group.Get_rank(), size) @ np.ones((12, 256 // size), np.float32)
    megatron_collect_backward_x(grad_x, group, size)


def naive(size):
    group = mp_group(size)
    for columns in (256, 12):
        group.Allgather(np.ones((60, columns // size), np.float32), np.empty((60, columns), np.float32))
    group.Reduce_scatter(np.ones((60, 256), np.float32), np.empty((60, 256 // size), np.float32))


moved = []
for function in (megatron, naive):
    ranks.call(function, dict(size=4))
    moved.append(ranks.traffic[0])
plots.traffic(moved, "What rank 0 sends in a step through fc2, mp_size 4", ["Megatron", "naive"])

# %% [markdown] tags=["slide-50"]
# And memory? In both styles a rank keeps a quarter of the hidden layer's gradient, but on the way there the naive style holds all of it.


# %% Draw the memory tags=["folded"]
def naive_gradient(grad, columns):
    return grad @ columns.T  # with this rank's columns of the weight: a partial sum for all hidden units


one = np.ones((256, 12), np.float32)
held = {"Megatron": ranks.call(layer, dict(grad=one[:60], rows=one[:64], size=4))[0]}
held["naive"] = ranks.call(naive_gradient, dict(grad=one[:60, :3], columns=one[:, :3]))[0]
sizes = {style: grad.nbytes for style, grad in held.items()}
plots.bars(sizes, "Hidden layer's gradient on a rank, at its largest, batch of 60, float32", "bytes")

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. fc1 is the first layer. If there were a layer before it, what would fc1's backward pass have to exchange? (In Shoeybi et al., 2019,
#    section 3, cited in part 04, this is the operator f.)
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
check = Check("megatron_collect_backward_output", show=False)
for size in (1, 2, 4):
    for dtype in (np.float32, np.float64):
        batch, width = check.sizes(2, 2, 9)
        check.case = f"mp_size {size}, a batch of {batch}, {size * width} outputs, {np.dtype(dtype)}"
        grads = check.random.standard_normal((4 // size, batch, size * width)).astype(dtype)
        compare(check, collect_output, [grads[r // size] for r in range(4)], size, *OUTPUT)
### END HIDDEN TESTS

# %% Test: the gradient of the input tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = Check("megatron_collect_backward_x", show=False)
for size in (1, 2, 4):
    for dtype in (np.float32, np.float64):
        batch, width = check.sizes(2, 2, 9)
        check.case = f"mp_size {size}, a batch of {batch}, {size * width} hidden units on each rank, {np.dtype(dtype)}"
        compare(check, collect_x, list(check.random.standard_normal((4, batch, size * width)).astype(dtype)), size, *INPUT)
### END HIDDEN TESTS

# %% Test: the whole layer tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = Check("the whole layer", show=False)
for size in (1, 2, 4):
    batch, width, out = check.sizes(3, 2, 9)
    check.case = f"mp_size {size}, a batch of {batch}, {size * width} hidden units, {out} outputs"
    compare_layer(check, batch, width, out, size, 1e-12)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
