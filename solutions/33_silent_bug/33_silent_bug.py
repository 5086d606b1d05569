# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 33 The silent bug
#
# **You will build** instruments that find a bug in a training run that neither crashes nor looks wrong, and repair two such runs.
#
# *{points} points. About 75 minutes.*

# %% Start the ranks tags=["given"]
from course_lib import cluster, plots
from course_lib.check.silent_bug.check import SilentBugCheck
from course_lib.check.silent_bug.repairs import RepairCheck
from course_lib.check.silent_bug.same import SameCheck

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import hashlib
import numpy as np
from course_lib.collectives import Communicator
from course_lib.gpt import text
from course_lib.gpt.silent_bugs import Finding, best_factor, best_fit, deciding_axis, epsilon, held_by_all, looking, parts_of
from course_lib.gpt.silent_bugs.step import batch_of, loss_and_backward, own_part, summed, train

everyone = Communicator()
words, _ = text.load_and_broadcast(everyone)

# %% [markdown] tags=["slide"]
# ## Six runs, and none is right
#
# Most bugs of parallel training raise no error: NeMo Automodel once trained on the last micro-batch only, and the loss fell. Here a tiny
# [GPT of part 28](28_gpt.ipynb) trains on four ranks in six ways. Each has a bug; the run on one rank, with the same weights and texts, is
# right. Which ones look suspicious? Write it down.


# %% Train them tags=["folded", "slide"]
def train_run(name, steps):
    return train(looking.start(name, everyone), words, steps)


curves = {name: ranks.call(train_run, dict(name=name, steps=80))[0] for name in ("one rank", *"ABCDEF")}
plots.losses_beside(curves, "one rank", "Training loss of six runs with a bug")

# %% [markdown] tags=["slide-50"]
# ## A worked example: what does rounding explain?
#
# The obvious test is to compare with one rank. But four ranks add in another order, so even right results differ a little. Here n random
# numbers are added from the first to the last, and back. What does the difference depend on?

# %% Add in two orders tags=["slide-50"]
# %%px --targets 0
for n, dtype in (10, "float64"), (1000, "float64"), (1000, "float32"), (40, "bfloat16"):
    error = looking.rounding_error(n, dtype)
    print(f"{dtype}, {n} terms: {error:.1f} epsilons of the largest sum")

# %% [markdown] tags=["slide-50"]
# ## Your turn: close enough
#
# `epsilon(dtype)` is the distance from 1 to the next number. An addition errs by at most half of it, times the partial sum, and $n$ errors in
# random directions add up to about $\sqrt n$ of them. The *largest* value tells best how large the partial sums were: in a small one, large
# terms may have cancelled. Allow a few times what you expect, not a thousand times.


# %% Exercise: close_enough tags=["exercise", "slide-50"]
# %%px
def close_enough(a, b, dtype, terms):
    """Return whether rounding explains how two arrays differ; False if their shapes do,
    or if a value is infinite or not a number. Both arrays stay as they are.

    If all is well, a and b are the same sums of `terms` terms, in different orders. The
    terms and partial sums have the format `dtype`: "float64", "float32", "float16", or
    "bfloat16"; the arrays may have a wider one. Rounding explains at most
    10 * sqrt(terms) epsilons of the largest value, or `terms` epsilons, if these are
    more.
    """
    ### BEGIN SOLUTION
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    a, b = a.astype(np.float64), b.astype(np.float64)
    largest = max(np.abs(a).max(initial=0), np.abs(b).max(initial=0))
    return bool((np.abs(a - b) <= 4 * terms**0.5 * epsilon(dtype) * largest).all())
    ### END SOLUTION


# %% Check close_enough tags=["given"]
SilentBugCheck("close_enough", ranks).close().passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: the same on an axis
#
# Copies of a parameter can drift apart. `mesh.along("tp")` is the communicator of this rank's group along an axis. Arrays may be large, so do
# not send them: what is short, and tells two arrays apart? (`hashlib` has some. Python's own `hash` may differ from process to process.)


