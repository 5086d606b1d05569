# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 35 Zero bubble
#
# **You will build** `backward_input` and `backward_weight`, the two halves of a backward, and `zb_h1_step`, a pipeline step that fills its
# bubbles with the second half.
#
# *{points} points. About 75 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np
from course_lib import cluster, plots
from course_lib.check.pipeline.zero_bubble import DividedBackwardCheck, ZeroBubbleCheck
from course_lib.sim.llm.costs.schedule import work_orders
from course_lib.sim.schedule import compare_measured, schedules

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np
from course_lib import memory
from course_lib.collectives import Communicator
from course_lib.gpt.model import Sizes, layers
from course_lib.gpt.model.divided_stage import DividedStage, take_paced_steps, undivided
from course_lib.gpt.training import activation_memory

everyone = Communicator()
rank = everyone.Get_rank()
sizes = Sizes(vocabulary=80, width=64, heads=4, depth=8, length=128)
random = np.random.default_rng(0)  # the same tokens on all ranks
tokens = random.integers(0, 80, (8, 2, 128))  # 8 micro-batches of 2 texts of 128 tokens
micro_batches = [(t, np.roll(t, -1, axis=1)) for t in tokens]  # labels: the next token

# %% Draw both schedules tags=["folded"]
zb_h1 = [
    "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7",
    "F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7",
    "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7",
    "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7",
]
both = {"1F1B": work_orders(4, 1, 8), "ZB-H1": list(map(schedules.parse_work, zb_h1))}
schedules.draw_orders(both)

# %% [markdown] tags=["slide"]
# In part 25's pipeline, each rank is idle for a part of the step. The previous rank waits for the gradient of the **input**. Nobody waits
# for the gradients of the **weights**: they are only needed when the step is over. So divide backward into two pieces of work, B for the
# input and W for the weights, and do W when there is nothing better to do (Qi et al., 2023, "Zero Bubble Pipeline Parallelism"). Then the
# first gradient reaches rank 0 sooner than in 1F1B, and W fills the end.
#
# With $t_F$, $t_B$ and $t_W$ for a micro-batch on one of p ranks, at least p micro-batches, and W no longer than F or B, a rank is idle for
#
# $$ \text{1F1B: } (p - 1)(t_F + t_B + t_W) \qquad \text{ZB-H1: } (p - 1)(t_F + t_B - t_W) $$
#
# This is not free: between B and W, a rank must keep something. But what?

# %% [markdown] tags=["slide-50"]
# ## A worked example: one matrix product
#
# Nearly all the work is in matrix products $y = x w$. With $\bar y$ for the gradient of the loss with respect to y,
#
# $$ \text{B: } \bar x = \bar y\, w^\top \qquad \text{W: } \bar w = x^\top \bar y $$
#
# Both need $\bar y$, but only W needs x. Other layers, such as attention's softmax and the norms, have no such W; they are done in B.
#
# `stage.back(k, grad, through)` takes micro-batch k back through a stage. At each matrix product, it calls `through(product, grad)` with
# $\bar y$, and goes on with the $\bar x$ that this returns. A product has `x`, an array, and `weight`, a parameter with `data` and `grad`.
# Here `through` only looks, and returns zeros. Which product comes first?

# %% Go back through a stage tags=["slide-50"]
# %%px --targets 3


def look(product, grad):
    print("x", product.x.shape, "weight", product.weight.shape, "grad", grad.shape)
    return np.zeros_like(product.x)


stage = DividedStage(layers(sizes, 4, 3), 64, backward_input=None, backward_weight=None)
x, labels = np.ones((2, 128, 64), np.float32), micro_batches[0][1]
stage.forward(0, x, labels)
stage.back(0, 1.0, look).shape

# %% [markdown] tags=["slide-50"]
# ## Your turn: B and W
#
# In `stage.kept[k]`, B leaves for W what it needs of micro-batch k, and nothing else: when `stage.back` is over, what forward has kept is
# freed, but not what you hold on to. Whoever keeps a product also keeps its x. In W, gradients of all positions of all texts add up.


# %% Exercise: backward_input tags=["exercise", "slide-50"]
# %%px
def backward_input(stage, k, grad):
    """B: return the gradient of a stage's input, which `stage.back` returns.

    `k` is a micro-batch that has been through forward, and `grad` the gradient of what
    forward returned, which stays as it is; a number on the last rank. The matrices get
    no gradient yet; the other parameters get theirs in `stage.back`. Keep each product
    and the gradient of its result, and at most 10% more.
    """
    ### BEGIN SOLUTION
    kept = stage.kept[k] = []

    def through(product, grad):
        kept.append((product, grad))
        return grad @ product.weight.data.T

    return stage.back(k, grad, through)
    ### END SOLUTION


