"""Functions that the check of part 32's `checkpoint` runs on the ranks; see `recompute.check`."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from course_lib import memory
from course_lib.autograd import Module, Tensor, after_backward, no_grad, tensor
from course_lib.autograd.operations import relu
from course_lib.autograd.random_states import random_states
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


def run_schedule(schedule, batches, nested):
    """Run micro-batches: forward ("F"), backward ("B"), or forward without gradients ("E"), with an all-reduce after each."""
    comm, segments, extra = student("trial")
    found, running, complete = [None] * len(batches), {}, []

    def note(_):
        after_backward(lambda: complete.append(segments[0].table.grad is not None))

    remove = segments[2].weight.register_hook(note)
    for what, i in schedule:
        if what == "E":
            with no_grad():
                found[i] = _forward(segments, batches[i], nested)[0].data
        elif what == "F":
            running[i] = _forward(segments, batches[i], nested)
        else:
            out, v = running.pop(i)
            data = out.data
            out.backward(batches[i]["grad"])
            found[i] = data, v.grad
        comm.Allreduce(np.ones(1), np.empty(1))
    remove()
    grads = [p.grad for p in (segments[0].table, *(s.weight for s in segments))]
    for p in (segments[0].table, *(s.weight for s in segments)):
        p.grad = None
    drawn = [random_states[name].random(3) for name in ("replicated", "sharded", extra)]
    return found, grads, complete, drawn


def _forward(segments, batch, nested):
    first, second, third = segments
    v = Tensor(batch["v"].copy(), requires_grad=True)
    m = Tensor(batch["m"])
    x1 = call_checkpoint(first, Tensor(batch["tokens"]), batch["s"], Tensor(batch["v0"]), Tensor(batch["m0"]))
    if nested:

        def both(x, s, v, m):
            y = call_checkpoint(second, x, s, v, m)
            return third(y, s, y, m) + y

        return call_checkpoint(both, x1, batch["s"], v, m) + v * 3.0, v
    x2 = call_checkpoint(second, x1, batch["s"], v, m)
    return call_checkpoint(third, x2, batch["s"], x2, m) + x2 + v * 3.0, v


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