# %% Exercise: same_on tags=["exercise", "slide-50"]
# %%px
def same_on(array, axis, mesh):
    """Return whether all ranks of this rank's group along an axis hold the same array:
    shape, dtype and all bits. It may have any order in memory, and stays as it is.

    axis is a name, such as "tp". A rank sends at most 1,024 bytes to each other rank of
    the group, in at most 10 calls of its communicator, and calls no other ranks.
    """
    ### BEGIN SOLUTION
    comm = mesh.along(axis)
    data = f"{array.dtype} {array.shape}".encode() + array.tobytes()
    mine = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
    every = np.empty((comm.Get_size(), mine.size), np.uint8)
    comm.Allgather(mine, every)
    return bool((every == mine).all())
    ### END SOLUTION


# %% Check same_on tags=["given"]
SameCheck("same_on", ranks).same().passed()

# %% Look for copies that differ tags=["experiment", "slide-50"]
# %%px
for name in "ABCDEF":
    step = looking.start(name, everyone)
    train(step, words, 10)
    print(f"run {name}:", looking.different_copies(step, same_on)[:2])

# %% [markdown] tags=["slide-50"]
# ## A worked example: a step
#
# `step(batch, mesh)` takes a step on the grid. It returns the loss and the gradients, in the order in which backward reaches them; of a
# sharded parameter, this rank's part. `step(batch, None)` does the same on this rank alone, for any texts. The parameters stay as they are.

# %% Look at a step tags=["slide-50"]
# %%px --targets 0
step, batch = looking.start("one rank", everyone), batch_of(words, 0)
print(batch.shape, {name: array.shape for name, array in step(batch, None).items()})
alone = [step(batch[i : i + 1], None)["3.norm.bias"] for i in range(len(batch))]
print(step(batch, None)["3.norm.bias"][:4], np.mean(alone, axis=0)[:4], sep="\n")

# %% [markdown] tags=["slide"]
# ## Your turn: compare with one rank
#
# Let $g$ be the right gradient, or this rank's part of it. A wrong one is of one of six kinds; the first that fits counts:
#
# | kind | what the wrong ranks have | `axis` | `factor` |
# |---|---|---|---|
# | `"factor"` | $c\,g$, with one number $c$ for all | where | $c$ |
# | `"missing sum"` | only a summand, on every rank: added up along one axis, not that of its shards, they give $c\,g$ | this axis | $c$ |
# | `"wrong shard"` | the part of another rank along the axis of the shards | this axis | `None` |
# | `"stale"` | the right one of the batch before this one | where | `None` |
# | `"some samples"` | $\sum_i w_i\,g_i$, where $g_i$ is the gradient of sample i alone; the $w_i$ may differ from rank to rank | where | `None` |
# | `"other"` | anything else | where | `None` |
#
# *Where*: the axis whose coordinate alone decides which ranks are wrong, or `None`, as `deciding_axis(wrong, mesh)` finds it. `mesh.shape` has
# the axes and their sizes, and `mesh.group(axis, r)` the ranks of r's group along one. Also given are
# `held_by_all(array, mesh)`, the list of all ranks' arrays; `parts_of(whole, split, mesh)`, the list of their parts of a whole array, with
# `split = step.sharded.get(name)`, an axis and a dimension or `None`; `best_factor(arrays, others)`, the $c$ for which $c$ times the arrays of
# a list is nearest to those of another; and `best_fit(array, terms)`, the weighted sum of terms that is nearest to an array.


