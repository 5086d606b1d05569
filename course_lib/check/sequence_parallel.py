"""How part 22's functions are put to the test: beside the same mathematics on one process.

What has lower-case names and no class runs on the ranks, `SequenceParallelCheck` in the notebook's kernel.
"""

from __future__ import annotations

import numpy as np

from course_lib import traffic
from course_lib.autograd import Module
from course_lib.check.tensor_parallel import TensorParallelCheck, backward, forward, outcome
from course_lib.gpt.block import Block, Split, kinds
from course_lib.placement import replicated, sharded

PARTIAL = "gradients of replicated parameters that are left partial: each rank's LayerNorm has seen its own positions only"


def part_of_everyone(size):
    """This rank's group, when every `size` consecutive ranks form one."""
    return everyone.Split(color=everyone.Get_rank() // size, key=everyone.Get_rank())


def through_split_sequence(width, heads, seed, norms, x, grad, size):
    """Output and gradients of a block whose sequence is split between its split layers."""
    comm = part_of_everyone(size)
    block = Block(width, heads, np.random.default_rng(seed), comm, gather_sequence, scatter_sequence, dtype=x.dtype)
    out, grad_x, _ = outcome(block, norms, x, grad)
    reduce_norm_gradients(block, comm)
    return out, grad_x, {name: p.grad for name, p in block.named_parameters()}


def module_of(grads, dims, size):
    """A module whose parameters have these gradients, and are sharded along these dimensions, or replicated (None)."""
    module = Module()
    for name, grad in grads.items():
        inner = Split(np.zeros((size, size)), dims[name] or 0, size, 0)
        inner.weight.data = np.zeros(1) if grad is None else np.zeros_like(grad)
        inner.weight.grad = None if grad is None else grad.copy()
        inner.kind = replicated if dims[name] is None else sharded(dims[name])
        setattr(module, name, inner)
    return module


def gradients(module):
    return {name.split(".")[0]: p.grad for name, p in module.named_parameters()}


def reduce_norms(grads, dims, size):
    """The gradients after `reduce_norm_gradients`."""
    module = module_of(grads, dims, size)
    reduce_norm_gradients(module, part_of_everyone(size))
    return gradients(module)


def clip(grads, dims, most, size):
    """What `clip_gradients` returns, and the gradients after it."""
    module = module_of(grads, dims, size)
    return clip_gradients(module, most, part_of_everyone(size)), gradients(module)


class SequenceParallelCheck(TensorParallelCheck):
    """A `Check` on four ranks, in groups of `size` consecutive ones."""

    def move(self, name: str, *sizes: int) -> None:
        """`gather_sequence` or `scatter_sequence`, in groups of these sizes: what comes out, what goes back, and what is sent each way."""
        for size in sizes:
            self._move(name, size, np.float32 if size == 2 else np.float64, turned=size in (2, 3))

    def _move(self, name: str, size: int, dtype: type, turned: bool) -> None:
        batch, part, width = self.sizes(3, 2, 7)
        self.case = f"groups of {size} ranks, {batch} x {size * part} positions of width {width}, {np.dtype(dtype)}"
        gathers, rtol = name == "gather_sequence", 1e-12 if dtype is np.float64 else 1e-5
        last = 4 - 4 % size  # ranks that are left over have a group of their own size, and are not looked at
        groups = [g for g in self.groups(size) if len(g) == size]
        short, long = (batch, part, width), (batch, size * part, width)
        # forward: shards come in and the whole goes out, or summands come in and shards go out; backward the other way round
        before, after = (short, long) if gathers else (long, short)
        x = self.random.standard_normal((4, *before)).astype(dtype)
        grad = self.random.standard_normal((4, *after)).astype(dtype)
        shapes = [before if r < last else long for r in range(4)]
        given = [dict(operator=name, x=x[r] if r < last else np.zeros(shapes[r], dtype), size=size) for r in range(4)]
        answers = self.ranks.call(forward, given, show=self.show)
        for group in groups:
            self._compare_moved([answers[r][0] for r in group], x[group], group, not gathers, f"the output of {name}", rtol)
        for r in range(last):
            self.array(answers[r][1], x[r], name="the input, after the call,", rank=r, cause="a collective in place")
        self._counted(size, last, x[0].nbytes * (size if gathers else 1), f"{name}, forward,")
        given = [dict(grad=grad[r] if r < last else np.zeros(long, dtype), turned=turned) for r in range(4)]
        answers = self.ranks.call(backward, given, show=self.show)
        for group in groups:
            self._compare_moved([answers[r][0] for r in group], grad[group], group, gathers, f"the gradient of {name}'s input", rtol)
        for r in range(last):
            cause = "a collective in place: others may use the same array"
            self.array(answers[r][1], grad[r], name="the output's gradient, after the call,", rank=r, cause=cause)
        self._counted(size, last, grad[0].nbytes * (1 if gathers else size), f"{name}, backward,")

    def _compare_moved(self, got: list, given: np.ndarray, group: list[int], scatters: bool, name: str, rtol: float) -> None:
        """Summands that became shards (`scatters`), or shards that became the whole."""
        n = len(group)
        total = given.sum(axis=0)
        parts = np.split(total, n, axis=1) if scatters else [np.concatenate(list(given), axis=1)] * n
        for i, r in enumerate(group):
            if scatters:
                first = total.reshape(-1)[i * total.size // n : (i + 1) * total.size // n].reshape(parts[i].shape)
                known = {
                    "the mean over the group": parts[i] / n,
                    "this rank's own summand": np.split(given[i], n, axis=1)[i],
                    "a part of the memory, which is not a part of the positions": first,
                }
                cause = "the sum over the ranks, of this rank's positions"
            else:
                known = {
                    "the sum over the group, not the parts": np.concatenate([total] * n, axis=1),
                    "the ranks' parts one after the other in memory, not along the positions": given.reshape(parts[i].shape),
                }
                cause = "the parts of all ranks along the positions, dimension 1"
            scale = float(np.abs(given).sum(axis=0).max())
            self.array(got[i], parts[i], name=name, rank=r, rtol=rtol, scale=scale, cause=cause, instead=known if n > 1 else None)

    def _counted(self, size: int, last: int, whole: float, name: str) -> None:
        for r in range(last):
            most = traffic.wire_bytes("Allgather", size, whole) + 32
            self.sent(self.ranks.traffic[r], most, name=name, rank=r, cause="an all-reduce sends twice as much as is needed here")

    def blocks(self, *sizes: int) -> None:
        """A block around the operators, and `reduce_norm_gradients` after it, against the same block on one process."""
        for size in sizes:
            heads = size * int(self.random.integers(1, 3))
            self._block(size, heads, heads * int(self.random.integers(2, 5)), np.float32 if size == 2 else np.float64)

    def _block(self, size: int, heads: int, width: int, dtype: type) -> None:
        batch, part = self.sizes(2, 2, 6)
        self.case = f"groups of {size} ranks, width {width}, {heads} heads, {batch} x {size * part} tokens, {np.dtype(dtype)}"
        seed, shape = int(self.random.integers(1 << 30)), (batch, size * part, width)
        x, grad = (self.random.standard_normal(shape).astype(dtype) for _ in range(2))
        norms = self.random.uniform(0.5, 1.5, (2, 2, width)).astype(dtype)
        xs, gs = (np.split(a, size, axis=1) for a in (x, grad))
        last, given = 4 - 4 % size, []
        for r in range(4):
            mine = (xs[r % size], gs[r % size]) if r < last else (x, grad)
            mine = [np.ascontiguousarray(a) for a in mine]
            given.append(dict(width=width, heads=heads, seed=seed, norms=norms, x=mine[0], grad=mine[1], size=size))
        answers = self.ranks.call(through_split_sequence, given, show=self.show)
        whole = Block(width, heads, np.random.default_rng(seed), dtype=dtype)
        out, grad_x, grads = outcome(whole, norms, x, grad)
        known, rtol = kinds(whole), 1e-9 if dtype is np.float64 else 2e-4
        for group in (g for g in self.groups(size) if len(g) == size):
            found, name = [answers[r] for r in group], f"ranks {group[0]} to {group[-1]}"
            cause = "a forward that gathers or scatters along another dimension"
            self.placed([a for a, _, _ in found], sharded(1), out, name="the block's output", cause=cause, rtol=rtol, group=name)
            cause = "a backward of gather_sequence that does not add up the ranks' summands"
            self.placed([g for _, g, _ in found], sharded(1), grad_x, name="the gradient of the input", cause=cause, rtol=rtol, group=name)
            for parameter, want in grads.items():
                got = [each[parameter] for _, _, each in found]
                why = PARTIAL if "norm" in parameter else "a backward of scatter_sequence that does not gather all positions"
                self.placed(got, known[parameter], want, name=f"the gradient of {parameter}", cause=why, rtol=rtol, group=name)

    def norms(self, *sizes: int) -> None:
        """`reduce_norm_gradients`, in groups of these sizes; for some, a parameter has no gradient."""
        for size in sizes:
            self._norms(size, np.float32 if size == 2 else np.float64, without=size == 3)

    def _norms(self, size: int, dtype: type, without: bool) -> None:
        a, b = self.sizes(2, 2, 9)
        self.case = f"groups of {size} ranks, {np.dtype(dtype)}"
        dims = {"up": 1, "norm1": None, "down": 0, "norm2": None, "spare": None}
        shapes = {"up": (a, b), "norm1": (b,), "down": (b, a), "norm2": (a,), "spare": (a,)}
        grads = [{name: self.random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()} for _ in range(4)]
        if without:
            grads = [{**each, "spare": None} for each in grads]
        answers = self.ranks.call(reduce_norms, [dict(grads=grads[r], dims=dims, size=size) for r in range(4)], show=self.show)
        for group in self.groups(size):
            for r in group:
                for name, dim in dims.items():
                    got, own = answers[r][name], grads[r][name]
                    if own is None:
                        if got is not None:
                            self.fail(f"the gradient of {name} on rank {r} was None, and is not any more")
                        continue
                    total = own if dim is not None else np.sum([grads[k][name] for k in group], axis=0)
                    scale = float(np.sum([np.abs(grads[k][name]) for k in group], axis=0).max())
                    known = {"the mean over the group": total / len(group), "this rank's own, as it was": own} if dim is None else None
                    cause = PARTIAL if dim is None else "sharded gradients are whole already: they are no summands"
                    rtol, known = 1e-12 if dtype is np.float64 else 1e-5, known if len(group) > 1 else None
                    self.array(got, total, name=f"the gradient of {name}", rank=r, rtol=rtol, scale=scale, cause=cause, instead=known)
                nbytes = sum(g.nbytes for n, g in grads[r].items() if dims[n] is None and g is not None)
                most = traffic.wire_bytes("Allreduce", len(group), nbytes + 32)
                self.sent(self.ranks.traffic[r], most, name="reduce_norm_gradients", rank=r, cause="gradients that need no exchange")

    def clipping(self, *sizes: int) -> None:
        """`clip_gradients`, in groups of these sizes, with a norm above the most that is allowed, and with one below."""
        for size in sizes:
            dtype = np.float32 if size == 2 else np.float64
            self._clipping(size, float(self.random.uniform(1.5, 4)), dtype, without=size == 4)
            self._clipping(size, float(self.random.uniform(0.2, 0.8)), dtype, without=size == 3)

    def _clipping(self, size: int, ratio: float, dtype: type, without: bool) -> None:
        a, b, c = self.sizes(3, 2, 7)
        self.case = f"groups of {size} ranks, {np.dtype(dtype)}, a norm that is {ratio:.3g} times the most"
        dims = {"columns": 1, "rows": 0, "norm": None, "spare": None}
        shapes = {"columns": (a, b * size), "rows": (c * size, a), "norm": (c,), "spare": (b,)}
        whole = {name: self.random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
        squares = {name: float((g.astype(np.float64) ** 2).sum()) for name, g in whole.items()}
        if without:
            whole["spare"], squares["spare"] = None, 0.0
        norm, last, rtol = float(np.sqrt(sum(squares.values()))), 4 - 4 % size, 1e-9 if dtype is np.float64 else 1e-4
        parts = {n: [g] * size if g is None or dims[n] is None else np.split(g, size, axis=dims[n]) for n, g in whole.items()}
        own = [{n: p if r >= last or p is None else np.ascontiguousarray(parts[n][r % size]) for n, p in whole.items()} for r in range(4)]
        given = [dict(grads=own[r], dims=dims, most=norm / ratio, size=size) for r in range(4)]
        for r, answer in enumerate(self.ranks.call(clip, given, show=self.show)):
            got, after = self.tuple(answer, 2, name="clip", rank=r)
            if r < last:
                mine = float(np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in own[r].values() if g is not None)))
                several = float(np.sqrt(norm**2 + (size - 1) * sum(squares[n] for n, dim in dims.items() if dim is None)))
                mistakes = {"that of this rank's own part": [mine], "one in which replicated gradients count several times": [several]}
                cause = "sharded gradients whose squares are not added up over the group, or replicated ones that are"
                self.numbers(got, [norm], name="the norm", rank=r, cause=cause, rtol=rtol, instead=mistakes if size > 1 else None)
                for name, before in own[r].items():
                    if before is None:
                        if after[name] is not None:
                            self.fail(f"the gradient of {name} on rank {r} was None, and is not any more")
                        continue
                    want = before / dtype(ratio) if ratio > 1 else before
                    cause = "gradients that are scaled although the norm is small enough, or not by most / norm"
                    self.array(after[name], want, name=f"the gradient of {name}, clipped,", rank=r, rtol=rtol, cause=cause)
                self.sent(self.ranks.traffic[r], 512, name="clip_gradients", rank=r, cause="whole gradients that are exchanged")