# %% Exercise: backward_weight tags=["exercise", "slide-50"]
# %%px
def backward_weight(stage, k):
    """W: add to `weight.grad` of the stage's products, in its dtype; None is zero.

    `backward_input` has been called for this micro-batch, maybe also for others. What
    it has kept is freed. The whole work must be done here, not in B: so the checks
    change a product's x, ``(batch, positions, inputs)``, in place between B and W.
    """
    ### BEGIN SOLUTION
    for product, grad in stage.kept.pop(k):
        rows = product.x.reshape(-1, product.x.shape[-1])
        add = rows.T @ grad.reshape(-1, grad.shape[-1])
        weight = product.weight
        weight.grad = add if weight.grad is None else weight.grad + add
    ### END SOLUTION


# %% Check both tags=["given"]
DividedBackwardCheck(ranks).gradients().gradients(np.float32, single="text").gradients(single="position").frees().passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: ZB-H1
#
# F and B come in the order of 1F1B: rank r of p begins with $p - r - 1$ forwards, then alternates one F and one B. What is left is where
# to put each W, after its B. Look at the picture at the top. On rank 0, each W comes right after its B. How many W's does rank 3 put off?
# Why does rank 0 put off none?
#
# With all W right after their B, the step in the picture would take 3 units of time longer, p - 1. But a rank that puts off W keeps what W
# needs, and none may hold anything of more than p micro-batches, which is what rank 0 holds in 1F1B. Send with `Isend`, as in part 25.


# %% Exercise: zb_h1_step tags=["exercise", "slide-50"]
# %%px
def zb_h1_step(stage, micro_batches, comm):
    """The gradients of a step with the schedule ZB-H1.

    A rank holds a micro-batch from its F to its W, and never more than p of them. If F,
    B and W take one tick each and messages none, the step takes at most 3 m + p - 1
    ticks; with m < p, 2 (m + p - 1) for all F and B, and 1 for the last W. The order
    does not depend on the time that anything takes.

    Parameters
    ----------
    stage : DividedStage
        F is `forward(k, x, labels)`. B and W are `backward_input(k, grad)` and
        `backward_weight(k)`, which call your functions. `buffer(tokens)` is an empty
        array to receive into.
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
        to those already there.

    Notes
    -----
    It sends each result before its next piece of work, and waits only for what that
    needs. In the end, it has waited for every request. A rank sends each result once,
    and at most 32 bytes for each micro-batch besides. It sends at most 8 messages for
    each micro-batch, and calls no collective. What is sent and received may be held to
    the end, and 30% of what F keeps of a micro-batch.
    """
    ### BEGIN SOLUTION
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    count, sent, losses = len(micro_batches), [], []

    def receive(k, source):
        array = stage.buffer(micro_batches[k][0])
        comm.Recv(array, source=source)
        return array

    def forward(k):
        x, labels = micro_batches[k]
        out = stage.forward(k, receive(k, rank - 1) if rank > 0 else x, labels)
        if rank < last:
            sent.append(comm.Isend(out, dest=rank + 1))
        else:
            losses.append(out)

    def backward(k):
        grad = receive(k, rank + 1) if rank < last else 1 / count
        back = stage.backward_input(k, grad)
        if rank > 0:
            sent.append(comm.Isend(back, dest=rank - 1))

    ahead = min(last - rank, count)
    for k in range(ahead):
        forward(k)
    for k in range(count + rank):
        if k + ahead < count:
            forward(k + ahead)
        if k < count:
            backward(k)
        if k >= rank:
            stage.backward_weight(k - rank)
    for request in sent:
        request.Wait()
    return sum(losses) / count if rank == last else None
    ### END SOLUTION


# %% Check ZB-H1 tags=["given"]
check = ZeroBubbleCheck(ranks).step(1, 2).step(4, 1).step(2, 3, np.float32, again=True).step(4, 6, shape="large")
check.step(3, 17, shape="token").schedule(4, 6, shape="large").schedule(2, 4).schedule(4, 3).peak_memory().passed()

# %% [markdown] tags=["slide"]
# ## The real timeline, beside 1F1B's
#
# Your step now drives tiny stages that sleep until a given time is over, so two cores are enough for four ranks. If `backward_input` does
# all of the backward, and `backward_weight` nothing, the same step is 1F1B. Predict how long both will take, then change the seconds: what if
# W takes half as long as B? And what if it takes longer than both: where does the formula stop being true, and why?

# %% Choose the seconds tags=["experiment", "slide-50"]
# %%px
seconds = {"forward": 0.02, "backward": 0.02, "weight grad": 0.02}
count = 8  # micro-batches
functions = dict(backward_input=backward_input, backward_weight=backward_weight)
at_once = {"backward": seconds["backward"] + seconds["weight grad"], "weight grad": 0}
ways = {"1F1B": undivided(**functions), "ZB-H1": functions}
paces = {"1F1B": seconds | at_once, "ZB-H1": seconds}


# %% Draw the timelines tags=["folded", "slide"]
with ranks.trace(show=False) as traces:
    paced = "{name: (ways[name], paces[name]) for name in ways}"
    ranks.run(f"take_paced_steps(zb_h1_step, {paced}, count, everyone)")
panels = {}
for name, times in ranks.pull("paces")[0].items():
    step = traces[0].fastest(name)
    expected = compare_measured.simulate_order(step, lambda rank, kind, times=times: times[kind])
    idle = [f"{1 - trace.computing:.0%}" for trace in (step, expected)]
    panels[f"{name}: idle {idle[0]} of the time, simulated {idle[1]}"] = step
