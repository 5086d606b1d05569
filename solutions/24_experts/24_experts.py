# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 24 A mixture of experts
#
# **You will build** a token's journey to its expert and back: `route` decides where it goes, `dispatch` sends it, `combine` brings it home.
#
# *{points} points. About 75 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np
from course_lib import cluster, plots, saving
from course_lib.check.experts.check import ExpertsCheck
from course_lib.plots import experts as pictures
from course_lib.plots import moving

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
from types import SimpleNamespace
import numpy as np
from mpi4py import MPI
from course_lib.autograd import Adam, Tensor, concatenate
from course_lib.autograd.functional import embedding, softmax
from course_lib.collectives import Communicator
from course_lib.gpt.model import MixtureOfExperts, Route, clusters, from_slots, into_slots, take

comm = Communicator()
rank = comm.Get_rank()
logits = np.random.default_rng(rank).standard_normal((8, 8)) + np.arange(8) / 6

# %% Draw what the tokens want tags=["folded", "slide"]
pictures.routing_preferences(ranks.pull("logits"), "The expert each token wants most, from the logits on four ranks")

# %% [markdown] tags=["slide"]
# A layer has several sets of weights, its *experts*, and each token passes through a few of them: a *router*, a single matrix, decides
# which (Lepikhin et al., 2021, "GShard", section 2.2; Fedus et al., 2022, "Switch transformers", section 2.1). So with eight experts, a
# layer has eight times the parameters; with one of them per token, it computes no more. Rank $r$ of $n$ holds $\text{experts} / n$ experts,
# from $r \cdot \text{experts} / n$ on.

# %% Draw what kind the arrays are tags=["folded"]
pictures.array_placements(4, "A mixture of experts, on the ranks of an expert parallel group (ep)")

# %% [markdown] tags=["slide"]
# The router's gradient is *partial*: each rank has the term from its own tokens, and an all-reduce adds them up. The experts' gradients
# need no exchange here, because all ranks with data of their own share the experts (ep is all of dp): all tokens of an expert have come to
# its rank. With ep = 4 and dp = 8, each expert is on two ranks, and its gradient is partial over those two.
#
# ## A worked example: an all-to-all
#
# `comm.Alltoall(sent, came)` splits each rank's array into $n$ equal parts along the first axis. Part $r$ goes to rank $r$, which gets the
# parts in the order of their senders. What does rank 2 get? Write it into `prediction`. What would a second all-to-all turn `came` into?

# %% A number for each rank tags=["slide"]
# %%px
sent, came = np.array([10 * rank + r for r in range(4)]), np.empty(4, int)
comm.Alltoall(sent, came)
prediction = [0, 0, 0, 0]  # for rank 2

# %% Draw the exchange tags=["folded"]
plots.exchange(ranks.pull("sent"), ranks.pull("came"), "An all-to-all", prediction=(2, ranks.pull("prediction")[2]))

# %% [markdown] tags=["slide-50"]
# ## Your turn: who goes where
#
# A rank has $C = \lceil \text{tokens} \cdot \text{topk} \cdot \text{factor} / \text{experts} \rceil$ *slots* per expert, its **capacity**:
# its tokens' fair share times a headroom factor. If none is free, a token is *dropped* for that expert. The chosen experts' probabilities
# are its *gates*. `softmax(logits)` and `take(chances, expert)` (`np.take_along_axis(..., axis=1)` for Tensors) have gradients.


