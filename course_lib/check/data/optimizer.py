"""Check of the functions of part 15, also in groups smaller than all ranks.

`call_partition`, `call_broadcast` and `call_optimizer` run on the ranks, `OptimizerCheck` in the notebook's kernel.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import combinations, pairwise

import numpy as np

from course_lib.check import Check
from course_lib.engine.namespace import get_ipython, student


@contextmanager
def smaller_group(size):
    """Make the student's `comm` a group of the first `size` ranks inside a `with` block; yields whether this rank is in it."""
    names, everyone = get_ipython().user_ns, student("everyone")
    names["comm"] = everyone.Split(color=int(everyone.Get_rank() >= size))
    try:
        yield everyone.Get_rank() < size
    finally:
        names["comm"] = everyone


def call_partition(samples, batch_size, size):
    """Run `partition` on a rank: the batches of three epochs."""
    partition_dataset, ArrayDataset = student("partition_dataset"), student("ArrayDataset")
    from course_lib.check.data.optimizer import smaller_group

    with smaller_group(size) as inside:
        loader = partition_dataset(ArrayDataset(np.arange(samples), -np.arange(samples)), batch_size) if inside else ()
        return [[(x, y) for x, y in loader] for _ in range(3)]


def call_broadcast(values, root, size):
    """Run the broadcast on a rank: the parameters afterwards."""
    Sequential, Linear, broadcast_parameters = student("Sequential"), student("Linear"), student("broadcast_parameters")
    from course_lib.check.data.optimizer import smaller_group

    with smaller_group(size) as inside:
        model = Sequential(*(Linear(*v.shape, bias=False, dtype=v.dtype) for v in values))
        for p, v in zip(model.parameters(), values, strict=True):
            p.data = v.copy()
        if inside:
            broadcast_parameters(model, root) if root else broadcast_parameters(model)
        return [p.data for p in model.parameters()]


def call_optimizer(values, grads, kind, size):
    """Run the optimizer on a rank: the parameters after each step with these gradients; None for a parameter without one."""
    DistributedOptimizer = student("DistributedOptimizer")
    from course_lib import autograd
    from course_lib.check.data.optimizer import smaller_group

    with smaller_group(size) as inside:
        params = [autograd.Parameter(v.copy()) for v in values]
        optimizer, after = DistributedOptimizer(getattr(autograd, kind)(params, lr=0.1)), []
        for each in grads if inside else ():
            optimizer.zero_grad()
            for p, grad in zip(params, each, strict=True):
                p.grad = None if grad is None else grad.copy()
            optimizer.step()
            after.append([p.data.copy() for p in params])
        return after


