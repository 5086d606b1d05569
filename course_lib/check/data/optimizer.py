"""Check of the functions of part 15, also in groups smaller than all ranks.

`call_partition`, `call_broadcast` and `call_optimizer` run on the ranks, `OptimizerCheck` in the notebook's kernel.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import combinations, pairwise

import numpy as np

from course_lib.check import Check
from course_lib.check.data import contract
from course_lib.check.groups import SHUFFLED_ORDERS
from course_lib.engine.namespace import get_ipython, student


@contextmanager
def smaller_group(group):
    """Make the student's `comm` a group of these ranks, in this order, inside a `with` block; yields whether this rank is in it."""
    names, everyone = get_ipython().user_ns, student("everyone")
    me = everyone.Get_rank()
    names["comm"] = everyone.Split(color=int(me not in group), key=group.index(me) if me in group else me)
    try:
        yield me in group
    finally:
        names["comm"] = everyone


def call_partition(samples, batch_size, group):
    """Run `partition` on a rank: the batches of five epochs, the loader's length, and whether the data set is as it was."""
    partition_dataset, ArrayDataset = student("partition_dataset"), student("ArrayDataset")
    from course_lib.check.data.optimizer import smaller_group

    x, y = np.arange(2 * samples, dtype=np.float32).reshape(samples, 2), -np.arange(samples)
    with smaller_group(group) as inside:
        loader = partition_dataset(ArrayDataset(x, y), batch_size) if inside else ()
        epochs = [[(x, y) for x, y in loader] for _ in range(5)]
        return epochs, len(loader), bool((y == -np.arange(samples)).all())


def call_broadcast(values, root, group):
    """Run the broadcast on a rank for two models, the second with minus these values: the parameters of both afterwards."""
    Sequential, Linear, broadcast_parameters = student("Sequential"), student("Linear"), student("broadcast_parameters")
    from course_lib.check.data.optimizer import smaller_group

    with smaller_group(group) as inside:
        models = [Sequential(Linear(1, 1), Linear(1, 1, bias=False)) for _ in range(2)]
        for model, sign in zip(models, (1, -1), strict=True):
            for p, v in zip(model.parameters(), values, strict=True):
                p.data = sign * v
            if inside:
                broadcast_parameters(model, root) if root else broadcast_parameters(model)
        return [[p.data for p in model.parameters()] for model in models]


def call_optimizer(values, grads, kind, how, group):
    """Run the optimizer on a rank: after each step with these gradients (None: no gradient), the parameters and the optimizer's state."""
    DistributedOptimizer = student("DistributedOptimizer")
    from course_lib import autograd
    from course_lib.check.data.optimizer import smaller_group

    with smaller_group(group) as inside:
        params = [autograd.Parameter(v.copy()) for v in values]
        opt = getattr(autograd, kind)(params, lr=0.1, **how)
        optimizer, after = DistributedOptimizer(opt), []
        for each in grads if inside else ():
            optimizer.zero_grad()
            for p, grad in zip(params, each, strict=True):
                p.grad = None if grad is None else grad.copy()
            optimizer.step()
            state = {i: s[1] for i, s in opt.state.items()} if kind == "Adam" else opt.velocity
            after.append(([p.data.copy() for p in params], [np.array(state.get(i, 0.0)) for i in range(len(params))]))
        return after


