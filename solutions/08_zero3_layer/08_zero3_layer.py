# ---
# jupyter:
#   course:
#     ranks: 8
# ---

# %% [markdown] tags=["slide"]
# # 08 A fully sharded layer
#
# **You will build** `ZeroDPStage3FCLayer`, a layer sharded over the data parallel ranks: each keeps one part, and none keeps the whole.
#
# *{points} points. About 60 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots
from course_lib.check import Check
from course_lib.check.zero.layer import ShardCheck, backward, forward, make, partition

ranks = cluster.start(8)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np

from course_lib.collectives import Communicator

comm = Communicator()
rank = comm.Get_rank()
piece = np.array_split(np.arange(1, 12 * 16 + 1), comm.Get_size())[rank]

# %% Draw the shards tags=["folded", "slide"]
weight = np.arange(1, 12 * 16 + 1).reshape(12, 16)
plots.holdings(weight, ranks.pull("piece"), "A weight, sharded over eight data parallel ranks", ("inputs", "outputs"))

# %% [markdown] tags=["slide"]
# In data parallel training, everything is *replicated*: each rank holds all parameters, all gradients and the whole optimizer state.
# **ZeRO** (Rajbhandari et al., SC'20, "ZeRO: memory optimizations toward training trillion parameter models", section 5) *shards* them: each
# of $n$ ranks keeps one $n$-th. Stage 1 shards the optimizer state, stage 2 also the gradients, and stage 3 also the parameters. The
# picture shows the part of a weight that each rank keeps.
#
# To compute, a rank still needs the whole weight, so it gathers it for just that moment. Each rank then has a gradient from its own
# samples: one term of a sum, so the gradients are *partial*.
#
# | | exchange | from | to | kept afterwards |
# |---|---|---|---|---|
# | forward | all-gather the weight and the bias | sharded | replicated | the input |
# | backward | all-gather the weight again | sharded | replicated | |
# | | reduce-scatter the gradients | partial | sharded | this rank's shard of the sum |
#
# A shard is a slice of the *flat* array (all rows end to end), so this works for every shape. If the size is not a multiple of the number
# of ranks, zeros are added at the end. Why a sum, when part 07 took the mean? Because in part 09, the gradient that `backward` gets has
# already been divided by `dp_size`. `comm.Reduce_scatter` gives each rank an equal part of the sum; its third argument, a list of counts,
# is for parts of different sizes.

# %% [markdown] tags=["slide"]
# ## A worked example
# A view keeps the whole array alive. Here a rank takes its eighth of an 8 MB array, once as a view and once as a copy, and drops the rest.
# `live_array_bytes` counts the bytes of all arrays that the process can still reach. What do you expect for each?

# %% A view and a copy
# %%px --targets 0
from course_lib.memory import live_array_bytes

before = live_array_bytes()
whole = np.ones(1_000_000)
part = whole[:125_000]
del whole
print(f"a view of an eighth keeps {(live_array_bytes() - before) / 1e6:.1f} MB alive")
part = part.copy()
print(f"a copy of an eighth keeps {(live_array_bytes() - before) / 1e6:.1f} MB alive")
del part

# %% [markdown] tags=["slide-50"]
# ## Your turn
# The class has three gaps. Fill them one after the other; there is a check for each of them below. You may add methods of your own.
#
# - `_partition_flat_tensor`: flatten, pad with zeros at the end to a multiple of the number of ranks, and return one shard, as a copy.
# - `forward`: gather, multiply, drop what was gathered.
# - `backward`: gather again; reduce-scatter the full gradients, padded like the shards.


