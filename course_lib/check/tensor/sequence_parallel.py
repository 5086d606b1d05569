"""Check of part 22's block and gradients against the same mathematics on one process; `operators` checks the operators.

Functions with a lower-case name and no underscore run on the ranks, `SequenceParallelCheck` in the notebook's kernel.
"""

from __future__ import annotations

import math

import numpy as np

from course_lib import traffic
from course_lib.autograd import Module, Parameter
from course_lib.check.cases.repetition import KEPT
from course_lib.check.tensor import contract
from course_lib.check.tensor.block import BlockCheck, reference_block
from course_lib.engine.namespace import group_of, student
from course_lib.gpt.model.block import kinds
from course_lib.placement import replicated, sharded

LEFT_PARTIAL_CAUSE = (
    "gradients of replicated parameters that are left partial (kind == replicated, without quotes): each rank saw only its own positions"
)
# A test module's parameters: the number of dimensions, and the sharded dimension, or None.
PARAMETER_FORMS = ((2, 1), (2, 0), (1, 0), (1, None), (2, None), (1, None))
TIMES_CALLED = 3  # in one request, see `call_clip_gradients`
FIRST_GRADIENT = 3.0  # of all elements in the modules that come before the one that is checked


def make_module(data, grads, dims, tied):
    """Make a module whose parameters have these gradients and are sharded along these dimensions, or replicated (None); one may be tied."""
    module = Module()
    for name, array in data.items():
        inner = Module()
        inner.weight = Parameter(array.copy())
        inner.weight.grad = None if grads[name] is None else grads[name].copy()
        inner.kind = replicated if dims[name] is None else sharded(dims[name])
        setattr(module, name, inner)
    if tied:  # it has two names
        module.tied = getattr(module, tied)
    return module


def make_first_module(data, grads, dims):
    """Make a module of the same shapes, for calls before the one that is checked."""
    ones = {name: None if g is None else np.full_like(g, FIRST_GRADIENT) for name, g in grads.items()}
    return make_module(data, ones, dims, "")


def grads_and_data(module, data):
    """Gradients of the parameters, and the parameters."""
    return {name: getattr(module, name).weight.grad for name in data}, {name: getattr(module, name).weight.data for name in data}


def call_reduce_norm_gradients(data, grads, dims, place, tied=""):
    """Call `reduce_norm_gradients` on a rank: the gradients and parameters afterwards."""
    reduce_norm_gradients = student("reduce_norm_gradients")
    first, module = make_first_module(data, grads, dims), make_module(data, grads, dims, tied)
    comm = group_of(place)
    reduce_norm_gradients(first, group_of(place))
    reduce_norm_gradients(first, comm)
    reduce_norm_gradients(module, comm)
    return *grads_and_data(module, data), grads_and_data(first, data)[0]


def call_clip_gradients(data, grads, dims, most, place, tied=""):
    """Call `clip_gradients` on a rank: its result, and the gradients and parameters afterwards."""
    clip_gradients = student("clip_gradients")
    first, module = make_first_module(data, grads, dims), make_module(data, grads, dims, tied)
    comm = group_of(place)
    norms = [clip_gradients(first, math.inf, group_of(place)), clip_gradients(first, math.inf, comm)]
    norm = clip_gradients(module, most, comm)
    return norm, *grads_and_data(module, data), grads_and_data(first, data)[0], norms


def _tied_name(grads, dims):
    """Name of the parameter to tie under a second name: a replicated one with a gradient, if there is one."""
    return next((name for name, g in grads.items() if dims[name] is None and g is not None), next(iter(grads)))


