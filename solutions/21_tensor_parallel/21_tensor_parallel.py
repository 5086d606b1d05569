# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 21 A tensor parallel transformer block
#
# **You will build** what lets four ranks train one transformer block: `copy_to_group` and `reduce_from_group` (Megatron's f and g), and a loss
# whose vocabulary is split.
#
# *{points} points. About 60 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, placement, plots
from course_lib.check.tensor import TensorParallelCheck

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np
from mpi4py import MPI

from course_lib.autograd import Tensor
from course_lib.collectives import Communicator
from course_lib.gpt.model import Block

comm = everyone = Communicator()
rank = comm.Get_rank()

# %% [markdown] tags=["slide-50"]
# In parts 04 and 06, two layers were cut: fc1 by columns, fc2 by rows. A transformer block is cut in the same way, twice (Shoeybi et al.,
# 2019, section 3). In the MLP, each rank has some hidden units. In the attention, each rank has some *heads*: their columns of the matrix
# that makes q, k and v, and their rows of the output matrix, which adds up what the heads found. The picture shows the second matrix of the MLP.


# %% Draw the shards tags=["given", "slide"]
def shard(whole):
    return np.split(whole, comm.Get_size(), axis=0)[rank]


down = np.arange(24.0).reshape(8, 3)
plots.holdings(down, ranks.call(shard, dict(whole=down)), "The second matrix of the MLP", ("hidden units", "width"))

# %% [markdown] tags=["slide"]
# ## Which kind is this array?
#
# From here on we ask of every array, for each group of ranks: is it **replicated** (each rank has all of it), **sharded** (the ranks have its
# parts), or **partial** (each rank has a summand)? A partial gradient that is taken for replicated raises no error: the numbers are wrong.
#
# ## A worked example
#
# An input of three numbers is on all ranks. Each rank multiplies it by its own number, as a column of a weight does. What is the gradient
# of the input on rank 2? And the gradient of the sum over all ranks' results?

# %% Whose gradient is this?
# %%px
x = Tensor(np.ones(3), requires_grad=True)
(x * (rank + 1.0)).sum().backward()
gradient = x.grad

# %% Name its kind tags=["given"]
whole = np.full(3, 1.0 + 2.0 + 3.0 + 4.0)
print("the ranks have", *ranks.pull("gradient"), " the gradient is", whole)
print("as a whole, it is", *placement.kinds_of(ranks.pull("gradient"), whole))

# %% [markdown] tags=["slide"]
# The input was replicated, and its gradient is partial. An operator must make it whole again, and nothing on the way forward shows that:
# *f* does nothing forward, and an all-reduce backward. Where the summands of an output meet, it is the other way round. That is *g*.

# %% Draw the two tags=["given", "slide"]
plots.operators(placement.OPERATORS[:2], "What f and g do", ranks=4)

# %% [markdown] tags=["slide-50"]
# An operator on the course's autograd is made by `Tensor.from_operation(data, inputs, backward)`: the result, the tensors that it was made
# from, and a function from the gradient of the result to those of the inputs. Here is one that doubles:

# %% Doubling tags=["slide-50"]
# %%px --targets 0
x = Tensor(np.array([3.0]), requires_grad=True)
Tensor.from_operation(2 * x.data, (x,), lambda grad: (2 * grad,)).backward()
print("the gradient of 2 x is", x.grad)

# %% [markdown] tags=["slide-50"]
# ## Your turn: f and g


# %% Exercise: copy_to_group tags=["exercise", "slide-50"]
# %%px
def copy_to_group(x, comm):
    """Megatron's f: give each rank of a group the input of its part of the work.

    Parameters
    ----------
    x : Tensor
        Any shape; replicated over the group.
    comm : Communicator
        The group.

    Returns
    -------
    Tensor
        The same values, replicated. On the way back, each rank brings the gradient
        of its own part of the work: partial. That of `x` is their sum, replicated,
        in the dtype of `x`. The gradient that comes is perhaps not C-contiguous, and
        `comm` needs it so. Others use it, too: leave it as it is.

    Notes
    -----
    `x` may also be used elsewhere (the residual connection): add up only the gradient
    that comes back through your result. Nothing is sent on the way forward, and one
    all-reduce of the size of `x` on the way back.
    """

    ### BEGIN SOLUTION
    def backward(grad):
        total = np.empty(grad.shape, grad.dtype)
        comm.Allreduce(np.ascontiguousarray(grad), total)
        return (total,)

    return Tensor.from_operation(x.data, (x,), backward)
    ### END SOLUTION


# %% Exercise: reduce_from_group tags=["exercise", "slide-50"]
# %%px
def reduce_from_group(x, comm):
    """Megatron's g: add up what the ranks of a group have computed.

    Parameters
    ----------
    x : Tensor
        Any shape, C-contiguous; partial: this rank's summand. Leave it as it is.
    comm : Communicator
        The group.

    Returns
    -------
    Tensor
        The sum, replicated, with the dtype of `x`. On the way back, the gradient is
        replicated, too, and is that of each summand: nothing is sent there.
    """
    ### BEGIN SOLUTION
    total = np.empty_like(x.data)
    comm.Allreduce(x.data, total)
    return Tensor.from_operation(total, (x,), lambda grad: (grad,))
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Do they work?
#
# The check tries both operators, and then the given block (`course_lib.gpt.model.block`, worth reading) with both in it, against one process.

# %% Check f and g tags=["given"]
TensorParallelCheck("copy_to_group", ranks).operator("copy_to_group", 4, 2).passed()
TensorParallelCheck("reduce_from_group", ranks).operator("reduce_from_group", 4, 2).passed()
TensorParallelCheck("a whole block", ranks).blocks(2).passed()

