# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 31 Sixteen bits
#
# **You will build** training in 16 bits for [part 26](26_fsdp.ipynb): sending half the bytes, and a loss scaler that keeps small gradients.
#
# *{points} points. About 60 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np
from course_lib import cluster, plots, saving
from course_lib.check.precision.check import PrecisionCheck
from course_lib.check.precision.scaler import ScalerCheck

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
from functools import partial
import numpy as np
from course_lib import traffic
from course_lib.autograd import Adam, Parameter
from course_lib.autograd.mixed_precision import decode, encode
from course_lib.collectives import Communicator
from course_lib.gpt.fsdp import FlatModel, SlowLink, quantized
from course_lib.trace import span

comm = everyone = Communicator()
compressed = partial(quantized.train, comm, steps=60)
models = {dtype: FlatModel(comm, dtype) for dtype in ("float32", "bfloat16")}
link = SlowLink(comm, bandwidth=5e6)  # bytes per second

# %% [markdown] tags=["slide"]
# ## A worked example: what fits into 16 bits
#
# Two formats have 16 bits. **float16** has 11 significant bits, but it ends at 65,504, and what is below $2^{-25}$ becomes zero.
# **bfloat16** is the upper half of a float32: the same range, but only 8 significant bits. Either one halves what ranks send. NumPy has no
# bfloat16, and MPI no float16, so we compute in float32, and round to 16 bits whatever is sent, or passed from layer to layer.
#
# `encode(x, dtype)` rounds a float32 array to `dtype`, and returns bit patterns that MPI can send: uint16 (for `"float32"`, a copy).
# `decode(bits, dtype)` turns them back into float32. Which of these numbers survive in float16, which in bfloat16?

# %% Round some numbers tags=["slide"]
# %%px --targets 0
x = np.array([1 / 3, 2049, 70000, 3e-6, 1e-8], np.float32)
for dtype in "float32", "float16", "bfloat16":
    print(f"{dtype:8}", *(f"{y:<12.7g}" for y in decode(encode(x, dtype), dtype)))

# %% [markdown] tags=["slide-50"]
# ## Your turn: gather in 16 bits
#
# As in part 26, a rank keeps a shard of the parameters, and gathers the others'. Shards are **masters**: float32. What is sent has 16 bits.


# %% Exercise: gather_as tags=["exercise", "slide-50"]
# %%px
def gather_as(shard, dtype, comm):
    """Gather the ranks' shards, each number sent in `dtype`.

    In a call, a rank sends what an all-gather of the rounded shards sends, and at most
    64 bytes besides. It makes at most 4 calls of ``comm``.

    Parameters
    ----------
    shard : numpy.ndarray
        float32, (length,): this rank's masters. Leave them as they are.
    dtype : {"float32", "float16", "bfloat16"}
    comm : Communicator

    Returns
    -------
    numpy.ndarray
        float32, (n * length,), a new array: the ranks' shards, rounded, in rank order.
    """
    ### BEGIN SOLUTION
    mine = encode(shard, dtype)
    whole = np.empty(comm.Get_size() * mine.size, mine.dtype)
    comm.Allgather(mine, whole)
    return decode(whole, dtype)
    ### END SOLUTION


# %% Check gather_as tags=["given"]
PrecisionCheck("gather_as", ranks).everything().passed()

# %% [markdown] tags=["slide"]
# ## A worked example: why masters have 32 bits
#
# A weight is 1, and each of 500 steps subtracts 0.0002. What is left at the end, if each result is rounded to 16 bits?

# %% Take small steps tags=["slide"]
# %%px --targets 0
for dtype in "float32", "float16", "bfloat16":
    weight = np.ones(1, np.float32)
    for _ in range(500):
        weight = decode(encode(weight - np.float32(0.0002), dtype), dtype)
    print(f"{dtype:8} {weight[0]:.4f}")

# %% [markdown] tags=["slide-50"]
# ## Your turn: reduce in 16 bits
#
# In backward, each rank gets the mean of all ranks' gradients for its shard. A sum has the same trouble as a weight: in float16,
# $2048 + 0.5 + 0.5 + 0.5$ is 2048. So gradients should *travel* in 16 bits, but be added in float32; a reduce-scatter adds in the dtype in
# which it sends. `comm.Alltoall(sent, received)` sends part r of `sent` to rank r, and fills `received` in rank order.


# %% Exercise: reduce_as tags=["exercise", "slide-50"]
# %%px
def reduce_as(gradient, dtype, comm):
    """Average the ranks' gradients for this rank's shard, each number sent in `dtype`.

    In a call, a rank sends what an all-to-all of the rounded gradients sends, and at
    most 64 bytes besides. It makes at most 4 calls of ``comm``.

    Parameters
    ----------
    gradient : numpy.ndarray
        float32, (n * length,): this rank's gradient of all parameters; not changed.
    dtype : {"float32", "float16", "bfloat16"}
    comm : Communicator
        Rank r gets part r of n equal parts.

    Returns
    -------
    numpy.ndarray
        float32, (length,), a new array: the mean of what the ranks send. Each rounds
        its gradient to `dtype`; nothing else is rounded to it.
    """
    ### BEGIN SOLUTION
    n = comm.Get_size()
    sent = encode(gradient, dtype)
    received = np.empty_like(sent)
    comm.Alltoall(sent, received)
    return decode(received, dtype).reshape(n, -1).sum(axis=0) / np.float32(n)
    ### END SOLUTION


