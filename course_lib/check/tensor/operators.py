"""Check of the conjugate operators of parts 21 and 22: their outputs, their gradients, and the bytes sent each way.

Functions with a lower-case name and no underscore run on the ranks, `OperatorCheck` in the notebook's kernel.
"""

from __future__ import annotations

import numpy as np

from course_lib import traffic
from course_lib.autograd import Tensor, no_grad
from course_lib.check.groups import GroupCheck
from course_lib.check.tensor import contract
from course_lib.engine.namespace import get_ipython, group_of, student

# The four ways: what a group's ranks hold after an operator, given what they held before; likewise for the gradient in backward.


def _identity(arrays: list) -> list:
    return arrays


def _all_reduce(arrays: list) -> list:
    return [np.sum(arrays, axis=0)] * len(arrays)


def _all_gather(arrays: list) -> list:
    return [np.concatenate(arrays, axis=1)] * len(arrays)


def _reduce_scatter(arrays: list) -> list:
    return np.split(np.sum(arrays, axis=0), len(arrays), axis=1)


OPERATOR_RULES = {
    "copy_to_group": (_identity, _all_reduce),
    "reduce_from_group": (_all_reduce, _identity),
    "gather_sequence": (_all_gather, _reduce_scatter),
    "scatter_sequence": (_reduce_scatter, _all_gather),
}
NDIM_BY_GROUP_SIZE = {
    1: 2,
    2: 3,
    3: 2,
    4: 1,
}  # by group size: all numbers of axes occur, and a transposed gradient has more than one
SPECIAL_CALL = 1  # which of the calls of `call_twice` has special values
SPECIAL_CAUSE = "NaN, infinities or subnormal numbers that are turned into other numbers, or a buffer that is kept from another call"
USUAL_CAUSES = {
    _identity: "an exchange where none is needed",
    _all_reduce: "an all-reduce of the wrong array, or none",
    _all_gather: "the parts of all ranks are concatenated along the positions, dimension 1",
    _reduce_scatter: "each rank needs the sum over the ranks for its own positions",
}


def call_operator(operator, x, comm):
    """Call an operator on a rank."""
    out = student(operator)(x, comm)
    if not isinstance(out, Tensor):
        raise TypeError(f"{operator} must return a Tensor, made with Tensor.from_operation; got {type(out).__name__}.")
    return out


def forward(operator, x, place, calls):
    """Call an operator if this rank's group does so now, and keep its result for `backward`."""
    given, comm = Tensor(x, requires_grad=True), group_of(place)
    out = call_operator(operator, given, comm) if calls else None
    get_ipython().user_ns["trial"] = given, out
    return (out.data if calls else None), x


def laid_out(grad, layout):
    """A gradient in one of four layouts: as it is, as from a transpose, in Fortran order but no view, or as from a slice.

    One number without axes stays as it is.
    """
    if not grad.ndim:
        return grad
    if layout == 1:
        return np.ascontiguousarray(grad.T).T
    if layout == 2:
        return np.array(grad, order="F")
    return np.repeat(grad[..., None], 2, axis=-1)[..., 0] if layout == 3 else grad


def backward(grad, beside, layout):
    """Gradient of an input that is also used `beside` the operator; and the result's gradient and the input after the call."""
    trial = student("trial")
    given, out = trial
    if out is None:
        return None, grad, given.data
    grad = laid_out(grad, layout)
    if out.requires_grad:
        Tensor.from_operation(np.zeros(()), (out, given), lambda _: (grad, beside)).backward(np.ones(()))
    total = given.grad if given.grad is None else np.asarray(given.grad)  # NumPy adds arrays without axes to a number
    return total, grad, given.data


def backward_alone(grad, first):
    """Run backward on the first rank of each group, without the others."""
    trial = student("trial")
    _, out = trial
    if first:
        out.backward(grad)


