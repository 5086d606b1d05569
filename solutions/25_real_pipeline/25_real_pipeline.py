# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 25 A pipeline on real ranks
#
# **You will build** `gpipe_step` and `one_forward_one_backward_step`: the two schedules from part 19, now with real gradients.
#
# *{points} points. About 80 minutes.*

# %% Start the ranks tags=["given"]
import os
import numpy as np
from course_lib import cluster, plots, saving, sim
from course_lib.check.pipeline.check import PipelineCheck
from course_lib.plots import moving

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np
from course_lib import memory
from course_lib.collectives import Communicator
from course_lib.gpt.model import Sizes, Stage, layers
from course_lib.gpt.model.stage import PacedStage
from course_lib.trace import span

everyone = Communicator()
rank = everyone.Get_rank()
sizes = Sizes(vocabulary=64, width=128, heads=4, depth=8, length=64)
random = np.random.default_rng(0)  # the same tokens on all ranks
tokens = random.integers(0, 64, (8, 2, 64))  # 8 micro-batches of 2 texts of 64 tokens
micro_batches = [(t, np.roll(t, -1, axis=1)) for t in tokens]  # labels: the next token

# %% [markdown] tags=["slide"]
# The model is a small GPT: tokens become vectors, eight transformer blocks work on them, and a final matrix turns them into logits. Each of
# the four ranks is a **stage** with two blocks. The first stage also has the embedding, and the last one the logits and the loss.
#
# Along the pipeline axis, parameters and gradients are neither replicated nor sharded nor partial: each rank has layers of its own. What
# travels is the activation between two stages, and its gradient on the way back: messages between neighbours, no collectives.

# %% Make the stages tags=["given", "skip"]
# %%px
stage = Stage(layers(sizes, 4, rank), sizes.width)
held = sum(p.data.nbytes for _, p in stage.named_parameters())

# %% Draw the stages tags=["folded", "slide"]
plots.bars({f"rank {r}": nbytes for r, nbytes in enumerate(ranks.pull("held"))}, "Parameters of the four stages")

# %% [markdown] tags=["slide-50"]
# ## A worked example: one batch, forward
#
# `stage.forward(k, x, labels)` takes micro-batch k through a stage. On the first rank, x is the tokens; on the others, it is what the
# previous rank has sent. The call returns what to pass on, or, on the last rank, the loss. `stage.buffer(tokens)` is an empty array to
# receive into. What does rank 3 do while rank 0 works? `--trace` shows it below the cell.

# %% Forward, one after the other tags=["slide"]
# %%px --trace # One micro-batch, forward
k = len(stage.done)  # another micro-batch each time that you run this cell
x, labels = micro_batches[k % 8]
if rank > 0:
    x = stage.buffer(x)
    everyone.Recv(x, source=rank - 1)
out = stage.forward(k, x, labels)
if rank < 3:
    everyone.Send(out, dest=rank + 1)
else:
    print("loss", round(out, 3), "at first; guessing costs", round(np.log(64), 3))

# %% [markdown] tags=["slide-50"]
# ## Your turn: GPipe
#
# All micro-batches go forward, and then all go backward. All ranks must take them in the same order; in the backward pass, that may be from
# first to last or from last to first. Send each result before the next computation, so that all ranks can work at the same time.
# `stage.backward(k, grad)` adds to the gradients of the parameters and returns that for the previous rank. On the last rank, `grad` is a
# number: the weight of this micro-batch's loss in the mean.
# The order is GPipe's (Huang et al., 2019, "GPipe"). The paper also recomputes activations (section 2.3); ours keeps all of them.


# %% Exercise: gpipe_step tags=["exercise", "slide-50"]
# %%px
def gpipe_step(stage, micro_batches, comm):
    """The gradients of a step: all micro-batches forward, then all backward.

    Parameters
    ----------
    stage : Stage
        This rank's layers: `forward(k, x, labels)`, `backward(k, grad)`, and
        `buffer(tokens)`, an empty array for an activation or its gradient.
    micro_batches : list of (numpy.ndarray, numpy.ndarray)
        Tokens and labels, int ``(batch, positions)``, all of the same shape. Only the
        first rank has the right tokens, and only the last one the right labels;
        elsewhere, use just the shape. Leave the list as it is.
    comm : Communicator
        The ranks of the pipeline, with the first stage on rank 0; maybe just one rank.

    Returns
    -------
    float or None
        On the last rank, the mean loss over all micro-batches. Its gradients are added
        to those already in the stage's parameters: there may be several steps before an
        update.

    Notes
    -----
    It sends each result before its next piece of work, and waits only for what that
    needs. In the end, it has waited for every request. A rank sends each result once,
    and at most 32 bytes for each micro-batch besides. It sends at most 8 messages for
    each micro-batch, and calls no collective.
    """
    ### BEGIN SOLUTION
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    share, loss = 1 / len(micro_batches), 0.0
    for k, (x, labels) in enumerate(micro_batches):
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            comm.Send(out, dest=rank + 1)
        else:
            loss += share * out
    for k, (x, _) in enumerate(micro_batches):
        grad = share
        if rank < last:
            grad = stage.buffer(x)
            comm.Recv(grad, source=rank + 1)
        back = stage.backward(k, grad)
        if rank > 0:
            comm.Send(back, dest=rank - 1)
    return loss if rank == last else None
    ### END SOLUTION