# %% Exercise: ZeroDPStage3FCLayer tags=["exercise", "slide-50"]
# %%px
class ZeroDPStage3FCLayer:
    """A fully connected layer, ``x @ w + b``, sharded over the ranks (ZeRO stage 3).

    Parameters
    ----------
    comm : Communicator
        The `dp_size` data parallel ranks.
    in_dim, out_dim : int
        Shape of the whole weight; the bias has shape ``(out_dim,)``.
    full_w, full_b : numpy.ndarray, optional
        The whole weight and bias, the same on all ranks. By default, the weight is
        drawn at random with `seed`, and the bias is zero.

    Attributes
    ----------
    w_shard, b_shard, grad_w_shard, grad_b_shard : numpy.ndarray
        This rank's shards, ``(w_shard_size,)`` and ``(b_shard_size,)``, and its shards
        of the gradients, with the same shapes.
    x : numpy.ndarray
        The input of the last `forward`, ``(batch_size, in_dim)``, for `backward`.

    Notes
    -----
    `forward` sends at most what one all-gather of each shard sends, and 64 bytes.
    `backward` sends at most twice as much: a gather, and a reduce-scatter of each
    gradient. Between calls, a rank keeps its shards, their gradients and `x`; 25% of
    the whole layer may come on top.
    """

    def __init__(
        self,
        comm,
        in_dim,
        out_dim,
        dp_size,
        full_w=None,
        full_b=None,
        seed=0,
    ):
        self.comm, self.rank, self.dp_size = comm, comm.Get_rank(), dp_size
        self.in_dim, self.out_dim, self.x = in_dim, out_dim, None
        if full_w is None:
            drawn = np.random.default_rng(seed).standard_normal((in_dim, out_dim))
            full_w = (drawn * np.sqrt(2 / in_dim)).astype(np.float32)
        if full_b is None:
            full_b = np.zeros(out_dim, full_w.dtype)
        partition = self._partition_flat_tensor
        self.w_shard, self.w_shard_size = partition(full_w, self.rank, dp_size)
        self.b_shard, self.b_shard_size = partition(full_b, self.rank, dp_size)
        self.grad_w_shard = np.zeros_like(self.w_shard)
        self.grad_b_shard = np.zeros_like(self.b_shard)

    def _partition_flat_tensor(self, tensor, shard_idx, num_shards):
        """Cut an array of any shape into `num_shards` equal shards; return one of them.

        Returns
        -------
        tensor_shard : numpy.ndarray
            Shard `shard_idx`: ``(shard_size,)``, dtype of `tensor`; a copy, not a view.
        shard_size : int
            Number of elements in each shard, including padding.
        """
        ### BEGIN SOLUTION
        shard_size = -(-tensor.size // num_shards)
        mine = tensor.ravel()[shard_idx * shard_size : (shard_idx + 1) * shard_size]
        tensor_shard = np.zeros(shard_size, tensor.dtype)
        tensor_shard[: mine.size] = mine
        return tensor_shard, shard_size
        ### END SOLUTION

    def forward(self, x):
        """The output, ``(batch_size, out_dim)``, for this rank's samples x; keeps x."""
        ### BEGIN SOLUTION
        self.x = x
        out = x @ self._gather(self.w_shard, (self.in_dim, self.out_dim))
        out += self._gather(self.b_shard, (self.out_dim,))
        return out

    def _gather(self, shard, shape):
        """Gather the whole array from the ranks' shards."""
        full = np.empty(shard.size * self.dp_size, shard.dtype)
        self.comm.Allgather(shard, full)
        return full[: int(np.prod(shape))].reshape(shape)

    def _reduce_scatter(self, grad, shard_size):
        """This rank's shard of the sum of the ranks' gradients."""
        padded, shard = grad.ravel(), np.empty(shard_size, grad.dtype)
        if grad.size < shard_size * self.dp_size:
            padded = np.pad(padded, (0, shard_size * self.dp_size - grad.size))
        self.comm.Reduce_scatter(padded, shard, [shard_size] * self.dp_size)
        return shard
        ### END SOLUTION

    def backward(self, output_grad):
        """Compute ``[grad_x]`` from the output's gradient, ``(batch_size, out_dim)``.

        grad_x has shape ``(batch_size, in_dim)``. `grad_w_shard` and `grad_b_shard`
        become this rank's shards of the sum of all ranks' gradients.
        """
        ### BEGIN SOLUTION
        grad_x = output_grad @ self._gather(self.w_shard, (self.in_dim, self.out_dim)).T
        grad_w, grad_b = self.x.T @ output_grad, output_grad.sum(axis=0)
        self.grad_w_shard = self._reduce_scatter(grad_w, self.w_shard_size)
        self.grad_b_shard = self._reduce_scatter(grad_b, self.b_shard_size)
        self.x = None
        return [grad_x]
        ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?
# Fill a gap, rerun the cell with the class, then run the check for that gap. The checks create a layer on each rank, take a few steps, and
# compare the results with the same steps on the whole layer. They also look at memory: how many bytes does the layer keep between calls?

# %% Check the partition tags=["given"]
check = Check("_partition_flat_tensor")
for count in (10, 12):
    whole = np.append(np.arange(1, count + 1), np.zeros(12 - count)).astype(np.float32)
    for i, answer in enumerate(ranks.call(partition, dict(tensor=whole[:count].reshape(2, -1), shards=4))[0]):
        got, size = check.tuple(answer, 2, name="_partition_flat_tensor", rank=0)
        check.array(
            got, whole[3 * i : 3 * i + 3], name=f"shard {i} for {count} numbers", rank=0, cause="padding in front, a wrong shard, or a view"
        )
        check.value(size, 3, name=f"shard_size, for {count} numbers on 4 ranks,", rank=0, cause="rounding down, or len() instead of .size")
check.passed()

# %% Check forward tags=["given"]
check = ShardCheck("forward on 4 ranks", ranks)
check.steps(4, (5, 3), 2, np.float32, only_forward=True)
check.passed()

# %% Check backward and memory tags=["given"]
check = ShardCheck("backward on 4 ranks, two steps, and what is kept", ranks)
check.steps(4, (5, 3), 2, np.float32, steps=2)
check.memory_between_calls(4, (1400, 1300))
check.passed()

# %% [markdown] tags=["slide-50"]
# ## What it costs
# Take one step through a layer with 784 inputs and 256 outputs on 8 ranks. Plain data parallelism all-reduces the gradients. Your layer
# gathers the weight twice and reduce-scatters the gradients; each of these exchanges sends half as much as an all-reduce. So each rank
# holds only an eighth of the layer, in return for 50% more traffic. Which of the numbers in the next cell change what is sent?


# %% Count the bytes tags=["folded"]
inputs, outputs, batch = 784, 256, 4


def step(sharded, inputs, outputs, batch):
    size = (inputs + 1) * outputs
    if not sharded:
        return Communicator().Allreduce(np.ones(size, np.float32), np.empty(size, np.float32))
    layer = ZeroDPStage3FCLayer(Communicator(), inputs, outputs, 8)
    layer.forward(np.ones((batch, inputs), np.float32))
    layer.backward(np.ones((batch, outputs), np.float32))


moved = []
for sharded in (True, False):
    ranks.call(step, dict(sharded=sharded, inputs=inputs, outputs=outputs, batch=batch))
    moved.append(ranks.traffic[0])
plots.traffic(moved, "What rank 0 sends in a step through one layer", ["stage 3", "data parallel"])

# %% Draw the memory tags=["folded", "slide-50"]
inputs, outputs, batch = 784, 256, 4
before = ranks.held()
ranks.call(make, dict(size=8, seed=0, shape=(inputs, outputs), dtype="float32"))
ranks.call(forward, dict(x=np.ones((batch, inputs), np.float32)))
ranks.call(backward, dict(grad=np.ones((batch, outputs), np.float32), lr=0.1))
kept, whole = ranks.held()[0] - before[0], 2 * 4 * (inputs + 1) * outputs
plots.bars({"stage 3, as measured": kept, "data parallel": whole}, "Parameters and gradients of the layer on rank 0", "bytes")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `fully_shard` (FSDP2, `torch/distributed/fsdp/_fully_shard`) cuts each parameter along its first dimension, not its flat array,
#   and keeps the shards as `DTensor`s. The older FSDP1 has flat arrays (`torch/distributed/fsdp/_flat_param.py`), as you do.
# - DeepSpeed: stage 3 in `runtime/zero/stage3.py`; `partition_parameters.py` cuts flat arrays and pads them. Small parameters may stay
#   whole (`stage3_param_persistence_threshold`).
# - Megatron-LM: Megatron FSDP, `megatron/core/distributed/fsdp`. All three gather the next layer while this one computes, as in part 26.
# - JAX, inside `shard_map`: `all_gather(w, "data", tiled=True)` in the forward pass is enough, since its transpose is `psum_scatter`. The
#   whole weight is kept for backward unless you ask for recomputation (`jax.checkpoint`).
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
# 1. Why gather the weight again in the backward pass instead of keeping it? In each case, how much would a rank hold at most for 12 such
#    layers?
# 2. While a layer computes, the next one's weight could already be on its way. What would that cost in memory?
#
# The last cells save your class to `zero_dp_stage3.py` and stop the ranks.

# %% Save the class tags=["given", "skip"]
from course_lib import saving

saving.save(ranks, "ZeroDPStage3FCLayer")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes, dtypes and groups of 1 to 8 ranks, and look at memory and traffic.

# %% Test: the shards tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = Check("_partition_flat_tensor", show=False)
for count, axes, dtype in ((c, a, d) for c in range(1, 9) for a in (1, 2, 3) for d in (np.float32, np.float64)):
    shape = tuple(check.sizes(axes, 1, 6))
    tensor = check.random.standard_normal(shape).astype(dtype)
    check.case = f"an array of shape {shape} and {tensor.dtype}, {count} shards"
    for r, answers in enumerate(ranks.call(partition, dict(tensor=tensor, shards=count))):
        for i, (answer, want) in enumerate(zip(answers, np.split(np.pad(tensor.ravel(), (0, -tensor.size % count)), count), strict=True)):
            got, size = check.tuple(answer, 2, name="_partition_flat_tensor", rank=r)
            check.array(got, want, name=f"shard {i}", rank=r, cause="padding in front, a wrong shard, or a view", contiguous=True)
            check.value(size, want.size, name="shard_size", rank=r, cause="rounding down, or len() instead of .size")
### END HIDDEN TESTS

# %% Test: forward tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = ShardCheck("ZeroDPStage3FCLayer, forward", ranks, show=False)
for size in range(1, 9):
    for dtype in (np.float32, np.float64):
        in_dim, out_dim, batch = check.sizes(3, 4, 12)
        check.steps(size, (in_dim, out_dim), batch, dtype, only_forward=True)
check.steps(4, (5, 1), 3, np.float32, only_forward=True)
check.steps(3, (5, 4), 1, np.float64, only_forward=True)
### END HIDDEN TESTS

# %% Test: backward, several steps tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = ShardCheck("ZeroDPStage3FCLayer, backward", ranks, show=False)
for size in range(1, 9):
    for dtype in (np.float32, np.float64):
        in_dim, out_dim, batch = check.sizes(3, 4, 12)
        check.steps(size, (in_dim, out_dim), batch, dtype, steps=3)
### END HIDDEN TESTS

# %% Test: nothing whole is kept tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = ShardCheck("ZeroDPStage3FCLayer, memory", ranks, show=False)
for size, dtype, least in ((4, np.float32, 447), (8, np.float64, 316)):
    check.memory_between_calls(size, tuple(4 * n + (size == 4) for n in check.sizes(2, least, least + 4)), dtype)  # odd for 4 ranks
check.memory_between_calls(4, (1, 4 * check.sizes(1, 200_000, 200_004)[0]), np.float32)  # half of it is the bias
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
