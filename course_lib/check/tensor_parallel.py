"""How part 21's functions are put to the test: beside the same mathematics on one process.

What has lower-case names and no class runs on the ranks, `TensorParallelCheck` in the notebook's kernel.
"""

from __future__ import annotations

import numpy as np
from IPython import get_ipython

from course_lib import traffic
from course_lib.autograd import Tensor
from course_lib.check import Check
from course_lib.gpt.block import Block, kinds
from course_lib.placement import replicated

NORM, LOSS = "the gradient of a LayerNorm", "vocab_parallel_cross_entropy"
NO_F = "a backward of copy_to_group that does not add up the ranks' gradients: each has that of its own heads and columns only"


def part_of_everyone(size):
    """This rank's group, when every `size` consecutive ranks form one."""
    return everyone.Split(color=everyone.Get_rank() // size, key=everyone.Get_rank())


def forward(operator, x, size):
    """Call an operator, and keep its result for `backward`."""
    given = Tensor(x, requires_grad=True)
    out = get_ipython().user_ns[operator](given, part_of_everyone(size))
    if not isinstance(out, Tensor):
        raise TypeError(f"{operator} must return a Tensor, which Tensor.from_operation makes; got {type(out).__name__}.")
    get_ipython().user_ns["trial"] = given, out
    return out.data, x


def backward(grad, turned):
    """The gradient of the operator's input, for that of its output; and what became of that."""
    given, out = trial
    grad = np.ascontiguousarray(grad.T).T if turned else grad  # a transpose leaves such gradients
    out.backward(grad)
    return given.grad, grad


def through_block(width, heads, seed, norms, x, grad, size):
    """Output and gradients of a block that is split over a group."""
    block = Block(width, heads, np.random.default_rng(seed), part_of_everyone(size), copy_to_group, reduce_from_group, dtype=x.dtype)
    return outcome(block, norms, x, grad)


def outcome(block, norms, x, grad):
    """The output of a block, the gradient of its input, and those of its parameters by name."""
    for norm, (scale, shift) in zip((block.norm1, block.norm2), norms, strict=True):
        norm.weight.data, norm.bias.data = scale.copy(), shift.copy()
    given = Tensor(x, requires_grad=True)
    out = block(given)
    out.backward(grad)
    return out.data, given.grad, {name: p.grad for name, p in block.named_parameters()}


def loss_of(logits, labels, factor, size):
    """The loss, the gradient of the logits for a multiple of it, and the arguments after that."""
    given = Tensor(logits, requires_grad=True)
    loss = vocab_parallel_cross_entropy(given, labels, part_of_everyone(size))
    if not isinstance(loss, Tensor):
        raise TypeError(f"vocab_parallel_cross_entropy must return a Tensor, which Tensor.from_operation makes; got {loss!r}.")
    get_ipython().user_ns["trial"] = given, loss * factor
    return np.array(loss.data), logits, labels


def loss_backward():
    """The gradient of the logits."""
    given, loss = trial
    loss.backward(np.ones(loss.shape, loss.dtype))
    return given.grad


class TensorParallelCheck(Check):
    """A `Check` on four ranks, in groups of `size` consecutive ones."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks

    def groups(self, size: int) -> list[list[int]]:
        """The ranks of each group; the last ones form a smaller group where `size` does not divide four."""
        return [list(range(4))[i : i + size] for i in range(0, 4, size)]

    def operator(self, name: str, *sizes: int) -> None:
        """`copy_to_group` or `reduce_from_group`, in groups of these sizes: what comes out, what goes back, and what is sent each way."""
        for size in sizes:
            dtype = np.float32 if size == 2 else np.float64
            self._operator(name, size, tuple(self.sizes(size, 2, 7)), dtype, turned=size in (2, 3))

    def _operator(self, name: str, size: int, shape: tuple[int, ...], dtype: type, turned: bool) -> None:
        self.case = f"groups of {size} ranks, shape {shape}, {np.dtype(dtype)}"
        forth, rtol = name == "reduce_from_group", 1e-12 if dtype is np.float64 else 1e-5
        x = self.random.standard_normal((4, *shape)).astype(dtype)
        grad = self.random.standard_normal((4, *shape)).astype(dtype)
        for group in self.groups(size):
            if forth:
                grad[group] = grad[group[0]]  # replicated
            else:
                x[group] = x[group[0]]
        answers = self.ranks.call(forward, [dict(operator=name, x=x[r], size=size) for r in range(4)], show=self.show)
        self._compare([a for a, _ in answers], x, size, forth, f"the output of {name}", rtol)
        for r, (_, after) in enumerate(answers):
            self.array(after, x[r], name="the input, after the call,", rank=r, cause="an all-reduce in place")
        self._sent(size, x[0].nbytes if forth else 0, f"{name}, forward,")
        answers = self.ranks.call(backward, [dict(grad=grad[r], turned=turned) for r in range(4)], show=self.show)
        self._compare([a for a, _ in answers], grad, size, not forth, f"the gradient of {name}'s input", rtol)
        for r, (_, after) in enumerate(answers):
            cause = "an all-reduce in place: the residual connection gets the same array"
            self.array(after, grad[r], name="the output's gradient, after the call,", rank=r, cause=cause)
        self._sent(size, 0 if forth else x[0].nbytes, f"{name}, backward,")

    def _compare(self, got: list, given: np.ndarray, size: int, summed: bool, name: str, rtol: float) -> None:
        for group in self.groups(size):
            total = given[group].sum(axis=0)
            for r in group:
                known = {"the mean over the group": total / len(group)} if summed else {"the sum over the group": total}
                known |= (
                    {"this rank's own, as it came": given[r]} if summed else {"divided by the size of the group": given[r] / len(group)}
                )
                cause = "an all-reduce of something else" if summed else "an exchange where nothing is to be done"
                want = total if summed else given[r]
                scale = float(np.abs(given[group]).sum(axis=0).max())
                self.array(got[r], want, name=name, rank=r, rtol=rtol, scale=scale, cause=cause, instead=known if len(group) > 1 else None)

    def _sent(self, size: int, nbytes: float, name: str) -> None:
        for group in self.groups(size):
            for r in group:
                most = traffic.wire_bytes("Allreduce", len(group), nbytes + 32 if nbytes else 0)  # padding is no mistake
                self.sent(self.ranks.traffic[r], most, name=name, rank=r, cause="one all-reduce on one way, and nothing on the other")

    def block(self, size: int, heads: int, width: int, dtype: type = np.float64) -> None:
        """A block around both operators, against the same block on one process."""
        batch, positions = self.sizes(2, 2, 6)
        self.case = f"groups of {size} ranks, width {width}, {heads} heads, {batch} x {positions} tokens, {np.dtype(dtype)}"
        seed, shape = int(self.random.integers(1 << 30)), (batch, positions, width)
        x, grad = (self.random.standard_normal(shape).astype(dtype) for _ in range(2))
        norms = self.random.uniform(0.5, 1.5, (2, 2, width)).astype(dtype)
        given = dict(width=width, heads=heads, seed=seed, norms=norms, x=x, grad=grad, size=size)
        answers = self.ranks.call(through_block, given, show=self.show)
        whole = Block(width, heads, np.random.default_rng(seed), dtype=dtype)
        out, grad_x, grads = outcome(whole, norms, x, grad)
        known, rtol = kinds(whole), 1e-9 if dtype is np.float64 else 2e-4
        for group in self.groups(size):
            found, name = [answers[r] for r in group], f"ranks {group[0]} to {group[-1]}"
            cause = "a forward of reduce_from_group that does not add up the ranks' summands"
            self.placed([a for a, _, _ in found], replicated, out, name="the block's output", cause=cause, rtol=rtol, group=name)
            cause = "a backward of reduce_from_group that is not the identity" if len(group) > 1 else ""
            for parameter, want in grads.items():
                got = [each[parameter] for _, _, each in found]
                why = NO_F if "norm" in parameter else cause
                self.placed(got, known[parameter], want, name=f"the gradient of {parameter}", cause=why, rtol=rtol, group=name)
            self.placed([g for _, g, _ in found], replicated, grad_x, name="the gradient of the input", cause=NO_F, rtol=rtol, group=name)

    def loss(
        self, size: int, batch: int, positions: int, part: int, dtype: type = np.float64, scale: float = 3.0, frugal: bool = False
    ) -> None:
        """`vocab_parallel_cross_entropy`, against that of all logits; `frugal`: and what it sends."""
        self.case = f"groups of {size} ranks, {batch} x {positions} tokens, {part} words a rank, {np.dtype(dtype)}"
        last = 4 - 4 % size
        logits = (scale * self.random.standard_normal((batch, positions, size * part))).astype(dtype)
        labels = self.random.integers(0, size * part, (batch, positions))
        labels.flat[: 2 * size] = np.arange(2 * size)[: labels.size] // 2 * part  # each rank's first word is one, too
        factor, parts = float(self.random.uniform(0.5, 2)), np.split(logits, size, axis=-1)
        given = [dict(logits=np.ascontiguousarray(parts[r % size]), labels=labels, factor=factor, size=size) for r in range(last)]
        alone = dict(logits=logits[..., :part].copy(), labels=labels % part, factor=factor, size=size)  # ranks that are left over
        answers = self.ranks.call(loss_of, [*given, *[alone] * (4 - last)], show=self.show)[:last]
        moved = self.ranks.traffic
        grads = self.ranks.call(loss_backward, show=self.show)[:last]
        want, soft = _cross_entropy(logits.astype(np.float64), labels)
        rtol = 1e-9 if dtype is np.float64 else 1e-4
        for r, (got, after, same) in enumerate(answers):
            mistakes = {f"the loss times {size}": [want * size], f"the loss divided by {size}": [want / size]} if size > 1 else None
            near = rtol * max(1.0, scale / abs(want))
            cause = "a maximum or a sum over this rank's words only, or labels that other ranks have"
            if not isinstance(got, np.ndarray) or got.size != 1:
                self.fail(f"the loss on rank {r} must be a single number; it has shape {np.shape(got)}", "no sum over the tokens")
            if got.dtype != dtype:
                self.fail(
                    f"the loss on rank {r} has dtype {got.dtype}, expected {np.dtype(dtype)}", "np.zeros and Python's numbers are float64"
                )
            self.numbers(got.reshape(1), [want], name="the loss", rank=r, cause=cause, rtol=near, instead=mistakes)
            self.array(after, given[r]["logits"], name="the logits, after the call,", rank=r, cause="an operation in place")
            self.array(same, labels, name="the labels, after the call,", rank=r, cause="an operation in place")
            numbers = batch * positions
            expected = np.split((soft * (factor / numbers)).astype(dtype), size, axis=-1)[r % size]
            cause = "softmax minus one at the label, divided by the number of tokens, times the gradient of the loss"
            known = {
                "the gradient of the sum, not the mean, over the tokens": expected * numbers,
                "without the loss's own gradient": expected / factor,
            }
            name = "the gradient of the logits"
            self.array(grads[r], expected, name=name, rank=r, rtol=rtol, scale=factor / numbers, cause=cause, instead=known)
            if frugal:
                most = traffic.wire_bytes("Allreduce", size, (2 * numbers + 16) * 8)
                cause = "a third all-reduce, or logits that are gathered; one number for all labels' logits is enough"
                self.sent(moved[r], most, name="the loss", rank=r, cause=cause)
                self.sent(self.ranks.traffic[r], 0, name="its backward", rank=r, cause="all that it needs is there after the forward")


def _cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean loss over all tokens, and the gradient of the sum."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    soft = np.exp(shifted)
    sums = soft.sum(axis=-1, keepdims=True)
    right = np.take_along_axis(shifted, labels[..., None], axis=-1)
    soft /= sums
    np.put_along_axis(soft, labels[..., None], np.take_along_axis(soft, labels[..., None], axis=-1) - 1, axis=-1)
    return float((np.log(sums) - right).mean()), soft
