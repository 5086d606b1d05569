"""Check of part 33's repairs: functions of two wrong runs, and the same mathematics in one process."""

from __future__ import annotations

import numpy as np

from course_lib.autograd import Module
from course_lib.check.cases.layouts import CONTIGUOUS
from course_lib.check.cases.repetition import GROUP, KEPT, Call, in_turn
from course_lib.check.groups import GroupCheck
from course_lib.check.silent_bug import contract
from course_lib.check.silent_bug.on_ranks import call_accumulate
from course_lib.gpt.model.decoder import Sizes, layers, loss_of

RTOL = {"float64": 1e-9, "float32": 1e-4}


class RepairCheck(GroupCheck):
    """A `Check` of a repaired function."""

    def accumulate(
        self,
        *counts: int,
        dtype: str = "float64",
        each: int = 0,
        left: bool = False,
    ) -> RepairCheck:
        """Check calls of `accumulate` on one model, with these numbers of micro-batches.

        By default, their number of texts is drawn. If `left`, there are gradients before the first call.
        """
        heads, seed = int(self.random.integers(1, 3)), int(self.random.integers(1 << 30))
        drawn, length = self.sizes(2, 2, 6)
        each = each or drawn
        sizes = (7 + length, 4 * heads, heads, 1, length)
        calls = [self.random.integers(0, sizes[0], (4, count, each, length + 1)) for count in counts]
        models = [layers(Sizes(*sizes), seed=seed, dtype=np.dtype(dtype)) for _ in range(4)]
        grads = None
        if left:
            parameters = _named(models[0]).values()
            grads = [self.random.standard_normal(p.shape).astype(dtype) for p in parameters]
        arguments = [
            dict(
                sizes=sizes,
                seed=seed,
                dtype=dtype,
                calls=[list(texts[r]) for texts in calls],
                grads=grads,
            )
            for r in range(4)
        ]
        self.case = f"{' and '.join(map(str, counts))} micro-batches of {each} texts, {dtype}"
        answers = self.call(call_accumulate, arguments, show=self.show)
        for number, (count, texts) in enumerate(zip(counts, calls, strict=True)):
            self.case = f"{count} micro-batches of {each} texts, {dtype}"
            losses = self._reference(models, texts)
            for r in range(4):
                loss, got, after = answers[r][number]
                cause = "the loss of one micro-batch, or a sum instead of a mean"
                rtol = RTOL[dtype]
                self.numbers(loss, [losses[r]], name="the loss", rank=r, cause=cause, rtol=rtol)
                for (name, p), grad in zip(_named(models[r]).items(), got, strict=True):
                    self._gradient(grad, p.grad, name, count, r)
                self._kept(after, texts[r], r)
        nbytes = each * length * sizes[1] * np.dtype(dtype).itemsize
        for r in range(4):
            self._calls(r, sum(counts), nbytes)
        self.covers("dtypes", "sizes", "repetition", "arguments")
        return self

    def _reference(self, models: list[list[Module]], texts: np.ndarray) -> list[float]:
        """Leave the gradients of all micro-batches in the ranks' models; return the mean losses.

        `texts` are ``(4, micro-batches, texts, length + 1)``. As on the ranks, the mean over all ranks
        is subtracted after the first layer.
        """
        count = texts.shape[1]
        for model in models:
            for p in _named(model).values():
                p.grad = None
        losses = np.zeros((4, count))
        for i in range(count):
            xs = [model[0](own[i, :, :-1]) for model, own in zip(models, texts, strict=True)]
            mean = (xs[0] + xs[1] + xs[2] + xs[3]) * 0.25
            total = None
            for r, model in enumerate(models):
                x = xs[r] - mean
                for layer in model[1:]:
                    x = layer(x)
                loss = loss_of(x, texts[r, i, :, 1:])
                losses[r, i] = loss.item()
                total = loss if total is None else total + loss
            (total * (1 / count)).backward()
        return losses.mean(axis=1).tolist()

    def _gradient(self, got: object, want: np.ndarray, name: str, count: int, r: int) -> None:
        """Compare the gradient of a parameter."""
        known = None
        if count > 1:
            sums = "the losses of micro-batches are means, so their mean counts"
            known = {f"{count} times what it should be: {sums}": count * want}
        cause = "gradients of earlier micro-batches or calls, thrown away or kept where they should not be; or other ranks' gradients"
        rtol = RTOL[want.dtype.name]
        self.array(got, want, name=f"the gradient of {name}", rank=r, rtol=rtol, cause=cause, instead=known)

    def _kept(self, after: list, before: np.ndarray, r: int) -> None:
        """Check that the micro-batches are as before."""
        if len(after) != len(before):
            self.fail(
                f"accumulate on rank {r} has changed the list of micro-batches",
                "pop; the caller needs them, too",
            )
        for got, want in zip(after, before, strict=True):
            self.array(
                got,
                want,
                name="a micro-batch after accumulate",
                rank=r,
                cause="an operation in place",
            )

    def _calls(self, r: int, micro_batches: int, nbytes: int) -> None:
        """Check how often rank r has run its model: one all-reduce in forward, and one in backward."""
        limit, moved = contract.ONE_AT_A_TIME, self.ranks.traffic[r]
        calls = sum(count for operation, _, count, _ in moved if operation == "Allreduce")
        if calls < 2 * micro_batches:
            cause = "micro-batches that are joined to one, whose activations take as much memory"
            self.fail(
                f"accumulate on rank {r} gives the model several micro-batches at once",
                cause,
                limit=limit,
            )
        name, most = (
            f"accumulate with {micro_batches} micro-batches",
            {"Allreduce": 2 * micro_batches},
        )
        cause = "a micro-batch that the model gets twice or in parts, or a call on other ranks"
        self.calls(moved, most, group=[0, 1, 2, 3], name=name, rank=r, limit=limit, cause=cause)
        # On the wire, an all-reduce of four ranks sends 1.5 times its array.
        most_bytes = 1.5 * 2 * micro_batches * nbytes
        self.sent(moved, most_bytes, name=name, rank=r, cause=cause, limit=limit)

    def own_gradients(self, *sizes: int) -> RepairCheck:
        """Check `own_gradients` in groups of these sizes, in turn on two communicators of the same ranks."""
        for size in sizes:
            groups = self.groups(size)
            self.case = self.describe_groups(groups, np.float64)
            batch, heads, each = self.sizes(3, 3, 6)
            (width,) = self.sizes(1, 2, 6)
            shape, other = (batch, heads, each, width), (heads, batch, width, each)
            # Shape of q, dtype, which communicator, and whether the ranks' summands are exact.
            turns = [
                (shape, np.float64, 0, False),
                (other, np.float32, 1, False),
                (shape, np.float64, 1, True),
                ((1, 1, 1, 1), np.float32, 0, True),
                (shape, np.float64, 0, False),
            ]
            wholes = [self._summands(groups, own_shape, dtype, exact) for own_shape, dtype, _, exact in turns]
            calls = [
                Call([[*own, GROUP] for own in arrays], communicator, layout)
                for arrays, (*_, communicator, _), layout in zip(wholes, turns, 2 * CONTIGUOUS, strict=False)
            ]
            results = in_turn(self, "own_gradients", calls, [groups, groups], own_results=False)
            case = self.case
            for number, (arrays, turn, answers) in enumerate(zip(wholes, turns, results, strict=True), 1):
                self.case = f"call {number} of {len(turns)}, {np.dtype(turn[1])}, {case}"
                for group in groups:
                    self._compare_own(arrays, group, answers, exact=turn[-1])
            self.case = case
            for group in groups:
                for r in group:
                    most = len(turns) * int(contract.SUM_CALLS.number)
                    name = f"own_gradients, called {len(turns)} times,"
                    self.calls(
                        self.ranks.traffic[r],
                        most,
                        group=group,
                        name=name,
                        rank=r,
                        limit=contract.SUM_CALLS,
                    )
                    self.requests_completed(self.ranks.unended[r], r)
        self.covers("dtypes", "special values", "layouts", "sizes", "group order", "group sizes")
        return self

    def _summands(
        self,
        groups: list[list[int]],
        shape: tuple[int, ...],
        dtype: type,
        exact: bool,
    ) -> list[list[np.ndarray]]:
        """Draw dq, dk and dv of each rank; of `exact` sums, only one rank's summand is not 0."""
        batch, heads, each, width = shape
        arrays: list = [None] * 4
        for group in groups:
            whole = (batch, heads, each * len(group), width)
            special = [self.special(*whole, dtype=dtype) for _ in range(2)]
            owner = self.random.integers(len(group), size=whole)
            for key, r in enumerate(group):
                if exact:
                    summands = [np.where(owner == key, array, dtype(0)) for array in special]
                else:
                    summands = [self.random.standard_normal(whole).astype(dtype) for _ in range(2)]
                arrays[r] = [self.special(*shape, dtype=dtype), *summands]
        return arrays

    def _compare_own(self, arrays: list, group: list[int], answers: list, exact: bool) -> None:
        """Compare what the ranks of a group return with their parts of the sums."""
        n = len(group)
        for key, r in enumerate(group):
            got = self.tuple(answers[r], 3, name="own_gradients", rank=r)
            dq = arrays[r][0]
            cause = "a sum over the ranks; q is each rank's own"
            self.array(got[0], dq, name="the gradient of q", rank=r, cause=cause)
            for i, name in ((1, "k"), (2, "v")):
                summands = [np.split(arrays[other][i], n, axis=2)[key] for other in group]
                want = np.sum(np.asarray(summands, np.float64), axis=0).astype(dq.dtype)
                mine = arrays[r][i]
                instead = {
                    "the gradients of all ranks' positions": np.sum([arrays[other][i] for other in group], axis=0),
                    "this rank's own summand, with those of the others missing": summands[key],
                    "a mean in the place of a sum": want / n,
                    "a sum of parts of different positions": sum(
                        np.split(arrays[other][i], n, axis=2)[place] for place, other in enumerate(group)
                    ),
                    "this rank's gradients of all positions": mine,
                }
                cause = f"summands of other ranks that are missing; or {KEPT}"
                known = instead if n > 1 else None
                rtol, scale = (0.0, None) if exact else (RTOL[dq.dtype.name], float(n))
                name = f"the gradient of {name}"
                self.array(
                    got[i],
                    want,
                    name=name,
                    rank=r,
                    cause=cause,
                    rtol=rtol,
                    scale=scale,
                    instead=known,
                )


def _named(model: list[Module]) -> dict:
    """Parameters of a list of layers, by name, in their order."""
    return {f"{i}.{name}": p for i, layer in enumerate(model) for name, p in layer.named_parameters()}
