"""Part 24's mathematics in NumPy, with all tokens and all experts in one place, as the reference for the ranks' answers.

A route here is a tuple: expert, place, gates; see `gpt.model.experts.Route`. The tests know which route is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from course_lib.gpt.model.experts import capacity_of

# Six tokens, four experts with two slots each: the route worked out by hand, and the results of common mistakes.
EXAMPLE_PROBABILITIES = (
    np.array([[50, 30, 15, 5], [35, 45, 15, 5], [60, 15, 20, 5], [40, 30, 20, 10], [25, 15, 10, 50], [15, 50, 5, 30]]) / 100
)
EXAMPLE_EXPERTS = np.array([[0, 1], [1, 0], [0, 2], [0, 1], [3, 0], [1, 3]])
EXAMPLE_SLOTS = np.array([[0, -1], [0, -1], [1, 0], [-1, -1], [0, -1], [1, 1]])
SLOT_MISTAKES = {
    "what results token by token; all first choices go before any second choice": [[0, 0], [1, 1], [-1, 0], [-1, -1], [0, -1], [-1, 1]],
    "what results when second choices are counted from 0 again, so that two tokens share a slot": [
        [0, 0],
        [0, 0],
        [1, 0],
        [-1, 1],
        [0, 1],
        [1, 0],
    ],
    "what results without a capacity": [[0, 2], [0, 3], [1, 0], [2, 3], [0, 4], [1, 1]],
    "what results with one slot too many": [[0, 2], [0, -1], [1, 0], [2, -1], [0, -1], [1, 1]],
}
TIE_EXAMPLE = np.array([[0, 1]] * 3), np.array([[0, 0], [1, 1], [-1, -1]])  # the same for three tokens with equal logits


def worked_example(topk: int) -> tuple[np.ndarray, list]:
    """Logits and routes of four ranks: the example above, with the experts of rank r shifted by r."""
    gates = np.take_along_axis(EXAMPLE_PROBABILITIES, EXAMPLE_EXPERTS, axis=1)[:, :topk]
    gates = gates / gates.sum(axis=1, keepdims=True) if topk > 1 else gates
    logits = np.array([np.roll(np.log(EXAMPLE_PROBABILITIES), r, axis=1) for r in range(4)])
    return logits, [((EXAMPLE_EXPERTS[:, :topk] + r) % 4, EXAMPLE_SLOTS[:, :topk], gates) for r in range(4)]


def draw_logits(random: np.random.Generator, tokens: int, experts: int, dtype=np.float64, ties: bool = True) -> np.ndarray:
    """Draw logits, some of them equal if `ties`, and no two nearly equal; some experts are wanted more than others."""
    logits = np.round(4 * (random.standard_normal((tokens, experts)) + random.standard_normal(experts))) / 4
    logits = logits if ties else logits + random.permutation(experts) / (8 * experts)
    return (logits + random.choice([-1000.0, 0.0, 1000.0], (tokens, 1))).astype(dtype)  # which changes no probability


def route_cases(check, choose: Callable, ties: bool) -> Iterator[tuple]:
    """Yield logits of four ranks, a capacity, and the routes; `choose` computes a route from logits, topk and capacity."""
    for dtype in (np.float64, np.float32):
        for topk, factor in ((1, 1.0), (2, 1.25), (3, 0.7), (2, 9.0), (1, 0.5), (4, 1.5), (3, 0.9)):
            experts, tokens = check.sizes(1, 3, 9)[0], 1 if factor == 0.5 else check.sizes(1, 9, 30)[0]
            # With more than 16 equal values, NumPy's default sort keeps no order anywhere; with `topk` experts, all are chosen.
            experts = {0.9: 20, 1.5: topk}.get(factor, experts)
            capacity = capacity_of(tokens, topk, factor, experts)
            logits = np.array([draw_logits(check.random, tokens, experts, dtype, ties) for _ in range(4)])
            yield logits, capacity, [choose(each, topk, capacity) for each in logits]


def dispatch_cases(check, choose: Callable) -> Iterator[tuple]:
    """Yield a group size, experts, a capacity, routes of four ranks with different numbers of tokens, a width and a dtype."""
    for size, local, topk, factor, dtype in (
        *((4, 2, 1, 1.0, np.float32), (4, 1, 2, 1.25, np.float64), (2, 2, 2, 0.8, np.float32), (2, 3, 1, 1.0, np.float64)),
        *((1, 4, 2, 1.0, np.float64), (4, 3, 2, 0.6, np.float64), (4, 2, 1, 6.0, np.float64), (3, 2, 2, 1.0, np.float64)),
    ):
        experts, tokens, width = size * local, check.sizes(4, 11, 30), check.sizes(1, 5, 12)[0]
        tokens[3] = 1 if factor == 0.8 else tokens[3]
        capacity = capacity_of(max(tokens), topk, factor, experts)
        logits = [draw_logits(check.random, t, experts) for t in tokens]
        if tokens[3] == 1:
            logits[3][:, local:] += 50  # its experts are on its own rank; the others wait for it all the same
        routes = [choose(each, topk, capacity) for each in logits]
        yield size, experts, capacity, routes, width, dtype


def layer_cases(check) -> Iterator[tuple]:
    """Yield a group size, experts, topk, tokens per rank, width, an expert's hidden units, and a capacity factor."""
    for size, local, topk, factor in ((4, 2, 1, 1.0), (4, 1, 2, 1.25), (2, 3, 2, 0.7), (1, 4, 1, 0.8), (4, 3, 3, 1.0)):
        yield size, size * local, topk, *check.sizes(1, 9, 25), *check.sizes(2, 3, 9), factor


