"""How the sharded layer of part 08 is put to the test: its steps beside those of the whole layer, and its memory.

`partition` and `use` run on the ranks, `ShardCheck` in the notebook's kernel.
"""

from __future__ import annotations

import numpy as np

from course_lib.check import Check
from course_lib.traffic import wire_bytes

LR = 0.1


def partition(tensor, shards):
    """On a rank: all shards of an array."""
    empty = ZeroDPStage3FCLayer.__new__(ZeroDPStage3FCLayer)
    return [empty._partition_flat_tensor(tensor, i, shards) for i in range(shards)]


def use(size, seed, shape, dtype, xs, grads, lr, only_forward=False):
    """On a rank: take steps with a layer; what came out of each, and what was sent in forward and in backward."""
    from course_lib import traffic
    from course_lib.collectives import Communicator

    everyone = Communicator()
    group = everyone.Split(color=int(everyone.Get_rank() >= size), key=everyone.Get_rank())
    if everyone.Get_rank() >= size:
        return None
    random = np.random.default_rng(seed)
    w, b = random.standard_normal(shape).astype(dtype), random.standard_normal(shape[1]).astype(dtype)
    layer, steps = ZeroDPStage3FCLayer(group, *shape, size, full_w=w, full_b=b), []
    for x, grad in zip(xs, grads, strict=True):
        traffic.reset()
        step = [layer.forward(x)]
        moved = [[(e.operation, e.ranks, e.calls, e.payload) for e in traffic.entries()]]
        if not only_forward:
            traffic.reset()
            step += [layer.backward(grad), layer.grad_w_shard.copy(), layer.grad_b_shard.copy()]
            moved.append([(e.operation, e.ranks, e.calls, e.payload) for e in traffic.entries()])
            layer.w_shard -= layer.w_shard.dtype.type(lr) * layer.grad_w_shard
            layer.b_shard -= layer.b_shard.dtype.type(lr) * layer.grad_b_shard
        steps.append((*step, moved))
    return steps


def keep(size, seed, shape, dtype, xs, grads):
    """On a rank: bytes that a layer keeps alive after its making, and after each of its calls."""
    import tracemalloc

    from course_lib import memory
    from course_lib.collectives import Communicator

    everyone = Communicator()
    group = everyone.Split(color=int(everyone.Get_rank() >= size), key=everyone.Get_rank())
    if everyone.Get_rank() >= size:
        return None
    before, kept = memory.alive(), []
    tracemalloc.start()
    random = np.random.default_rng(seed)
    full = [random.standard_normal(shape).astype(dtype), random.standard_normal(shape[1]).astype(dtype)]
    layer = ZeroDPStage3FCLayer(group, *shape, size, full_w=full.pop(0), full_b=full.pop())
    # Arrays, wherever they are kept; and all that Python allocated, for what is kept in other forms.
    kept.append(max(memory.alive() - before, tracemalloc.get_traced_memory()[0]))
    for x, grad in zip(xs, grads, strict=True):
        layer.forward(x)
        kept.append(max(memory.alive() - before, tracemalloc.get_traced_memory()[0]))
        layer.backward(grad)
        kept.append(max(memory.alive() - before, tracemalloc.get_traced_memory()[0]))
    tracing = tracemalloc.is_tracing()
    tracemalloc.stop()
    return kept if tracing else None


class ShardCheck(Check):
    """A `Check` of a sharded layer on the first ranks of `ranks`."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks

    def _call(self, function, size: int, shape: tuple[int, int], batch: int, dtype, steps: int, **more) -> tuple:
        """Draw inputs and gradients, ``(ranks, steps, batch, ...)``, and call on each rank with its own."""
        self.case = f"{size} ranks, in_dim {shape[0]}, out_dim {shape[1]}, a batch of {batch}, {np.dtype(dtype).name}"
        n, seed = self.ranks.n, int(self.random.integers(2**31))
        xs = self.random.standard_normal((n, steps, batch, shape[0])).astype(dtype)
        grads = self.random.standard_normal((n, steps, batch, shape[1])).astype(dtype)
        common = dict(size=size, seed=seed, shape=shape, dtype=np.dtype(dtype).name, **more)
        each = [common | dict(xs=xs[r], grads=grads[r]) for r in range(n)]
        return xs, grads, seed, self.ranks.call(function, each, show=self.show)[:size]

    def steps(self, size: int, shape: tuple[int, int], batch: int, dtype, steps: int = 1, only_forward: bool = False) -> None:
        """Take steps on `size` ranks, and compare with the same steps on the whole layer."""
        xs, grads, seed, answers = self._call(use, size, shape, batch, dtype, steps, only_forward=only_forward, lr=LR)
        random = np.random.default_rng(seed)
        w, b = random.standard_normal(shape).astype(dtype), random.standard_normal(shape[1]).astype(dtype)
        rtol = 2e-5 if dtype == np.float32 else 1e-11
        full = [np.dtype(dtype).itemsize * size * -(-n // size) for n in (w.size, b.size)]
        gather = sum(wire_bytes("Allgather", size, n) for n in full)
        for i in range(steps):
            grad_w, grad_b = sum(xs[r, i].T @ grads[r, i] for r in range(size)), grads[:size, i].sum(axis=(0, 1))
            for r, taken in enumerate(answers):
                out, *back, moved = taken[i]
                cause = "the shards in another order, or the padding not cut off"
                self.array(out, xs[r, i] @ w + b, name="the output", rank=r, cause=cause, rtol=rtol)
                self.sent(moved[0], gather, name="forward", rank=r, cause="one all-gather of each shard is enough")
                if only_forward:
                    continue
                (grad_x,) = self.tuple(back[0], 1, name="backward", rank=r)
                cause = "the weight not transposed, or not gathered again"
                self.array(grad_x, grads[r, i] @ w.T, name="grad_x", rank=r, cause=cause, rtol=rtol)
                cause = "a mean instead of the sum over the ranks, another rank's shard, or the gradient of an earlier step"
                for name, got, want in zip(("grad_w_shard", "grad_b_shard"), back[1:], (grad_w, grad_b), strict=True):
                    n, scale = -(-want.size // size), float(np.abs(grads).max()) * batch
                    padded = np.append(want, np.zeros(n * size - want.size)).astype(dtype)
                    self.array(got, padded[r * n : r * n + n], name=name, rank=r, cause=cause, rtol=rtol, scale=scale)
                cause = "gather the weight once, and reduce-scatter each gradient once"
                self.sent(moved[1], 2 * gather, name="backward", rank=r, cause=cause)
            w, b = w - np.asarray(LR, dtype) * grad_w, b - np.asarray(LR, dtype) * grad_b

    def kept(self, size: int, shape: tuple[int, int]) -> None:
        """What a layer keeps between its calls, against its shards and their gradients."""
        *_, answers = self._call(keep, size, shape, 2, np.float64, 2)
        whole = 8 * (shape[0] + 1) * shape[1]
        most = 2 * whole / size + whole / 6
        for r, found in enumerate(answers):
            if found is None:
                self.fail(f"rank {r} has stopped tracemalloc, so its memory cannot be measured")
            for when, nbytes in zip(("__init__", "forward", "backward", "forward", "backward"), found, strict=True):
                if nbytes > most:
                    shards = f"its shards with their gradients have {2 * whole / size:,.0f}"
                    cause = "a view, which keeps the whole array alive, or full weights or gradients kept in some variable"
                    self.fail(f"after {when}, rank {r} keeps {nbytes:,} bytes, and {shards}", cause)