def call_twice(operator, xs, grads, places):
    """Run four forward calls before their backward calls; also outputs without gradients.

    They are in two groups, again in the first, and in a new communicator with the same ranks.
    """
    tensors = [Tensor(x, requires_grad=True) for x in xs]
    comms = [group_of(places[0]), group_of(places[1])]
    comms += [comms[0], group_of(places[0])]
    outs = [call_operator(operator, t, comm) for t, comm in zip(tensors, comms, strict=True)]
    plain = call_operator(operator, Tensor(xs[0]), comms[0])
    with no_grad():
        again = call_operator(operator, tensors[0], comms[0])
    for out, grad in zip(outs, grads, strict=True):
        out.backward(grad)
    return [[out.data for out in outs], [t.grad for t in tensors], [plain.data, again.data]]


class OperatorCheck(GroupCheck):
    """A `Check` of an operator, on groups of the four ranks."""

    def operator(self, name: str, *sizes: int) -> OperatorCheck:
        """Check an operator in groups of these sizes."""
        for size in sizes:
            self._operator(name, size, np.float32 if size == 2 else np.float64, alone=size == 2)
            if size == 3:
                self._operator(name, size, np.float64, alone=False, single="one of each axis")
            if size == 2 and _all_gather not in OPERATOR_RULES[name]:
                self._operator(name, size, np.float64, alone=False, single="no axis")
            self._several(name, size)
        self.covers("dtypes", "special values", "layouts", "sizes", "group order", "group sizes", "repetition")
        self.covers("same ranks twice", "arguments", "results")
        return self

    def _draw(self, way, groups: list[list[int]], shape: tuple, dtype: type, special: bool = False) -> list:
        """Draw each rank's array for one of the four ways.

        If `special`, one rank of a group has special values, and the others zeros where they are
        added up, so that the sum is exact.
        """
        found: list = [None] * 4
        for group in groups:
            dims = list(shape)
            if way is _reduce_scatter:  # all positions of the group
                dims[1] *= len(group)
            drawn = [self.random.standard_normal(dims).astype(dtype) for _ in group]
            if special:
                drawn = [self.special(*dims, dtype=dtype) for _ in group]
                for array in drawn[1:] if way in (_all_reduce, _reduce_scatter) else []:
                    array[...] = 0
            for r, array in zip(group, drawn, strict=True):
                found[r] = drawn[0].copy() if way is _identity else array  # replicated
        return found

    def _case(self, name: str, groups: list[list[int]], dtype: type, single: str) -> tuple[list, list]:
        """Draw arrays for forward and for backward; `single`: of one element for each rank, along each axis or without axes."""
        ndim = 3 if _all_gather in OPERATOR_RULES[name] else NDIM_BY_GROUP_SIZE[len(groups[0])]
        shape = tuple(self.sizes(ndim, 2, 7))
        if single:
            shape = () if single == "no axis" else (1,) * ndim
        elif len(groups[0]) == 2:  # an exchange for each row is more than the calls that are allowed
            shape = tuple(length + int(contract.CALLS[name].number) for length in shape)
        numbers = f"{'x'.join(map(str, shape))} numbers" if shape else "one number of shape ()"
        self.case = f"{self.describe_groups(groups, dtype)}, {numbers} per rank"
        return tuple(self._draw(way, groups, shape, dtype) for way in OPERATOR_RULES[name])

    def _operator(self, name: str, size: int, dtype: type, alone: bool, single: str = "") -> None:
        groups = self.groups(size)
        xs, grads = self._case(name, groups, dtype, single)
        forth, back = OPERATOR_RULES[name]
        for group in groups if single else ():  # all ranks make a call, also one that has nothing to add
            for way, arrays in ((forth, xs), (back, grads)):
                if way in (_all_reduce, _reduce_scatter):
                    arrays[group[0]][...] = 0
        rtol = 1e-12 if dtype is np.float64 else 1e-5
        beside = [self.random.standard_normal(x.shape).astype(dtype) for x in xs]
        calling = groups[:1] if alone else groups
        if _identity in (forth, back) and size > 1:
            self._go_alone(name, xs, grads, groups, forth is _identity)
        given = [
            dict(operator=name, x=x, place=p, calls=any(r in g for g in calling))
            for r, (x, p) in enumerate(zip(xs, self.colors_and_keys(groups), strict=True))
        ]
        answers = self.ranks.call(forward, given, show=self.show)
        for group in calling:
            self._compare([answers[r][0] for r in group], [xs[r] for r in group], forth, group, f"the output of {name}", rtol)
            self._sent(group, forth, [xs[r] for r in group], name, "forward")
            for r in group:
                self.array(answers[r][1], xs[r], name="the input, after the call,", rank=r, cause="an in-place collective")
        keys = [key for _, key in self.colors_and_keys(groups)]
        given = [dict(grad=grads[r], beside=beside[r], layout=0 if size == 1 else (1 + keys[r]) % 4) for r in range(4)]
        answers = self.ranks.call(backward, given, show=self.show)
        for group in calling:
            for r in group:
                if answers[r][0] is None:
                    cause = "a result that is not made from x by Tensor.from_operation(data, (x,), backward)"
                    self.fail(f"no gradient flows back through {name} on rank {r}", cause)
            name_ = f"the gradient of {name}'s input, which is also used elsewhere,"
            mine = [beside[r] for r in group]
            self._compare([answers[r][0] for r in group], [grads[r] for r in group], back, group, name_, rtol, mine)
            self._sent(group, back, [grads[r] for r in group], name, "backward")
            for r in group:
                cause = "an in-place collective: others use the same array"
                self.array(answers[r][1], grads[r], name="the output's gradient, after the call,", rank=r, cause=cause)
                self.array(answers[r][2], xs[r], name="the input, after backward,", rank=r, cause=cause)

    def _go_alone(self, name: str, xs: list, grads: list, groups: list, in_forward: bool) -> None:
        """Check that the first rank of each group gets through the way that sends nothing without the others."""
        places = self.colors_and_keys(groups)
        first, way = [key == 0 for _, key in places], "forward" if in_forward else "backward"
        given = [dict(operator=name, x=x, place=p, calls=f or not in_forward) for x, p, f in zip(xs, places, first, strict=True)]
        said = f"{name}, {way}, waits for other ranks, although nothing is needed from them", "an exchange or a barrier"
        if in_forward:
            self.call(forward, given, explain={"Deadlock": said}, show=self.show)
        else:
            self.ranks.call(forward, given, show=self.show)
            alone = [dict(grad=grad, first=f) for grad, f in zip(grads, first, strict=True)]
            self.call(backward_alone, alone, explain={"Deadlock": said}, show=self.show)

    def _several(self, name: str, size: int) -> None:
        """Check four forward calls before the first backward; see `call_twice`."""
        groups = self.groups(size)
        groupings = [groups, self.regrouped(groups), groups, groups]  # the outputs have the same shape each time
        forth, back = OPERATOR_RULES[name]
        shape = tuple(self.random.permutation([5, 7, 11]).tolist())  # no group size divides their product
        places = [self.colors_and_keys(groups) for groups in groupings]
        xs = [self._draw(forth, groups, shape, np.float64, special=k == SPECIAL_CALL) for k, groups in enumerate(groupings)]
        grads = [self._draw(back, groups, shape, np.float64, special=k == SPECIAL_CALL) for k, groups in enumerate(groupings)]
        given = [dict(operator=name, xs=[x[r] for x in xs], grads=[g[r] for g in grads], places=[p[r] for p in places]) for r in range(4)]
        answers = self.ranks.call(call_twice, given, show=self.show)
        self.case, most = self.describe_groups(groups, np.float64), np.zeros(4)
        for k, groups in enumerate(groupings):
            for group in groups:
                forwards = 1 if k else 3  # the first tensor goes through it three times
                most[group] += forwards * _needed_bytes(forth, len(group), xs[k][group[0]]) + _needed_bytes(
                    back, len(group), grads[k][group[0]]
                )
        for r in range(4):
            self.requests_completed(self.ranks.unended[r], r)
            self.sent(
                self.ranks.traffic[r],
                most[r],
                name=f"{name}, several times,",
                rank=r,
                cause="one exchange too many",
                limit=contract.BYTES[name],
            )
        for k, groups in enumerate(groupings):
            place = ("the first", "the second", "the third", "the fourth")[k]
            self.case = f"{self.describe_groups(groups, np.float64)}, as {place} of four calls before four backwards"
            special = k == SPECIAL_CALL
            how = {"rtol": 0.0 if special else 1e-12, "cause": SPECIAL_CAUSE if special else ""}
            for group in groups:
                before = [xs[k][r] for r in group]
                self._compare([answers[r][0][k] for r in group], before, forth, group, f"the output of {name}", **how)
                incoming = [grads[k][r] for r in group]
                self._compare([answers[r][1][k] for r in group], incoming, back, group, "the gradient of its input", **how)
                for i, what in enumerate(("for a tensor without a gradient", "under no_grad()") if not k else ()):
                    self._compare([answers[r][2][i] for r in group], before, forth, group, f"the output {what}", 1e-12)

    def _compare(
        self, got: list, before: list, way, group: list[int], name: str, rtol: float, beside: list | None = None, cause: str = ""
    ) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            scale = float(np.max(np.sum(np.abs(before), axis=0))) + (3.0 if beside else 0.0)
        for i, (r, want) in enumerate(zip(group, map(np.asarray, way(before)), strict=True)):
            with np.errstate(over="ignore", invalid="ignore"):
                known = _known_mistakes(way, want, before, i)
            if beside:
                known = {what: array + beside[i] for what, array in known.items()}
                if way is _all_reduce:
                    known["the sum of everything that flows to x, not only what comes through this operator"] = want + np.sum(
                        beside, axis=0
                    )
                want = np.asarray(want + beside[i])
            self.array(
                got[i],
                want,
                name=name,
                rank=r,
                rtol=rtol,
                scale=scale,
                cause=cause or USUAL_CAUSES[way],
                instead=known if len(group) > 1 else None,
            )

    def _sent(self, group: list[int], way, arrays: list, name: str, when: str) -> None:
        """Check the calls made and the bytes sent: nothing, an all-reduce, or half of one."""
        what = f"{name}, {when},"
        for r in group:
            needed = (
                "nothing is needed there"
                if way is _identity
                else f"one {'all-reduce' if way is _all_reduce else 'half of an all-reduce'} is enough"
            )
            most = _needed_bytes(way, len(group), arrays[0])
            moved = self.ranks.traffic[r]
            limit = contract.IDENTITY[name] if way is _identity else contract.BYTES[name]
            self.sent(moved, most, name=what, rank=r, cause=f"one exchange too many: {needed}", limit=limit)
            limit = contract.IDENTITY[name] if way is _identity else contract.CALLS[name]
            calls = 0 if way is _identity else int(contract.CALLS[name].number)
            self.calls(moved, calls, group=group, name=what, rank=r, limit=limit)


def _needed_bytes(way, n: int, array: np.ndarray) -> float:
    """Bytes that a rank of n must send, allowing for an answer that adds up in float64."""
    numbers = array.size * (n if way is _all_gather else 1)
    return 0.0 if way is _identity else traffic.wire_bytes("Allreduce" if way is _all_reduce else "Allgather", n, 8 * numbers + 64)


def _known_mistakes(way, want: np.ndarray, before: list, i: int) -> dict[str, np.ndarray]:
    """Results of known mistakes on the rank at place i of a group, for one of the four ways."""
    n = len(before)
    if way is _identity:
        return {"the sum over the group": want * n, "divided by the size of the group": want / n}
    if way is _all_reduce:
        return {"the mean over the group": want / n, "this rank's own values, unchanged": before[i]}
    if way is _all_gather:
        return {"the ranks' parts one after the other in memory, not along the positions": np.array(before).reshape(want.shape)}
    memory = np.split(np.sum(before, axis=0).ravel(), n)[i].reshape(want.shape)
    own = np.split(before[i], n, axis=1)[i]
    return {"the mean over the group": want / n, "this rank's own summand": own, "a slice of the memory, not of the positions": memory}
