"""Check of part 08's sharded layer: its steps against those of the whole layer, and its memory.

`partition`, `make`, `forward`, `backward` and `drop_layer` run on the ranks, `ShardCheck` in the notebook's kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from course_lib.check import Check, scratch
from course_lib.check.zero import contract
from course_lib.engine.namespace import get_ipython, student
from course_lib.traffic import wire_bytes

LR = 0.1


def partition(tensor, shards):
    """Compute all shards of an array on a rank."""
    ZeroDPStage3FCLayer = student("ZeroDPStage3FCLayer")
    from course_lib.collectives import Communicator

    empty = ZeroDPStage3FCLayer.__new__(ZeroDPStage3FCLayer)
    empty.comm, empty.rank, empty.dp_size = None, Communicator().Get_rank(), shards  # an answer that uses these gets the wrong shard
    found = [empty._partition_flat_tensor(tensor, i, shards) for i in range(shards)]
    tensor[...] = 77  # also where a shard is a view of it
    return found


def make(size, seed, shape, dtype):
    """Make a layer of drawn weights on the first ranks."""
    ZeroDPStage3FCLayer = student("ZeroDPStage3FCLayer")
    from course_lib.collectives import Communicator

    names, everyone = get_ipython().user_ns, Communicator()
    names["layer"], group = None, everyone.Split(color=int(everyone.Get_rank() >= size), key=everyone.Get_rank())
    if everyone.Get_rank() < size:
        random = np.random.default_rng(seed)
        full = [random.standard_normal(shape).astype(dtype), random.standard_normal(shape[1]).astype(dtype)]
        names["layer"] = ZeroDPStage3FCLayer(group, *shape, size, full_w=full.pop(0), full_b=full.pop())


def forward(x, more_w=0, more_b=0):
    """Output of the layer on the first ranks, after a change to this rank's shards that no other rank knows."""
    layer = student("layer")
    if not layer:
        return None
    layer.w_shard += more_w
    layer.b_shard += more_b
    before = x.copy()
    out = layer.forward(x)
    if not isinstance(layer.x, np.ndarray) or not np.array_equal(layer.x, before):
        raise ValueError("forward must keep its input in self.x, for backward.")
    return out


def backward(grad, lr):
    """Gradients of input, weight and bias on the first ranks; then take a gradient descent step."""
    layer = student("layer")
    if not layer:
        return None
    found = layer.backward(grad), layer.grad_w_shard.copy(), layer.grad_b_shard.copy()
    layer.w_shard -= layer.w_shard.dtype.type(lr) * layer.grad_w_shard
    layer.b_shard -= layer.b_shard.dtype.type(lr) * layer.grad_b_shard
    return found


def drop_layer():
    """Forget the layer on a rank."""
    get_ipython().user_ns["layer"] = None


