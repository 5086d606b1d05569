"""Check of part 23's `ring_attention`: results against a single process, bytes sent, memory held."""

from __future__ import annotations

import math
import os
from itertools import product

import numpy as np

from course_lib import memory, traffic
from course_lib.check import Check, CheckFailed, scratch
from course_lib.check.attention import contract
from course_lib.check.attention.kernels import end_measurement, fetch_columns, measure_backward, measure_step, run_layers, warm_up_step
from course_lib.check.groups import BASELINE_BYTES
from course_lib.check.limits import Limit
from course_lib.check.shuffled_ranks import ShuffledRanks
from course_lib.sandbox.bubblewrap import ISOLATION_VARIABLE
from course_lib.utils import wording

QKV_NAMES = "q", "k", "v"
MARGIN = 0.35  # arrays, for what the system rounds up
MEMORY_SLACK_BYTES = 1 << 17  # bytes: Python's own objects, and the system's pages


def zigzag_positions(size, count):
    """Positions of each rank's rows, `count` per rank, in zigzag order."""
    parts = np.split(np.arange(size * count), 2 * size)
    return [np.concatenate([parts[r], parts[-1 - r]]) for r in range(size)]


def reference_attention(q, k, v, grad, seen):
    """Attention on one process in float64: the output, the gradients of q, k, v, and the magnitude of each one's summands."""
    q, k, v, grad = (array.astype(float) for array in (q, k, v, grad))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = np.where(seen, q @ k.swapaxes(-1, -2) * scale, -1e300)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True)) * seen
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
    out = weights @ v
    slopes = weights * (grad @ v.swapaxes(-1, -2) - np.sum(grad * out, axis=-1, keepdims=True)) * scale
    dq, dk, dv = slopes @ k, slopes.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ grad
    size = [float(np.abs(array).max()) for array in (q, k, v, grad)]
    slope = 2 * q.shape[-1] * size[3] * size[2] * scale
    rows = math.sqrt(q.shape[-2])
    return (out, dq, dk, dv), (size[2], slope * size[1], slope * size[0] * rows, size[3] * rows)


