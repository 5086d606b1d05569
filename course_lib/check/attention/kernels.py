"""How part 23's ring attention is put to the test: what runs on the ranks for that, and the check of its pieces; see also `ring_attention`.

`call_merge` and the functions below it, up to `peak_memory_by_length`, run on the ranks.
"""

from __future__ import annotations

import contextlib
import warnings
from itertools import product

import numpy as np

from course_lib import memory, wording
from course_lib.autograd import Tensor, functional
from course_lib.check import Check
from course_lib.engine.namespace import get_ipython, student

MERGE_ARGUMENTS = "out", "lse", "block_out", "block_lse"


def call_merge(out, lse, block_out, block_lse):
    """On a rank: what `merge` gives, its arguments after the call, and what NumPy warned of."""
    merge = student("merge")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        answer = merge(out, lse, block_out, block_lse)
    return answer, (out, lse, block_out, block_lse), [str(warning.message) for warning in said]


def call_zigzag(n_chunks, size):
    """On a rank: the chunks of all ranks, as `zigzag` says."""
    zigzag = student("zigzag")
    return [zigzag(n_chunks, size, r) for r in range(size)]


def run_layers(size, given, grad, layers, me):
    """On a rank, in groups of `size`: the output of some layers, the gradients if there is one for the output, the arguments afterwards.

    q, k and v are also used beside the attention, which adds their own values to their gradients.
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
    """On a rank: the output of some layers, which share k and v, and then their gradients."""
    q, k, v = tensors
    for _ in range(layers):
        q = attention(q, k, v, comm)
        if not isinstance(q, Tensor):
            raise TypeError(f"ring_attention must return a Tensor, made with Tensor.from_operation; got {type(q).__name__}.")
    if grad is not None:
        if not q.requires_grad:
            raise TypeError("ring_attention's output has no way back: make it with Tensor.from_operation(out, (q, k, v), backward).")
        q.backward(grad)
    return q


def warm_up_step(size, seed, shape, backward):
    """On a rank, before it is measured: a step with numbers from a seed, after which all is there that stays."""
    everyone, ring_attention = student("everyone"), student("ring_attention")
    memory.release_freed_at_once(True)
    q, k, v, grad = np.random.default_rng(seed).standard_normal((4, *shape), np.float32)
    comm = everyone.Split(color=int(everyone.Get_rank() >= size))
    get_ipython().user_ns["trial"] = dict(comm=comm)
    forward_backward(ring_attention, [Tensor(array, requires_grad=True) for array in (q, k, v)], grad if backward else None, comm)


def measure_step(given, grad, watched):
    """On a rank: a step with numbers that it has not seen before; if `watched`, the most bytes that it held, as this process sees it."""
    trial, ring_attention = student("trial"), student("ring_attention")
    tensors = [Tensor(array, requires_grad=True) for array in given]
    with memory.watch() if watched else contextlib.nullcontext() as held:
        trial["made"] = tensors, forward_backward(ring_attention, tensors, grad, trial["comm"])
    return held.true_peak if watched else 0


def measure_backward(grad, watched):
    """On a rank: the backward pass of the step that was measured; if `watched`, the most bytes that it held."""
    trial = student("trial")
    with memory.watch() if watched else contextlib.nullcontext() as held:
        trial["made"][1].backward(grad)
    return held.true_peak if watched else 0


def fetch_columns(columns):
    """On a rank: some columns of the output and of the gradients of the step that was measured, if it has any."""
    trial = student("trial")
    tensors, out = trial["made"]
    return tuple(a if a is None else a[..., columns] for a in (out.data, *(t.grad for t in tensors)))


def end_measurement():
    """On a rank: end what `warm_up_step` began."""
    get_ipython().user_ns.pop("trial", None)
    memory.release_freed_at_once(False)


def peak_of_step(attention, given, grad, comm):
    """On a rank: run a step, forward and backward.

    Parameters
    ----------
    attention : callable
        ``attention(q, k, v, comm)``, with Tensors; a Tensor.
    given : sequence of numpy.ndarray
        q, k and v of this rank.
    grad : numpy.ndarray or None
        The gradient of the output, if the way back is to be taken.
    comm : Communicator
        The ranks that take the step together; whatever `attention` takes.

    Returns
    -------
    peak : int
        The most bytes that were held at once beyond the arguments, as tracemalloc saw it.
    tensors : list of Tensor
        q, k and v, with their gradients.
    out : Tensor
    """
    tensors = [Tensor(array, requires_grad=True) for array in given]
    with memory.watch() as held:
        out = forward_backward(attention, tensors, grad, comm)
    return held.true_peak, tensors, out


def full_attention(q, k, v, comm):
    """On a rank: attention to all of a sequence, which it has whole."""
    return functional.attention(q, k, v)


def peak_memory_by_length(lengths):
    """On each rank: the most megabytes held in a step of sequences of these lengths, by one rank alone, and by each in the ring."""
    ring_attention, everyone = student("ring_attention"), student("everyone")
    found = {"whole on one rank": [], "ring, each rank": []}
    for length in lengths:
        for peaks, attention, n in zip(found.values(), (full_attention, ring_attention), (1, everyone.Get_size()), strict=True):
            alone = n == 1 and everyone.Get_rank()
            q, k, v, grad = np.random.default_rng(0).standard_normal((4, 1, 2, length // n, 8), np.float32)
            peaks.append(0.0 if alone else peak_of_step(attention, (q, k, v), grad, everyone)[0] / 1e6)
    return found


def masked_attention(scores, v, seen):
    """The weighted mean of the values that each row sees, and the logarithm of the sum of its exponentials."""
    scores = np.where(seen, scores, -np.inf)
    top = np.where(seen.any(axis=-1), scores.max(axis=-1), 0.0)[..., None]
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    lse = np.full(total.shape, -np.inf)
    np.log(total, out=lse, where=total > 0)
    return (weights / np.where(total > 0, total, 1)) @ v, (lse + top)[..., 0]


class MergeAndZigzagCheck(Check):
    """A `Check` of `merge` and `zigzag`."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks

    def merge(self, magnitude: float = 2.0, dtype: type = np.float64, unseen: bool = False, axes: int = 1) -> None:
        """Attention to some keys and to some others, merged: as attention to all of them.

        Parameters
        ----------
        magnitude : float
            Of the scores.
        unseen : bool
            Whether some rows see nothing on one side, or on both.
        axes : int
            How many there are before rows and columns.
        """
        *lead, rows, d, first, second = self.sizes(axes + 4, 2, 9)
        rows += 4 * unseen
        self.case = f"scores of up to {magnitude:g}, {np.dtype(dtype)}, out of shape {(*lead, rows, d)}"
        self.case += ", and rows that see nothing on a side" if unseen else ""
        v, offsets = self.random.standard_normal((*lead, first + second, d)), self.random.uniform(-magnitude, magnitude, (*lead, rows, 2))
        near = self.random.random((*lead, rows)) < 0.7
        offsets[near, 1] = offsets[near, 0]  # else one side may have all the weight
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
        with np.errstate(all="ignore"):  # what mistakes give
            mistakes = {"the mean of both": (out + block_out) / 2, "the sum of both": out + block_out, "as out was before": out}
            larger = {"the larger of both": np.maximum(lse, block_lse), "the sum of both": lse + block_lse}
            larger["a logarithm of base 2"] = np.logaddexp2(lse, block_lse)
        double, largest = dtype is np.float64, max(3.0, magnitude)
        near_enough = (
            (1e-9 if double else max(1e-5, 4e-7 * magnitude), 3.0),
            (1e-9 if double else 2e-6, largest),
        )  # 32 bits of 1e4 are coarse
        for r, (answer, after, said) in enumerate(
            self.ranks.call(call_merge, [dict(zip(MERGE_ARGUMENTS, given, strict=True))] * 4, show=self.show)
        ):
            for name, array, before in zip(MERGE_ARGUMENTS, after, given, strict=True):
                self._equal(array, before, name=f"{name}, after the call,", rank=r, cause="an operation in place, such as out *= ...")
            got = self.tuple(answer, 2, name="merge", rank=r)
            cause = "exp of large numbers, from which no maximum was taken; weights not divided by their sum; or a maximum over all rows"
            known = ({}, {}) if unseen else (mistakes, larger)
            for name, array, right, (rtol, scale), instead in zip(("out", "lse"), got, want, near_enough, known, strict=True):
                self._equal(array, right.astype(dtype), name=name, rank=r, cause=cause, rtol=rtol, scale=scale, instead=instead)
            if said:
                self.fail(f"merge on rank {r} has NumPy warn: {said[0]}", "-inf minus -inf, the logarithm of 0, or exp of a large number")

    def merges(self, *magnitudes: float, unseen: bool = False) -> None:
        """`merge` with 32 and 64 bits, and with up to two axes in front."""
        for magnitude, dtype, axes in product(magnitudes, (np.float32, np.float64), (0, 1, 2)):
            self.merge(magnitude, dtype, unseen, axes)

    def _equal(self, got: object, want: np.ndarray, *, name: str, rank: int, cause: str, **how: object) -> None:
        """As `array`, where some values are -inf."""
        if not isinstance(got, np.ndarray) or got.shape != want.shape or got.dtype != want.dtype:
            self.array(got, want, name=name, rank=rank, cause=cause, **how)
        if np.isnan(got).any():
            cause = (
                "0 / 0, -inf minus -inf, or exp of a number that is too large: subtract the larger lse first, and mind where both are -inf"
            )
            self.fail(f"{name} on rank {rank} has NaN in {np.count_nonzero(np.isnan(got))} of {got.size} places", cause)
        if not np.array_equal(np.isneginf(got), np.isneginf(want)):
            self.fail(f"{name} on rank {rank} must be -inf where nothing has been seen on both sides, and only there", cause)
        got, want = (np.where(np.isneginf(array), array.dtype.type(0), array) for array in (got, want))
        self.array(got, want, name=name, rank=rank, cause=cause, **how)

    def zigzag(self, n_chunks: int, size: int, want: list[list[int]]) -> None:
        """Which chunks each of `size` ranks holds: together all, in order, with the same work, and as the docstring says."""
        self.case = f"{n_chunks} chunks on {size} ranks"
        for answers in self.ranks.call(call_zigzag, dict(n_chunks=n_chunks, size=size), show=self.show):
            for r, got in enumerate(answers):
                if not isinstance(got, (list, tuple, np.ndarray)) or not all(isinstance(c, (int, np.integer)) for c in got):
                    self.fail(
                        f"zigzag must give rank {r} a list of whole numbers; got {got!r:.80}",
                        "/ gives a float, and // a whole number; a range, not its list; or pairs in place of numbers",
                    )
            held = [int(c) for got in answers for c in got]
            if sorted(held) != list(range(n_chunks)):
                missing, twice = sorted(set(range(n_chunks)) - set(held)), sorted({c for c in held if held.count(c) > 1})
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
                self.fail(f"the work is not balanced: {much}", "a late chunk sees many keys, so it goes with an early one")
            for r, (got, right) in enumerate(zip(answers, want, strict=True)):
                shown = f"; got {[int(c) for c in got]}, expected {right}" if self.show else ""
                if [int(c) for c in got] != right:
                    self.fail(
                        f"zigzag gives rank {r} other chunks than the docstring says{shown}", "the lower half goes to the ranks in order"
                    )