# %% Exercise: route tags=["exercise", "slide-50"]
# %%px
def route(logits, topk, capacity):
    """Choose the experts and the slots of this rank's tokens. Nothing is sent.

    Parameters
    ----------
    logits : Tensor
        Shape ``(tokens, experts)``: the router's output for this rank's tokens.
    topk, capacity : int
        Experts per token, and this rank's slots per expert.

    Returns
    -------
    Route(expert, place, weight, logits.shape[1], capacity)
        expert: int array, ``(tokens, topk)``: the `topk` most probable experts (softmax
        over all experts), most probable first; in a tie, the lower number.
        place: int array, ``(tokens, topk)``: the slot, 0, 1, ... in the order of the
        tokens, all first choices before any second ones; -1 if no slot is left.
        weight: Tensor, ``(tokens, topk)``, dtype of `logits`, with a gradient: the
        probabilities; if topk > 1, divided by their sum, dropped ones included.
    """
    ### BEGIN SOLUTION
    chances = softmax(logits)
    expert = np.argsort(-chances.data, axis=1, kind="stable")[:, :topk]
    weight = take(chances, expert)
    if topk > 1:
        weight = weight / weight.sum(axis=1).reshape(-1, 1)
    place, taken = np.full(expert.shape, -1), np.zeros(logits.shape[1], int)
    for k, t in np.ndindex(topk, len(expert)):
        e = expert[t, k]
        place[t, k] = taken[e] if taken[e] < capacity else -1
        taken[e] += 1
    return Route(expert, place, weight, logits.shape[1], capacity)
    ### END SOLUTION


# %% Check route tags=["given"]
ExpertsCheck("route", ranks).by_hand("route")

# %% [markdown] tags=["slide-50"]
# ## Your turn: there, and back
#
# $$ (\text{experts}, C, \text{width}) \;=\; (n, \tfrac{\text{experts}}{n}, C, \text{width}) \;\xrightarrow{\text{all-to-all}}\;
# (n, \tfrac{\text{experts}}{n}, C, \text{width}) \;\to\; (\tfrac{\text{experts}}{n}, n \, C, \text{width}) $$
#
# Before the exchange, the axis $n$ says where a slot *goes*; after it, where it *comes from*. The gradient travels back the same way: see
# `Tensor.from_operation` in part 21. What a rank does with its own tokens is given, with gradients: `into_slots(x, route)`, of shape
# `(experts, C, width)`, has each kept token in its slots and 0 in empty ones; `from_slots(slots, route)`, of shape `(tokens, topk, width)`,
# takes them out again, with 0 for dropped choices. So `reshape`, `transpose` and one exchange are left to write.


# %% Exercise: dispatch tags=["exercise", "slide-50"]
# %%px
def dispatch(x, route, comm):
    """Send this rank's tokens to their experts.

    Parameters
    ----------
    x : Tensor
        This rank's tokens, ``(tokens, width)``; other ranks may have more or fewer.
    route, comm : Route, Communicator
        The route of these tokens, with the same `capacity` on all ranks; the n ranks
        that share the experts. Do not modify x or route.

    Returns
    -------
    Tensor
        Shape ``(experts / n, n * capacity, width)``, dtype of x, sharded like the
        experts: for each expert here, the slots of rank 0, then rank 1, ...; 0 in empty
        ones. A rank sends at most its slots, 8 bytes for each of them, and 64 for each
        rank, once in forward and once in backward, each time in at most 16 calls.
    """

    ### BEGIN SOLUTION
    def swap(sent):
        came = np.empty(sent.shape, sent.dtype)
        comm.Alltoall(np.ascontiguousarray(sent), came)
        return came

    n, width = comm.Get_size(), x.shape[1]
    parts = into_slots(x, route).reshape(n, -1, route.capacity, width)
    slots = Tensor.from_operation(swap(parts.data), (parts,), lambda g: (swap(g),))
    return slots.transpose(1, 0, 2, 3).reshape(slots.shape[1], -1, width)
    ### END SOLUTION


# %% Check dispatch tags=["given"]
ExpertsCheck("dispatch", ranks).by_hand("dispatch")