# %% Check GPipe tags=["given"]
check = PipelineCheck("gpipe_step", ranks).step(3, 17, shape="token")
check.step(4, 1).step(4, 6).step(2, 3, np.float32, again=True).step(4, 6, shape="large").exchanges(4, 6).passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: 1F1B
#
# In GPipe, the activations of all micro-batches are held at once. In 1F1B, rank r of p has at most $p - r$ micro-batches **in flight**,
# which have gone forward and not yet backward: it begins with $p - r - 1$ forwards, then alternates one forward and one backward, and ends
# with the remaining backwards. Sends and waits are as before. Afterwards, move through both steps: who holds how many activations?
#
# Now two neighbours send to each other at the same time: one an activation, the other a gradient. `Send` of a large array returns only
# when it has been received. If both ranks are in `Send`, nobody receives. `request = comm.Isend(array, dest=...)` starts sending and
# `request.Wait()` completes it; until then the array must not change. `Sendrecv` sends and receives at once.


# %% Exercise: one_forward_one_backward_step tags=["exercise", "slide-50"]
# %%px
def one_forward_one_backward_step(stage, micro_batches, comm):
    """The gradients of a step with the 1F1B schedule; otherwise like `gpipe_step`.

    Micro-batches go forward and backward in order. Rank r of p has at most p - r of
    them in flight, and exactly that many when a backward begins, until there are none
    left to go forward. What is sent may be held to the end, and 60% of what forward
    keeps of a micro-batch.
    """
    ### BEGIN SOLUTION
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    count, sent, losses = len(micro_batches), [], []

    def forward(k):
        x, labels = micro_batches[k]
        if rank > 0:
            x = stage.buffer(x)
            comm.Recv(x, source=rank - 1)
        out = stage.forward(k, x, labels)
        if rank < last:
            sent.append(comm.Isend(out, dest=rank + 1))
        else:
            losses.append(out)

    def backward(k):
        grad = 1 / count
        if rank < last:
            grad = stage.buffer(micro_batches[k][0])
            comm.Recv(grad, source=rank + 1)
        back = stage.backward(k, grad)
        if rank > 0:
            sent.append(comm.Isend(back, dest=rank - 1))

    ahead = min(last - rank, count)
    for k in range(ahead):
        forward(k)
    for k in range(count):
        if k + ahead < count:
            forward(k + ahead)
        backward(k)
    for request in sent:
        request.Wait()
    return sum(losses) / count if rank == last else None
    ### END SOLUTION


# %% Check 1F1B tags=["given"]
check = PipelineCheck("one_forward_one_backward_step", ranks).step(3, 17, shape="token")
check.step(4, 1).step(4, 6).step(2, 3, np.float32, again=True).step(4, 6, shape="large").exchanges(4, 6).peak_memory().passed()

# %% Watch both schedules tags=["folded", "slide-50"]
steps = {"GPipe": "gpipe_step", "1F1B": "one_forward_one_backward_step"}
for name, step in steps.items():
    with ranks.trace(show=False) as steps[name]:
        ranks.run(f"{step}(Stage(layers(sizes, 4, rank), sizes.width), micro_batches[:6], everyone)")
moving.pipeline(steps, "A training step of six micro-batches on four ranks")

# %% [markdown] tags=["slide-50"]
# ## Measured and simulated
#
# `sim.calibrate` times matrix products, passes over memory and messages, on all ranks at once. From these, and from a stage's FLOP and
# bytes, the simulator works out when each piece of work should begin and end. With fewer than four cores, only two ranks work here.

# %% Time both orders, and draw them tags=["folded", "slide-50"]
depth, count = 8, 8  # blocks of the model, micro-batches of a step
both = {"GPipe": "gpipe_step", "1F1B": "one_forward_one_backward_step"}
machine, panels, apart = sim.compare_with_simulation(ranks, both, 4 if os.cpu_count() > 3 else 2, depth=depth, count=count)
plots.timeline(panels, f"A step of {count} micro-batches, {machine.name}: measured and simulated at most {apart:.0%} apart")

# %% [markdown] tags=["slide-50"]
# ## One slow stage
#
# Stages are never equal: one has the logits, or a slower device. Here, your functions drive tiny stages that sleep until a given time is
# over. Stage `slow` takes `factor` times as long. Before you run it: how long will the step take? Does it matter which stage is slow?

# %% Slow one stage down tags=["experiment", "slide-50"]
# %%px
slow, factor = 1, 2.0  # try stages 0 and 3, and other factors
forward, backward, count = 0.02, 0.04, 8  # seconds for a micro-batch; micro-batches
step = one_forward_one_backward_step  # or gpipe_step
small = Sizes(vocabulary=64, width=16, heads=2, depth=4, length=8)
little = [(t[:1, :8], labels[:1, :8]) for t, labels in (micro_batches * count)[:count]]
runs = {"equal stages": 1.0, f"stage {slow} slow": factor}