# %% Check reduce_as tags=["given"]
PrecisionCheck("reduce_as", ranks).everything().passed()

# %% [markdown] tags=["slide"]
# ## Your turn: scale the loss
#
# Many gradients are below $2^{-25}$: in float16 they are zero. So multiply the loss by a large **factor**. By the chain rule, all gradients
# grow by it, and you divide it out again in float32, just before the optimizer's step (Micikevicius et al., 2018, section 3.2). If the factor
# is too large, some gradient becomes infinite or NaN: an **overflow**. Then skip the step, and halve the factor.
#
# *All* ranks must skip it, even if a single one has the overflow, or their parameters would no longer fit together. A rank has groups along
# the axes of the grid only. How does rank 3 of a 2 × 2 grid hear of rank 0? Write `__init__` and the four methods below it.


# %% Exercise: LossScaler tags=["exercise", "slide-50"]
# %%px
class LossScaler:
    """Keep float16 gradients large enough by scaling the loss, on a grid of ranks.

    In a step, a rank sends at most 256 bytes along each axis, in at most 4 calls.

    Parameters
    ----------
    comms : list of Communicator
        This rank's group along each axis of the grid. Each rank's gradients are its
        part of one vector; no two ranks have the same part.
    factor : float
        At first; a power of two. The attribute ``factor`` is the current one.
    interval, limits : int, (float, float)
        See `update`. Limits, powers of two, are the smallest and the largest factor.

    Methods
    -------
    scale(loss)
        Return the loss, a Tensor, times the factor.
    unscale(optimizer)
        Divide the gradients of ``optimizer.params`` by the factor, in float32; a second
        call in a step changes nothing. One may be None. Return the norm of all ranks'
        unscaled gradients, a float: inf or NaN if, and only if, any has an overflow.
    step(optimizer, most=np.inf)
        Unscale, if `unscale` has not been called. If any rank has an overflow, return
        False. Otherwise scale gradients down to the norm `most`, if theirs is larger,
        call ``optimizer.step()``, and return True.
    update()
        After step: halve the factor if there was an overflow; double it after
        `interval` steps in a row without one, and count anew. Keep it within limits.
    """

    def __init__(self, comms, factor=2.0**16, interval=2000, limits=(1.0, 2.0**24)):
        ### BEGIN SOLUTION
        self.comms, self.factor, self.good = comms, factor, 0
        self.interval, self.limits, self.norm = interval, limits, None

    def scale(self, loss):
        return loss * self.factor

    def unscale(self, optimizer):
        if self.norm is None:
            squares = np.zeros(1)
            for p in (p for p in optimizer.params if p.grad is not None):
                p.grad = p.grad / np.float32(self.factor)
                squares += np.sum(p.grad.astype(float) ** 2)
            for axis in self.comms:
                axis.Allreduce(squares.copy(), squares)
            self.norm = float(np.sqrt(squares[0]))
        return self.norm

    def step(self, optimizer, most=np.inf):
        norm = self.unscale(optimizer)
        if not np.isfinite(norm):
            return False
        for p in (p for p in optimizer.params if p.grad is not None and norm > most):
            p.grad = p.grad * np.float32(most / norm)
        optimizer.step()
        return True

    def update(self):
        self.good = self.good + 1 if np.isfinite(self.norm) else 0
        if not np.isfinite(self.norm):
            self.factor = max(self.factor / 2, self.limits[0])
        elif self.good == self.interval:
            self.factor, self.good = min(self.factor * 2, self.limits[1]), 0
        self.norm = None
        ### END SOLUTION


# %% Check the LossScaler tags=["given"]
ScalerCheck("LossScaler", ranks).everything().passed()

# %% [markdown] tags=["slide-50"]
# ## All together
#
# Now part 28's model trains in each format, its parameters in one flat array. Each layer rounds what it passes on, and in backward the
# gradient that comes back. First one step in two formats, over a slow network. Half the bytes: what gets shorter, and what does not?
# Large runs average the loss over millions of tokens, so each token's gradient is tiny. Here a step has 1,024 tokens; `share` makes each
# count as little as in a step of four million, and `most=share` is then a norm of 1. Which format will learn worst?

# %% Take a step in two formats tags=["experiment"]
# %%px --trace
for dtype, model in models.items():
    comm.Barrier()
    with span(dtype):
        model.set(gather_as(model.shard(), dtype, link))
        model.loss(0).backward()
        reduce_as(model.gradient(), dtype, link)