# %% [markdown] tags=["slide"]
# ## The loss, when nobody has all logits
#
# The last matrix of a language model has a column for each word of the vocabulary, so it is cut by columns. A token's numbers, one for each
# word, are its *logits* $z_v$; with 50,000 words they are the largest array of all, and nobody needs to have them whole. The loss of a token
# whose right word, its label, is $y$ is
#
# $$ \log \sum_v e^{z_v - m} - (z_y - m), \qquad m = \max_v z_v $$
#
# Its gradient by $z_v$ is the softmax of $z_v$, minus 1 for the word $y$; the mean over the tokens divides it by their number. Only the rank
# that has the word $y$ knows $z_y$. Which of these numbers must be known to all ranks?


# %% Exercise: vocab_parallel_cross_entropy tags=["exercise", "slide-50"]
# %%px
def vocab_parallel_cross_entropy(logits, labels, comm):
    """The mean over all tokens of minus the log of the right word's softmax.

    Parameters
    ----------
    logits : Tensor
        ``(batch, tokens, words)``: those of this rank's words, from ``rank * words``
        on (rank in the group); sharded along dimension 2.
    labels : numpy.ndarray
        int, ``(batch, tokens)``: each token's word, counted over all ranks' words;
        replicated.
    comm : Communicator
        The group.

    Returns
    -------
    Tensor
        Shape ``()``, the dtype of `logits`; replicated.

    Notes
    -----
    It sends two all-reduces of ``batch * tokens`` numbers. The sum of all ``z_y - m``
    is one number, and a mean needs no more: append it to the second. Its backward
    sends nothing, and may come after other losses' forwards.
    """
    ### BEGIN SOLUTION
    z, words = logits.data, logits.shape[-1]
    most = z.max(axis=-1)
    comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
    soft = z - most[..., None]
    mine = labels - comm.Get_rank() * words
    here = np.nonzero((mine >= 0) & (mine < words))
    found = soft[(*here, mine[here])].sum()
    np.exp(soft, out=soft)
    sums = np.append(soft.sum(axis=-1), found).astype(z.dtype)
    comm.Allreduce(MPI.IN_PLACE, sums)
    soft /= sums[:-1].reshape(labels.shape)[..., None]
    loss = (np.log(sums[:-1]).sum() - sums[-1]) / labels.size

    def backward(grad):
        grad_logits = soft.copy()
        grad_logits[(*here, mine[here])] -= 1
        return (grad_logits * (grad / labels.size).astype(z.dtype),)

    return Tensor.from_operation(np.asarray(loss, z.dtype), (logits,), backward)
    ### END SOLUTION


# %% Check the loss tags=["given"]
check = TensorParallelCheck("vocab_parallel_cross_entropy", ranks)
check.losses(1, 2, 4).losses(4, frugal=True).passed()

# %% [markdown] tags=["skip"]
# Hidden tests run when your notebook is graded. They draw other sizes and groups, and count bytes; each `Send` there waits to be received.

# %% Test: f tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = TensorParallelCheck("copy_to_group", ranks, show=False).operator("copy_to_group", 1, 2, 3, 4)
### END HIDDEN TESTS

# %% Test: g tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = TensorParallelCheck("reduce_from_group", ranks, show=False).operator("reduce_from_group", 1, 2, 3, 4)
### END HIDDEN TESTS

# %% Test: a block tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = TensorParallelCheck("a block", ranks, show=False).blocks(1, 2, 3, 4)
### END HIDDEN TESTS

# %% Test: the loss tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = TensorParallelCheck("the loss", ranks, show=False).losses(1, 2, 3, 4).losses(2, 3, 4, scale=1e4)
### END HIDDEN TESTS

# %% Test: what the loss sends tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = TensorParallelCheck("what the loss sends", ranks, show=False).losses(2, 3, 4, frugal=True)
### END HIDDEN TESTS

# %% [markdown] tags=["slide"]
# ## What it costs
#
# What rank 0 sends in a step of a block of width 64 and its loss over 2,000 words, for 4 × 32 tokens; and if the logits were gathered.


# %% Count the bytes tags=["given", "slide-50"]
def step(gathered):
    block = Block(64, 4, np.random.default_rng(0), comm, copy_to_group, reduce_from_group)
    out = copy_to_group(block(Tensor(np.ones((4, 32, 64), np.float32))), comm)
    logits = out @ Tensor(np.full((64, 500), 0.01, np.float32), requires_grad=True)
    if gathered:
        comm.Allgather(np.ascontiguousarray(logits.data), np.empty((4, *logits.shape), np.float32))
        logits.sum().backward()
    else:
        vocab_parallel_cross_entropy(logits, np.zeros((4, 32), int), comm).backward()


moved = [(ranks.call(step, dict(gathered=gathered)), ranks.traffic[0])[1] for gathered in (False, True)]
plots.traffic(moved, "What rank 0 sends in a step of a block and its loss", ["your loss", "logits gathered"])

# %% [markdown] tags=["slide"]
# A rank holds its own words' logits, 256 kB of 1 MB here. With 50,000 words and 8 × 2,048 tokens, all logits have 3.3 GB in float32.
#
# ## Questions worth arguing about
#
# 1. If `copy_to_group` returned `x` itself, training would go on. What would differ on each rank after a step? How would you notice?
# 2. On 8 ranks, a block's all-reduces are as large as on 4, and each rank computes half. What follows for the number of ranks worth having?
#
# The last cells save your functions to `transformer_impl.py`, where later parts find them, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
from course_lib import saving

saving.save(ranks, "copy_to_group", "reduce_from_group", "vocab_parallel_cross_entropy")

# %% Stop the ranks tags=["given"]
ranks.stop()
