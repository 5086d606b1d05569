# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 22 Sequence parallelism
#
# **You will build** the operators that split the rest of a tensor parallel block along its positions, `gather_sequence` and
# `scatter_sequence`, and then what the gradients need as a result: `reduce_norm_gradients` and `clip_gradients`.
#
# *{points} points. About 60 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, placement, plots, saving
from course_lib.check.tensor.sequence_parallel import SequenceParallelCheck

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np
from mpi4py import MPI

from course_lib import memory
from course_lib.autograd import LayerNorm, Tensor
from course_lib.collectives import Communicator
from course_lib.gpt.model import Block, no_communication, kinds
from course_lib.gpt.training import drift
from course_lib.placement import partial, replicated, sharded

comm = everyone = Communicator()
rank = comm.Get_rank()

# %% [markdown] tags=["slide-50"]
# In part 21, each rank had a quarter of the weights, heads and hidden units. But the LayerNorms and the residual sums are still done in
# full on every rank: four times the same work, four times the same memory. None of these mix positions, so each rank can do them for *its
# own positions* only (Korthikanti et al., 2022, section 4.2.2). The picture shows 8 tokens of width 3.


# %% Draw the positions tags=["folded", "slide"]
def mine(tokens):
    return np.split(tokens, comm.Get_size(), axis=0)[rank]


tokens = np.arange(24.0).reshape(8, 3)
plots.holdings(tokens, ranks.call(mine, dict(tokens=tokens)), "A sequence, sharded along its positions", ("positions", "width"))

# %% [markdown] tags=["slide"]
# An all-reduce is a reduce-scatter followed by an all-gather. So after a split computation, a reduce-scatter gives each rank the sum for
# its own positions. Before the next one, an all-gather brings all positions together. In the backward pass, each turns into the other.

# %% Draw the operators tags=["folded", "slide"]
plots.operators(placement.OPERATORS[2:4], "Conjugate operators of sequence parallelism", ranks=4)

# %% [markdown] tags=["slide-50"]
# ## A worked example
#
# Collectives put the ranks' parts one after another *in memory*, but positions are dimension 1 of `(batch, positions, width)`. The next
# cell gathers two samples, one position per rank. What does the first sample hold afterwards? How can you fix it? Then it is your turn.

# %% Gather along another dimension tags=["slide-50"]
# %%px
own = 10.0 * rank + np.arange(2.0).reshape(2, 1, 1)  # two samples, one position each
parts = np.empty((4, *own.shape))
comm.Allgather(own, parts)
print("in memory:     ", parts.reshape(2, 4).tolist())
print("along positions", np.concatenate(list(parts), axis=1).reshape(2, 4).tolist())


# %% Exercise: gather_sequence tags=["exercise", "slide-50"]
# %%px
def gather_sequence(x, comm):
    """Bring all positions together, before a split computation.

    Parameters
    ----------
    x : Tensor
        ``(batch, positions / n, width)``: this rank's part; sharded along dimension 1.
    comm : Communicator
        The group of n ranks.

    Returns
    -------
    Tensor
        ``(batch, positions, width)``, replicated. In backward, each rank has the
        gradient of its own work: partial, perhaps not C-contiguous. The gradient of `x`
        is the sum, for this rank's positions. Do not modify what comes in, and keep the
        dtype. Send at most an all-gather and a reduce-scatter in float64, plus 64 bytes
        each, in at most 8 calls each.
    """
    ### BEGIN SOLUTION
    n = comm.Get_size()
    parts = np.empty((n, *x.shape), x.dtype)
    comm.Allgather(np.ascontiguousarray(x.data), parts)

    def backward(grad):
        mine = np.empty(x.shape, grad.dtype)
        comm.Reduce_scatter(np.array(np.split(grad, n, axis=1), order="C"), mine)
        return (mine,)

    return Tensor.from_operation(np.concatenate(parts, axis=1), (x,), backward)
    ### END SOLUTION


