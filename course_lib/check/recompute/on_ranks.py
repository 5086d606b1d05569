"""Functions that the check of part 32's `checkpoint` runs on the ranks; see `recompute.check`."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from course_lib import memory
from course_lib.autograd import Module, Tensor, after_backward, no_grad, tensor
from course_lib.autograd.operations import relu
from course_lib.autograd.random_states import random_states
from course_lib.check.cases.layouts import arrange
from course_lib.check.recompute.segment import Segment
from course_lib.engine import traffic_gates
from course_lib.engine.namespace import get_ipython, group_of, student
from course_lib.gpt.training.activation_memory import run_layers

SHIFT = -0.25  # of an operation of `LargeLayer`


def build_segments(weights, table, place, seed, extra, drawing):
    """Make a rank's three segments, and seed its random generators: the usual two, and one of another name."""
    comm = group_of(place)
    random_states.seed(seed, place[1])
    random_states.add(extra, [seed, 100 + place[1]])
    generators = [[random_states[name] for name in names] for names in drawing]
    tables = [table, None, None]
    segments = [Segment(w, t, comm, own) for w, t, own in zip(weights, tables, generators, strict=True)]
    get_ipython().user_ns["trial"] = comm, segments, extra


def call_checkpoint(function, *inputs):
    """Call the student's function."""
    out = student("checkpoint")(function, *inputs)
    if not isinstance(out, Tensor):
        raise TypeError(f"checkpoint must return a Tensor, made with Tensor.from_operation; got {type(out).__name__}.")
    if tensor.grad_enabled() and not out.requires_grad:
        raise ValueError(
            "the result of checkpoint is not in the graph (requires_grad is False), so its function's parameters would get no gradient. "
            "A usual cause: none of the inputs requires a gradient, as with tokens; from_operation needs one that does."
        )
    return out


def run_schedule(schedule, batches, nested, noted):
    """Run micro-batches: forward ("F"), backward ("B"), or forward without gradients ("E").

    After each comes an all-reduce. If `noted`, a function that is noted for the end of backward passes
    a gate there, whose number scales the gradient of v.

    Returns
    -------
    tuple
        For each micro-batch its result, the gradient of v, and its inputs after backward; the
        gradients of the parameters; what each generator draws then.
    """
    comm, segments, extra = student("trial")
    results, gradients = [None] * len(batches), [None] * len(batches)
    running, inputs_after, numbers = {}, {}, []

    def note(_):
        after_backward(lambda: numbers.append(traffic_gates.pass_gate() if noted else 1.0))

    remove = segments[2].weight.register_hook(note)
    for what, i in schedule:
        inputs = _arranged(batches[i])
        if what == "E":
            with no_grad():
                results[i] = _forward(segments, inputs, nested).data
        elif what == "F":
            running[i] = _forward(segments, inputs, nested), inputs
        else:
            out, inputs = running.pop(i)
            results[i] = out.data
            out.backward(batches[i]["grad"].copy())
            gradients[i] = inputs["v"].grad * out.data.dtype.type(numbers.pop())
            inputs_after[i] = _reuse(inputs)
        comm.Allreduce(np.ones(1), np.empty(1))
    remove()
    grads = [p.grad for p in (segments[0].table, *(s.weight for s in segments))]
    for p in (segments[0].table, *(s.weight for s in segments)):
        p.grad = None
    drawn = [random_states[name].random(3) for name in ("replicated", "sharded", extra)]
    return list(zip(results, gradients, [inputs_after.get(i) for i in range(len(batches))], strict=True)), grads, drawn


def _arranged(batch):
    """Return a micro-batch's tensors, in its layout."""
    tensors = {name: Tensor(arrange(batch[name], batch["layout"])) for name in ("tokens", "v0", "m0", "m")}
    tensors["v"] = Tensor(arrange(batch["v"], batch["layout"]), requires_grad=True)
    return tensors | {"s": batch["s"]}


def _reuse(inputs):
    """Overwrite a micro-batch's arrays, as a caller with buffers does; return what they were."""
    arrays = {name: one.data for name, one in inputs.items() if isinstance(one, Tensor)}
    before = {name: array.copy() for name, array in arrays.items()}
    for array in arrays.values():
        if array.flags.writeable:
            array[...] = 0
    return before


def _forward(segments, inputs, nested):
    first, second, third = segments
    v, m, s = inputs["v"], inputs["m"], inputs["s"]
    x1 = call_checkpoint(first, inputs["tokens"], s, inputs["v0"], inputs["m0"])
    if nested:

        def both(x, s, v, m):
            y = call_checkpoint(second, x, s, v, m)
            return third(y, s, y, m) + y

        return call_checkpoint(both, x1, s, v, m) + v * 3.0
    x2 = call_checkpoint(second, x1, s, v, m)
    return call_checkpoint(third, x2, s, x2, m) + x2 + v * 3.0


def begin_large(array):
    """Drop what earlier tests left, release freed memory to the system at once, and keep a large input."""
    get_ipython().user_ns.pop("trial", None)
    memory.release_freed_at_once(True)
    get_ipython().user_ns["trial"] = [Tensor(array, requires_grad=True)]


def end_large():
    """Undo `begin_large`."""
    memory.release_freed_at_once(False)
    get_ipython().user_ns.pop("trial", None)


def step_large(depths, ranges, rows, watched):
    """Take a step through layers of `depths` operations on large arrays; return rows of the result and the gradient, and the peak."""
    x = student("trial")[0]
    with memory.watch() if watched else nullcontext() as account:
        out = run_layers([LargeLayer(depth) for depth in depths], ranges, call_checkpoint, x)
        found, total = out.data[rows].copy(), out.sum()
        del out
        student("everyone").Allreduce(np.ones(1), np.empty(1))
        total.backward()
    return found, x.grad[rows].copy(), account.true_peak if watched else 0


class LargeLayer(Module):
    """A layer of some operations, each of which keeps an array of the input's size."""

    def __init__(self, depth):
        self.depth = depth

    def forward(self, x):
        y = x * traffic_gates.pass_gate()
        for i in range(1, self.depth):
            y = y + SHIFT if i % 2 else relu(y)
        return y