# %% Train in a format tags=["experiment", "slide-50"]
# %%px
def train(dtype, factor=1.0, limits=(1.0, 1.0), steps=60, share=2.0**-12):
    model, log = FlatModel(comm, dtype), []
    master = Parameter(model.shard())
    optimizer = Adam([master], 3e-3, eps=1e-12)
    scaler = LossScaler([comm], factor, interval=20, limits=limits)
    before = traffic.sent()
    for step in range(steps):
        model.set(gather_as(master.data, dtype, comm))
        loss = model.loss(step)
        log.append((loss.item(), np.log2(scaler.factor)))
        scaler.scale(loss * share).backward()
        master.grad = reduce_as(model.gradient(), dtype, comm)
        scaler.step(optimizer, most=share)
        scaler.update()
    return *np.transpose(log), model.gradient(), (traffic.sent() - before) / steps


# %% Draw the losses tags=["folded", "slide"]
ways = {name: dict(dtype=name) for name in ("float32", "bfloat16", "float16")}
ways["float16, scaled"] = dict(dtype="float16", factor=2.0**32, limits=(1.0, 2.0**40))
runs = {name: ranks.call("train", way) for name, way in ways.items()}
curves = {f"{name}: {run[0][3] / 1e3:,.0f} kB": np.mean([losses for losses, *_ in run], axis=0) for name, run in runs.items()}
plots.losses(curves, "Training loss in each format, and what a rank sends in a step")

# %% [markdown] tags=["slide-50"]
# Most large models train in bfloat16: it has float32's range, and needs no scaling. The scaled run skips its first steps. What does it save?

# %% Draw the gradients tags=["folded", "slide"]
gradient, factor = runs["float32"][0][2], 2.0 ** runs["float16, scaled"][0][1][-1]
plots.magnitudes({"not scaled": gradient, f"times 2^{np.log2(factor):.0f}": gradient * factor}, "Gradients, and what float16 can hold")

# %% Draw the factor tags=["folded", "slide-50"]
factors = {"log2 of the factor": runs["float16, scaled"][0][1]}
plots.lines(factors, "The factor: halved after an overflow, doubled after 20 steps without one", "step", "log2 of the factor", bottom=20)

# %% [markdown] tags=["slide-all"]
# ## Eight bits
#
# An all-reduce can send even less: of 256 numbers, one scale and 256 whole numbers from -127 to 127. What is rounded away is not lost if each
# rank adds it to its next gradient: **error feedback** (Seide et al., 2014). When does it matter: with 127 levels, or with -1, 0 and 1 only?


# %% Train with int8 blocks tags=["folded", "slide-all"]
names = {(0, False): "float32", (127, False): "int8", (1, False): "-1, 0, 1 as int8", (1, True): "with error feedback"}
found = {name: ranks.call("compressed", dict(levels=k, feedback=f)) for (k, f), name in names.items()}
curves = {f"{name}: {run[0][1] / 1e3:,.0f} kB": np.mean([losses for losses, _ in run], 0) for name, run in found.items()}
plots.losses(curves, "Training loss, and what a rank sends for the all-reduce of a step")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `MixedPrecisionPolicy` of `fully_shard`; `torch.amp.GradScaler`; `ShardedGradScaler` makes ranks agree (pull request 115710).
# - Megatron-LM: `DynamicGradScaler` halves after `hysteresis` overflows. `reduce_scatter_with_fp32_accumulation` is your `reduce_as`.
# - DeepSpeed: `DynamicLossScaler`; ZeRO++ (`zero_quantized_gradients`) sends int4 blocks by all-to-alls. JAX: `jmp.DynamicLossScale`.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. With `gather_as`, memory is not halved here: why not, and what would change on a GPU?
# 2. Which would you send in bfloat16 without a second thought: parameters or gradients? What changes with a thousand ranks?
# 3. An overflow skips a step on all ranks. How many steps in a thousand may be skipped before you would change something, and what?

# %% Save the functions tags=["given", "skip"]
saving.save(ranks, "gather_as", "reduce_as", "LossScaler")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes, formats and groups, and count the bytes that each rank sends.

# %% Test: gathers, and masters that keep small steps tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = PrecisionCheck("gather_as", ranks, show=False).everything()
### END HIDDEN TESTS

# %% Test: reductions tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = PrecisionCheck("reduce_as", ranks, show=False).everything()
### END HIDDEN TESTS

# %% Test: scaling, unscaling and clipping tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = ScalerCheck("LossScaler", ranks, show=False).scaling()
### END HIDDEN TESTS

# %% Test: all ranks skip a step together tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = ScalerCheck("LossScaler, overflows", ranks, show=False).skipping()
### END HIDDEN TESTS

# %% Test: the factor tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = ScalerCheck("LossScaler, the factor", ranks, show=False).adjusting()
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
