"""Checks of part 23's `merge` and `zigzag`, and the functions that the checks of ring attention run on the ranks.

`call_merge` and the functions below it, up to `peak_memory_by_length`, run on the ranks; see also `ring_attention`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from itertools import product

import numpy as np

from course_lib import memory
from course_lib.autograd import Tensor, functional
from course_lib.check.cases.repetition import Call, in_turn
from course_lib.check.groups import GroupCheck
from course_lib.engine.namespace import get_ipython, student
from course_lib.utils import wording

MERGE_ARGUMENTS = "out", "lse", "block_out", "block_lse"


def call_merge(out, lse, block_out, block_lse):
    """Call `merge` on a rank: its result, and its arguments after the call. NumPy's warnings, as of -inf minus -inf, do not count."""
    merge = student("merge")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        answer = merge(out, lse, block_out, block_lse)
    return answer, (out, lse, block_out, block_lse)


def call_zigzag(n_chunks, size):
    """Call `zigzag` on a rank for every rank: the chunks of each."""
    zigzag = student("zigzag")
    return [zigzag(n_chunks, size, r) for r in range(size)]


def run_layers(size, given, grad, layers, me):
    """Run attention layers on a rank, in groups of `size`: the output, the gradients if `grad` is given, the arguments afterwards.

    q, k and v are also used outside the attention, which adds their own values to their gradients.
    """
    everyone, ring_attention = student("everyone"), student("ring_attention")
    comm = everyone.Split(color=me // size, key=me)
    tensors = [Tensor(array, requires_grad=grad is not None) for array in given]
    out = forward_backward(ring_attention, tensors, None, comm, layers)
    data = out.data
    if grad is not None:
        Tensor.from_operation(np.zeros(()), (out, *tensors), lambda _: (grad, *given)).backward(np.ones(()))
    return data, [t.grad for t in tensors], given, grad


def forward_backward(attention, tensors, grad, comm, layers=1):
    """Run layers that share k and v on a rank, forward and then backward; return the output."""
    q, k, v = tensors
    for _ in range(layers):
        q = attention(q, k, v, comm)
        if not isinstance(q, Tensor):
            raise TypeError(f"ring_attention must return a Tensor, made with Tensor.from_operation; got {type(q).__name__}.")
    if grad is not None:
        if not q.requires_grad:
            raise TypeError(
                "ring_attention's output has no backward function: make it with Tensor.from_operation(out, (q, k, v), backward)."
            )
        q.backward(grad)
    return q


def warm_up_step(size, seed, shape, backward):
    """Run one step on a rank before the measurement, so that everything that is allocated only once already exists."""
    everyone, ring_attention = student("everyone"), student("ring_attention")
    get_ipython().user_ns.pop("trial", None)
    memory.release_freed_at_once(True)
    q, k, v, grad = np.random.default_rng(seed).standard_normal((4, *shape), np.float32)
    comm = everyone.Split(color=int(everyone.Get_rank() >= size))
    get_ipython().user_ns["trial"] = dict(comm=comm)
    forward_backward(ring_attention, [Tensor(array, requires_grad=True) for array in (q, k, v)], grad if backward else None, comm)


def measure_step(given, grad, watched):
    """Run a step on a rank with new inputs; if `watched`, return the peak of the bytes held, as measured in this process."""
    trial, ring_attention = student("trial"), student("ring_attention")
    tensors = [Tensor(array, requires_grad=True) for array in given]
    with memory.watch() if watched else contextlib.nullcontext() as held:
        trial["made"] = tensors, forward_backward(ring_attention, tensors, grad, trial["comm"])
    return held.true_peak if watched else 0


def measure_backward(grad, watched):
    """Run the backward pass of the measured step on a rank; if `watched`, return the peak of the bytes held."""
    trial = student("trial")
    with memory.watch() if watched else contextlib.nullcontext() as held:
        trial["made"][1].backward(grad)
    return held.true_peak if watched else 0


def fetch_columns(columns):
    """Return some columns of the measured step's output and gradients (None where there is no gradient) from a rank."""
    trial = student("trial")
    tensors, out = trial["made"]
    return tuple(a if a is None else a[..., columns] for a in (out.data, *(t.grad for t in tensors)))


def end_measurement():
    """Undo `warm_up_step` on a rank."""
    get_ipython().user_ns.pop("trial", None)
    memory.release_freed_at_once(False)


def peak_of_step(attention, given, grad, comm):
    """Run a step on a rank, forward and backward.

    Parameters
    ----------
    attention : callable
        ``attention(q, k, v, comm)`` on Tensors, returning a Tensor.
    given : sequence of numpy.ndarray
        q, k and v of this rank.
    grad : numpy.ndarray or None
        The gradient of the output; None to skip the backward pass.
    comm : Communicator
        The ranks that take the step together; passed on to `attention`.

    Returns
    -------
    peak : int
        Peak of the bytes held beyond the arguments, as measured by tracemalloc.
    tensors : list of Tensor
        q, k and v, with their gradients.
    out : Tensor
    """
    tensors = [Tensor(array, requires_grad=True) for array in given]
    with memory.watch() as held:
        out = forward_backward(attention, tensors, grad, comm)
    return held.true_peak, tensors, out


def full_attention(q, k, v, comm):
    """Attention to a whole sequence that this rank holds."""
    return functional.attention(q, k, v)


def peak_memory_by_length(lengths):
    """Peak megabytes of a step on each rank for sequences of these lengths, whole on one rank and split over the ring."""
    ring_attention, everyone = student("ring_attention"), student("everyone")
    found = {"whole on one rank": [], "ring, each rank": []}
    for length in lengths:
        for peaks, attention, n in zip(found.values(), (full_attention, ring_attention), (1, everyone.Get_size()), strict=True):
            alone = n == 1 and everyone.Get_rank()
            q, k, v, grad = np.random.default_rng(0).standard_normal((4, 1, 2, length // n, 8), np.float32)
            peaks.append(0.0 if alone else peak_of_step(attention, (q, k, v), grad, everyone)[0] / 1e6)
    return found


def masked_attention(scores, v, seen):
    """Weighted mean of the values that each row attends to, and the log-sum-exp of its scores."""
    scores = np.where(seen, scores, -np.inf)
    top = np.where(seen.any(axis=-1), scores.max(axis=-1), 0.0)[..., None]
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    lse = np.full(total.shape, -np.inf)
    np.log(total, out=lse, where=total > 0)
    return (weights / np.where(total > 0, total, 1)) @ v, (lse + top)[..., 0]


class MergeAndZigzagCheck(GroupCheck):
    """A `Check` of `merge` and `zigzag`."""

    def merge(self, magnitude: float = 2.0, dtype: type = np.float64, unseen: bool = False, axes: int = 1) -> None:
        """Check that merging attention to two sets of keys gives attention to all of them.

        Parameters
        ----------
        magnitude : float
            Magnitude of the scores.
        unseen : bool
            Whether some rows attend to no key on one side, or on both.
        axes : int
            Number of axes before rows and columns.
        """
        *lead, rows, d, first, second = self.sizes(axes + 4, 2, 9)
        rows += 4 * unseen
        self.case = f"scores of up to {magnitude:g}, {np.dtype(dtype)}, an output of shape {(*lead, rows, d)}"
        self.case += ", and rows that see nothing on one side" if unseen else ""
        v, offsets = self.random.standard_normal((*lead, first + second, d)), self.random.uniform(-magnitude, magnitude, (*lead, rows, 2))
        near = self.random.random((*lead, rows)) < 0.7
        offsets[near, 1] = offsets[near, 0]  # otherwise one side may have all the weight
        scores = self.random.standard_normal((*lead, rows, first + second)) + np.repeat(offsets, (first, second), axis=-1)
        seen = np.ones((rows, 2), bool)
        seen[:4] = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], bool) if unseen else True
        seen = np.repeat(seen, (first, second), axis=-1)
        sides = [
            masked_attention(scores, v, seen * np.isin(np.arange(first + second), side))
            for side in (range(first), range(first, first + second))
        ]
        given = [array.astype(dtype) for side in sides for array in side]
        want = masked_attention(scores, v, seen)
        (out, lse), (block_out, block_lse) = sides
        with np.errstate(all="ignore"):  # the results of known mistakes
            mistakes = {"the mean of both": (out + block_out) / 2, "the sum of both": out + block_out, "out as it was before": out}
            larger = {"the larger of both": np.maximum(lse, block_lse), "the sum of both": lse + block_lse}
            larger["a logarithm to base 2"] = np.logaddexp2(lse, block_lse)
        double, largest = dtype is np.float64, max(3.0, magnitude)
        near_enough = (
            (1e-9 if double else max(1e-5, 4e-7 * magnitude), 3.0),
            (1e-9 if double else 2e-6, largest),
        )  # float32 is coarse near 1e4
        for r, (answer, after) in enumerate(
            self.ranks.call(call_merge, [dict(zip(MERGE_ARGUMENTS, given, strict=True))] * 4, show=self.show)
        ):
            for name, array, before in zip(MERGE_ARGUMENTS, after, given, strict=True):
                self._equal(array, before, name=f"{name}, after the call,", rank=r, cause="an in-place operation, such as out *= ...")
            got = self.tuple(answer, 2, name="merge", rank=r)
            cause = "exp of large numbers without subtracting the maximum; weights not divided by their sum; or one maximum over all rows"
            known = ({}, {}) if unseen else (mistakes, larger)
            for name, array, right, (rtol, scale), instead in zip(("out", "lse"), got, want, near_enough, known, strict=True):
                self._equal(array, right.astype(dtype), name=name, rank=r, cause=cause, rtol=rtol, scale=scale, instead=instead)
        self.covers("dtypes", "special values", "sizes", "arguments", "repetition")

    def merges(self, *magnitudes: float, unseen: bool = False) -> None:
        """Check `merge` in float32 and float64, with up to two leading axes."""
        for magnitude, dtype, axes in product(magnitudes, (np.float32, np.float64), (0, 1, 2)):
            self.merge(magnitude, dtype, unseen, axes)
        rows, d = self.sizes(2, 2, 9)
        calls = []
        for shape in ((rows, d), (rows, d), (2, rows, d), (rows, d)):
            outputs = self.random.standard_normal((2, *shape))
            scores = self.random.uniform(-magnitudes[0], magnitudes[0], (2, *shape[:-1]))
            calls.append(Call([[outputs[0], scores[0], outputs[1], scores[1]]] * self.ranks.n))
        self.case = f"outputs of shape {(rows, d)}, several calls in turn"
        in_turn(self, "merge", calls, own_results=False)

    def _equal(self, got: object, want: np.ndarray, *, name: str, rank: int, cause: str, **how: object) -> None:
        """Compare as `array` does, where some values are -inf."""
        if not isinstance(got, np.ndarray) or got.shape != want.shape or got.dtype != want.dtype:
            self.array(got, want, name=name, rank=rank, cause=cause, **how)
        if np.isnan(got).any():
            cause = "0 / 0, -inf minus -inf, or exp of too large a number: subtract the larger lse first, and handle the case of both -inf"
            self.fail(f"{name} on rank {rank} has NaN in {np.count_nonzero(np.isnan(got))} of {got.size} places", cause)
        if not np.array_equal(np.isneginf(got), np.isneginf(want)):
            self.fail(f"{name} on rank {rank} must be -inf exactly where neither side has seen anything", cause)
        got, want = (np.where(np.isneginf(array), array.dtype.type(0), array) for array in (got, want))
        self.array(got, want, name=name, rank=rank, cause=cause, **how)

    def zigzag(self, n_chunks: int, size: int, want: list[list[int]]) -> None:
        """Check the chunks of each of `size` ranks: all chunks once, in order, balanced, and as the docstring says."""
        self.case = f"{n_chunks} chunks on {size} ranks"
        self.covers("sizes", "group sizes", "repetition")
        if size > 8:
            self.covers("many ranks")
        for answers in self.ranks.call(call_zigzag, dict(n_chunks=n_chunks, size=size), show=self.show):
            for r, got in enumerate(answers):
                if not isinstance(got, (list, tuple, np.ndarray)) or not all(isinstance(c, (int, np.integer)) for c in got):
                    self.fail(
                        f"zigzag must give rank {r} a list of whole numbers; got {got!r:.80}",
                        "/ gives a float where // gives a whole number; a range instead of a list; or pairs instead of numbers",
                    )
            held = [int(c) for got in answers for c in got]
            if sorted(held) != list(range(n_chunks)):
                missing = sorted(set(range(n_chunks)) - set(held))
                twice = sorted(chunk for chunk, times in Counter(held).items() if times > 1)
                said = ", ".join(f"{what} {wording.spans(which)}" for what, which in (("missing:", missing), ("twice:", twice)) if which)
                self.fail(
                    f"the ranks must hold each of {n_chunks} chunks once ({said or 'some do not exist'})",
                    "the last chunk is n_chunks - 1, and a rank may have more than two",
                )
            for r, got in enumerate(answers):
                if sorted(got) != list(got):
                    self.fail(f"zigzag gives rank {r} its chunks out of order", "the smaller number comes first")
            work = np.array([sum(c + 0.5 for c in got) for got in answers])
            r = int(work.argmax())
            if work[r] > 1.1 * work.mean():
                much = f"rank {r} would compute {work[r] / work.mean():.2f} times the mean"
                self.fail(f"the work is not balanced: {much}", "a late chunk sees many keys, so pair it with an early one")
            for r, (got, right) in enumerate(zip(answers, want, strict=True)):
                shown = f"; got {[int(c) for c in got]}, expected {right}" if self.show else ""
                if [int(c) for c in got] != right:
                    self.fail(
                        f"zigzag does not give rank {r} the chunks that the docstring specifies{shown}",
                        "the lower half goes to the ranks in order",
                    )
