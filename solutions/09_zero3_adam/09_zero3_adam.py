# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 09 Adam on shards
#
# **You will build** `ZeroDPAdam.step`, one step of an optimizer whose state is sharded over the ranks. Then you will see what each stage of
# ZeRO saves.
#
# *{points} points. About 40 minutes.*

# %% Start the ranks tags=["given"]
from itertools import pairwise

import numpy as np

from course_lib import cluster, datasets, plots
from course_lib.check import Check
from course_lib.check.zero.adam import AdamCheck, train
from course_lib.check.zero.contract import STEP_BYTES
from course_lib.zero import FLOAT32, MIXED_PRECISION, state_bytes_by_kind

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np

from course_lib import students, zero
from course_lib.collectives import Communicator

comm = Communicator()
rank = comm.Get_rank()


class Shards:
    """Stands in for a sharded layer: it has everything that an optimizer uses."""

    def __init__(self, w_shard, b_shard):
        self.w_shard, self.b_shard = w_shard, b_shard
        self.grad_w_shard, self.grad_b_shard = np.zeros_like(w_shard), np.zeros_like(b_shard)


# %% Draw the formula tags=["folded"]
parameters, n = 1_000_000, 4
kinds = {"float32": FLOAT32, "mixed": MIXED_PRECISION}
bars = {f"stage {s}, {name}": state_bytes_by_kind(s, parameters, n, each) for s in range(4) for name, each in kinds.items()}
plots.memory(bars, f"A model with {parameters:,} parameters, {n} ranks: what a rank holds")

# %% [markdown] tags=["slide"]
# The picture shows what a rank holds at each stage of ZeRO (Rajbhandari et al., SC'20, section 3.1). In float32, as here, Adam takes 4 bytes
# for a parameter, 4 for its gradient, and 8 for two moments. The paper trains in mixed precision: 2 bytes, 2 bytes, and 12 for the moments
# and a float32 copy of the parameter. Both make 16. Adam's state is the largest part and the first one that ZeRO shards: stage 0 shards
# nothing, stage 1 the optimizer state, stage 2 also the gradients, and stage 3 also the parameters. With many ranks, stage 1 saves a factor
# of 2 in float32 and of 4 in mixed precision, and stage 2 a factor of 4 and of 8. Change `n` to see it.
#
# For each parameter, Adam (Kingma and Ba, 2015, algorithm 1) keeps a running mean $m$ of its gradient $g$ and a running mean $v$ of the
# squared gradient. In step $t$, counting from 1:
#
# $$ m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 $$
#
# $$ w \leftarrow w - \mathrm{lr} \; \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \varepsilon} $$
#
# Every element is updated independently. So each rank updates its shard of the parameters without communicating: it only needs its shard of
# the gradients.
#
# ## A worked example
#
# Take one parameter and three gradients of very different sizes. How far does Adam move the parameter in the first step? Try other
# gradients.

# %% The first step tags=["slide"]
# %%px --targets 0
for g in (1e-3, 1.0, 1e3):
    m, v = 0.1 * g, 0.001 * g**2
    step = 0.01 * (m / (1 - 0.9)) / (np.sqrt(v / (1 - 0.999)) + 1e-8)
    print(f"gradient {g:g}: a step of {step:.6f} at lr 0.01")

# %% [markdown] tags=["slide-50"]
# ## Your turn
#
# `step` updates the shards of all layers. The state is already there: one entry for each layer's weight and one for its bias, all zeros at
# the start.


