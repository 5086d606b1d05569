# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 21 A tensor parallel transformer block
#
# **You will build** what four ranks need to train one transformer block together: `copy_to_group` and `reduce_from_group` (Megatron's f and
# g), and a loss for a vocabulary that is split across the ranks.
#
# *{points} points. About 60 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, placement, plots, saving
from course_lib.check.tensor.tensor_parallel import TensorParallelCheck

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np
from mpi4py import MPI

from course_lib.autograd import Tensor
from course_lib.collectives import Communicator
from course_lib.gpt import pytorch
from course_lib.gpt.model import Block
from course_lib.gpt.training import drift

comm = everyone = Communicator()
rank = comm.Get_rank()

# %% [markdown] tags=["slide-50"]
# In parts 04 and 06, we split fc1 by columns and fc2 by rows. A transformer block is split the same way, twice (Shoeybi et al., 2019,
# section 3). In the MLP, each rank has some hidden units; the picture shows the second matrix. In attention, each rank has some *heads*:
# their columns of the matrix that makes the queries, keys and values (q, k and v), and their rows of the output matrix.


# %% Draw the shards tags=["folded", "slide"]
def shard(whole):
    return np.split(whole, comm.Get_size(), axis=0)[rank]


down = np.arange(24.0).reshape(8, 3)
plots.holdings(down, ranks.call(shard, dict(whole=down)), "The second matrix of the MLP", ("hidden units", "width"))

# %% [markdown] tags=["slide"]
# ## A worked example: whose gradient is this?
#
# As in part 03, an array is **replicated** over a group of ranks (each has all of it), **sharded** (each has a part), or **partial** (each
# has one term of a sum). If you mistake partial for replicated, nothing crashes; the results are just wrong.
#
# All ranks have the same input of three numbers. Each rank multiplies it by a number of its own, which stands for its columns of a weight.
# What is the gradient of the input on rank 2? And what is it for the sum of all ranks' results?

# %% Whose gradient is this?
# %%px
x = Tensor(np.ones(3), requires_grad=True)
(x * (rank + 1.0)).sum().backward()
gradient = x.grad

# %% Name its kind tags=["folded"]
whole = np.full(3, 1.0 + 2.0 + 3.0 + 4.0)
print("the ranks have", *ranks.pull("gradient"), " the whole gradient is", whole)
print("so the gradient is", *placement.kinds_of(ranks.pull("gradient"), whole))

# %% [markdown] tags=["slide"]
# The input was replicated, but its gradient is partial. An operator must make it whole again, and nothing in the forward pass hints at
# that: *f* does nothing there, and an all-reduce in the backward pass. Where partial outputs are added up, it is the reverse: *g*.

# %% Draw the two tags=["folded", "slide"]
plots.operators(placement.OPERATORS[:2], "What f and g do", ranks=4)

# %% [markdown] tags=["slide-50"]
# You make an operator for the course's autograd with `Tensor.from_operation(data, inputs, backward)`: the result, the tensors it was
# computed from, and a function that turns the gradient of the result into those of the inputs. Here is one that doubles its input:

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
    """Megatron's f: give each rank of a group the input for its part of the work.

    Parameters
    ----------
    x : Tensor
        Any shape; replicated over the group.
    comm : Communicator
        The group.

    Returns
    -------
    Tensor
        The same values, replicated. In backward, each rank has the gradient of its own
        part of the work, which is partial. The gradient of `x` is the sum over the
        ranks: replicated, with the dtype of `x`. The incoming gradient may not be
        C-contiguous, but `comm` needs it to be. Do not modify it: others use it, too.

    Notes
    -----
    `x` may also be used elsewhere (in the residual connection): sum only the gradient
    that comes back through your result. Forward sends nothing; backward sends at most
    one all-reduce of `x` in float64 plus 64 bytes, in at most 8 calls.
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
        Any shape, C-contiguous; partial: this rank's term of the sum. Do not modify it.
    comm : Communicator
        The group.

    Returns
    -------
    Tensor
        The sum, replicated, with the dtype of `x`. In backward, the gradient is
        replicated, too, and it is the gradient of each rank's term: nothing is sent.
        Send at most an all-reduce in float64 plus 64 bytes, in at most 8 calls.
    """
    ### BEGIN SOLUTION
    total = np.empty_like(x.data)
    comm.Allreduce(x.data, total)
    return Tensor.from_operation(total, (x,), lambda grad: (grad,))
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Do they work?
#
# The check tries both operators, then compares a block that uses them (`course_lib.gpt.model.block`, worth reading) with one on one process.

