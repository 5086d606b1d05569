"""Check of the gradients' mean over a data parallel group (part 07)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from course_lib.check.cases.layouts import CONTIGUOUS
from course_lib.check.cases.repetition import GROUP, KEPT, Call, in_turn
from course_lib.check.model_parallel import contract, on_ranks
from course_lib.check.model_parallel.forward import CHANGED, DTYPES, LayerCheck
from course_lib.mesh import Mesh
from course_lib.traffic import wire_bytes

# Shapes of a weight and a bias that are not a matrix and a vector.
# The last bias is so large that it exceeds the bytes where it is gathered.
OTHER_SHAPES = (((40,), (5,)), ((3, 4, 5), (1, 4)), ((6, 1), (1,)), ((2, 3, 2, 4), (2, 1, 3)), ((30,), (30,)))


class WeightGradCheck(LayerCheck):
    """A `Check` of `collect_weight_grad` on a grid of the four ranks."""

    def small(self, mesh: Mesh) -> WeightGradCheck:
        """Check gradients that are easy to read."""
        return self.means([(np.full((3, 2), r, np.float32), np.arange(2, dtype=np.float32) * r) for r in range(1, 5)], mesh)

    def layers(self, meshes: Sequence[Mesh]) -> WeightGradCheck:
        """Check a weight's and a bias's gradients of drawn sizes, in both dtypes."""
        for mesh in meshes:
            for dtype in DTYPES:
                rows, columns = self.sizes(1, 5, 12)[0], self.sizes(1, 40, 60)[0]  # wide, so that a bias counts in the traffic
                self.case = f"mp_size {mesh.mp}, dp_size {mesh.dp}, a weight of shape {(rows, columns)} and {np.dtype(dtype)}"
                self.means([(self.draw(rows, columns, dtype=dtype), self.draw(columns, dtype=dtype)) for _ in range(4)], mesh)
        return self.turns()

    def turns(self) -> WeightGradCheck:
        """Check layers of several shapes in turn, on two communicators with the same ranks."""
        groups = self.groups(2)
        rows, columns, other = self.sizes(3, 2, 9)
        turns = [
            ((rows, columns), 0),
            ((rows, columns), 1),
            ((other, columns), 0),
            ((rows, 1), 1),
            ((1, 1), 1),
            ((rows, columns), 0),
        ]
        calls = []
        for number, (shape, comm) in enumerate(turns):
            gradients = [(self.draw(*shape), self.draw(shape[1])) for _ in range(4)]
            arguments = [[grad_w, grad_b, GROUP] for grad_w, grad_b in gradients]
            calls.append(Call(arguments, comm, CONTIGUOUS[number % len(CONTIGUOUS)]))
        self.case = f"{self.describe_groups(groups, np.float64)}, several layers in turn"
        results = in_turn(self, "collect_weight_grad", calls, [groups, groups])
        places = self.colors_and_keys(groups)
        for number, (call, answers) in enumerate(zip(calls, results, strict=True), 1):
            for r, answer in enumerate(answers):
                group = groups[places[r][0]]
                means = self.tuple(answer, 2, name="collect_weight_grad", rank=r)
                for i, name in enumerate(("grad_w", "grad_b")):
                    gradients = [call.arguments[s][i] for s in group]
                    self.array(
                        means[i],
                        np.mean(gradients, axis=0),
                        name=f"the collected {name} of call {number}",
                        rank=r,
                        cause=KEPT,
                        rtol=1e-12,
                        scale=float(np.max(np.abs(gradients))),
                    )
        for r in range(4):
            limit = contract.CALLS["collect_weight_grad"]
            most, group = len(calls) * int(limit.number), groups[places[r][0]]
            moved = self.ranks.traffic[r]
            self.calls(moved, most, group=group, name="collect_weight_grad", rank=r, limit=limit)
        self.covers("layouts", "group order", "dtypes", "sizes", "group sizes")
        return self

    def shapes(self) -> WeightGradCheck:
        """Check gradients of other shapes, the two of which have different dtypes."""
        for shapes in OTHER_SHAPES:
            both = self.random.permutation(list(DTYPES))
            for mesh, dtypes in ((Mesh(dp=4, mp=1), both), (Mesh(dp=2, mp=2), both[::-1])):
                names = [np.dtype(d).name for d in dtypes]
                self.case = f"dp_size {mesh.dp}, grad_w of shape {shapes[0]}, grad_b of shape {shapes[1]}, {names}"
                pairs = list(zip(shapes, dtypes, strict=True))
                self.means([[self.draw(*shape, dtype=dtype) for shape, dtype in pairs] for _ in range(4)], mesh)
        self.case = "dp_size 3, grad_w and grad_b of one shape and dtype, zero on one rank"
        grads = [[self.draw(7), self.draw(7)] for _ in range(4)]
        grads[int(self.random.integers(3))] = [np.zeros(7), np.zeros(7)]
        self.means(grads, ((0, 1, 2), (3,)))
        return self

    def means(self, grads: Sequence[Sequence[np.ndarray]], mesh: Mesh | tuple[tuple[int, ...], ...]) -> WeightGradCheck:
        """Call the function with each rank's (grad_w, grad_b), and expect the means over the columns of the grid, or over these groups."""
        columns = mesh.groups("dp") if isinstance(mesh, Mesh) else mesh
        colors = {r: color for color, column in enumerate(columns) for r in column}
        given = [dict(grad_w=w, grad_b=b, color=colors[r]) for r, (w, b) in enumerate(grads)]
        for r, (answer, *after) in enumerate(self.places.call(on_ranks.average, given, show=self.show)):
            means = self.tuple(answer, 2, name="collect_weight_grad", rank=r)
            column, needed = columns[colors[r]], 0.0
            for i, name in enumerate(("grad_w", "grad_b")):
                want = np.mean([grads[member][i] for member in column], axis=0, dtype=np.float64).astype(grads[r][i].dtype)
                cause = "a divisor other than the size of the group, the wrong group, or a division that rounds down"
                known = {
                    "the sum, not the mean": want * len(column),
                    "this rank's own gradient": grads[r][i],
                    "the mean over all ranks, not over the group": np.mean([each[i] for each in grads], axis=0),
                }
                how = dict(rtol=1e-5 if want.dtype == np.float32 else 1e-12, scale=max(np.abs(grads[member][i]).max() for member in column))
                self.array(after[i], grads[r][i], name=f"{name}, after the call,", rank=r, cause=CHANGED)
                self.array(means[i], want, name=f"the collected {name}", rank=r, cause=cause, contiguous=True, instead=known, **how)
                padded = -(-want.size // len(column)) * len(column)  # some answers pad the array
                needed += wire_bytes("Allreduce", len(column), padded * want.itemsize)
            limit = contract.BYTES["collect_weight_grad"]
            cause = "one all-reduce of each gradient is enough"
            moved, most = self.places.traffic[r], needed + limit.number
            self.sent(moved, most, name="collect_weight_grad", rank=r, cause=cause, limit=limit)
            self.requests_completed(self.places.unended[r], r)
        return self
