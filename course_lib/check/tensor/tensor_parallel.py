"""Check of part 21's block and loss against the same mathematics on one process; `operators` checks the operators.

Functions with a lower-case name and no underscore run on the ranks, `TensorParallelCheck` in the notebook's kernel.
"""

from __future__ import annotations

import numpy as np

from course_lib import traffic
from course_lib.autograd import Tensor
from course_lib.check.cases.layouts import CONTIGUOUS, arrange
from course_lib.check.tensor import contract
from course_lib.check.tensor.block import BlockCheck, reference_block
from course_lib.engine.namespace import get_ipython, group_of, student
from course_lib.gpt.model.block import kinds
from course_lib.placement import replicated

LOSS_KINDS = ("usual", "masked", "NaN for a label", "NaN for another word")
UNSIGNED_16 = 1 << 16  # more words than a label of 16 bits can tell apart
NAN_CAUSE = "a NaN among the logits that is left out, as np.nanmax, np.nansum, np.fmax and np.nan_to_num do"
NAN_CAUSES = {
    "usual": "an exponential that overflows, or the log of 0",
    "masked": "-inf minus -inf, which is NaN: on a rank whose words are all masked out, the largest of its own is -inf",
}
NOT_REDUCED_CAUSE = "a backward of copy_to_group that does not sum over the ranks: each has only the gradient of its own heads and columns"


def call_cross_entropy(cases, place):
    """Compute losses, all before the first backward; for each, return the loss, the logits' gradient, and the arguments afterwards."""
    vocab_parallel_cross_entropy = student("vocab_parallel_cross_entropy")
    tensors, losses = [], []
    for case in cases:
        case["logits"] = arrange(case["logits"], case["layout"])
        case["labels"] = arrange(case["labels"], case["layout"])
        tensors.append(Tensor(case["logits"], requires_grad=True))
        losses.append(vocab_parallel_cross_entropy(tensors[-1], case["labels"], group_of(place)))
    for loss in losses:
        if not isinstance(loss, Tensor) or not loss.requires_grad:
            raise TypeError(f"the loss must be a Tensor made by Tensor.from_operation(data, (logits,), backward); got {loss!r}.")
    get_ipython().user_ns["trial"] = tensors, [loss * case["factor"] for loss, case in zip(losses, cases, strict=True)], cases
    return [(np.array(loss.data), case["logits"], case["labels"]) for loss, case in zip(losses, cases, strict=True)]


def call_backward(step, calls):
    """Gradients of the logits, and the arguments after backward."""
    trial = student("trial")
    tensors, losses, cases = trial
    for loss in losses[::step] if calls else []:
        loss.backward(np.ones(loss.shape, loss.dtype))
    return [(t.grad, t.data, case["labels"]) for t, case in zip(tensors, cases, strict=True)]


