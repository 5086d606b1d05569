"""Check of a mixture-of-experts layer: the student's functions run on the ranks, everything else in the kernel.

So the functions' results alone decide the outcome: the ranks have neither the experts nor the layer.
"""

from __future__ import annotations

import numpy as np

from course_lib import placement
from course_lib.autograd import Tensor, operations
from course_lib.autograd.functional import softmax
from course_lib.check import Check
from course_lib.check.experts.on_ranks import backward_piece, forward_piece
from course_lib.check.experts.reference import reference_layer
from course_lib.check.shuffled_ranks import ShuffledRanks
from course_lib.gpt.model.experts import capacity_of

INPUT_NAMES = {
    "route": ("the logits",),
    "dispatch": ("x",),
    "combine": ("y", "the gates"),
}  # the inputs whose gradients each function returns


class MoeLayerCheck(Check):
    """A `Check` of the layer that uses all three functions, on groups of `size` of the four ranks."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks, self.shuffled = ranks, ShuffledRanks(ranks, self.random, show)

    def layer(self, size: int, experts: int, topk: int, tokens: int, width: int, hidden: int, factor: float, choose=None) -> None:
        """Compare a step with one that has all experts in one place; `choose` computes the routes, by default the student's `route`."""
        self.case = f"groups of {size}, {tokens} tokens on each rank, {experts} experts, topk {topk}, capacity factor {factor:.3g}"
        draw = self.random.standard_normal
        x, grad, share = draw((4, tokens, width)), draw((4, tokens, width)), float(self.random.uniform(1, 3))
        router, w1, w2 = draw((width, experts)), draw((experts, width, hidden)), draw((experts, hidden, width))
        capacity = capacity_of(tokens, topk, factor, experts)
        given = [[Tensor(a, requires_grad=True) for a in (x[r], router, *_local_shards(size, r, w1, w2))] for r in range(4)]
        answers, outs, balances = self._run_layer(given, size, topk, capacity)
        Tensor.from_operation(np.zeros(()), [*outs, *balances], lambda _: [*grad, *[np.asarray(share)] * 4]).backward(np.ones(()))
        for start in range(0, 4, size):
            g, members = slice(start, start + size), list(range(start, start + size))
            routes = [choose(each @ router, topk, capacity) for each in x[g]] if choose else answers[g]
            out, balance, *wants = reference_layer(x[g], router, w1, w2, routes, grad[g], share)
            flat, rows = (-1, width), placement.sharded(0)
            self.distributed([o.data for o in outs[g]], rows, out.reshape(flat), name="the layer's output", ranks=members)
            found = [np.asarray(b.data) for b in balances[g]]
            self.distributed(found, placement.partial, np.asarray(balance), name="the balancing loss", ranks=members)
            kinds = {"x": rows, "the router": placement.partial, "the first matrices": rows, "the second matrices": rows}
            backs = zip(*([t.grad for t in each] for each in given[g]), strict=True)
            for (what, kind), back, want in zip(kinds.items(), backs, [wants[0].reshape(flat), *wants[1:]], strict=True):
                self.distributed(
                    list(back), kind, want, name=f"the gradient of {what}", ranks=members, cause="a mean where it must be a sum"
                )

    def _run_layer(self, given: list, size: int, topk: int, capacity: int) -> tuple[list, list, list]:
        """Routes of the ranks, their outputs, and their terms of the balancing loss; see `gpt.model.experts.MixtureOfExperts`."""
        experts, width = given[0][1].shape[1], given[0][0].shape[1]
        logits = [x @ router for x, router, *_ in given]
        gates, routes = self._run_on_ranks(
            "route", [[t] for t in logits], [dict(topk=topk, capacity=capacity)] * 4, size, (given[0][0].shape[0], topk)
        )
        slots = experts // size, size * capacity, width
        for r, (expert, place, *numbers) in enumerate(routes):
            self._is_route(expert, place, numbers, gates[r].shape, experts, capacity, r)
        known = [
            dict(expert=e, place=p, weight=g.data, experts=experts, capacity=capacity) for (e, p, *_), g in zip(routes, gates, strict=True)
        ]
        dispatched, _ = self._run_on_ranks("dispatch", [[x] for x, *_ in given], known, size, slots)
        made = [operations.relu(slot @ w1) @ w2 for slot, (_, _, w1, w2) in zip(dispatched, given, strict=True)]
        back, _ = self._run_on_ranks("combine", list(zip(made, gates, strict=True)), known, size, given[0][0].shape)
        balances = []
        for r, each in enumerate(logits):
            members = range(r // size * size, r // size * size + size)
            counts = sum(np.bincount(routes[s][0][:, 0], minlength=experts) for s in members)
            balances.append((softmax(each) * (experts * counts / counts.sum() ** 2)).sum())
        answers = [(e, p, g.data) for (e, p, *_), g in zip(routes, gates, strict=True)]
        return answers, [x + out for (x, *_), out in zip(given, back, strict=True)], balances

    def _is_route(self, expert: object, place: object, numbers: list, shape: tuple, experts: int, capacity: int, r: int) -> None:
        """Fail if the layer cannot continue with this route; the outputs show whether it is the right one."""
        for name, array, low, high in (("expert", expert, 0, experts), ("place", place, -1, capacity)):
            if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype.kind not in "iu":
                self.fail(f"Route.{name} on rank {r} must hold integers and have the shape {shape}")
            if array.min() < low or array.max() >= high:
                self.fail(f"Route.{name} on rank {r} has a number that is not a valid {'expert' if low == 0 else 'slot'}")
        for name, got, want in zip(("experts", "capacity"), numbers, (experts, capacity), strict=True):
            self.value(got, want, name=f"Route.{name}", rank=r)

    def _run_on_ranks(self, piece: str, tensors: list, route_of: list[dict], size: int, shape: tuple) -> tuple[list[Tensor], list[tuple]]:
        """Run a function on the ranks' tensors; return its results; gradients flow back through the function on the ranks."""
        calls = [
            dict(piece=piece, arguments=[t.data for t in each], route_of=told, size=size)
            for each, told in zip(tensors, route_of, strict=True)
        ]
        found = self.shuffled.call(forward_piece, calls, same_order=piece != "route", show=self.show)
        for r, (out, *_) in enumerate(found):
            self._require_shape(out, shape, f"what {piece} returns in the layer", r)

        def backward(grad: np.ndarray) -> tuple:
            answers = self.shuffled.call(backward_piece, [dict(piece=piece, grad=g) for g in grad], same_order=True, show=self.show)
            for r, (grads, given) in enumerate(zip(answers, tensors, strict=True)):
                for got, t, what in zip(grads, given, INPUT_NAMES[piece], strict=True):
                    self._require_gradient(got, what, r)
                    self._require_shape(got, t.shape, f"the gradient of {what} in the layer", r)
            return tuple(got for grads in answers for got in grads)

        flat = Tensor.from_operation(np.stack([out for out, *_ in found]), [t for each in tensors for t in each], backward)
        return [flat[r] for r in range(4)], [tuple(rest) for _, *rest in found]

    def _require_shape(self, got: object, shape: tuple, name: str, r: int) -> None:
        """Fail if this is not a floating point array of this shape, as nothing could use it."""
        if not isinstance(got, np.ndarray) or got.dtype.kind != "f":
            self.fail(f"{name} on rank {r} must be a NumPy array of floating point numbers; got {type(got).__name__}")
        if got.shape != shape:
            self.fail(f"{name} on rank {r} has shape {got.shape}, expected {shape}")

    def _require_gradient(self, grad: object, what: str, r: int) -> None:
        if grad is None:
            cause = "a Tensor made from an array (.data), which has no inputs, or a backward that returns None for it"
            self.fail(f"no gradient flows back to {what} on rank {r}", cause)


def _local_shards(size: int, r: int, *arrays: np.ndarray) -> list[np.ndarray]:
    """A rank's part of arrays that are sharded along dimension 0 over groups of `size`."""
    return [np.split(array, size)[r % size] for array in arrays]
