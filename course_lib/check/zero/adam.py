"""Check of part 09's optimizer with steps that can be verified by hand.

`train` runs on the ranks, `AdamCheck` in the notebook's kernel.
"""

from __future__ import annotations

import numpy as np

from course_lib.check import Check
from course_lib.engine.namespace import student

LR = 0.3
# Each case: the signs of the gradients, beta1, eps, how far every parameter moves, the m that is kept (relative to the gradient),
# and how far known mistakes move the parameter. beta2 is 0.5.
CASES = {
    "one step": ([1], 0.5, 0.0, -LR, 0.5, {"without the corrections": -LR * 0.5**0.5, "that corrects only m": -LR / 0.5**0.5}),
    "two steps, the second one back": ([1, -1], 0.5, 0.0, -LR + LR / 3, -0.25, {"that corrects as in step 1": -LR + LR / 2 / 1.5**0.5}),
    "one step with beta1 = 0.75": ([1], 0.75, 0.0, -LR, 0.25, {}),
    "one step with eps = 1": ([1], 0.5, 1.0, -LR / 2, 0.5, {"with eps under the root": -LR / 2**0.5, "without eps": -LR}),
}


def train(shards, grads, settings):
    """Take a step on a rank with each of the gradients; halfway, change the sign of all parameters, as if others had been loaded.

    Returns
    -------
    tuple
        The shards, their gradients and the optimizer's state at the end; and `t`, with the number of the first step whose gradients have
        been modified (0: none).
    """
    Shards, ZeroDPAdam = student("Shards"), student("ZeroDPAdam")
    layers = [Shards(w.copy(), b.copy()) for w, b in shards]
    optimizer = ZeroDPAdam(layers, **settings)
    given = [[(w.copy(), b.copy()) for w, b in step] for step in grads]
    for number, step in enumerate(given):
        for layer, (w, b) in zip(layers, step, strict=True):
            layer.grad_w_shard, layer.grad_b_shard = w, b
            if number and number == len(given) // 2 and len(given) > 2:
                np.negative(layer.w_shard, out=layer.w_shard)
                np.negative(layer.b_shard, out=layer.b_shard)
        optimizer.step()
    pairs = [zip(sum(now, ()), [a for pair in step for a in pair], strict=True) for now, step in zip(given, grads, strict=True)]
    changed = next((number for number, arrays in enumerate(pairs, 1) if not all(np.array_equal(a, b) for a, b in arrays)), 0)
    state = {f"{i} {name}": [entry["m"], entry["v"]] for (i, name), entry in optimizer.state.items()}
    last = [(y.grad_w_shard, y.grad_b_shard) for y in layers]
    return [(y.w_shard, y.b_shard) for y in layers], last, state, (optimizer.t, changed)


class AdamCheck(Check):
    """A `Check` of steps that can be verified by hand, on all ranks."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks

    def by_hand(self) -> None:
        """Check all `CASES`, with two parameters in the weight and one in the bias, whose gradient is larger."""
        start = np.array([1.0, 2.0]), np.array([5.0])
        cause = "t counts steps from 1, and the layer's own array must change"
        for self.case, (signs, beta1, eps, moved, m, mistakes) in CASES.items():
            plus = np.ones(2), np.full(1, 1.0 if eps else 100.0)
            given = dict(
                shards=[start],
                grads=[[[s * g for g in plus]] for s in signs],
                settings=dict(lr=LR, beta1=beta1, beta2=0.5, eps=eps),
            )
            for r, (shards, grads, state, (t, _)) in enumerate(self.ranks.call(train, given, show=self.show)):
                for i, name in enumerate("wb"):
                    kept, g = state.get(f"0 {name}", [None, None]), plus[i]
                    own = f"keep m and v before bias correction; beta1 belongs to m, beta2 to v; {cause}"
                    if isinstance(grads[0][i], np.ndarray) and not np.array_equal(grads[0][i], signs[-1] * g):
                        own = f"the layer's grad_{name}_shard was changed in place, as g *= g does; g * g makes a new array"
                    of = f"{name}_shard"
                    self.array(kept[0], m * g, name=f"m for {of}", rank=r, cause=own, rtol=1e-12)
                    known = {"the running mean of the gradient, not of its square": (1 - 0.5 ** len(signs)) * g}
                    v = (1 - 0.5 ** len(signs)) * g * g
                    self.array(kept[1], v, name=f"v for {of}", rank=r, cause=own, rtol=1e-12, instead=known)
                    known = {f"the result of a step {what}": start[i] + by for what, by in mistakes.items()}
                    self.array(shards[0][i], start[i] + moved, name=of, rank=r, cause=cause, rtol=1e-12, instead=known)
                self.value(t, len(signs), name="t after the last step", rank=r, cause="a count of steps that is kept elsewhere")