def take_steps():
    for name, times in runs.items():
        times = times if rank == slow else 1.0
        pace = dict(forward=forward * times, backward=backward * times)
        for _ in range(3):
            paced = PacedStage(layers(small, 4, rank), small.width, **pace)
            everyone.Barrier()
            with span(name):
                step(paced, little, everyone)


# %% Draw the slow stage tags=["folded", "slide-50"]
with ranks.trace(show=False) as traces:
    ranks.call("take_steps")
fastest = {name: traces[0].fastest(name) for name in ranks.pull("runs")[0]}
plots.timeline(fastest, "The same step, with equal stages and with a slow one, the fastest of three")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# Both schedules have the same bubbles and send the same bytes. But only in GPipe does what rank 0 holds grow with the micro-batches.


# %% Measure the memory tags=["folded", "slide"]
counts = [1, 2, 4, 8, 16]  # micro-batches of a step


def most_held(counts):
    """On one rank: the peak memory of a step in MB, by count, for both schedules."""
    found = {"GPipe": [], "1F1B": []}
    for count in counts:
        for peaks, function in (found["GPipe"], gpipe_step), (found["1F1B"], one_forward_one_backward_step):
            stage, batches = Stage(layers(sizes, 4, rank), sizes.width), (micro_batches * 2)[:count]
            function(stage, batches[:1], everyone)
            with memory.watch() as account:
                function(stage, batches, everyone)
            peaks.append(account.true_peak / 1e6)
    return found


held = ranks.call(most_held, dict(counts=counts))[0]
plots.lines(held, "Peak memory of a step on rank 0, four ranks", "micro-batches", "MB", at=counts)

# %% Count the bytes tags=["folded", "slide-50"]
plots.traffic(ranks.traffic, "What each rank sent in these steps")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `ScheduleGPipe` and `Schedule1F1B` in `torch/distributed/pipelining/schedules.py`. Its 1F1B needs at least as many micro-batches
#   as stages, and joins a send and the next receive into one batch of messages, instead of our `Isend`; that also avoids the deadlock.
# - Megatron-LM: `forward_backward_pipelining_without_interleaving` in `megatron/core/pipeline_parallel/schedules.py` is 1F1B, with calls such
#   as `send_forward_recv_backward`; `..._with_interleaving` gives each rank several smaller stages.
# - DeepSpeed: `TrainSchedule` in `deepspeed/runtime/pipe/schedule.py` is 1F1B as a list of instructions, and `PipelineEngine` runs them.
# - JAX: the `shard_map` tutorial moves activations with `jax.lax.ppermute`. Backward is the derivative of the whole loop, as in GPipe.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. In both schedules, rank 0 is idle for a while before its first backward. Could it do something useful?
# 2. A pipeline sends far fewer bytes than tensor parallelism. Why does nobody train with a pipeline alone?
# 3. One of 16 devices is 10 % slower than the others. What does that cost in a pipeline, and what in data parallel training?
#
# Your functions are saved to `transformer_impl.py`, for part 28.

# %% Save the functions tags=["given", "skip"]
saving.save(ranks, "gpipe_step", "one_forward_one_backward_step")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes, dtypes, groups and numbers of micro-batches. They look at what has
# been sent when a piece of work begins, and at the memory of each process. In them, `Send` waits for its receiver.

# %% Test: GPipe's gradients tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = PipelineCheck("gpipe_step", ranks, show=False)
for size, count in ((1, 1), (1, 4), (2, 1), (2, 5), (3, 2), (3, 4), (4, 1), (4, 3), (4, 7)):
    check.step(size, count, np.float32 if size == 2 else np.float64, again=(size, count) in ((2, 5), (4, 3)))
check = check.step(4, 3, shape="large").step(3, 17, shape="token")
### END HIDDEN TESTS

# %% Test: GPipe's order tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = PipelineCheck("gpipe_step", ranks, show=False).exchanges(4, 5).exchanges(2, 3, np.float32).exchanges(3, 6).exchanges(4, 2)
### END HIDDEN TESTS

# %% Test: the gradients of 1F1B tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = PipelineCheck("one_forward_one_backward_step", ranks, show=False)
for size, count in ((1, 1), (1, 4), (2, 1), (2, 5), (3, 2), (3, 4), (4, 1), (4, 3), (4, 7)):
    check.step(size, count, np.float32 if size == 2 else np.float64, again=(size, count) in ((2, 5), (4, 3)))
check = check.step(4, 6, shape="large").step(2, 4, shape="large").step(3, 17, shape="token")
### END HIDDEN TESTS

# %% Test: the order of 1F1B tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = PipelineCheck("one_forward_one_backward_step", ranks, show=False).exchanges(4, 6)
check = check.exchanges(2, 5, np.float32).exchanges(3, 4).exchanges(4, 2)
### END HIDDEN TESTS

# %% Test: micro-batches in flight tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = PipelineCheck("one_forward_one_backward_step", ranks, show=False).peak_memory(4, 6).peak_memory(2, 4)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