# %% Exercise: combine tags=["exercise"]
# %%px
def combine(y, route, comm):
    """Bring the experts' outputs back to their tokens.

    Parameters
    ----------
    y : Tensor
        ``(experts / n, n * capacity, width)``, in the order of `dispatch`, with noise
        in empty slots. Do not modify it.
    route, comm : Route, Communicator
        As for `dispatch`. The gates, `route.weight`, get a gradient, too.

    Returns
    -------
    Tensor
        Shape ``(tokens, width)``, dtype of y: the sum of gate times output over a
        token's kept choices, 0 if all are dropped. It sends as much as `dispatch`,
        in as many calls.
    """

    ### BEGIN SOLUTION
    def swap(sent):
        came = np.empty(sent.shape, sent.dtype)
        comm.Alltoall(np.ascontiguousarray(sent), came)
        return came

    capacity, width = route.capacity, y.shape[2]
    parts = y.reshape(len(y), -1, capacity, width).transpose(1, 0, 2, 3)
    came = Tensor.from_operation(swap(parts.data), (parts,), lambda g: (swap(g),))
    found = from_slots(came.reshape(-1, capacity, width), route)
    return (found * route.weight.reshape(*route.weight.shape, 1)).sum(axis=1)
    ### END SOLUTION


# %% Check combine, and the layer with all three tags=["given"]
ExpertsCheck("combine", ranks).by_hand("combine", "layer")

# %% [markdown] tags=["skip"]
# Move through the step. The trace of your functions has the two all-to-alls, with their bytes and times, but no contents: which token went
# where comes from the ranks' arrays.

# %% Draw the tokens' routes tags=["folded", "slide"]
with ranks.trace(show=False) as traces:
    tokens = ranks.call(pictures.round_trip)
moving.experts(traces, tokens, "32 tokens, and eight experts with two slots for each rank")

# %% [markdown] tags=["slide-50"]
# ## Do the experts share the work?
#
# Not yet. The *balancing loss* $\text{experts} \cdot \sum_i f_i P_i$ helps (Fedus et al., section 2.2): $f_i$ is the share of all ranks'
# tokens whose first choice is expert $i$, $P_i$ its mean probability. In this example, each of eight clusters of tokens needs a different mapping.

# %% Train without and with the balancing loss tags=["experiment", "slide-50"]
# %%px
steps, tokens, experts, factor = 120, 64, 8, 1.25  # tokens: of each rank
shares = {"without": 0.0, "with": 0.05}  # what the balancing loss is multiplied by

functions = SimpleNamespace(route=route, dispatch=dispatch, combine=combine)
random, routes = np.random.default_rng(10 + rank), {}
for name, share in shares.items():
    net = MixtureOfExperts(functions, comm, 16, 16, experts, factor=factor, dtype=float)
    optimizer = Adam(net.parameters(), 0.01)
    for _ in range(steps):
        x, y = clusters(random, tokens)
        error = net(x) - y  # next: this rank's term of the loss
        ((error * error).sum() * (1 / (4 * y.size)) + net.balance * share).backward()
        comm.Allreduce(MPI.IN_PLACE, net.router.grad)
        optimizer.step()
        optimizer.zero_grad()
    routes[name] = net.route.expert[:, 0], net.route.place[:, 0]
slots = net.route.capacity

# %% Draw the load tags=["folded", "slide-50"]
experts, slots = ranks.pull("experts")[0], ranks.pull("slots")[0]
pictures.expert_loads(ranks.pull("routes"), experts, slots, "All tokens after training, without and with the balancing loss")

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# An all-to-all sends $(n-1)/n$ of a rank's slots, four times per step. With an all-gather of all tokens and a reduce-scatter of all outputs
# instead, what a rank sends grows with $n$. For 256 tokens of width 64 on each rank, in float32 with topk 1:

# %% Count the bytes tags=["folded"]
sizes = dict(tokens=256, width=64, experts=8, factor=1.25)  # tokens: of each rank
moved = [(ranks.call(pictures.exchange_step, dict(sparse=sparse, **sizes)), ranks.traffic[0])[1] for sparse in (True, False)]
title = f"What rank 0 sends in a step through the layer, capacity factor {sizes['factor']}"
plots.traffic(moved, title, ["all-to-all", "all tokens gathered"])