# %% Check f and g tags=["given"]
TensorParallelCheck("copy_to_group", ranks).operator("copy_to_group", 4, 2).passed()
TensorParallelCheck("reduce_from_group", ranks).operator("reduce_from_group", 4, 2).passed()
TensorParallelCheck("a whole block", ranks).blocks(2).passed()

# %% [markdown] tags=["slide"]
# ## What if f does nothing in backward?
#
# Four ranks train two blocks to imitate two others, with your f, and with one that leaves out the all-reduce. Predict both losses, and how
# far apart the ranks will be: only LayerNorm's parameters are replicated. At the end, all get rank 0's, as from a checkpoint.

# %% Break f tags=["experiment", "slide-50"]
# %%px
steps, lr, runs = 60, 0.01, {}
ways = {"your f": copy_to_group, "broken f": lambda x, comm: x}  # no all-reduce
for name, f in ways.items():
    runs[name] = drift.train_blocks(f, reduce_from_group, comm, steps=steps, lr=lr)

# %% Draw both runs tags=["folded", "slide-50"]
runs = ranks.pull("runs")[0]
for name, run in runs.items():
    print(f"{name}: loss {run['loss']:.4f} in the end, {run['loss_of_rank_0']:.4f} with rank 0's LayerNorms on all ranks")
plots.drift(runs, "Two blocks trained with f, and with a broken f")

# %% [markdown] tags=["slide"]
# ## The loss, when no rank has all the logits
#
# The last matrix of a language model has one column per word of the vocabulary, so it is split by columns. A token's numbers, one per word,
# are its *logits* $z_v$. With 50,000 words they are the largest array of all, and no rank needs all of them. If a token's correct word, its
# label, is $y$, its loss is
#
# $$ \log \sum_v e^{z_v - m} - (z_y - m), \qquad m = \max_v z_v $$
#
# Its gradient with respect to $z_v$ is the softmax of $z_v$, minus 1 for the word $y$; the mean over the tokens divides it by their number.
# Only the rank that has the word $y$ knows $z_y$. Which of these numbers must all ranks know?