class OptimizerCheck(Check):
    """A `Check` of part 15's functions on these ranks."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks

    def group(self, size: int) -> list[int]:
        """Ranks of a group: the first ones in a visible check, else any, in any order, none of four in its place."""
        order = [0, 1, 2, 3] if self.show else SHUFFLED_ORDERS[int(self.random.integers(len(SHUFFLED_ORDERS)))]
        return list(order[:size])

    def call(self, function, size: int, arguments: list[dict], **all_the_same: object) -> list:
        """Call a function on a group, with these arguments for each place in it; the answers and the traffic are in its order."""
        group = self.group(size)
        each = [arguments[group.index(r) if r in group else 0] | all_the_same | dict(group=group) for r in range(4)]
        answers = self.ranks.call(function, each, show=self.show)
        self.traffic = [self.ranks.traffic[r] for r in group]
        self.order = group
        return [answers[r] for r in group]

    def partition(self, samples: int, batch_size: int, size: int) -> None:
        """Check five epochs on `size` ranks: equal disjoint parts, reshuffled each epoch, in batches of the rank's share."""
        self.case = f"{samples} samples, {size} ranks, batch_size {batch_size}"
        answers = self.call(call_partition, size, [dict(samples=samples, batch_size=batch_size)] * 4)
        part, share, seen, owner = samples // size, batch_size // size, [], np.full(samples, -1)
        for r, (epochs, length, unchanged) in enumerate(answers):
            self.value(length, -(-part // share), name="the loader's length", rank=r)
            if not unchanged:
                self.fail(f"rank {r} changed the data set", "a shuffle in place")
            for batches in epochs:
                lengths = [len(x) for x, _ in batches]
                if lengths != [share] * (part // share) + [part % share] * (part % share > 0):
                    self.fail(
                        f"rank {r} gets batches of {lengths}", "a batch_size that is not divided by the number of ranks, or unequal parts"
                    )
            orders = [(-np.concatenate([y for _, y in batches])).tolist() for batches in epochs]
            seen += orders[0]
            mine = sorted(orders[0])
            whole = len(set(mine)) == part and all(sorted(order) == mine for order in orders)
            if not whole or (part > 6 and any(a in (b, b[::-1]) for a, b in combinations([*orders, mine], 2))):
                self.fail(f"rank {r}: an epoch is not a new shuffle of the rank's part", "no shuffle, or a different part in each epoch")
            neighbours = [set(pairwise(order)) for order in orders]
            if part > 6 and any(len(a & b) > 0.7 * part for a, b in combinations(neighbours, 2)):
                self.fail(f"rank {r}: an epoch repeats most of another epoch's order", "an order that is drawn once and then rotated")
            if size > 1 and part > 2 and not np.ptp(np.diff(mine)):
                self.fail(f"rank {r} has every {mine[1] - mine[0]}-th sample", "parts that are cut without shuffling first")
            if any(not np.array_equal(x, np.stack([-2.0 * y, 1 - 2.0 * y], 1)) for batches in epochs for x, y in batches):
                self.fail(f"rank {r}: samples with other samples' labels", "samples and labels that are shuffled separately")
            owner[mine] = r
        self.covers("sizes", "group order", "group sizes", "repetition", "arguments")
        if len(set(seen)) < part * size:
            self.fail("some samples are on two ranks", "a different seed on each rank, or the same part on all")
        lags = range(1, samples // 4 + 1) if size > 1 and part > 6 else ()
        if any(np.mean(owner[lag:] == owner[:-lag]) > 0.85 for lag in lags):
            self.fail(
                "the samples are dealt to the ranks in a pattern that repeats along the data set",
                "parts that are cut without shuffling first",
            )

    def broadcast(self, size: int, root: int) -> None:
        """Check that all of `size` ranks end with the root's parameters."""
        self.case, normal = f"{size} ranks, root {root}", self.random.standard_normal
        variety, shapes = self.sizes(1, 0, 4)[0], self.shapes()
        if variety % 2:
            shapes[2] = shapes[0]
        values = [[normal(s).astype((np.float32, np.float64)[variety // 2]) for s in shapes] for _ in range(4)]
        values[root][1][:] = 0
        values[root][0] = self.special(*shapes[0], dtype=values[root][0].dtype)
        answers = self.call(call_broadcast, size, [dict(values=v, root=root) for v in values])
        for r, (got, negative) in enumerate(answers):
            for i, (array, want) in enumerate(zip(got, values[root], strict=True)):
                known = {f"that of rank {k}": each[i] for k, each in enumerate(values) if k != root}
                cause = "the wrong root, or a parameter that is left out"
                self.array(array, want, name=f"parameter {i}", rank=r, cause=cause, instead=known)
                self.array(negative[i], -want, name=f"parameter {i} of a second model", rank=r, cause="an array that two models share")
        self.covers("dtypes", "sizes", "group order", "group sizes", "repetition", "results")

    def shapes(self) -> list[tuple[int, ...]]:
        """Draw the shapes of a weight, a bias and another weight."""
        first, bias, last = (tuple(s) for s in self.random.integers(1, 7, (3, 2)))
        return [first, bias[:1], last]

    def optimizer(self, size: int, kind: str, dtype=np.float64, count: int = 4) -> None:
        """Compare steps on `size` ranks with the same optimizer in NumPy on the mean gradients; `kind` is "SGD" or "Adam"."""
        self.case, normal = f"{size} ranks, {kind}, {np.dtype(dtype)}", self.random.standard_normal
        shapes, (unused,) = self.shapes(), self.sizes(1, 0, 3)  # each parameter in turn
        if self.sizes(1, 0, 2)[0]:
            shapes[2] = shapes[0]
        # Parameters without a gradient, by step. The unused one has its first gradient in the last step of a hidden test.
        lack = [{unused, (unused + 1) % 3} if t == count - 2 else {unused} for t in range(count)]
        lack[-1] = {unused} if self.show else set()
        values = [normal(s).astype(dtype) for s in shapes]
        grads = [[[None if i in none else normal(s).astype(dtype) for i, s in enumerate(shapes)] for none in lack] for _ in range(4)]
        dead = grads[int(self.random.integers(size))][0]  # a unit may be dead for one rank's samples; that rank takes part all the same
        dead[(unused + 2) % 3] = np.zeros_like(dead[(unused + 2) % 3])
        decay, momentum = (0.0, 0.0) if self.show else (0.1, 0.8)
        how = dict(weight_decay=decay) | (dict(momentum=momentum) if kind == "SGD" else {})
        answers = self.call(call_optimizer, size, [dict(values=values, grads=g) for g in grads], kind=kind, how=how)
        # An all-gather of all gradients in each step, plus the initial parameters.
        arrays = [array for step in [values, *grads[0]] for array in step if array is not None]
        most = (size - 1) * sum(array.nbytes for array in arrays)
        for place, moved in enumerate(self.traffic):
            cause = "gradients that are sent more than once"
            limit = contract.OPTIMIZER_BYTES
            self.sent(
                moved,
                most + count * limit.number,
                name="the optimizer",
                rank=place,
                cause=cause,
                limit=limit,
            )
            limit = contract.OPTIMIZER_CALLS
            self.calls(
                moved,
                len(arrays) * int(limit.number),
                group=self.order,
                name="the optimizer",
                rank=place,
                limit=limit,
            )
        self.covers("dtypes", "sizes", "group order", "group sizes", "repetition", "results")
        m, v, taken = [np.zeros(())] * 3, [0.0] * 3, [0] * 3
        for t in range(count):
            before = list(values)
            for i in {0, 1, 2} - lack[t]:
                taken[i] += 1
                g = sum(grads[r][t][i].astype(float) for r in range(size)) / size + decay * values[i]
                if kind == "Adam":
                    m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g * g
                    g = m[i] / (1 - 0.9 ** taken[i]) / (np.sqrt(v[i] / (1 - 0.999 ** taken[i])) + 1e-8)
                elif momentum:
                    g = m[i] = momentum * m[i] + g
                values[i] = (values[i] - 0.1 * g).astype(dtype)
            for r, (after, state) in enumerate(answers[r][t] for r in range(size)):
                for i, want in enumerate(values):
                    cause = "a sum, a mean of the parameters, a step before the exchange, or a mean that is not written to p.grad"
                    name, rtol = f"parameter {i} after step {t + 1}", 1e-9 if dtype is np.float64 else 1e-5
                    known = {"as before the step": before[i]}
                    if self.show and kind == "SGD" and i not in lack[t]:
                        known["after a step with this rank's own gradient"] = before[i] - 0.1 * grads[r][t][i]
                        known["after a step with the sum, not the mean"] = before[i] + size * (want - before[i])
                    self.array(after[i], want, name=name, rank=r, rtol=rtol, scale=3.0, cause=cause, instead=known)
                    cause = "a step on some ranks only, or one with the rank's own gradient: every rank keeps all of the optimizer's state"
                    name = f"the optimizer's state for parameter {i} after step {t + 1}"
                    self.array(state[i], m[i], name=name, rank=r, rtol=rtol, scale=3.0, cause=cause, dtype=False)