# %% Draw the memory tags=["folded", "slide-50"]
width, hidden, experts = 128, 512, 8
make = f"large = MixtureOfExperts(functions, comm, {width}, {hidden}, {experts})"
before, _, after = ranks.held(), ranks.run(make), ranks.held()
replicated = 4 * (experts * 2 * width * hidden + width * experts)
held = {"experts sharded (measured)": after[0] - before[0], "experts replicated": replicated}
plots.bars(held, f"Weights of a layer with {experts} experts, on rank 0", "bytes")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - Megatron-LM: `TopKRouter` and `MoEAlltoAllTokenDispatcher` in `megatron/core/transformer/moe/`. By default nothing is dropped
#   (`moe_expert_capacity_factor` is None), so the parts differ in size, and ranks first tell each other how many tokens come. Experts have
#   their own data parallel group, `expt_dp_group`.
# - DeepSpeed: `MoE` in `deepspeed/moe/layer.py`; `top1gating` and `_AllToAll` are in `sharded_moe.py`. It has capacities like ours, but
#   by default a full expert keeps tokens at random (`use_rts`) instead of the first ones, and a capacity is at least `min_capacity`.
# - PyTorch: `all_to_all_single_autograd` in `torch/distributed/_functional_collectives.py` is our all-to-all with a gradient.
# - JAX: `jax.lax.all_to_all`, and `jax.lax.ragged_all_to_all` for parts that differ in size.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. A token late in the batch is dropped more often, and that depends on other users' texts. What does that mean for a model's answers?
# 2. Suppose f and P came from a rank's own tokens, without an all-reduce. Would the experts be less balanced, or more than they have to be?
#
# The last cells save your functions to `transformer_impl.py`, for part 28, and stop the ranks.

# %% Save the functions tags=["given", "skip"]
saving.save(ranks, "route", "dispatch", "combine")

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# They run when your notebook is graded.

# %% Test: the choices and their slots tags=["test"] points=4
### BEGIN HIDDEN TESTS
from grading.authoring.cases.experts import choose

ExpertsCheck("route", ranks, show=False).drawn("slots", choose)
### END HIDDEN TESTS

# %% Test: the gates tags=["test"] points=2
### BEGIN HIDDEN TESTS
from grading.authoring.cases.experts import choose

ExpertsCheck("route", ranks, show=False).drawn("gates", choose)
### END HIDDEN TESTS

# %% Test: dispatch tags=["test"] points=3
### BEGIN HIDDEN TESTS
from grading.authoring.cases.experts import choose

ExpertsCheck("dispatch", ranks, show=False).drawn("dispatch", choose, backward=False)
### END HIDDEN TESTS

# %% Test: the gradient of dispatch tags=["test"] points=2
### BEGIN HIDDEN TESTS
from grading.authoring.cases.experts import choose

ExpertsCheck("dispatch", ranks, show=False).drawn("dispatch", choose)
### END HIDDEN TESTS

# %% Test: combine tags=["test"] points=3
### BEGIN HIDDEN TESTS
from grading.authoring.cases.experts import choose

ExpertsCheck("combine", ranks, show=False).drawn("combine", choose, backward=False)
### END HIDDEN TESTS

# %% Test: the gradients of combine tags=["test"] points=2
### BEGIN HIDDEN TESTS
from grading.authoring.cases.experts import choose

ExpertsCheck("combine", ranks, show=False).drawn("combine", choose)
### END HIDDEN TESTS

# %% Test: the whole layer tags=["test"] points=4
### BEGIN HIDDEN TESTS
from grading.authoring.cases.experts import choose

ExpertsCheck("the layer", ranks, show=False).drawn("layer", choose)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