class SequenceParallelCheck(BlockCheck):
    """A `Check` of part 22, on groups of the four ranks."""

    def blocks(self, *sizes: int) -> SequenceParallelCheck:
        """Compare a block with the operators, and `reduce_norm_gradients` after it, with the same block on one process."""
        for size in sizes:
            heads = size * int(self.random.integers(1, 3))
            self._block(size, heads, heads * int(self.random.integers(2, 5)), np.float32 if size == 2 else np.float64)
        return self

    def _block(self, size: int, heads: int, width: int, dtype: type) -> None:
        groups, (batch, part) = self.groups(size), self.sizes(2, 2, 6)
        self.case = f"{self.describe_groups(groups, dtype)}, width {width}, {heads} heads, {batch} x {part} tokens per rank"
        drawn = []
        for group in groups:
            x, grad = (self.random.standard_normal((batch, part * len(group), width)).astype(dtype) for _ in range(2))
            norms, seed = self.random.uniform(0.5, 1.5, (2, 2, width)).astype(dtype), int(self.random.integers(1 << 30))
            drawn.append(dict(seed=seed, norms=norms, x=x, grad=grad))
        of_ranks = []
        for color, index in self.colors_and_keys(groups):
            cut = {name: np.split(drawn[color][name], len(groups[color]), axis=1)[index] for name in ("x", "grad")}
            of_ranks.append(drawn[color] | {name: np.ascontiguousarray(array) for name, array in cut.items()})
        parts = self.block(groups, ("gather_sequence", "scatter_sequence"), width, heads, of_ranks)
        reduced, rtol = self._reduced(groups, parts), 1e-9 if dtype is np.float64 else 2e-4
        for group, one in zip(groups, drawn, strict=True):
            out, grad_x, whole = reference_block(width, heads, one)
            how = dict(rtol=rtol, ranks=group)
            cause = "a forward that gathers or scatters along the wrong dimension"
            self.distributed([of_ranks[r]["out"] for r in group], sharded(1), out, name="the block's output", cause=cause, **how)
            cause = "a backward of gather_sequence that does not sum over the ranks"
            self.distributed(
                [of_ranks[r]["grad_x"] for r in group], sharded(1), grad_x, name="the gradient of the input", cause=cause, **how
            )
            for parameter, p, kind in kinds(whole):
                cause = LEFT_PARTIAL_CAUSE if "norm" in parameter else "a backward of scatter_sequence that does not gather all positions"
                got = [reduced[r][parameter] for r in group]
                self.distributed(got, kind, p.grad, name=f"the gradient of {parameter}", cause=cause, **how)

    def _reduced(self, groups: list[list[int]], parts: list) -> list[dict]:
        """Gradients of the ranks' parts of a block after `reduce_norm_gradients`."""
        given = []
        for part, place in zip(parts, self.colors_and_keys(groups), strict=True):
            grads, dims = {name: p.grad for name, p, _ in kinds(part)}, {name: kind.dim for name, _, kind in kinds(part)}
            given.append(dict(data=grads, grads=grads, dims=dims, place=place))
        return [grads for grads, *_ in self.ranks.call(call_reduce_norm_gradients, given, show=self.show)]

    def _module(self, n: int, dtype: type, without: bool, only_sharded: bool = False) -> tuple[dict, dict]:
        """Draw whole gradients of a group's module, and the dimensions they are sharded along; names carry no information."""
        names = self.random.permutation([f"layer{i}" for i in range(len(PARAMETER_FORMS))]).tolist()
        forms = dict(zip(names, PARAMETER_FORMS, strict=True))
        dims = {name: forms[name][1] for name in sorted(forms) if not only_sharded or forms[name][1] is not None}
        whole = {}
        for name, dim in dims.items():
            shape = self.sizes(forms[name][0], 5, 9)
            if dim is not None:
                shape[dim] *= n
            whole[name] = self.random.standard_normal(shape).astype(dtype)
        last_form = names[-1]
        if dims.get(last_form, 0) is None:
            whole[last_form] = whole[last_form][:1]  # one element
        for split in (False, True) if without else ():
            whole[next(name for name, dim in dims.items() if (dim is not None) is split)] = None
        return whole, dims

    def norms(self, *sizes: int) -> SequenceParallelCheck:
        """Check `reduce_norm_gradients` in groups of these sizes; in some a parameter has no gradient, in one all are sharded."""
        for size in sizes:
            dtype = np.float32 if size == 2 else np.float64
            self._norms(size, dtype, without=size == 3)
            if size == 4:
                self._norms(size, dtype, without=False, only_sharded=True)
        self._covers()
        return self

    def _covers(self) -> None:
        self.covers("dtypes", "sizes", "group order", "group sizes", "repetition", "same ranks twice")
        self.covers("arguments", "results")

    def _norms(self, size: int, dtype: type, without: bool, only_sharded: bool = False) -> None:
        groups, rtol = self.groups(size), 1e-12 if dtype is np.float64 else 1e-5
        self.case = self.describe_groups(groups, dtype)
        given: list = [None] * 4
        for color, group in enumerate(groups):
            like, dims = self._module(1, dtype, without, only_sharded)
            for key, r in enumerate(group):
                grads = {name: None if g is None else self.random.standard_normal(g.shape).astype(dtype) for name, g in like.items()}
                data = {name: np.ones(3, dtype) if g is None else g for name, g in like.items()}
                given[r] = dict(data=data, grads=grads, dims=dims, place=(color, key), tied=_tied_name(grads, dims))
        answers = self.ranks.call(call_reduce_norm_gradients, given, show=self.show)
        for group in groups:
            for r in group:
                got, data, firsts = answers[r]
                for name, dim in given[r]["dims"].items():
                    own = given[r]["grads"][name]
                    mine = [given[k]["grads"][name] for k in group]
                    self._require_same_none(got[name], own, r)
                    if own is None:
                        continue
                    total = own if dim is not None else np.sum(mine, axis=0)
                    known = {"the mean over the group": total / len(group), "this rank's own, unchanged": own} if dim is None else None
                    cause = LEFT_PARTIAL_CAUSE if dim is None else "sharded gradients are already complete; they must not be summed"
                    how = dict(rtol=rtol, scale=float(np.sum(np.abs(mine), axis=0).max()), instead=known if len(group) > 1 else None)
                    kind = "replicated" if dim is None else "sharded"
                    self.array(got[name], total, name=f"the gradient of a {kind} parameter", rank=r, cause=cause, **how)
                    times = len(group) ** 2 if dim is None else 1
                    want = np.full_like(own, FIRST_GRADIENT * times)
                    what = f"the gradient of a {kind} parameter of a module that came before"
                    self.array(firsts[name], want, name=what, rank=r, cause=KEPT, rtol=rtol)
                self._untouched(data, given[r]["data"], r)
                numbers = sum(g.size for n, g in given[r]["grads"].items() if given[r]["dims"][n] is None and g is not None)
                moved, limit = self.ranks.traffic[r], contract.NORM_BYTES
                most = TIMES_CALLED * traffic.wire_bytes("Allreduce", len(group), 8 * numbers + int(limit.number))
                what = f"reduce_norm_gradients, called {TIMES_CALLED} times,"
                cause = "gradients that need no exchange"
                self.sent(moved, most, name=what, rank=r, cause=cause, limit=limit)
                limit = contract.NORM_CALLS
                count = sum(given[r]["dims"][name] is None and g is not None for name, g in given[r]["grads"].items())
                # One at least: an answer that joins all of them may also join none.
                most = TIMES_CALLED * int(limit.number) * max(1, count)
                self.calls(moved, most, group=group, name=what, rank=r, limit=limit)

    def _require_same_none(self, got: object, before: object, r: int) -> None:
        if before is None and got is not None:
            self.fail(
                f"a gradient on rank {r} was None, but is no longer", "zeros for an unused parameter, which must keep None on all ranks"
            )

    def _untouched(self, after: dict, before: dict, r: int) -> None:
        if not all(np.array_equal(after[name], array) for name, array in before.items()):
            self.fail(f"the parameters on rank {r} have changed, not only their gradients", "p.data instead of p.grad")

    def clipping(self, *sizes: int) -> SequenceParallelCheck:
        """Check `clip_gradients` in groups of these sizes, with a norm above the limit, below it, and 0."""
        for size in sizes:
            dtype = np.float32 if size == 2 else np.float64
            self._clipping(size, float(self.random.uniform(1.5, 4)), dtype, without=size == 4)
            self._clipping(size, float(self.random.uniform(0.2, 0.8)), dtype, without=size == 3)
        self._clipping(2, 1.0, np.float64, without=True, factor=0.0)
        self._clipping(2, 2.0, np.float32, without=False, only_sharded=True)
        self._covers()
        return self

    def _clipping(self, size: int, ratio: float, dtype: type, without: bool, factor: float = 1.0, only_sharded: bool = False) -> None:
        groups = self.groups(size)
        self.case = (
            f"{self.describe_groups(groups, dtype)}, a norm that is {ratio:.3g} times the limit" if factor else "gradients that are all 0"
        )
        rtol = 1e-9 if dtype is np.float64 else 1e-4
        for_ranks, norms, all_squares = [None] * 4, [], []
        for color, group in enumerate(groups):
            whole, dims = self._module(len(group), dtype, without, only_sharded)
            whole = {name: None if g is None else dtype(factor) * g for name, g in whole.items()}
            squares = {name: 0.0 if g is None else float((g.astype(np.float64) ** 2).sum()) for name, g in whole.items()}
            norms.append(float(np.sqrt(sum(squares.values()))))
            all_squares.append(sum(square for name, square in squares.items() if dims[name] is None))
            for key, r in enumerate(group):
                own = {
                    name: g if g is None or dims[name] is None else np.ascontiguousarray(np.split(g, len(group), axis=dims[name])[key])
                    for name, g in whole.items()
                }
                data = {name: np.ones(3, dtype) if g is None else np.ones_like(g) for name, g in own.items()}
                for_ranks[r] = dict(
                    data=data, grads=own, dims=dims, most=norms[-1] / ratio or 1.0, place=(color, key), tied=_tied_name(own, dims)
                )
        answers = self.ranks.call(call_clip_gradients, for_ranks, show=self.show)
        for r, (got, after, parameters, firsts, first_norms) in enumerate(answers):
            color, own = for_ranks[r]["place"][0], for_ranks[r]["grads"]
            n, norm = len(groups[color]), norms[color]
            mine = float(np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in own.values() if g is not None)))
            several = float(np.sqrt(norm**2 + (n - 1) * all_squares[color]))
            mistakes = {"the norm of this rank's own part": [mine], "a norm in which replicated gradients count several times": [several]}
            cause = "norms added instead of squares; or sharded gradients not summed over the group, or replicated ones that are"
            self.numbers(got, [norm], name="the norm", rank=r, cause=cause, rtol=rtol, instead=mistakes if n > 1 else None)
            for name, before in own.items():
                self._require_same_none(after[name], before, r)
                if before is not None:
                    want = before / dtype(ratio) if ratio > 1 else before
                    cause = "gradients that are scaled although the norm is below the limit, or not by most / norm"
                    known = (
                        {"as it was before, not scaled": before}
                        if ratio > 1
                        else {"scaled, although the norm is below the limit": before / dtype(ratio)}
                    )
                    self.array(after[name], want, name="a gradient, clipped,", rank=r, rtol=max(rtol, 1e-5), cause=cause, instead=known)
            self._untouched(parameters, for_ranks[r]["data"], r)
            elements = sum(g.size * (1 if for_ranks[r]["dims"][name] is None else n) for name, g in own.items() if g is not None)
            first_norm = FIRST_GRADIENT * math.sqrt(elements)
            self.numbers(first_norms, [first_norm] * 2, name="the norm of another module", rank=r, cause=KEPT, rtol=rtol)
            for name, before in own.items():
                if before is not None:
                    want = np.full_like(before, FIRST_GRADIENT)
                    self.array(firsts[name], want, name="a gradient of another module", rank=r, cause=KEPT)
            moved, limit = self.ranks.traffic[r], contract.CLIP_BYTES
            what = f"clip_gradients, called {TIMES_CALLED} times,"
            cause = "gradients that are exchanged instead of single numbers"
            self.sent(moved, TIMES_CALLED * limit.number, name=what, rank=r, cause=cause, limit=limit)
            limit = contract.CLIP_CALLS
            most = TIMES_CALLED * int(limit.number)
            self.calls(moved, most, group=groups[color], name=what, rank=r, limit=limit)