# %% Exercise: compare_with_one_rank tags=["exercise", "slide-50"]
# %%px
def compare_with_one_rank(step, batches, mesh):
    """Find the first gradient, or loss, that is wrong on some rank; collective.

    Return ``Finding(parameter, axis, kind, factor)``, or None; the same on all ranks.

    Parameters
    ----------
    step : callable
        See above. `step.dtype` and `step.terms` are for `close_enough`.
    batches : list of numpy.ndarray
        The previous batch and this one, ``(samples, ...)``; not changed. On the mesh,
        call step with each once, in this order. Judge what the second call returns.
    """
    ### BEGIN SOLUTION
    previous, batch = batches
    step(previous, mesh)
    got, whole, everywhere = step(batch, mesh), step(batch, None), range(mesh.size)

    def close(a, b, ranks=everywhere):
        return all(close_enough(a[r], b[r], step.dtype, step.terms) for r in ranks)

    for name in got:
        split, have = step.sharded.get(name), held_by_all(got[name], mesh)
        want = parts_of(whole[name], split, mesh)
        wrong = [r for r in everywhere if not close(have, want, [r])]
        if wrong:
            break
    else:
        return None
    where = deciding_axis(wrong, mesh)
    c = best_factor([want[r] for r in wrong], [have[r] for r in wrong])
    if close(have, [c * array for array in want], wrong):
        return Finding(name, where, "factor", c)
    for axis in mesh.shape:
        if mesh.shape[axis] > 1 and (split is None or axis != split[0]):
            total = [sum(have[m] for m in mesh.group(axis, r)) for r in everywhere]
            c = best_factor(want, total)
            if c and close(total, [c * array for array in want]):
                return Finding(name, axis, "missing sum", c)
    if split and all(any(close(have, {r: part}, [r]) for part in want) for r in wrong):
        return Finding(name, split[0], "wrong shard")
    if close(have, parts_of(step(previous, None)[name], split, mesh), wrong):
        return Finding(name, where, "stale")
    alone = [step(batch[i : i + 1], None)[name] for i in range(len(batch))]
    alone = zip(*(parts_of(array, split, mesh) for array in alone), strict=True)
    fitted = [best_fit(*arrays) for arrays in zip(have, alone, strict=True)]
    kind = "some samples" if close(have, fitted, wrong) else "other"
    return Finding(name, where, kind)
    ### END SOLUTION


# %% Check compare_with_one_rank tags=["given"]
SilentBugCheck("compare_with_one_rank", ranks).examples().passed()

# %% [markdown] tags=["slide"]
# ## What the instrument says
#
# Were you right? Each line ends with the time of a step, and of the comparison. How often could you afford one?

# %% Compare all runs tags=["experiment", "slide"]
# %%px
for name in "ABCDEF":
    looking.report(name, everyone, compare_with_one_rank, words)

# %% [markdown] tags=["slide-50"]
# The run that looks worst trains right: only the loss that A shows is wrong. Adam divides a gradient by its own size, so B's factor is gone,
# as long as nobody clips. D is of kind "other", but the instrument says where to look: `out` is right, `qkv` is not. What is between them?
#
# ## Your turn: two repairs
#
# Here is the source of C and D where it is wrong (`looking.source("E")` shows a whole run). Write it again, without the bug. After each change
# in C, ask the instrument again.

# %% Read the source tags=["slide-50"]
# %%px --targets 0
print(*map(looking.source, ("accumulate", "own_gradients", "attend")), sep="\n")


# %% Exercise: accumulate tags=["exercise", "slide-50"]
# %%px
def accumulate(model, micro_batches):
    """Compute the gradients of the mean loss over all micro-batches; return this loss.

    Gradients of earlier steps must not count; the new ones have the parameters' dtype.
    All micro-batches have the same size, only one fits into memory, and the list stays
    as it is. ``loss_and_backward(model, texts)`` returns a mean loss and *adds* its
    gradients. Call ``loss_and_backward`` once for each micro-batch, with it alone, and
    no other ranks.
    """
    ### BEGIN SOLUTION
    model.zero_grad()
    loss = sum(loss_and_backward(model, texts) for texts in micro_batches)
    for p in model.parameters():
        p.grad /= len(micro_batches)
    return loss / len(micro_batches)
    ### END SOLUTION