class RingAttentionCheck(Check):
    """A `Check` of `ring_attention`."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks, self.shuffled = ranks, ShuffledRanks(ranks, self.random, show)

    def attend(
        self,
        size: int = 4,
        dtype: type = np.float64,
        *,
        backward: bool = False,
        large: bool = False,
        layers: int = 1,
        smallest: bool = False,
    ) -> int:
        """Compare attention in groups of `size` ranks, and with `backward` its gradients, with a single process.

        Parameters
        ----------
        large : bool
            Whether some rows' scores are all large, and others' all far below 0; this changes no weight.
        layers : int
            Number of layers, one after the other.
        smallest : bool
            Whether to use one sample, and one row in each chunk.

        Returns
        -------
        int
            Bytes of q on a rank.
        """
        half, batch, heads, d = self.sizes(4, 2, 8)
        half, batch = (1, 1) if smallest else (half, batch)
        d += 1
        n_groups, count = -(-4 // size), 2 * half
        self.case = f"groups of {size}, {count} positions per rank, batch {batch}, {heads} heads, d {d}, {np.dtype(dtype)}"
        offset = (1e4 if dtype is np.float64 else 120.0) if large else 0.0
        self.case += f", scores of up to {offset:g}" if large else ""
        sizes = [min(size, 4 - g * size) for g in range(n_groups)]
        groups = [self.random.standard_normal((4, batch, heads, n * count, d)) for n in sizes]
        if large:
            for q, k, *_ in groups:
                q[..., 0] = (
                    self.random.choice([-1, 1], q.shape[:-1]) * self.random.uniform(0.9, 1, q.shape[:-1]) * math.sqrt(offset * math.sqrt(d))
                )
                k[..., 0] = math.sqrt(offset * math.sqrt(d))
        groups = [group.astype(dtype) for group in groups]
        shares = [part for n, group in zip(sizes, groups, strict=True) for part in np.split(group, n, axis=3)]
        given = [
            dict(
                size=size,
                given=tuple(map(np.ascontiguousarray, s[:3])),
                grad=np.ascontiguousarray(s[3]) if backward else None,
                layers=layers,
            )
            for s in shares
        ]
        answers = self.shuffled.call(run_layers, given, show=self.show)
        for r, (_, _, after, grad) in enumerate(answers):
            if backward:
                cause = "an in-place operation: others use the same array"
                self.array(grad, given[r]["grad"], name="the gradient of the output, after the call,", rank=r, cause=cause)
            for name, array, before in zip(QKV_NAMES, after, given[r]["given"], strict=True):
                cause = "receiving into the Tensor's own array, or adding to it"
                self.array(array, before, name=f"{name}.data, after the call,", rank=r, cause=cause)
        rtol = (1e-9 if dtype is np.float64 else 2e-5) * layers
        rtol *= 10 if large and dtype is not np.float64 else 1
        for g, (n, group) in enumerate(zip(sizes, groups, strict=True)):
            own = answers[g * size : g * size + n]
            self._compare(own, group, zigzag_positions(n, count), g * size, rtol, backward, layers)
        self.covers("dtypes", "sizes", "group order", "group sizes", "arguments", "repetition")
        if layers > 1:  # the first output is needed again; and each call has a communicator of its own
            self.covers("results", "same ranks twice")
        return given[0]["given"][0].nbytes

    def steps(self, *sizes: int, **how: object) -> None:
        """Run `attend` for each group size, and for the first one in both float64 and float32."""
        for size in sizes:
            self.attend(size, np.float32 if size == 2 else np.float64, **how)
        self.attend(sizes[0], np.float32, **how)
        self.attend(sizes[0], smallest=True, **how)

    def _compare(self, answers: list, group: np.ndarray, positions: list, first: int, rtol: float, backward: bool, layers: int) -> None:
        """Compare one group's answers with a single process; `group` is in the order of the ranks."""
        at = np.concatenate(positions)
        want, scales = _reference_layers(group, at[None, :] <= at[:, None], layers)
        names = ["the output", "dq", "dk", "dv"] if backward else ["the output"]
        causes = [
            "positions of keys other than those that the rank holds at that step; or an error in merge (see its own check)",
            "out and lse of one block instead of all keys; or the K and V left over from the forward pass, mistaken for this rank's own",
            *2 * ["K and V of a different step from dK and dV, or dK and dV that are not passed on one last time at the end"],
        ]
        for i, name in enumerate(names):
            parts = np.split(want[i], len(positions), axis=2)
            for r, (out, grads, *_) in reversed(list(enumerate(answers))):  # later ranks see more keys, so mistakes show more there
                got, right = out if i == 0 else grads[i - 1], parts[r].astype(group.dtype)
                if i and got is None:
                    self.fail(f"{name} on rank {first + r} is None", "a backward function that does not return (dq, dk, dv)")
                other_grad = np.split(group[i - 1], len(positions), axis=2)[r] if i else 0  # the contribution of its other uses
                how = dict(name=name, rank=first + r, cause=causes[i], rtol=rtol, scale=scales[i])
                try:
                    self.array(got, right + other_grad, **how)
                except CheckFailed:
                    known = {what: array + other_grad for what, array in _known_mistakes(group, positions, r, i, parts, layers).items()}
                    self.array(got, right + other_grad, **how, instead=known)

    def bytes_sent(self, *sizes: int) -> None:
        """Check the bytes of a step: K and V n - 1 times forward, again n - 1 times backward, dK and dV n times."""
        for size, dtype, backward in product(sizes, (np.float64, np.float32), (False, True)):
            pair = 2 * self.attend(size, dtype, backward=backward)  # bytes of K and V
            for r, (moved, left) in enumerate(zip(self.shuffled.traffic, self.shuffled.unended, strict=True)):
                n = min(size, 4 - r // size * size)
                most = (n - 1) * pair * (1 + backward) + n * pair * backward
                self._require_messages(moved, most, r, "a step, forward and backward," if backward else "the forward pass")
                self.requests_completed(left, r)
        self.covers("calls")

    def _require_messages(self, moved: list[tuple], most: float, rank: int, name: str) -> None:
        """Check that a rank sent only point-to-point messages, and no more than these bytes."""
        others = sorted({op for op, ranks, _, payload in moved if op != "Send" and traffic.wire_bytes(op, len(ranks), payload)})
        if others:
            cause = "a collective; here K and V travel from neighbour to neighbour as messages"
            problem = f"{name} on rank {rank} uses {', '.join(others)}"
            self.fail(problem, cause, limit=contract.NO_COLLECTIVES)
        limit = contract.SENT_BYTES
        cause = "n exchanges of K and V, although n - 1 bring every rank all of them"
        self.sent(moved, most + limit.number, name=name, rank=rank, cause=cause, limit=limit)

    def peak_memory(self) -> None:
        """Check the memory of a step, once where scores are large and once where K and V are, in groups of four and of three.

        With more ranks the sequence is longer, yet a rank holds no more: it has the same rows, and one block at a time.
        """
        self.score_memory(2 * int(self.random.integers(200, 230)))
        self.key_value_memory(int(self.random.integers(280_000, 300_000)))
        self._measure_step((1, 1, 2, int(self.random.integers(70_000, 75_000))), 4)  # messages that wait for their receivers
        self.ranks.call(end_measurement)

    def score_memory(self, rows: int) -> None:
        """Check that a rank holds the scores of one block at a time: two arrays of that size, with a margin of twice as much."""
        shape, cause = (1, 2, rows, 8), "scores of all keys at once, or kept for the backward pass, instead of one block at a time"
        array = 4 * 2 * rows * rows  # bytes
        (three, _, _), (four, _, _) = self._measure_step(shape, 3), self._measure_step(shape, 4)
        most = min(contract.SCORES.number * array, max(three) + 0.5 * array)
        self._require_peak(four, most, "a step", cause, contract.SCORES)

    def key_value_memory(self, d: int) -> None:
        """Check that a rank holds K and V of one other rank at a time, plus those in flight; measured where they are large.

        After the forward pass it keeps its output, and perhaps the last K and V: in the backward pass, they go around again.
        """
        shape, cause = (1, 1, 2, d), "K and V of several ranks, kept after their step"
        array = 4 * 2 * d  # bytes
        (three, _, back_of_three), (four, kept, back) = (self._measure_step(shape, size, one_call=False) for size in (3, 4))
        # Its own pair, the incoming pair, both outputs, the temporaries of `merge`, and a margin.
        keys = contract.KEYS.number + MARGIN
        most = min(keys * array, max(three) + array)
        self._require_peak(four, most, "the forward pass", cause, contract.KEYS)
        most = contract.KEPT.number * array
        self._require_peak(kept, most, "after the forward pass,", cause, contract.KEPT)
        most = max(back_of_three) + array
        self._require_peak(back, most, "the backward pass", cause, contract.ANY_SIZE)

    def _require_peak(self, peaks: list[int], most: float, what: str, cause: str, limit: Limit) -> None:
        most += MEMORY_SLACK_BYTES
        for r, peak in enumerate(peaks):
            if peak > most:
                held = wording.size(peak)
                problem = f"{what} on rank {r} held {held} at once"
                if what.startswith("after"):
                    problem = f"{what} rank {r} holds {held}"
                self.fail(f"{problem}; {wording.size(most)} are enough", cause, limit=limit)

    def _measure_step(self, shape: tuple[int, ...], size: int, one_call: bool = True) -> tuple[list[int], list[int], list[int]]:
        """Take a step that must be right; without `one_call`, the backward pass runs once the output has been fetched.

        Returns
        -------
        peaks : list of int
            Peak of the bytes that each rank held beyond its arguments, until the result of the first call has been fetched:
            work deferred until then is counted, too.
        kept : list of int
            Without `one_call`, bytes held beyond its arguments after the forward pass.
        back : list of int
            Likewise the peak of the backward pass.
        """
        memory.keep_freed()  # in this process
        scratch.held_without_scratch(self.ranks, BASELINE_BYTES)
        self.case = f"{size} ranks, q of shape {shape} on each"
        seeds = self.random.integers(1 << 62, size=4).tolist()
        self.ranks.call(warm_up_step, [dict(size=size, seed=s, shape=shape, backward=one_call) for s in seeds], show=self.show)
        group = self.random.standard_normal((4, 4, *shape), np.float32)  # by rank: q, k, v and the gradient of the output
        array, watched = 4 * math.prod(shape), ISOLATION_VARIABLE not in os.environ
        arguments = [dict(given=tuple(own[:3]), grad=own[3] if one_call else None, watched=watched) for own in group]
        before = [] if one_call else self.ranks.held()
        own, most = self.ranks.call(measure_step, arguments, show=self.show, peak=BASELINE_BYTES), self.ranks.peaks
        pairs = (size - 1) * (1 + one_call) + size * one_call
        for r, moved in enumerate(self.ranks.traffic[:size]):
            self._require_messages(
                moved, 1.5 * 2 * array * pairs, r, "a step"
            )  # a message kept along the way is held as well; see `bytes_sent`
        spare = math.inf if watched else BASELINE_BYTES  # without isolation, other cells may hold arrays
        after = [] if one_call else self.ranks.held()
        kept = [now - min(then, spare) - 3 * array for then, now in zip(before, after, strict=True)]
        self._check_fetched(group, size, ("the output", "dq", "dk", "dv") if one_call else ("the output",))
        for r, (then, now) in enumerate(zip(most, self.ranks.peaks, strict=True)):
            if then is not None:
                own[r] = max(then, now) - (3 + one_call) * array
        back: list[int] = []
        if not one_call:
            there = BASELINE_BYTES + 7 * array  # its arguments, and what `key_value_memory` allows it to keep
            back = self.ranks.call(measure_backward, [dict(grad=own[3], watched=watched) for own in group], show=self.show, peak=there)
            back = [mine if seen is None else seen - array for mine, seen in zip(back, self.ranks.peaks, strict=True)]
            self._check_fetched(group, size, ("the output", "dq", "dk", "dv"))
        return own[:size], kept[:size], back[:size]

    def _check_fetched(self, group: np.ndarray, size: int, names: tuple[str, ...]) -> None:
        """Fetch some columns of a step's results and check them; memory that ranks use for this counts toward the step."""
        columns = np.sort(self.random.permutation(group.shape[-1])[:50])  # no rank can know in advance which ones
        answers = self.ranks.call(fetch_columns, dict(columns=columns), peak="goes on")
        for r, moved in enumerate(self.ranks.traffic):
            cause = "work that is still unfinished when ring_attention returns"
            name, limit = "the fetch after a step", contract.SENT_BYTES
            self.sent(moved, 0, name=name, rank=r, cause=cause, limit=limit)
        at = np.concatenate(zigzag_positions(size, group.shape[-2]))
        want, scales = reference_attention(*np.concatenate(group[:size], axis=3), at[None, :] <= at[:, None])
        for r, answer in enumerate(answers[:size]):
            parts = self.tuple(answer, 4, name="the step", rank=r)
            for name, got, right, scale in zip(names, parts, want, scales, strict=False):
                right = np.split(right, size, axis=2)[r][..., columns].astype(np.float32)
                self.array(got, right, name=name, rank=r, rtol=1e-4, scale=scale)


def _reference_layers(group, seen, layers):
    """Run `reference_attention` for layers that share k and v, one after the other."""
    q, k, v, grad = group.astype(float)
    inputs = [q]
    for _ in range(layers):
        outs, scales = reference_attention(inputs[-1], k, v, grad, seen)
        inputs.append(outs[0])
    dk, dv = 0.0, 0.0
    for x in reversed(inputs[:-1]):
        (_, grad, more_k, more_v), scales = reference_attention(x, k, v, grad, seen)
        dk, dv = dk + more_k, dv + more_v
    return (inputs[-1], grad, dk, dv), scales


def _known_mistakes(group, positions, r, i, parts, layers):
    """Results of known mistakes on a rank: for the output (i is 0), or for the gradient of q, k or v."""
    n, count = len(positions), len(positions[0])
    at, rank, local = np.concatenate(positions), np.repeat(np.arange(n), count), np.tile(np.arange(count), n)
    step = (rank[:, None] - rank[None, :]) % n
    turned = np.stack([np.concatenate([positions[(a + (a - b)) % n] for b in range(n)]) for a in range(n)])[rank]
    masks = {
        "attention to this rank's own keys only": (at[None, :] <= at[:, None]) & (step == 0),
        "attention with a mask from local positions, counted from 0 on each rank": local[None, :] <= local[:, None],
        "attention with positions in plain order instead of zigzag order": np.arange(n * count)[None, :] <= np.arange(n * count)[:, None],
        "attention without a mask": np.ones((n * count, n * count), bool),
        "attention with the positions of the next ranks' keys, although the keys are those of the previous ranks": turned <= at[:, None],
    }
    found = {what: np.split(_reference_layers(group, seen, layers)[0][i], n, axis=2)[r] for what, seen in masks.items()}
    if i > 1:
        found |= {f"that of rank {other} of the group": parts[other] for other in range(n) if other != r}
    return found if n > 1 else {}
