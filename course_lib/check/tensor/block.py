"""Check of a split transformer block: the student's operators run on the ranks, everything else in the kernel.

So the operators' results alone decide the outcome: the ranks have no layer, weight or gradient of the block.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from course_lib.autograd import Tensor
from course_lib.autograd.functional import gelu
from course_lib.check.tensor.operators import OPERATOR_RULES, OperatorCheck
from course_lib.engine.namespace import get_ipython, group_of, student
from course_lib.gpt.model.block import Block

REUSED_BUFFER_CAUSE = "one array reused for several calls: the block needs each result until its backward"


def forward_operator(operator, step, x, place):
    """Call an operator on the rank, and keep its result for `backward_operator`."""
    given = Tensor(x, requires_grad=True)
    out = student(operator)(given, group_of(place))
    if not isinstance(out, Tensor) or not out.requires_grad:
        raise TypeError(f"{operator} must return a Tensor made from x by Tensor.from_operation(data, (x,), backward); got {out!r:.80}.")
    get_ipython().user_ns["trial"] = {**(student("trial") if step else {}), step: (given, out)}
    return out.data


def backward_operator(step, grad):
    """Gradient of a call's input, and the call's result as it is now, which may have been overwritten."""
    trial = student("trial")
    given, out = trial[step]
    out.backward(grad)
    return given.grad, out.data


class BlockCheck(OperatorCheck):
    """A `Check` of operators in a block, on groups of the four ranks."""

    def block(self, groups: list[list[int]], operators: tuple[str, str], width: int, heads: int, drawn: list[dict]) -> list[Block]:
        """Run a block forward and backward; return the ranks' parts of it, with the gradients of their parameters.

        Parameters
        ----------
        groups : list of list of int
        operators : (str, str)
            Names of the operators at the beginning and at the end of the split computation.
        width, heads : int
        drawn : list of dict
            For each rank "seed", "norms", "x" and "grad", the gradient of its output; its output and its input's gradient are added
            as "out" and "grad_x".
        """
        parts = [
            make_block(width, heads, one, _silent_comm(len(groups[color]), index))
            for one, (color, index) in zip(drawn, self.colors_and_keys(groups), strict=True)
        ]
        self._step = 0
        given = [Tensor(one["x"], requires_grad=True) for one in drawn]
        xs, (enter, leave) = given, operators
        inside = self._run_on_ranks(groups, enter, [part.norm1(x) for part, x in zip(parts, xs, strict=True)], kept=True)
        summands = [part.attend(part.qkv(x)) for part, x in zip(parts, inside, strict=True)]
        xs = [x + out for x, out in zip(xs, self._run_on_ranks(groups, leave, summands), strict=True)]
        inside = self._run_on_ranks(groups, enter, [part.norm2(x) for part, x in zip(parts, xs, strict=True)], kept=True)
        summands = [part.down(gelu(part.up(x))) for part, x in zip(parts, inside, strict=True)]
        xs = [x + out for x, out in zip(xs, self._run_on_ranks(groups, leave, summands), strict=True)]
        Tensor.from_operation(np.zeros(()), xs, lambda _: [one["grad"] for one in drawn]).backward(np.ones(()))
        for one, x, out in zip(drawn, given, xs, strict=True):
            one |= dict(out=out.data, grad_x=x.grad)
        return parts

    def _run_on_ranks(self, groups: list[list[int]], operator: str, tensors: list[Tensor], kept: bool = False) -> list[Tensor]:
        """Apply an operator to the ranks' tensors; in backward, the gradient goes through it on the ranks, too."""
        step, self._step = self._step, self._step + 1
        given = [dict(operator=operator, step=step, x=t.data, place=p) for t, p in zip(tensors, self.colors_and_keys(groups), strict=True)]
        outs = self.ranks.call(forward_operator, given, show=self.show)
        for group in groups:
            wanted = OPERATOR_RULES[operator][0]([tensors[r].data for r in group])
            for r, want in zip(group, wanted, strict=True):
                self._require_shape(outs[r], want.shape, f"what {operator} returns in the block", r)
        ends = np.cumsum([out.size for out in outs])
        places = [(slice(end - out.size, end), out.shape) for end, out in zip(ends.tolist(), outs, strict=True)]

        def backward(grad: np.ndarray) -> tuple:
            grads = [dict(step=step, grad=grad[where].reshape(shape)) for where, shape in places]
            found = self.ranks.call(backward_operator, grads, show=self.show)
            for r, (got, after) in enumerate(found):
                self._require_shape(got, tensors[r].shape, f"the gradient that comes back through {operator} in the block", r)
                if kept and not np.array_equal(after, outs[r]):
                    self.fail(
                        f"the result of {operator} in the block has changed on rank {r} by the time backward begins", REUSED_BUFFER_CAUSE
                    )
            return tuple(got for got, _ in found)

        flat = Tensor.from_operation(np.concatenate([out.ravel() for out in outs]), tuple(tensors), backward)
        return [flat[where].reshape(*shape) for where, shape in places]

    def _require_shape(self, got: object, shape: tuple, name: str, r: int) -> None:
        """Fail if this is not a floating point array of this shape, as nothing could use it."""
        if not isinstance(got, np.ndarray) or got.dtype.kind != "f":
            self.fail(f"{name} on rank {r} must be a NumPy array of floating point numbers; got {type(got).__name__}")
        if got.shape != shape:
            self.fail(f"{name} on rank {r} has shape {got.shape}, expected {shape}")


def _silent_comm(size: int, index: int) -> SimpleNamespace:
    """Stand-in for a communicator of a block where nothing is sent."""
    return SimpleNamespace(Get_size=lambda: size, Get_rank=lambda: index)


def make_block(width: int, heads: int, drawn: dict, comm: object = None) -> Block:
    """Make a block with these norms; with a group, one rank's part."""
    block = Block(width, heads, np.random.default_rng(drawn["seed"]), comm, dtype=drawn["x"].dtype)
    for norm, (scale, shift) in zip((block.norm1, block.norm2), drawn["norms"], strict=True):
        norm.weight.data, norm.bias.data = scale.copy(), shift.copy()
    return block


def reference_block(width: int, heads: int, drawn: dict) -> tuple[np.ndarray, np.ndarray, Block]:
    """Output of a whole block, the gradient of its input, and the block with its parameters' gradients."""
    block, x = make_block(width, heads, drawn), Tensor(drawn["x"], requires_grad=True)
    out = block(x)
    out.backward(drawn["grad"])
    return out.data, x.grad, block