class OptimizerCheck(Check):
    """A `Check` of part 15's functions on these ranks."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks

    def partition(self, samples: int, batch_size: int, size: int) -> None:
        """Check three epochs on `size` ranks: equal disjoint parts, reshuffled each epoch, in batches of the rank's share."""
        self.case = f"{samples} samples, {size} ranks, batch_size {batch_size}"
        answers = self.ranks.call(call_partition, dict(samples=samples, batch_size=batch_size, size=size), show=self.show)[:size]
        part, share, seen = samples // size, batch_size // size, []
        for r, epochs in enumerate(answers):
            for batches in epochs:
                lengths = [len(x) for x, _ in batches]
                if lengths != [share] * (part // share) + [part % share] * (part % share > 0):
                    self.fail(
                        f"rank {r} gets batches of {lengths}", "a batch_size that is not divided by the number of ranks, or unequal parts"
                    )
            orders = [np.concatenate([x for x, _ in batches]).tolist() for batches in epochs]
            seen += orders[0]
            mine = sorted(orders[0])
            whole = len(set(mine)) == part and all(sorted(order) == mine for order in orders)
            if not whole or any(a in (b, b[::-1]) for a, b in combinations([*orders, mine], 2)):
                self.fail(f"rank {r}: an epoch is not a new shuffle of the rank's part", "no shuffle, or a different part in each epoch")
            neighbours = [set(pairwise(order)) for order in orders]
            if part > 6 and any(len(a & b) > 0.7 * part for a, b in combinations(neighbours, 2)):
                self.fail(f"rank {r}: an epoch repeats most of another epoch's order", "an order that is drawn once and then rotated")
            if size > 1 and part > 2 and not np.ptp(np.diff(mine)):
                self.fail(f"rank {r} has every {mine[1] - mine[0]}-th sample", "parts that are cut without shuffling first")
            if any(not np.array_equal(x, -y) for batches in epochs for x, y in batches):
                self.fail(f"rank {r}: samples with other samples' labels", "samples and labels that are shuffled separately")
        if len(set(seen)) < part * size:
            self.fail("some samples are on two ranks", "a different seed on each rank, or the same part on all")

    def broadcast(self, size: int, root: int) -> None:
        """Check that all of `size` ranks end with the root's parameters."""
        self.case, normal = f"{size} ranks, root {root}", self.random.standard_normal
        shapes = self.random.integers(1, 7, (3, 2))
        values = [[normal(s).astype(np.float32) for s in shapes] for _ in range(4)]
        answers = self.ranks.call(call_broadcast, [dict(values=v, root=root, size=size) for v in values], show=self.show)
        for r, got in enumerate(answers[:size]):
            for i, (array, want) in enumerate(zip(got, values[root], strict=True)):
                known = {f"that of rank {k}": each[i] for k, each in enumerate(values) if k != root}
                cause = "the wrong root, or a parameter that is left out"
                self.array(array, want, name=f"parameter {i}", rank=r, cause=cause, instead=known)

    def optimizer(self, size: int, kind: str, dtype=np.float64, count: int = 4) -> None:
        """Compare steps on `size` ranks with the same optimizer in NumPy on the mean gradients; `kind` is "SGD" or "Adam"."""
        self.case, normal = f"{size} ranks, {kind}, {np.dtype(dtype)}", self.random.standard_normal
        shapes, (unused,) = [tuple(s) for s in self.random.integers(1, 7, (3, 2))], self.sizes(1, 0, 3)  # each parameter in turn
        lack = [{unused, (unused + 1) % 3} if t == count - 2 else {unused} for t in range(count)]  # parameters without a gradient, by step
        values = [normal(s).astype(dtype) for s in shapes]
        grads = [[[None if i in none else normal(s).astype(dtype) for i, s in enumerate(shapes)] for none in lack] for _ in range(4)]
        dead = grads[int(self.random.integers(size))][0]  # a unit may be dead for one rank's samples; that rank takes part all the same
        dead[(unused + 2) % 3] = np.zeros_like(dead[(unused + 2) % 3])
        answers = self.ranks.call(call_optimizer, [dict(values=values, grads=g, kind=kind, size=size) for g in grads], show=self.show)[
            :size
        ]
        # An all-gather of all gradients in each step, plus the initial parameters.
        most = 64 + (count + 1) * (size - 1) * sum(value.nbytes for value in values)
        for r, moved in enumerate(self.ranks.traffic[:size]):
            self.sent(moved, most, name="the optimizer", rank=r, cause="gradients that are sent more than once")
        m, v, taken = [0.0] * 3, [0.0] * 3, [0] * 3
        for t in range(count):
            before = list(values)
            for i in {0, 1, 2} - lack[t]:
                taken[i] += 1
                g = sum(grads[r][t][i].astype(float) for r in range(size)) / size
                m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g * g
                adam = m[i] / (1 - 0.9 ** taken[i]) / (np.sqrt(v[i] / (1 - 0.999 ** taken[i])) + 1e-8)
                values[i] = (values[i] - 0.1 * (adam if kind == "Adam" else g)).astype(dtype)
            for r, after in enumerate(answers):
                for i, want in enumerate(values):
                    cause = "a sum, a mean of the parameters, a step before the exchange, or a mean that is not written to p.grad"
                    name, rtol = f"parameter {i} after step {t + 1}", 1e-9 if dtype is np.float64 else 1e-4
                    known = {"as before the step": before[i]}
                    if kind == "SGD" and i not in lack[t]:
                        known["after a step with this rank's own gradient"] = before[i] - 0.1 * grads[r][t][i]
                        known["after a step with the sum, not the mean"] = before[i] + size * (want - before[i])
                    self.array(after[t][i], want, name=name, rank=r, rtol=rtol, scale=3.0, cause=cause, instead=known)