# %% Exercise: scatter_sequence tags=["exercise", "slide-50"]
# %%px
def scatter_sequence(x, comm):
    """Add up what the ranks have computed, and give each rank its own positions.

    Parameters
    ----------
    x : Tensor
        ``(batch, positions, width)``; partial. n divides the number of positions.
    comm : Communicator
        The group of n ranks.

    Returns
    -------
    Tensor
        ``(batch, positions / n, width)``: the sum, for this rank's positions; sharded
        along dimension 1. In backward, the gradient is sharded the same way, perhaps
        not C-contiguous; each rank's term needs all of it. Do not modify what comes in,
        and keep the dtype. Send at most a reduce-scatter and an all-gather in float64,
        plus 64 bytes each, in at most 8 calls each.
    """
    ### BEGIN SOLUTION
    n = comm.Get_size()
    mine = np.empty((x.shape[0], x.shape[1] // n, x.shape[2]), x.dtype)
    comm.Reduce_scatter(np.array(np.split(x.data, n, axis=1), order="C"), mine)

    def backward(grad):
        parts = np.empty((n, *grad.shape), grad.dtype)
        comm.Allgather(np.ascontiguousarray(grad), parts)
        return (np.concatenate(parts, axis=1),)

    return Tensor.from_operation(mine, (x,), backward)
    ### END SOLUTION


# %% Check the operators tags=["given"]
SequenceParallelCheck("gather_sequence", ranks).operator("gather_sequence", 4, 2).passed()
SequenceParallelCheck("scatter_sequence", ranks).operator("scatter_sequence", 4, 2).passed()

# %% [markdown] tags=["slide"]
# ## What about LayerNorm's own gradients?
#
# LayerNorm's scale and shift are replicated, but each rank's LayerNorm sees only its own positions. What kind of array is the shift's
# gradient? If a program gets this wrong, nothing crashes: the weights just drift apart, little by little. It has happened: for a while,
# Transformer Engine's norms did not set the mark by which Megatron-LM finds such parameters (NVIDIA/TransformerEngine, pull request 1528).

# %% Look at the gradients
# %%px
norm = LayerNorm(2)
ours = np.arange(16, dtype=np.float32).reshape(1, 8, 2)[:, 2 * rank : 2 * rank + 2] ** 2
norm(Tensor(ours)).backward(np.ones_like(ours))
shift_gradient = norm.bias.grad

# %% Name the kind tags=["folded", "slide-50"]
print("for all 8 positions: [8. 8.]; on the ranks:", *ranks.pull("shift_gradient"))
print("so the gradient is", *placement.kinds_of(ranks.pull("shift_gradient"), np.full(2, 8.0)))

# %% The kinds of a block's parameters tags=["slide-50"]
# %%px --targets 0
print("The kind of each parameter:")
print(*(f"{n}: {kind}" for n, _, kind in kinds(Block(8, 2, np.random))), sep="\n")


# %% Exercise: reduce_norm_gradients tags=["exercise", "slide-50"]
# %%px
def reduce_norm_gradients(module, comm):
    """After backward, make the gradients of all replicated parameters whole.

    Parameters
    ----------
    module : Module
        ``for name, p, kind in kinds(module)`` yields each parameter once. If it is
        sharded, its gradient ``p.grad`` is already right. If ``kind == replicated``,
        its gradient is partial, or None on all ranks. Keep the dtype. Send at most one
        all-reduce of these in float64 plus 64 bytes, in at most 2 calls for each.
    comm : Communicator
        The group.
    """
    ### BEGIN SOLUTION
    for _, p, kind in kinds(module):
        if kind == replicated and p.grad is not None:
            comm.Allreduce(MPI.IN_PLACE, p.grad)
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# Now the gradients are right. Next, we *clip* them: if the gradient norm, that of all gradients as one vector, exceeds a limit, all
# gradients are scaled down so that it equals the limit. Your turn again: which squares must be added up over the group, and which must not?


# %% Exercise: clip_gradients tags=["exercise", "slide-50"]
# %%px
def clip_gradients(module, most, comm):
    """Scale all gradients down, so that their norm as one vector is at most `most`.

    Parameters
    ----------
    module : Module
        Its gradients are of the kinds that ``kinds(module)`` gives; some may be None.
    most : float
    comm : Communicator
        The group.

    Returns
    -------
    float
        The norm before clipping: the root of the sum of all squares, as one process
        with the whole model would find it. If it is larger than `most`, multiply all
        gradients by ``most / norm``. Keep their dtype, and do not send any of them.
        256 bytes in 8 calls are enough.
    """
    ### BEGIN SOLUTION
    found = [(p, kind) for _, p, kind in kinds(module) if p.grad is not None]
    squares = {True: 0.0, False: 0.0}
    for p, kind in found:
        squares[kind == replicated] += np.sum(p.grad.astype(np.float64) ** 2)
    parts = np.array([squares[False]])
    comm.Allreduce(MPI.IN_PLACE, parts)
    norm = float(np.sqrt(squares[True] + parts[0]))
    for p, _ in found:
        if norm > most:
            p.grad = p.grad * p.grad.dtype.type(most / norm)
    return norm
    ### END SOLUTION


# %% Check the gradients tags=["given"]
SequenceParallelCheck("reduce_norm_gradients", ranks).norms(4, 2).passed()
SequenceParallelCheck("a whole block", ranks).blocks(2).passed()
SequenceParallelCheck("clip_gradients", ranks).clipping(4).passed()

# %% [markdown] tags=["slide"]
# ## What if LayerNorm's gradients stay partial?
#
# Four ranks train two blocks to imitate two others, with your function, and without it. Predict both pictures. At the end, all ranks get
# rank 0's LayerNorms, as from a checkpoint of rank 0.

# %% Leave out the reduction tags=["experiment", "slide-50"]
# %%px
steps, lr = 60, 0.01


def reduce(module):
    reduce_norm_gradients(module, comm)


operators, runs = (gather_sequence, scatter_sequence), {}
for name, after_backward in {"reduced": reduce, "left partial": None}.items():
    settings = dict(split=True, steps=steps, lr=lr, after_backward=after_backward)
    runs[name] = drift.train_blocks(*operators, comm, **settings)

# %% Draw both runs tags=["folded", "slide-50"]
runs = ranks.pull("runs")[0]
for name, run in runs.items():
    print(f"{name}: loss {run['loss']:.4f} in the end, {run['loss_of_rank_0']:.4f} with rank 0's LayerNorms on all ranks")
plots.drift(runs, "Two blocks trained with and without the reduction")

# %% [markdown] tags=["slide"]
# ## What it costs
#
# Here is one step of a block of width 64 with 4 × 128 tokens, on rank 0, in three ways: as in part 21 (its four all-reduces keep no arrays,
# so the memory is measured without them); as in this part; and keeping only the rank's own positions, which are gathered again in backward.


# %% Measure three ways tags=["folded", "slide-50"]
width, batch, positions = 64, 4, 128


def step(split, again, width, batch, positions):
    enter, leave = (gather_sequence, scatter_sequence) if split else (no_communication, no_communication)
    block = Block(width, 4, np.random.default_rng(0), comm, enter, leave, again)
    x = Tensor(np.ones((batch, positions // 4 if split else positions, width), np.float32), requires_grad=True)
    with memory.watch() as account:
        out = block(x)
    out.backward(np.ones(x.shape, np.float32))
    [comm.Allreduce(x.data, np.empty_like(x.data)) for _ in range(0 if split else 4)]
    return account.true_now


ways = {"tensor parallel": (False, False), "plus sequence parallel": (True, False), "gathered again": (True, True)}
given = dict(width=width, batch=batch, positions=positions)
kept = {name: (ranks.call(step, dict(split=s, again=a) | given)[0], ranks.traffic[0]) for name, (s, a) in ways.items()}
plots.traffic([moved for _, moved in kept.values()], "What rank 0 sends in a step of a block", list(kept))

# %% Draw the memory tags=["folded", "slide-50"]
plots.bars({name: held for name, (held, _) in kept.items()}, f"What rank 0 keeps for backward, {batch} × {positions} tokens")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - Megatron-LM: `gather_from_sequence_parallel_region` and `reduce_scatter_to_...` in `megatron/core/tensor_parallel/mappings.py`, along the
#   first dimension, as positions come before the batch there. LayerNorm's gradients: `_allreduce_non_tensor_model_parallel_grads` in
#   `megatron/core/distributed/finalize_model_grads.py`, by a mark on the parameter. Norm: `get_grad_norm_fp32`, `optimizer/clip_grads.py`.
# - PyTorch: `SequenceParallel` in `torch/distributed/tensor/parallel`. The norm's parameters are replicated `DTensor`s, and autograd knows.
# - JAX, in `shard_map`: `all_gather` and `psum_scatter` with `tiled=True`; each is the other's transpose.
# - DeepSpeed's `DistributedAttention` (`deepspeed/sequence/layer.py`, Ulysses) is another thing: all-to-alls from positions to heads.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. What does the third way cost besides bytes? When would you use it?
# 2. With dropout after the reduce-scatter, must all ranks draw the same mask? What about part 21?
#
# The last cells save your functions to `transformer_impl.py`, where later parts find them, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
saving.save(ranks, "gather_sequence", "scatter_sequence", "reduce_norm_gradients", "clip_gradients")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes and groups, and count bytes. In them, `Send` waits for its receiver.

# %% Test: gather_sequence tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = SequenceParallelCheck("gather_sequence", ranks, show=False).operator("gather_sequence", 1, 2, 3, 4)
### END HIDDEN TESTS

# %% Test: scatter_sequence tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = SequenceParallelCheck("scatter_sequence", ranks, show=False).operator("scatter_sequence", 1, 2, 3, 4)
### END HIDDEN TESTS

# %% Test: the norms' gradients tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = SequenceParallelCheck("reduce_norm_gradients", ranks, show=False).norms(1, 2, 3, 4)
### END HIDDEN TESTS

# %% Test: a block tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = SequenceParallelCheck("a block", ranks, show=False).blocks(1, 2, 3, 4)
### END HIDDEN TESTS

# %% Test: clipping tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = SequenceParallelCheck("clip_gradients", ranks, show=False).clipping(1, 2, 3, 4)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