plots.timeline(panels, "A step of 1F1B and of ZB-H1 on four ranks, the fastest of three", summary=False)

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# Memory. Both schedules have the same micro-batches in flight, between F and B. ZB-H1 also keeps some between B and W: only inputs and
# gradients of matrix products, less than a stage keeps after F. Before you run it: which rank holds the most in 1F1B, and which in ZB-H1?

# %% Measure the memory tags=["folded", "skip"]
# %%px
peaks = {}
for name, some in ways.items():
    stage = DividedStage(layers(sizes, 4, rank), 64, **some)
    zb_h1_step(stage, micro_batches[:1], everyone)
    with memory.watch() as account:
        zb_h1_step(stage, micro_batches, everyone)
    peaks[name] = account.true_peak / 1e6
kept = activation_memory.kept_by_divided(stage, *micro_batches[0])

# %% Draw the memory tags=["folded", "slide-50"]
peaks = ranks.pull("peaks")
measured = {f"{name}, rank {r}": peaks[r][name] for name in peaks[0] for r in range(4)}
plots.bars(measured, "Peak memory of a step with eight micro-batches", "MB")

# %% [markdown] tags=["slide"]
# ## Interleaving instead
#
# There is an older way to shrink the bubbles: give each rank several smaller **chunks** of layers, and send each micro-batch round the
# ranks several times (Narayanan et al., 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
# section 2.2). With v chunks, bubbles are 1/v as long. But rank 0 starts more forwards before its first backward, so it holds up to
# p + (p - 1) / v micro-batches, and sends v times as many messages. Is this or ZB-H1 cheaper in memory?

# %% Draw interleaving tags=["folded", "slide-50"]
schedules.draw_orders({"1F1B": work_orders(4, 1, 8), "2 chunks (small: the second)": work_orders(4, 2, 8)})

# %% Compare the memory tags=["folded", "slide"]
after_f, after_b = ranks.pull("kept")[0]  # bytes that rank 0 keeps of a micro-batch
orders = both | {f"interleaved, {v} chunks": work_orders(4, v, 8) for v in (2, 4)}
costs = {}
for name, order in orders.items():
    idle = schedules.as_trace(schedules.schedule_times(order, schedules.units(order)), name).computing
    held = max(schedules.most_held(work, after_b / after_f) for work in order)
    costs[f"{name}, idle {1 - idle:.0%}"] = held * after_f / 1e6
plots.bars(costs, "Activations on the rank that holds most: four ranks, eight micro-batches", "MB")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `stage_backward_input` and `stage_backward_weight` in `torch/distributed/pipelining/_backward.py` divide any graph, not just
#   matrix products. `ScheduleInterleavedZeroBubble` and `ScheduleZBVZeroBubble` in `schedules.py` use them.
# - The paper's own `zero-bubble-pipeline-parallelism` (sail-sg): `WeightGradStore` keeps what your `kept` does. With equal F, B and W, its
#   ZB-H2 has no bubble and twice the memory; ZB-V, with two chunks per rank in the shape of a V, has no bubble and 1F1B's memory.
# - Transformer Engine: linear layers with `delay_wgrad_compute=True` leave W to a call of `backward_dw()`.
# - JAX: `jax.vjp` of a stage gives both gradients at once; for B alone, take it of a function of x only.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. ZB-H1 still has a bubble. Where is it, and what would rank 0 have to hold to fill it?
# 2. The optimizer's step comes after all W. Clipping also needs a norm over all ranks. What does that do to a pipeline without bubbles?
# 3. With tensor parallelism, B contains an all-reduce, and W does not. What could W be good for, even without a pipeline?

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other sizes, dtypes, groups and numbers of micro-batches. They change x between B
# and W, look at what has been sent when a piece of work begins, and at the memory of each process. In them, `Send` waits for its receiver.

# %% Test: B and W tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = DividedBackwardCheck(ranks, show=False).gradients().gradients(np.float32, 2, single="position").gradients(count=4, single="text")
### END HIDDEN TESTS

# %% Test: the gradients of ZB-H1 tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = ZeroBubbleCheck(ranks, show=False)
for size, count in ((1, 1), (1, 4), (2, 1), (2, 5), (3, 2), (3, 4), (4, 1), (4, 3), (4, 7)):
    check.step(size, count, np.float32 if size == 2 else np.float64, again=(size, count) in ((2, 5), (4, 3)))
check = check.step(4, 6, shape="large").step(2, 4, shape="large").step(3, 17, shape="token")
### END HIDDEN TESTS

# %% Test: order, idle time, and the number of micro-batches held tags=["test"] points=8
### BEGIN HIDDEN TESTS
check = ZeroBubbleCheck(ranks, show=False).schedule(4, 7).schedule(2, 5, np.float32).schedule(3, 6).schedule(4, 2).schedule(1, 3)
### END HIDDEN TESTS

# %% Test: memory tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = ZeroBubbleCheck(ranks, show=False).peak_memory(4, 6).peak_memory(2, 4)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