# %% Ask the instrument tags=["experiment", "skip"]
# %%px
looking.report("C", everyone, compare_with_one_rank, words, accumulate=accumulate)


# %% Exercise: own_gradients tags=["exercise", "slide-50"]
# %%px
def own_gradients(dq, dk, dv, comm):
    """Return the gradients of this rank's q, k and v, from what its queries contribute.

    `dk` and `dv` are ``(batch, heads, all ranks' positions, width)``, in rank order;
    all three stay as they are. The results have their dtype. ``summed(x, comm)`` is the
    sum over a group, ``own_part(x, comm, dim)`` this rank's part of it along a
    dimension. Make at most 12 calls of ``comm``.
    """
    ### BEGIN SOLUTION
    return dq, own_part(summed(dk, comm), comm, 2), own_part(summed(dv, comm), comm, 2)
    ### END SOLUTION


# %% Check accumulate and own_gradients tags=["given"]
RepairCheck("accumulate", ranks).accumulate(1, 2, left=True).accumulate(3, dtype="float32", each=1).passed()
RepairCheck("own_gradients", ranks).own_gradients(4, 2).passed()

# %% Compare the repaired run tags=["experiment", "slide-50"]
# %%px
looking.report("D", everyone, compare_with_one_rank, words, own_gradients=own_gradients)
two = [looking.start("D", everyone)]
two += [looking.start("D", everyone, own_gradients=own_gradients)]

# %% Trace a step of D, as it was and repaired tags=["experiment", "skip"]
# %%px --trace # Which exchange is missing in the first backward?
results = [step(batch_of(words, 0), step.mesh) for step in two]

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - A: torchtitan #3280. With tensor and context parallelism, the loss was not summed over cp. Only the number that was shown was wrong.
# - B: torchtune #2172. On 8 GPUs, the gradient norm was off by a factor of 8, and the loss curves were the same with and without the bug.
# - C: NeMo Automodel #3530. Pipeline stages set up again between micro-batches threw gradients away; only the gradient norm showed it.
# - D: Megatron-LM #1464. With context parallelism, dQ, dK and dV were wrong; a list of errors in units of epsilon, by layer, showed where.
# - E: Megatron-LM #1446. Gradients of the last LayerNorm differed between tensor parallel ranks. (F is our own.)
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
# 1. Run B trains as well as one rank. Why repair it? What changes with clipping, with weight decay, or with SGD?
# 2. What do you compare with if the model does not fit on one rank?
# 3. Late in training, the gradients of the samples nearly cancel. Whom does `close_enough` accuse then? What else would it have to know?

# %% [markdown] tags=["skip"]
# ## Hidden tests
# Hidden tests run when your notebook is graded. They plant faults, also of kinds that are not shown here, beside runs that only look odd.

# %% Test: close enough tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = SilentBugCheck("close_enough", ranks, show=False).close()
### END HIDDEN TESTS

# %% Test: the same on an axis tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = SameCheck("same_on", ranks, show=False).same()
### END HIDDEN TESTS

# %% Test: the kind of a fault tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = SilentBugCheck("compare_with_one_rank", ranks, show=False).kinds()
### END HIDDEN TESTS

# %% Test: faults of other kinds, and the innocent tags=["test"] points=8
### BEGIN HIDDEN TESTS
check = SilentBugCheck("compare_with_one_rank: other kinds", ranks, show=False).others().roundings()
### END HIDDEN TESTS

# %% Test: accumulate tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = RepairCheck("accumulate", ranks, show=False).accumulate(3, 1, left=True).accumulate(2, 4, dtype="float32", each=1)
### END HIDDEN TESTS

# %% Test: own_gradients tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = RepairCheck("own_gradients", ranks, show=False).own_gradients(4, 3, 2)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
