"""Mixture-of-experts layer, around the functions of part 24 (Lepikhin et al., 2021; Fedus et al., 2022).

Over the ranks of its group, tokens are sharded along dimension 0, the router's weight is replicated and its gradient partial, and the
experts are sharded along dimension 0, as are their gradients. Only the student's functions and `balancing_loss` communicate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from course_lib.autograd import operations
from course_lib.autograd.functional import softmax
from course_lib.autograd.modules import Module, Parameter
from course_lib.autograd.tensor import Tensor, array_namespace


@dataclass
class Route:
    """Routing of a rank's tokens.

    Attributes
    ----------
    expert : numpy.ndarray
        int, ``(tokens, topk)``: the experts of each token, its first choice first.
    place : numpy.ndarray
        int, ``(tokens, topk)``: the slot in this rank's buffer for that expert, or -1 if the token is dropped.
    weight : Tensor
        ``(tokens, topk)``: the gates; meaningless where a token is dropped.
    experts : int
        Number of experts on all ranks together.
    capacity : int
        Slots that each rank has for each expert.
    """

    expert: np.ndarray
    place: np.ndarray
    weight: Tensor
    experts: int
    capacity: int


def capacity_of(tokens: int, topk: int, factor: float, experts: int) -> int:
    """Number of slots that a rank with `tokens` tokens has for each expert.

    >>> capacity_of(16, 1, 1.25, 8), capacity_of(16, 2, 1.25, 8)
    (3, 5)
    """
    return math.ceil(round(tokens * topk * factor / experts, 9))


def take(a: Tensor, index: np.ndarray) -> Tensor:
    """Select values of each row, ``a[i, index[i, j]]``, as NumPy's `take_along_axis` does.

    Parameters
    ----------
    a : Tensor
        ``(rows, columns)``.
    index : numpy.ndarray
        int, ``(rows, k)``; no column may occur twice in a row.

    Returns
    -------
    Tensor
        ``(rows, k)``.
    """
    xp = array_namespace(a.data)

    def backward(g):
        grad = xp.zeros_like(a.data)
        grad[xp.arange(len(index))[:, None], index] = g
        return (grad,)

    return Tensor.from_operation(xp.take_along_axis(a.data, index, axis=1), (a,), backward)


def into_slots(x: Tensor, route: Route) -> Tensor:
    """Put this rank's tokens into its slots; nothing is sent.

    Parameters
    ----------
    x : Tensor
        ``(tokens, width)``.
    route : Route

    Returns
    -------
    Tensor
        ``(experts, capacity, width)``: a token in each of its slots, and 0 in empty ones.

    Examples
    --------
    >>> route = Route(np.array([[1], [1], [0]]), np.array([[0], [-1], [0]]), None, 2, 1)
    >>> into_slots(Tensor(np.array([[5.0], [6.0], [7.0]])), route).data.ravel().tolist()
    [7.0, 5.0]
    """
    if len(x.shape) != 2 or x.shape[0] != len(route.place):
        raise ValueError(f"into_slots takes the {len(route.place)} tokens of the route, (tokens, width); got an array of shape {x.shape}.")
    xp, (token, _, slot) = array_namespace(x.data), _kept(route)
    slots = xp.zeros((route.experts, route.capacity, x.shape[1]), x.dtype)
    slots[slot] = x.data[token]

    def backward(g):
        grad = xp.zeros_like(x.data)
        xp.add.at(grad, token, g[slot])
        return (grad,)

    return Tensor.from_operation(slots, (x,), backward)


def from_slots(slots: Tensor, route: Route) -> Tensor:
    """Take what belongs to this rank's tokens out of its slots; nothing is sent.

    Parameters
    ----------
    slots : Tensor
        ``(experts, capacity, width)``.
    route : Route

    Returns
    -------
    Tensor
        ``(tokens, topk, width)``: for each choice what is in its slot, and 0 if it is dropped.
    """
    if len(slots.shape) != 3 or slots.shape[:2] != (route.experts, route.capacity):
        wanted = f"({route.experts}, {route.capacity}, width)"
        raise ValueError(f"from_slots takes one rank's slots for all experts, {wanted}; got an array of shape {slots.shape}.")
    xp, (token, choice, slot) = array_namespace(slots.data), _kept(route)
    out = xp.zeros((*route.place.shape, slots.shape[2]), slots.dtype)
    out[token, choice] = slots.data[slot]

    def backward(g):
        grad = xp.zeros_like(slots.data)
        grad[slot] = g[token, choice]
        return (grad,)

    return Tensor.from_operation(out, (slots,), backward)


def _kept(route: Route) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Tokens and choices that have a slot, and their slots: expert and place."""
    token, choice = np.nonzero(route.place >= 0)
    return token, choice, (route.expert[token, choice], route.place[token, choice])


