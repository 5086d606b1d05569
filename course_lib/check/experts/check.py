"""Check of part 24's `route`, `dispatch` and `combine` against the same mathematics with all experts in one place.

`on_ranks` has the functions that run on the ranks, `reference` the mathematics, `layer` the layer that uses all three functions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from course_lib.check.experts import contract, reference
from course_lib.check.experts.layer import MoeLayerCheck
from course_lib.check.experts.on_ranks import call_combine, call_dispatch, call_route
from course_lib.check.experts.reference import (
    dispatched_tokens,
    gather_slots,
    logits_gradient,
    second_route,
    softmax,
    split_by_source_rank,
)

ROUTE_FIELDS = "expert", "place", "weight"
EVERYBODY = [0, 1, 2, 3]


class ExpertsCheck(MoeLayerCheck):
    """A `Check` of a mixture of experts on groups of `size` ranks. A route here is a tuple: expert, place, gates."""

    def by_hand(self, *functions: str) -> None:
        """Check a small example of each function, on groups of two and of four; "layer" is the layer with all three functions."""
        for function in functions:
            alone, self.what = function == "route", "the layer with your three functions"
            if function == "layer":
                self.layer(4, 8, 2, 12, 5, 6, 1.0)
                self.passed()
                continue
            for size, topk in ((4, 1), (4, 2)) if alone else ((2, 1), (2, 2), (4, 2)):
                logits, routes = reference.worked_example(topk)
                self.what = f"{function}, topk {topk}" + ("" if alone else f", groups of {size}")
                if alone:
                    self.slots(
                        logits, 2, routes, {mistake: np.array(place)[:, :topk] for mistake, place in reference.SLOT_MISTAKES.items()}
                    )
                    self.gates(logits, 2, routes)
                    self.slots(np.zeros((4, 3, 20)), 2, [(*(each[:, :topk] for each in reference.TIE_EXAMPLE), None)] * 4)
                else:
                    getattr(self, function)(size, 4, 2, routes, 8, np.float32 if size == 4 else np.float64)
                self.passed()

    def drawn(self, function: str, choose: Callable, **options) -> None:
        """Check drawn cases of one function; `choose` computes a rank's route from logits, topk and capacity."""
        if function in ("slots", "gates"):
            cases = reference.route_cases(self, choose, ties=function == "slots")
        else:
            cases = (
                ((*case, choose) for case in reference.layer_cases(self)) if function == "layer" else reference.dispatch_cases(self, choose)
            )
        for case in cases:
            getattr(self, function)(*case, **options)
        self.covers("dtypes", "sizes", "repetition", "arguments", "results")
        if function in ("dispatch", "combine"):
            self.covers("group order", "group sizes", "same ranks twice")

    def slots(self, logits: np.ndarray, capacity: int, routes: list, instead: dict | None = None) -> None:
        """Check the choices and their slots for each rank's logits, ``(4, tokens, experts)``."""
        experts, topk = logits.shape[2], routes[0][0].shape[1]
        for r, (found, (right, place, _)) in enumerate(zip(self._routed(logits, capacity, routes), routes, strict=True)):
            for name, array in (("expert", found[0]), ("place", found[1])):
                if array.dtype.kind not in "iu":
                    self.fail(f"Route.{name} on rank {r} must hold integers; it has dtype {array.dtype}", "np.zeros without dtype=int")
            turned = experts - 1 - np.argsort(-logits[r][:, ::-1], axis=1, kind="stable")[:, :topk]
            known = {
                "what results when ties go to the higher number": turned,
                "the least likely ones": np.argsort(logits[r], axis=1)[:, :topk],
            }
            known |= {"the last choice first": right[:, ::-1]} if topk > 1 else {}
            cause = 'a sort that does not keep equal values in order (kind="stable" does)'
            cause = cause if found[0].shape == right.shape else "argmax or an index that drops an axis: with topk 1 that axis has length 1"
            self.array(found[0], right, name="Route.expert", rank=r, dtype=False, instead=known, cause=cause)
            cause = "slots are counted from 0 in token order, first choices first; -1 where the expert has no slot left"
            self.array(found[1], place, name="Route.place", rank=r, dtype=False, instead=instead, cause=cause)
            self.value(found[3], experts, name="Route.experts", rank=r)
            self.value(found[4], capacity, name="Route.capacity", rank=r)

    def gates(self, logits: np.ndarray, capacity: int, routes: list) -> None:
        """Check the gates, and the gradient of the logits that flows back through them."""
        dtype, topk = logits.dtype, routes[0][0].shape[1]
        grads = [self.random.standard_normal(place.shape).astype(dtype) * (place >= 0) for _, place, _ in routes]
        for r, (found, (expert, place, right)) in enumerate(zip(self._routed(logits, capacity, routes, grads), routes, strict=True)):
            kept, chances, gates = place >= 0, softmax(logits[r].astype(float)), found[2]
            plain = np.take_along_axis(chances, expert, axis=1)
            known = {"the probabilities, not divided by their sum": plain}
            known["the softmax over the chosen experts only"] = plain / plain.sum(axis=1, keepdims=True)
            known["the gates divided by the sum of the kept ones only"] = plain / np.maximum(
                np.sum(plain * kept, axis=1, keepdims=True), 1e-9
            )
            if isinstance(gates, np.ndarray) and gates.shape == kept.shape:
                gates = np.where(kept, gates, gates.dtype.type(0))
            known = {what: array * kept for what, array in known.items()}
            cause = "the softmax is over all experts; with topk > 1 the gates are divided by their sum"
            want, rtol = (right * kept).astype(dtype), 1e-4 if dtype == np.float32 else 1e-11
            self.array(gates, want, name="Route.weight, where kept,", rank=r, rtol=rtol, scale=1.0, instead=known, cause=cause)
            self._require_gradient(found[5], "the logits", r)
            want = logits_gradient(expert, right, chances, grads[r]).astype(dtype)
            scale, cause = float(1 + topk * np.abs(grads[r]).max()), "a part computed from .data, which backward treats as a constant"
            self.array(found[5], want, name="the gradient of the logits", rank=r, rtol=rtol, scale=scale, cause=cause)

    def _routed(self, logits: np.ndarray, capacity: int, routes: list, grads: list | None = None) -> list:
        topk = routes[0][0].shape[1]
        self.case = f"{logits.shape[1]} tokens on each rank, {logits.shape[2]} experts, topk {topk}, capacity {capacity}, {logits.dtype}"
        given = [dict(logits=logits[r], topk=topk, capacity=capacity, grad=grads[r] if grads else None) for r in range(4)]
        answers = self.ranks.call(call_route, given, show=self.show)
        for r, found in enumerate(answers):
            self.array(found[6], logits[r], name="the logits, after the call,", rank=r, cause="an in-place operation")
            cause = "an exchange: each rank routes its own tokens"
            limit = contract.NOTHING_SENT
            self.calls(self.ranks.traffic[r], 0, group=EVERYBODY, name="route", rank=r, cause=cause, limit=limit)
        return answers

    def _unchanged(self, after: tuple, call: dict, names: tuple[str, ...], r: int) -> None:
        for name, array in zip((*names, "grad"), after, strict=True):
            if call[name] is not None:
                self.array(array, call[name], name=f"{name}, after the call,", rank=r, cause="an in-place operation")

    def _calls(self, size: int, experts: int, capacity: int, routes: list, width: int, dtype) -> tuple[list[dict], int]:
        """Arguments for each of the four ranks, and the bytes that suffice for one exchange."""
        tokens, topk = [len(expert) for expert, *_ in routes], routes[0][0].shape[1]
        self.case = f"groups of {size} with {', '.join(map(str, tokens))} tokens of width {width}, {experts} experts, topk {topk}, "
        self.case += f"capacity {capacity}, {np.dtype(dtype)}"
        same = dict(experts=experts, capacity=capacity, size=size)
        calls = [dict(expert=e, place=p, weight=g.astype(dtype), **same) for e, p, g in routes]
        slots = experts * capacity
        row_bytes = width * np.dtype(dtype).itemsize + int(contract.SLOT_BYTES.number)
        return calls, slots * row_bytes + int(contract.RANK_BYTES.number) * size

    def _sent(self, r: int, most: float, exchanges: int, name: str, size: int, cause: str) -> None:
        """Check the bytes sent: a collective excludes the rank's own part; messages may include it, and an Alltoallv needs its counts."""
        self.requests_completed(self.shuffled.unended[r], r)
        moved = self.shuffled.traffic[r]
        most *= 1 if {operation for operation, *_ in moved} & {"Send", "Alltoallv"} else (size - 1) / size
        limit = contract.SLOT_BYTES if name == "dispatch" else contract.AS_DISPATCH
        what = f"{name}, in {exchanges} exchanges,"
        self.sent(moved, most * exchanges, name=what, rank=r, cause=cause, limit=limit)
        start = r // size * size
        group = self.shuffled.order[start : start + size]
        limit = contract.CALLS if name == "dispatch" else contract.AS_DISPATCH
        calls = int(contract.CALLS.number) * exchanges
        self.calls(moved, calls, group=group, name=what, rank=r, limit=limit)

    def dispatch(self, size: int, experts: int, capacity: int, routes: list, width: int, dtype=np.float64, backward=True) -> None:
        """Check where the tokens arrive, the bytes sent, and the gradient of the tokens."""
        calls, most = self._calls(size, experts, capacity, routes, width, dtype)
        local, topk = experts // size, routes[0][0].shape[1]
        x = [self.random.standard_normal((len(route[0]), width)).astype(dtype) for route in routes]
        grads = self.random.standard_normal((4, local, size * capacity, width)).astype(dtype)
        for r in range(4):
            calls[r] |= dict(x=x[r], grad=grads[r] if backward else None)
        answers = self.shuffled.call(call_dispatch, calls, show=self.show)
        others = [second_route(*route) for route in routes]
        for r, (out, back, (again, later), after) in enumerate(answers[: 4 // size * size]):  # not a rank that is left over
            g, me = slice(r // size * size, (r // size + 1) * size), r % size
            mine = slice(me * local, (me + 1) * local)
            slots = dispatched_tokens(x[g], routes[g], experts, capacity)
            raw = slots[mine].reshape(local, size, capacity, width)
            own = dispatched_tokens([x[r]], [routes[r]], experts, capacity)
            known = {
                "what results with dropped tokens in the last slot (index -1)": dispatched_tokens(x[g], routes[g], experts, capacity, True)[
                    mine
                ],
                "this rank's own buffer, without an exchange": own.reshape(raw.shape).reshape(slots[mine].shape),
                "in the order (rank, expert), not (expert, rank)": raw.swapaxes(0, 1).reshape(slots[mine].shape),
                "what results when expert e is on rank e % n": slots[me::size],
            }
            cause = (
                "rank r has the experts from r * experts / n on; an expert's slots start with those of rank 0; "
                "slot 0 is valid, -1 means none"
            )
            name = "what dispatch returns"
            self.array(out, slots[mine], name=name, rank=r, instead={k: v for k, v in known.items() if v.shape == out.shape}, cause=cause)
            want = dispatched_tokens([2 * each[::-1] for each in x[g]], others[g], experts, capacity)[mine]
            self.array(again, want, name="what a second call returns", rank=r, cause="state that is kept from the first call")
            self._unchanged(after, calls[r], ("x", *ROUTE_FIELDS), r)
            cause = "an all-gather of all tokens; an all-to-all sends each one only where it is needed"
            self._sent(r, most, 2 + 3 * backward, "dispatch", size, cause)
            if backward:
                self._require_gradient(back, "x", r)
                picked, kept = gather_slots(np.concatenate(grads[g]), size, me, routes[r])
                unsent, _ = gather_slots(split_by_source_rank(grads[r], size), 1, 0, routes[r])
                known = {
                    "what results without an exchange in backward": np.sum(unsent * kept[..., None], axis=1),
                    "what results when a dropped token gets the gradient of the last slot": picked.sum(axis=1),
                }
                if topk > 1:
                    known["the gradient of one choice, not the sum over all"] = picked[:, -1] * kept[:, -1:]
                cause = "a token's gradient is the sum over its slots; 0 if it was dropped"
                want, rtol = np.sum(picked * kept[..., None], axis=1) + x[r], 1e-5 if dtype == np.float32 else 1e-12
                known = {what: array + x[r] for what, array in known.items()}  # x is also used elsewhere
                self.array(back, want, name="the gradient of x", rank=r, rtol=rtol, scale=4.0 * topk, instead=known, cause=cause)
                picked, kept = gather_slots(np.concatenate(grads[g]), size, me, others[r])
                want, name = np.sum(picked * kept[..., None], axis=1), "the gradient of x of a later call"
                self._require_gradient(later, "x of a later call", r)
                self.array(later, want, name=name, rank=r, rtol=rtol, scale=4.0 * topk, cause="state that is kept from an earlier call")

    def combine(self, size: int, experts: int, capacity: int, routes: list, width: int, dtype=np.float64, backward=True) -> None:
        """Check what comes back to the tokens, the bytes sent, and the gradients of the experts' outputs and of the gates."""
        calls, most = self._calls(size, experts, capacity, routes, width, dtype)
        local, rtol = experts // size, 1e-5 if dtype == np.float32 else 1e-12
        y = self.random.standard_normal((4, local, size * capacity, width)).astype(dtype)
        grads = [self.random.standard_normal((len(route[0]), width)).astype(dtype) for route in routes]
        for r in range(4):
            calls[r] |= dict(y=y[r], grad=grads[r] if backward else None)
        answers = self.shuffled.call(call_combine, calls, show=self.show)
        others = [second_route(e, p, each["weight"]) for (e, p, _), each in zip(routes, calls, strict=True)]
        for r, (out, back, back_gates, (again, later), after) in enumerate(answers[: 4 // size * size]):
            g, me, gates = slice(r // size * size, (r // size + 1) * size), r % size, calls[r]["weight"][..., None]
            mine = slice(me * local, (me + 1) * local)
            picked, kept = gather_slots(np.concatenate(y[g]), size, me, routes[r])
            unsent, _ = gather_slots(split_by_source_rank(y[r], size), 1, 0, routes[r])
            known = {
                "what results without the gates": np.sum(picked * kept[..., None], axis=1),
                "what results when a dropped token takes the last slot (index -1)": np.sum(picked * gates, axis=1),
                "what results without an exchange": np.sum(unsent * gates * kept[..., None], axis=1),
            }
            want = np.sum(picked * gates * kept[..., None], axis=1)
            cause = "the result is the sum of gate times output over the kept choices; 0 where all are dropped"
            self.array(out, want, name="what combine returns", rank=r, rtol=rtol, scale=4.0, instead=known, cause=cause)
            cause = "state that is kept from the first call"
            picked_again, kept_again = gather_slots(2 * np.concatenate(y[g]), size, me, others[r])
            want = np.sum(picked_again * others[r][2][..., None] * kept_again[..., None], axis=1)
            self.array(again, want, name="what a second call returns", rank=r, rtol=rtol, scale=8.0, cause=cause)
            self._unchanged(after, calls[r], ("y", *ROUTE_FIELDS), r)
            cause = "an all-gather of all outputs; an all-to-all sends each one only where it is needed"
            self._sent(r, most, 2 + 3 * backward, "combine", size, cause)
            if backward:
                self._require_gradient(back, "y", r)
                self._require_gradient(back_gates, "the gates", r)
                weighed = [each[:, None] * calls[s]["weight"][..., None] for s, each in zip(range(g.start, g.stop), grads[g], strict=True)]
                want = dispatched_tokens(weighed, routes[g], experts, capacity)[mine]
                known = {"what results without the gates": dispatched_tokens(grads[g], routes[g], experts, capacity)[mine]}
                own = dispatched_tokens(weighed[me : me + 1], [routes[r]], experts, capacity)
                known["this rank's own, without an exchange"] = own.reshape(size, local, -1, width).swapaxes(0, 1).reshape(want.shape)
                last = dispatched_tokens(weighed, routes[g], experts, capacity, True)[mine]
                known["what results when a dropped token has the last slot (index -1)"] = last
                want, known = want + y[r], {what: array + y[r] for what, array in known.items()}  # y is also used elsewhere
                cause = "each slot gets gate times its token's gradient, empty slots 0; send these as dispatch sends tokens"
                self.array(back, want, name="the gradient of y", rank=r, rtol=rtol, scale=4.0, instead=known, cause=cause)
                along = np.sum(picked * grads[r][:, None], axis=2)
                known = {"what results when a dropped token takes the last slot (index -1)": along}
                cause = "a gate's gradient is the sum over the width of gradient times output, 0 if the token was dropped"
                want, scale = along * kept, 16.0 * width
                self.array(back_gates, want, name="the gradient of the gates", rank=r, rtol=rtol, scale=scale, instead=known, cause=cause)
                weighed = [each[:, None] * others[s][2][..., None] for s, each in zip(range(g.start, g.stop), grads[g], strict=True)]
                want, name = dispatched_tokens(weighed, others[g], experts, capacity)[mine], "the gradient of y of a later call"
                self._require_gradient(later, "y of a later call", r)
                self.array(later, want, name=name, rank=r, rtol=rtol, scale=4.0, cause="state that is kept from an earlier call")