def second_route(expert: np.ndarray, place: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Route of a second call: the tokens in reverse, and half of the slots, so that some are empty that were not; one token is dropped."""
    place = place[::-1].copy()
    place[place >= (place.max() + 1) // 2] = -1
    return expert[::-1].copy(), place, weight[::-1].copy()


def softmax(logits):
    """Softmax of each row."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def logits_gradient(expert, gates, chances, grad):
    """Gradient of the logits, given the gradient of the gates."""
    back = np.zeros_like(chances)
    along = np.sum(gates * grad, axis=1, keepdims=True)
    if gates.shape[1] > 1:  # a softmax over the chosen experts
        np.put_along_axis(back, expert, gates * (grad - along), axis=1)
    else:
        np.put_along_axis(back, expert, gates * grad, axis=1)
        back -= chances * along
    return back


def dispatched_tokens(tokens, routes, experts, capacity, last=False):
    """Put a group's tokens, ``(tokens, width)`` each, or values per choice, ``(tokens, topk, width)``, into all experts' slots.

    Parameters
    ----------
    last : bool
        Whether dropped tokens go to the last slot, as with index -1.

    Returns
    -------
    numpy.ndarray
        ``(experts, n * capacity, width)``.
    """
    slots = np.zeros((experts, len(tokens), capacity, tokens[0].shape[-1]), tokens[0].dtype)
    for r, (x, (expert, place, *_)) in enumerate(zip(tokens, routes, strict=True)):
        for t, k in zip(*np.nonzero(place >= (-1 if last else 0)), strict=True):
            slots[expert[t, k], r, place[t, k]] = x[t, k] if x.ndim == 3 else x[t]
    return slots.reshape(experts, -1, slots.shape[-1])


def gather_slots(slots, n, r, route):
    """Values in the slots of a rank's tokens, ``(tokens, topk, width)``, with the last slot for dropped ones; and a mask of kept ones."""
    expert, place, *_ = route
    return slots.reshape(len(slots), n, -1, slots.shape[-1])[expert, r, place], place >= 0


def split_by_source_rank(slots, n):
    """Reshape ``(experts / n, n * capacity, width)`` to ``(experts, capacity, width)``."""
    return slots.reshape(len(slots), n, -1, slots.shape[-1]).swapaxes(0, 1).reshape(len(slots) * n, -1, slots.shape[-1])


def reference_layer(x, router, w1, w2, routes, grad, share):
    """Step through the layer with all experts in one place; x and grad are ``(n, tokens, width)``, with n routes (expert, place, gates).

    Returns
    -------
    tuple
        The output, the balancing loss, and the gradients of x, router, w1 and w2.
    """
    experts, tokens = router.shape[1], x.shape[0] * x.shape[1]
    f = np.bincount(np.concatenate([route[0][:, 0] for route in routes]), minlength=experts) / tokens
    chances = [softmax(each @ router) for each in x]
    balance = experts * float(f @ np.concatenate(chances).mean(axis=0))
    out, grads = x.copy(), [grad.copy(), *(np.zeros_like(w) for w in (router, w1, w2))]
    for r, (expert, place, gates) in enumerate(routes):
        grad_gates = np.zeros_like(gates)
        for k in range(expert.shape[1]):
            e, kept = expert[:, k], (place[:, k] >= 0)[:, None]
            hidden = np.maximum(np.einsum("tw,twh->th", x[r], w1[e]), 0)
            y = np.einsum("th,thw->tw", hidden, w2[e]) * kept
            out[r] += gates[:, k : k + 1] * y
            grad_gates[:, k] = np.sum(grad[r] * y, axis=1)
            grad_y = grad[r] * gates[:, k : k + 1] * kept
            grad_hidden = np.einsum("tw,thw->th", grad_y, w2[e]) * (hidden > 0)
            np.add.at(grads[3], e, hidden[:, :, None] * grad_y[:, None, :])
            np.add.at(grads[2], e, x[r][:, :, None] * grad_hidden[:, None, :])
            grads[0][r] += np.einsum("th,twh->tw", grad_hidden, w1[e])
        pull = share * experts * f / tokens
        grad_logits = logits_gradient(expert, gates, chances[r], grad_gates)
        grad_logits += chances[r] * (pull - (chances[r] @ pull)[:, None])
        grads[1] += x[r].T @ grad_logits
        grads[0][r] += grad_logits @ router.T
    return out, balance, *grads