class TensorParallelCheck(BlockCheck):
    """A `Check` of part 21, on groups of the four ranks."""

    def blocks(self, *sizes: int) -> TensorParallelCheck:
        """Compare a block with both operators, in groups of these sizes, with the same block on one process."""
        for size in sizes:
            heads = size * int(self.random.integers(1, 3))
            self._block(size, heads, heads * int(self.random.integers(2, 5)), np.float32 if size == 2 else np.float64)
        return self

    def _block(self, size: int, heads: int, width: int, dtype: type) -> None:
        groups, (batch, positions) = self.groups(size), self.sizes(2, 2, 6)
        self.case = f"{self.describe_groups(groups, dtype)}, width {width}, {heads} heads, {batch} x {positions} tokens"
        drawn = [
            dict(
                seed=int(self.random.integers(1 << 30)),
                x=self.random.standard_normal((batch, positions, width)).astype(dtype),
                grad=self.random.standard_normal((batch, positions, width)).astype(dtype),
                norms=self.random.uniform(0.5, 1.5, (2, 2, width)).astype(dtype),
            )
            for _ in groups
        ]
        of_ranks = [dict(drawn[color]) for color, _ in self.colors_and_keys(groups)]
        parts = self.block(groups, ("copy_to_group", "reduce_from_group"), width, heads, of_ranks)
        rtol = 1e-9 if dtype is np.float64 else 2e-4
        for group, one in zip(groups, drawn, strict=True):
            out, grad_x, whole = reference_block(width, heads, one)
            grads, how = [{name: p.grad for name, p in parts[r].named_parameters()} for r in group], dict(rtol=rtol, ranks=group)
            cause = "a forward of reduce_from_group that does not sum over the ranks"
            self.distributed([of_ranks[r]["out"] for r in group], replicated, out, name="the block's output", cause=cause, **how)
            for parameter, p, kind in kinds(whole):
                cause = NOT_REDUCED_CAUSE if "norm" in parameter else "a backward of reduce_from_group that is not the identity"
                got = [each[parameter] for each in grads]
                self.distributed(got, kind, p.grad, name=f"the gradient of {parameter}", cause=cause, **how)
            self.distributed(
                [of_ranks[r]["grad_x"] for r in group], replicated, grad_x, name="the gradient of the input", cause=NOT_REDUCED_CAUSE, **how
            )

    def losses(self, *sizes: int, scale: float = 3.0, frugal: bool = False) -> TensorParallelCheck:
        """Compare `vocab_parallel_cross_entropy` in groups of these sizes with the cross-entropy of all logits.

        Parameters
        ----------
        scale : float
            Scale of the logits.
        frugal : bool
            Whether to check the bytes sent, too.
        """
        for size in sizes:
            batches = self.sizes(2, 7, 12) if frugal else [1 if size == 3 else self.sizes(1, 2, 7)[0], self.sizes(1, 2, 7)[0]]
            dtype = np.float32 if size == 2 and not frugal else np.float64
            words = 1 if size == 4 and not frugal else self.sizes(1, 2, 6)[0]
            self._loss(size, *batches, words, dtype, scale, frugal)
            if size == 4 and not frugal:
                self._loss(size, 1, 2, UNSIGNED_16 // size + self.sizes(1, 1, 99)[0], dtype, scale, frugal)
        self.covers("dtypes", "special values", "layouts", "sizes", "group order", "group sizes", "repetition")
        self.covers("same ranks twice", "arguments", "results")
        return self

    def _backward_in_turn(self, groups: list, size: int) -> tuple[list, list]:
        """Run backward on the first rank of each group alone, then on the others; return the answers, and the traffic of both calls."""
        grads, returned = [], []
        said = "backward of the loss waits for other ranks, although nothing is needed from them", "an exchange or a barrier in backward"
        for first in (True, False):  # the first rank of each group alone, and then the others
            given_back = [dict(step=-1 if size % 2 else 1, calls=(p[1] == 0) == first) for p in self.colors_and_keys(groups)]
            grads.append(self.call(call_backward, given_back, explain={"Deadlock": said}, show=self.show))
            returned.append(self.ranks.traffic)
        grads = [grads[p[1] > 0][r] for r, p in enumerate(self.colors_and_keys(groups))]
        return grads, returned

    def _draw_loss(self, words: int, part: int, shape: tuple[int, int], dtype: type, scale: float, kind: str) -> dict:
        """Draw logits of so many words, `part` of them for each rank, and labels, some of them the first or last of a rank's words.

        If the kind is "masked", all labels are words of one rank, and all words of another one are masked out.
        """
        level = self.random.uniform(-scale, scale, (*shape, 1)) * (300 if scale < 100 else 1)
        logits = (scale * self.random.standard_normal((*shape, words)) + level).astype(dtype)
        labels = self.random.integers(0, words, shape)
        firsts = np.arange(0, words, part)
        ends = np.concatenate([firsts, firsts + part - 1])
        some = self.random.permutation(labels.size)[: len(ends)]
        labels.flat[some] = self.random.permutation(ends)[: len(some)]
        if words > UNSIGNED_16:
            labels.flat[0] = words - 1
        if kind == "masked":
            owner = int(self.random.integers(len(firsts)))
            labels = labels % part + part * owner
            masked = (owner + 1) % len(firsts)
            if masked != owner:
                logits[..., masked * part : (masked + 1) * part] = -np.inf
        elif kind != "usual":
            token = np.unravel_index(self.random.integers(labels.size), shape)
            away = 0 if kind == "NaN for a label" else int(self.random.integers(1, words))
            logits[(*token, (labels[token] + away) % words)] = np.nan
        factor = float(self.random.uniform(0.5, 2))
        layout = CONTIGUOUS[LOSS_KINDS.index(kind) % len(CONTIGUOUS)]
        return {"logits": logits, "labels": labels, "factor": factor, "layout": layout, "kind": kind}

    def _loss(self, size: int, batch: int, tokens: int, part: int, dtype: type, scale: float, frugal: bool) -> None:
        groups, numbers, rtol = self.groups(size), batch * tokens, 1e-9 if dtype is np.float64 else 1e-4
        self.case = f"{self.describe_groups(groups, dtype)}, {batch} x {tokens} tokens, {part} words per rank"
        words = [len(group) * part for group in groups]
        kinds = LOSS_KINDS[:1] if frugal else LOSS_KINDS
        cases = [[self._draw_loss(count, part, (batch, tokens), dtype, scale, kind) for kind in kinds] for count in words]
        given = [
            dict(
                place=place,
                cases=[{**c, "logits": np.ascontiguousarray(np.split(c["logits"], n, axis=-1)[place[1]])} for c in cases[place[0]]],
            )
            for place in self.colors_and_keys(groups)
            for n in [len(groups[place[0]])]
        ]
        answers, moved = self.ranks.call(call_cross_entropy, given, show=self.show), self.ranks.traffic
        grads, returned = self._backward_in_turn(groups, size)
        for r, (color, index) in enumerate(self.colors_and_keys(groups)):
            n = len(groups[color])
            for k, case in enumerate(cases[color]):
                (got, after, same), before = answers[r][k], given[r]["cases"][k]
                want, soft, level = _cross_entropy(case["logits"].astype(np.float64), case["labels"])
                if not isinstance(got, np.ndarray) or got.shape != () or got.dtype != dtype:
                    found = f"shape {np.shape(got)} and dtype {getattr(got, 'dtype', type(got).__name__)}"
                    self.fail(f"the loss on rank {r} must be one number of shape () and dtype {np.dtype(dtype)}; it has {found}")
                mistakes = {"what it is if the largest logit is not subtracted from z_y": [want - level]}
                mistakes |= {f"the loss times {n}": [want * n], f"the loss divided by {n}": [want / n]} if n > 1 else {}
                largest = float(np.abs(case["logits"][np.isfinite(case["logits"])]).max())
                size = max(1.0, np.nan_to_num(abs(want)), largest / (1 if dtype is np.float64 else 100))
                cause = "a maximum or a sum over this rank's words only, or labels that belong to other ranks"
                if np.isnan(want) != np.isnan(got):
                    cause = NAN_CAUSES.get(case["kind"], NAN_CAUSE)
                elif words[color] > UNSIGNED_16:
                    cause += "; or labels in 16 bits, which hold no more than 65,536 different words"
                how = dict(rtol=rtol, scale=size, dtype=False, instead={what: np.array(value) for what, value in mistakes.items()})
                self.array(got.reshape(1), np.array([want]), name="the loss", rank=r, cause=cause, **how)
                back, *later = grads[r][k]
                for when, logits, labels in (("the call", after, same), ("backward", *later)):
                    self.array(logits, before["logits"], name=f"the logits, after {when},", rank=r, cause="an in-place operation")
                    self.array(labels, case["labels"], name=f"the labels, after {when},", rank=r, cause="an in-place operation")
                share = case["factor"] / numbers
                right = np.split((soft * share).astype(dtype), n, axis=-1)[index]
                cause = "the gradient is the softmax, minus 1 at the label, divided by the number of tokens, times the gradient of the loss"
                if isinstance(back, np.ndarray) and back.shape == right.shape and np.any(np.isnan(right) != np.isnan(back)):
                    cause = NAN_CAUSES.get(case["kind"], NAN_CAUSE)
                known = {
                    "that of the sum, not the mean, over the tokens": right * numbers,
                    "without the loss's own gradient": right / case["factor"],
                }
                near = max(rtol, float(np.finfo(dtype).eps) * largest)  # as exactly as this dtype holds the log of the sum
                self.array(back, right, name="the gradient of the logits", rank=r, rtol=near, scale=share, cause=cause, instead=known)
            if frugal:
                most = traffic.wire_bytes("Allreduce", n, (2 * numbers + int(contract.LOSS_NUMBERS.number)) * 8)
                cause = "a third all-reduce, or gathered logits; one number for the sum of all labels' logits is enough"
                self.sent(moved[r], most, name="the loss", rank=r, cause=cause, limit=contract.LOSS_NUMBERS)
                limit = contract.LOSS_CALLS
                self.calls(moved[r], int(limit.number), group=groups[color], name="the loss", rank=r, limit=limit)
                cause = "an exchange in backward; forward already computed everything it needs"
                limit = contract.LOSS_BACKWARD
                self.sent(returned[index > 0][r], 0, name="its backward", rank=r, cause=cause, limit=limit)


def _cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray, float]:
    """Mean loss over all tokens, the gradient of the sum, and the mean of the largest logits."""
    with np.errstate(invalid="ignore"):
        most = logits.max(axis=-1, keepdims=True)
    shifted = logits - most
    soft = np.exp(shifted)
    sums = soft.sum(axis=-1, keepdims=True)
    right = np.take_along_axis(shifted, labels[..., None], axis=-1)
    soft /= sums
    np.put_along_axis(soft, labels[..., None], np.take_along_axis(soft, labels[..., None], axis=-1) - 1, axis=-1)
    return float((np.log(sums) - right).mean()), soft, float(most.mean())