class ShardCheck(Check):
    """A `Check` of a sharded layer on the first ranks of `ranks`."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks

    def steps(self, size: int, shape: tuple[int, int], batch: int, dtype, steps: int = 1, only_forward: bool = False) -> None:
        """Take steps on `size` ranks, and compare with the same steps on the whole layer."""
        self._steps(size, shape, batch, dtype, steps, only_forward, lambda when: None)
        self.ranks.call(drop_layer)
        self.covers("dtypes", "sizes", "group sizes", "repetition", "arguments", "results")

    def memory_between_calls(self, size: int, shape: tuple[int, int], dtype: type = np.float64) -> None:
        """Check the memory a layer keeps between its calls against its shards and their gradients; and its results."""
        self.steps(size, (20, 20), 2, np.float64, 2)  # after this, Python and NumPy have allocated what they keep
        whole = np.dtype(dtype).itemsize * (shape[0] + 1) * shape[1]
        before = scratch.held_without_scratch(self.ranks, whole // 4)
        for r, held in enumerate(before[:size]):
            if held > whole // 4:  # freeing it while the layer exists would distort the measurement
                problem = f"before the layer exists, rank {r} keeps {held:,} bytes, but this check allows {whole // 4:,}"
                self.fail(problem, scratch.CAUSE)
        most = 2 * whole / size + whole * contract.KEPT_BYTES.number

        def look(when: str) -> None:
            for r, (now, then) in enumerate(zip(self.ranks.held()[:size], before, strict=False)):
                if now - then > most:
                    shards = f"its shards with their gradients take {2 * whole / size:,.0f}"
                    cause = "a view, which keeps the whole array alive, or full weights or gradients kept in some variable"
                    problem = f"after {when}, rank {r} keeps {now - then:,} bytes, but {shards}"
                    self.fail(problem, cause, limit=contract.KEPT_BYTES)

        self._steps(size, shape, 2, dtype, 3, False, look)
        self.ranks.call(drop_layer)

    def _steps(self, size: int, shape: tuple[int, int], batch: int, dtype, steps: int, only_forward: bool, look: Callable) -> None:
        self.case = f"{size} ranks, in_dim {shape[0]}, out_dim {shape[1]}, a batch of {batch}, {np.dtype(dtype).name}"
        n, seed = self.ranks.n, int(self.random.integers(2**31))
        self.ranks.call(make, dict(size=size, seed=seed, shape=shape, dtype=np.dtype(dtype).name), show=self.show)
        look("__init__")
        random = np.random.default_rng(seed)
        w, b = random.standard_normal(shape).astype(dtype), random.standard_normal(shape[1]).astype(dtype)
        rtol = 2e-5 if dtype == np.float32 else 1e-13
        full = [np.dtype(dtype).itemsize * size * -(-n // size) for n in (w.size, b.size)]
        gather = sum(wire_bytes("Allgather", size, n) for n in full)
        old, old_grads = (w, b), (np.zeros_like(w), np.zeros_like(b))
        for number in range(1, steps + 1):
            again = f"in step {number}, " if number > 1 else ""
            if not only_forward:  # as for an evaluation between two training steps, with another number of samples
                other = self.random.standard_normal((n, batch + 1, shape[0])).astype(dtype)
                self.ranks.call(forward, [dict(x=other[r]) for r in range(n)], show=self.show)
            x, grads = (self.random.standard_normal((n, batch, m)).astype(dtype) for m in shape)
            # An answer that does not gather cannot know the others' shards, although all ranks know the initial weights.
            more_w, more_b = (self.random.standard_normal(array.shape).astype(dtype) for array in (w, b))
            w, b = w + more_w, b + more_b
            changes = [dict(more_w=_shard(more_w, r % size, size), more_b=_shard(more_b, r % size, size)) for r in range(n)]
            outputs = self.ranks.call(forward, [dict(x=x[r], **changes[r]) for r in range(n)], show=self.show)[:size]
            for r, out in enumerate(outputs):
                known = {"without the bias": x[r] @ w, "the output for the previous step's weights": x[r] @ old[0] + old[1]}
                cause = "the shards in the wrong order, or the padding not removed"
                if np.shape(out)[:1] != x[r].shape[:1]:
                    cause = "samples that are left out or split: a rank has its own samples, and needs the output of each"
                self.array(out, x[r] @ w + b, name=f"{again}the output", rank=r, cause=cause, rtol=rtol, instead=known)
                moved, limit = self.ranks.traffic[r], contract.FORWARD_BYTES
                cause = "one all-gather of each shard is enough"
                most = gather + limit.number
                self.sent(moved, most, name="forward", rank=r, cause=cause, limit=limit)
            look("forward")
            if only_forward:
                continue
            grad_w, grad_b = sum(x[r].T @ grads[r] for r in range(size)), grads[:size].sum(axis=(0, 1))
            answers = self.ranks.call(backward, [dict(grad=grads[r], lr=LR) for r in range(n)], show=self.show)[:size]
            for r, (back, *shards) in enumerate(answers):
                (grad_x,) = self.tuple(back, 1, name="backward", rank=r)
                cause, known = (
                    "the weight not transposed, or not gathered again",
                    {"the gradient for the previous weights": grads[r] @ old[0].T},
                )
                self.array(grad_x, grads[r] @ w.T, name=f"{again}grad_x", rank=r, cause=cause, rtol=rtol, instead=known)
                scale = float(np.abs(grads).max()) * batch
                for i, (name, want) in enumerate((("grad_w_shard", grad_w), ("grad_b_shard", grad_b))):

                    def known(i=i, want=want, r=r) -> dict[str, np.ndarray]:
                        own = _shard((x[r].T @ grads[r], grads[r].sum(axis=0))[i], r, size)
                        return {
                            "the mean over the ranks, not the sum": _shard(want, r, size) / size,
                            "the gradient of this rank's own samples": own,
                            "the sum with the previous step's gradient": _shard(want, r, size) + _shard(old_grads[i], r, size),
                            "the shard of the transposed gradient; x.T @ output_grad has the shape of the weight": _shard(want.T, r, size),
                        } | {f"the shard of rank {other}": _shard(want, other, size) for other in range(size) if other != r}

                    cause = "a sum over an axis other than that of the samples (0), or padding that is not at the end"
                    how = dict(rtol=rtol, scale=scale, instead=known)
                    mine = _shard(want, r, size).astype(dtype)
                    self.array(shards[i], mine, name=f"{again}{name}", rank=r, cause=cause, **how)
                cause = "gather the weight once, and reduce-scatter each gradient once"
                moved, limit = self.ranks.traffic[r], contract.BACKWARD_BYTES
                most = 2 * (gather + contract.FORWARD_BYTES.number)
                self.sent(moved, most, name="backward", rank=r, cause=cause, limit=limit)
            look("backward")
            old, old_grads = (w, b), (grad_w, grad_b)
            w, b = w - np.asarray(LR, dtype) * grad_w, b - np.asarray(LR, dtype) * grad_b


def _shard(array: np.ndarray, rank: int, size: int) -> np.ndarray:
    """A rank's shard of an array, padded with zeros."""
    part = -(-array.size // size)
    own = array.reshape(-1)[rank * part : (rank + 1) * part]
    return np.append(own, np.zeros(part - own.size, array.dtype))