def clusters(random: np.random.Generator, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a task for experts: vectors from eight clusters, and targets that depend on the vector differently in each cluster.

    Parameters
    ----------
    random : numpy.random.Generator
        Draws the vectors. The clusters are always the same.
    tokens : int
        Number of vectors.

    Returns
    -------
    x, y : numpy.ndarray
        ``(tokens, 16)``.
    """
    fixed, kind = np.random.default_rng(1), random.integers(0, 8, tokens)
    centres, changes = fixed.standard_normal((8, 16)), fixed.standard_normal((8, 16, 16)) / 4
    x = centres[kind] + 0.3 * random.standard_normal((tokens, 16))
    return x, x + np.einsum("tw,twv->tv", x, changes[kind])


def balancing_loss(logits: Tensor, expert: np.ndarray, comm) -> Tensor:
    """This rank's summand of the load-balancing loss, ``experts * sum(f * P)`` (Fedus et al., 2022, section 2.2).

    f is the fraction of all ranks' tokens whose first choice is an expert, P the mean probability of that expert over all ranks' tokens.
    The product is not linear in both together, so f must be complete, which takes an all-reduce of a few numbers. P may stay partial:
    each rank has the summand of its own tokens, and the sum over the ranks is the loss.

    Parameters
    ----------
    logits : Tensor
        ``(tokens, experts)``.
    expert : numpy.ndarray
        int, ``(tokens, topk)``, see `Route`.
    comm : Communicator

    Returns
    -------
    Tensor
        A single number, partial over the ranks.
    """
    experts = logits.shape[1]
    mine = np.bincount(expert[:, 0], minlength=experts).astype(np.float64)
    counts = np.empty_like(mine)
    comm.Allreduce(mine, counts)
    tokens = counts.sum()
    return (softmax(logits) * (experts * counts / tokens / tokens)).sum()


class MixtureOfExperts(Module):
    """Add the output of its experts to ``x``; each expert is two matrices with a ReLU in between.

    Parameters
    ----------
    functions : object
        Has the student's `route`, `dispatch` and `combine` as attributes.
    comm : Communicator
        The ranks that share the experts.
    width, hidden, experts : int
        Width of a token, hidden units of an expert, and experts on all ranks together: a multiple of the number of ranks.
    topk : int
        Number of experts that each token is sent to.
    factor : float
        The capacity factor.
    random : numpy.random.Generator, optional
        Draws the router and the experts: the same on all ranks, for any number of them.
    dtype : data type

    Attributes
    ----------
    router : Parameter
        ``(width, experts)``, replicated; the gradient after `backward` is partial.
    w1, w2 : Parameter
        ``(experts / n, width, hidden)`` and ``(experts / n, hidden, width)``, sharded along dimension 0, as their gradients are.
    route : Route
        Route of the last `forward`.
    balance : Tensor
        This rank's summand of the last `forward`'s `balancing_loss`, to be added to the loss.

    Raises
    ------
    ValueError
        The number of ranks does not divide the number of experts.
    """

    def __init__(self, functions, comm, width: int, hidden: int, experts: int, topk=1, factor=1.25, random=None, dtype=np.float32):
        n, r, random = comm.Get_size(), comm.Get_rank(), random or np.random.default_rng(0)
        if experts % n:
            raise ValueError(f"MixtureOfExperts: {n} ranks cannot share {experts} experts equally.")
        self.functions, self.comm, self.topk, self.factor = functions, comm, topk, factor
        mine = slice(r * experts // n, (r + 1) * experts // n)
        draw = random.standard_normal
        self.router = Parameter((draw((width, experts)) / np.sqrt(width)).astype(dtype))
        self.w1 = Parameter((draw((experts, width, hidden)) * np.sqrt(2 / width))[mine].astype(dtype))
        self.w2 = Parameter((draw((experts, hidden, width)) / np.sqrt(hidden))[mine].astype(dtype))
        self.route = self.balance = None

    def forward(self, x: Tensor) -> Tensor:
        return x + self.expert_output(x)

    def expert_output(self, x: Tensor) -> Tensor:
        """Output of the experts for these tokens."""
        tokens, given = x.reshape(-1, x.shape[-1]), self.functions
        logits = tokens @ self.router
        capacity = capacity_of(len(tokens), self.topk, self.factor, self.router.shape[1])
        self.route = given.route(logits, self.topk, capacity)
        slots = given.dispatch(tokens, self.route, self.comm)
        slots = operations.relu(slots @ self.w1) @ self.w2
        out = given.combine(slots, self.route, self.comm)
        self.balance = balancing_loss(logits, self.route.expert, self.comm)
        return out.reshape(*x.shape)