# %% Exercise: ZeroDPAdam tags=["exercise", "slide-50"]
# %%px
class ZeroDPAdam:
    """Adam on this rank's shards (ZeRO stage 3).

    Parameters
    ----------
    layers : list
        Objects with flat arrays ``w_shard``, ``b_shard``, ``grad_w_shard`` and
        ``grad_b_shard``, such as the layers of part 08. A step does not change their
        dtypes.

    Attributes
    ----------
    state : dict
        ``(layer_index, "w")`` and ``(layer_index, "b")`` map to dicts with the arrays
        "m" and "v", shaped like the shard. `t` counts the steps.

    Notes
    -----
    A step sends 0 bytes.
    """

    def __init__(self, layers, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
        self.lr, self.beta1, self.beta2, self.eps = lr, beta1, beta2, eps
        self.layers, self.state, self.t = layers, {}, 0
        for i, layer in enumerate(layers):
            w, b = layer.w_shard, layer.b_shard
            self.state[i, "w"] = {"m": np.zeros_like(w), "v": np.zeros_like(w)}
            self.state[i, "b"] = {"m": np.zeros_like(b), "v": np.zeros_like(b)}

    def step(self):
        """Update every ``w_shard`` and ``b_shard``; do not modify the gradients."""
        ### BEGIN SOLUTION
        self.t += 1
        rate = self.lr / (1 - self.beta1**self.t)
        correction = 1 / (1 - self.beta2**self.t)
        for (i, name), state in self.state.items():
            shard = getattr(self.layers[i], f"{name}_shard")
            grad = getattr(self.layers[i], f"grad_{name}_shard")
            m, v, change = state["m"], state["v"], (1 - self.beta1) * grad
            m *= self.beta1
            m += change
            np.multiply(grad, grad, out=change)  # in place: a shard may be large
            change *= 1 - self.beta2
            v *= self.beta2
            v += change
            np.multiply(v, correction, out=change)
            np.sqrt(change, out=change)
            change += self.eps
            np.divide(m, change, out=change)
            change *= rate
            shard -= change
        ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?
#
# The check takes steps on some shards, with a new gradient for each step. It uses $\beta_1 = \beta_2 = \frac12$ and gradients $g$ and $-g$,
# so that you can follow it on paper: the first step moves the weight by lr, the second moves it back by a third of that.

# %% Check tags=["given"]
check = AdamCheck("ZeroDPAdam.step", ranks)
check.by_hand()
check.passed()

# %% [markdown] tags=["slide-50"]
# ## What it costs, stage by stage
#
# The next cells train the same model at all four stages: 64 pixels, four hidden layers of 512 units, 10 classes. Each run takes 40 steps on
# the digits; you can change both. The layers for stages 0 to 2 come with the course (`course_lib/zero.py`, short enough to read in one sitting). The layer for
# stage 3 is yours from part 08, loaded from `zero_dp_stage3.py`. The optimizer is yours at every stage: it updates the shards that the
# layers give it.


# %% A run at one stage tags=["given", "skip"]
# %%px
def run_stage(stage, sizes, steps, x, y):
    """What `zero.profile` measures at one stage; None if part 08 is missing."""
    student = students.load(".")
    student.ZeroDPAdam = globals().get("ZeroDPAdam")
    if stage < 3 or hasattr(student, "ZeroDPStage3FCLayer"):
        return zero.profile(stage, comm, student, sizes, x, y, steps=steps)


# %% Run the stages tags=["folded"]
sizes, steps = (64, 512, 512, 512, 512, 10), 40
data, results = datasets.load("digits"), {}
for stage in range(4):
    given = [dict(stage=stage, sizes=sizes, steps=steps, x=data.x_train[r::4], y=data.y_train[r::4]) for r in range(4)]
    answers = ranks.call("run_stage", given)
    if answers[0] is None:
        print("Skipping stage 3: zero_dp_stage3.py has no ZeroDPStage3FCLayer. Finish part 08 and run its last cells.")
    else:
        results[f"stage {stage}"] = answers[0]
for name, r in results.items():
    apart = np.max(np.abs(r["losses"] - results["stage 0"]["losses"]))
    print(
        f"{name}: loss from {r['losses'][0]:.4f} to {r['losses'][-1]:.4f}, at most {apart:.0e} away from stage 0; "
        f"{1000 * r['seconds']:.1f} ms per step"
    )

# %% Draw the memory tags=["folded", "slide-50"]
plots.memory({name: r["peak"] for name, r in results.items()}, "Peak memory of rank 0 at each stage of ZeRO, 4 ranks")

# %% [markdown]
# The bars show the memory that the layers report. The short line is the peak that Python's own `tracemalloc` saw; the difference is
# temporary arrays. The next cell prints the most that a rank held, next to what the formula gives for float32.

# %% Compare with the formula tags=["folded"]
parameters = sum((a + 1) * b for a, b in pairwise(sizes))
for stage, (name, r) in enumerate(results.items()):
    said = state_bytes_by_kind(stage, parameters, 4).items()
    print(f"{name}: " + ", ".join(f"{k} {r['most'][k] / 1e6:.2f} MB ({r['most'][k] / n:.2f} times the formula)" for k, n in said))

# %% Draw the traffic tags=["folded", "slide-50"]
plots.traffic([r["moved"] for r in results.values()], "Bytes that rank 0 sent per step", list(results))

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - Stage 3 in PyTorch: after `fully_shard(model)`, an ordinary `torch.optim.AdamW(model.parameters())` steps on the shards, as yours does.
# - Stage 1 in PyTorch: `ZeroRedundancyOptimizer` (`torch/distributed/optim`). It gives each rank whole parameters, not equal parts of flat
#   arrays, and each rank broadcasts what it has updated.
# - Megatron-LM: `DistributedOptimizer` (`megatron/core/optimizer/distrib_optimizer.py`), stage 1 on flat buffers. Its documentation counts
#   16 bytes in float32, which become 8 + 8/n.
# - DeepSpeed: `runtime/zero/stage_1_and_2.py` and `stage3.py`; the configuration says `"zero_optimization": {"stage": 2}`.
# - JAX has no class for it: under `jit`, Adam's state is arrays with a `NamedSharding` like any others.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. Stages 1 and 2 send as much as stage 0. Why would anyone use stage 0?
# 2. With 64 ranks instead of 4, which bars shrink, which stay the same, and which exchange becomes the slowest?
#
# The last cells save your class to `zero_dp_stage3.py` and stop the ranks.

# %% Save the class tags=["given", "skip"]
from course_lib import saving

saving.save(ranks, "ZeroDPAdam")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# The hidden tests take more steps and train a model. They bring their own layers, so part 08 does not matter here.


# %% Test: 50 steps tags=["test"] points=7
### BEGIN HIDDEN TESTS
def adam(values, grads, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    """Adam on whole arrays, in float64: the values, m and v after all gradients."""
    w, m, v = values.astype(float), 0.0, 0.0
    for t, g in enumerate(np.asarray(grads, float), 1):
        w = -w if t == len(grads) // 2 + 1 else w
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        w = w - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return w, m, v


def compare(check, sizes, steps, dtype, **settings):
    """Cut whole arrays into shards, take steps on each rank, and compare with Adam on the whole arrays."""
    check.case = f"{steps} steps, layers with {sizes} parameters, {np.dtype(dtype).name}, {settings or 'default settings'}"
    kinds = [np.float32 if i == 1 else dtype for i in range(len(sizes))]  # a step keeps each layer's own
    whole = [[check.random.standard_normal(4 * n).astype(kind) for n in pair] for pair, kind in zip(sizes, kinds, strict=True)]
    grads = [[[30.0**i * check.random.standard_normal(4 * n) for n in pair] for i, pair in enumerate(sizes)] for _ in range(steps)]
    for step in grads[steps // 3 :: 7]:
        for pair in step[::2]:
            pair[0][:] = pair[1][::2] = 0  # a gradient of zero still changes m, v and the parameter
    grads = [[[g.astype(kind) for g in pair] for pair, kind in zip(step, kinds, strict=True)] for step in grads]
    cut = [[[np.split(a, 4)[r] for a in pair] for pair in whole] for r in range(4)]
    cut_grads = [[[[np.split(a, 4)[r] for a in pair] for pair in step] for step in grads] for r in range(4)]
    answers = ranks.call(train, [dict(shards=cut[r], grads=cut_grads[r], settings=settings) for r in range(4)])
    for r, (*_, (t, changed)) in enumerate(answers):
        check.value(t, steps, name="t after the last step", rank=r)
        if changed:
            cause = "an in-place operation, or m is the gradient's own array"
            check.fail(f"the gradients of step {changed} on rank {r} have changed", cause)
        check.sent(ranks.traffic[r], 0, name="step", rank=r, cause="a step on shards needs no communication", limit=STEP_BYTES)
    for i, j in np.ndindex(len(sizes), 2):
        wanted, name = adam(whole[i][j], [step[i][j] for step in grads], **settings), f"{'wb'[j]}_shard of layer {i}"
        for r, (shards, after, state, _) in enumerate(answers):
            if sorted(state) != sorted(f"{k} {n}" for k in range(len(sizes)) for n in "wb"):
                check.fail(f"the state's keys on rank {r} are not (layer_index, 'w') and (layer_index, 'b') for each layer")
            found = (shards[i][j], *state[f"{i} {'wb'[j]}"])
            for what, got, want in zip((name, f"m for {name}", f"v for {name}"), found, wanted, strict=True):
                cause = "t does not count steps from 1, a moment is not kept, or a copy changes instead of the layer's own array"
                how = dict(rtol=rtols[kinds[i]], scale=np.abs(want).max(), cause=cause)
                check.array(got, np.split(want, 4)[r].astype(kinds[i]), name=what, rank=r, **how)
            check.array(after[i][j], cut_grads[r][-1][i][j], name=f"grad_{name}", rank=r, cause="an in-place operation")


check = Check("ZeroDPAdam, step", show=False)
rtols = {np.float64: 1e-10, np.float32: 1e-5}
for dtype in rtols:
    sizes = [tuple(check.sizes(2, 1, 9)) for _ in range(3)]
    compare(check, sizes, 50, dtype)
    lr, beta1, beta2 = check.random.uniform((0.001, 0.5, 0.9), (0.1, 0.95, 0.9999))
    compare(check, sizes[:2], 50, dtype, lr=float(lr), beta1=float(beta1), beta2=float(beta2), eps=1e-4)
check.covers("dtypes", "sizes", "repetition", "arguments", "calls")
### END HIDDEN TESTS


# %% Test: an epoch on the digits tags=["test"] points=3
### BEGIN HIDDEN TESTS
def epoch(x, y, seed, lr):
    from course_lib.layers import softmax_cross_entropy

    comm = Communicator()  # other cells may have reused this name
    random, shapes = np.random.default_rng(seed), [((64, 128), (128,)), ((128, 10), (10,))]
    draw = [(random.standard_normal(w) * np.sqrt(2 / w[0]), np.zeros(b)) for w, b in shapes]
    layers = [
        Shards(*(np.split(np.pad(a.ravel(), (0, -a.size % 4)), 4)[comm.Get_rank()].astype(np.float32) for a in pair)) for pair in draw
    ]
    optimizer = ZeroDPAdam(layers, lr=lr)

    def whole(shard, shape):
        full = np.empty(4 * shard.size, shard.dtype)
        comm.Allgather(shard, full)
        return full[: int(np.prod(shape))].reshape(shape)

    def shard_of(grad):
        mine = np.empty(-(-grad.size // 4), grad.dtype)
        comm.Reduce_scatter(np.pad(grad.ravel(), (0, -grad.size % 4)), mine)
        return mine

    for start in range(0, len(x), 6):
        (w1, b1), (w2, b2) = ((whole(y.w_shard, w), whole(y.b_shard, b)) for y, (w, b) in zip(layers, shapes, strict=True))
        xb, h = x[start : start + 6], np.maximum(x[start : start + 6] @ w1 + b1, 0)
        g = softmax_cross_entropy(h @ w2 + b2, y[start : start + 6])[1] / 4
        gh = g @ w2.T * (h > 0)
        for layer, gw, gb in ((layers[0], xb.T @ gh, gh.sum(0)), (layers[1], h.T @ g, g.sum(0))):
            layer.grad_w_shard, layer.grad_b_shard = shard_of(gw), shard_of(gb)
        optimizer.step()
    return [(whole(y.w_shard, w), whole(y.b_shard, b)) for y, (w, b) in zip(layers, shapes, strict=True)]


check = Check("an epoch on the digits", show=False)
data, seed = datasets.load("digits"), int(check.random.integers(2**31))
answers = ranks.call(epoch, [dict(x=data.x_train[r::4], y=data.y_train[r::4], seed=seed, lr=0.008) for r in range(4)])
for r, ((w1, b1), (w2, b2)) in enumerate(answers):
    accuracy = np.mean((np.maximum(data.x_test @ w1 + b1, 0) @ w2 + b2).argmax(1) == data.y_test)
    if not accuracy >= 0.90:
        check.fail(f"after an epoch, rank {r} classifies {accuracy:.3f} of the test images correctly; expected at least 0.90")
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