# %% Exercise: vocab_parallel_cross_entropy tags=["exercise", "slide-50"]
# %%px
def vocab_parallel_cross_entropy(logits, labels, comm):
    """Cross-entropy: minus the log of the label's softmax, averaged over all tokens.

    Parameters
    ----------
    logits : Tensor
        ``(batch, tokens, words)``: the logits of this rank's words, which start at
        ``rank * words`` (rank in the group); sharded along dimension 2. A word that is
        masked out has -inf; a rank may have only such words. NaN makes the loss NaN.
    labels : numpy.ndarray
        int, ``(batch, tokens)``, replicated: each token's word, numbered across ranks.
    comm : Communicator
        The group.

    Returns
    -------
    Tensor
        Shape ``()``, dtype of `logits`; replicated.

    Notes
    -----
    Forward does two all-reduces of ``batch * tokens`` numbers. The mean needs only the
    sum of all ``z_y - m``, which is a single number: append it to the second. It sends
    at most one all-reduce of ``2 * batch * tokens + 16`` float64 numbers, in at most 8
    calls. Backward sends nothing, and may run after the forward of other losses.
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

# %% [markdown] tags=["slide"]
# ## What it costs
#
# Here is what rank 0 sends in a step of a block of width 64, with 2,000 words and 4 × 32 tokens, with your loss or with gathered logits.


# %% Count the bytes tags=["folded", "slide-50"]
width, words, batch, positions = 64, 2000, 4, 32


def step(gathered, width, words, batch, positions):
    block = Block(width, 4, np.random.default_rng(0), comm, copy_to_group, reduce_from_group)
    out = copy_to_group(block(Tensor(np.ones((batch, positions, width), np.float32))), comm)
    logits = out @ Tensor(np.full((width, words // 4), 0.01, np.float32), requires_grad=True)
    if gathered:
        comm.Allgather(np.ascontiguousarray(logits.data), np.empty((4, *logits.shape), np.float32))
        logits.sum().backward()
    else:
        vocab_parallel_cross_entropy(logits, np.zeros((batch, positions), int), comm).backward()


given = dict(width=width, words=words, batch=batch, positions=positions)
moved = [(ranks.call(step, dict(gathered=gathered) | given), ranks.traffic[0])[1] for gathered in (False, True)]
plots.traffic(moved, "What rank 0 sends in a step of a block and its loss", ["your loss", "logits gathered"])

# %% [markdown] tags=["slide-all"]
# A rank holds only its own words' logits: here 256 kB of 1 MB. With 50,000 words and 8 × 2,048 tokens, all logits take 3.3 GB in float32.
#
# ## The same in PyTorch
#
# In PyTorch, you say how each layer's weight is split, and the exchanges follow. Here its block has the same weights on the same ranks.

# %% Beside PyTorch tags=["experiment"]
# %%px
x = Tensor(np.random.default_rng(0).random((2, 8, 32)), requires_grad=True)
operators = copy_to_group, reduce_from_group
block = Block(32, 4, np.random.default_rng(1), comm, *operators, dtype=np.float64)
out = block(x)
out.backward(x.data)
ours = {"output": out.data, "its input's gradient": x.grad}
ours |= {name: p.grad for name, p in block.named_parameters()}
print(pytorch.beside_tensor_parallel(ours, x.data, x.data, comm, heads=4, seed=1))

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - Megatron-LM, `megatron/core/tensor_parallel`: f and g are `copy_to_tensor_model_parallel_region` and `reduce_from_...` in `mappings.py`;
#   `vocab_parallel_cross_entropy` does three all-reduces where yours does two. Until 2026, f returned a gradient that was not contiguous
#   without its sum (issue 5337): the case that your docstring names.
# - PyTorch: `parallelize_module` with `ColwiseParallel` and `RowwiseParallel`, and `loss_parallel`, in `torch/distributed/tensor/parallel`.
#   `torch.distributed.nn.functional.all_reduce` is not g: it sums the gradient in backward, too, n times too much here.
# - JAX, in `shard_map`: `psum` is g, and `pcast(x, axis, to="varying")` is f. By default (`check_vma`), JAX inserts f where it is needed.
# - DeepSpeed: AutoTP, `deepspeed/module_inject/auto_tp.py`, splits a model's layers by their names.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. In the broken run, which ranks know that something is wrong? What would you compare, and how often, to notice it?
# 2. On 8 ranks, a block's all-reduces are as large as on 4, but each rank computes half as much. How many ranks are worth using?
#
# The last cells save your functions to `transformer_impl.py`, where later parts find them, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
saving.save(ranks, "copy_to_group", "reduce_from_group", "vocab_parallel_cross_entropy")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes and groups, and count bytes. In them, `Send` waits for its receiver.

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
check = TensorParallelCheck("vocab_parallel_cross_entropy", ranks, show=False).losses(1, 2, 3, 4).losses(2, 3, 4, scale=1e4)
### END HIDDEN TESTS

# %% Test: what the loss sends tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = TensorParallelCheck("vocab_parallel_cross_entropy", ranks, show=False).losses(2, 3, 4, frugal=True)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
