"""Functions that part 14's check runs on the ranks; see `ddp.check`."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

from course_lib.autograd import SGD, Linear, Module, Tensor, operations
from course_lib.check.data.ddp.reference import gate_gradient
from course_lib.ddp import DistributedDataParallel
from course_lib.engine import traffic_gates
from course_lib.engine.namespace import get_ipython, student


class Gate(Module):
    """Identity in forward; backward changes the gradient by a number, received once enough has been sent.

    Parameters
    ----------
    trial : dict
        "gates": whether gates act in this step; "told": requests of the numbers sent.
    between : Communicator
        The group, for the check's own messages.
    tell : int or None
        The rank to which the number is sent.
    """

    def __init__(self, trial, between, tell=None):
        self.trial, self.between, self.tell = trial, between, tell

    def forward(self, x):
        return Tensor.from_operation(x.data, (x,), lambda grad: (self.passed(grad) if self.trial["gates"] else grad,))

    def passed(self, grad):
        number = traffic_gates.pass_gate()
        if self.tell is not None:
            self.trial["told"].append(self.between.Isend(np.array([number]), dest=self.tell))
        return gate_gradient(grad, number)


class LateStart(Gate):
    """Identity in forward; backward waits here for the numbers of the other ranks' lowest gates."""

    def passed(self, grad):
        number, product = np.empty(1), 1.0
        for other in range(self.between.Get_size()):
            if other != self.between.Get_rank():
                self.between.Recv(number, source=other)
                product *= float(number[0])
        return gate_gradient(grad, product)


class Net(Module):
    """Blocks of linear layers with tanh and a gate in between, and one layer that is not used."""

    def __init__(self, values, branches, reverse, gate, start):
        self.layers = [Linear(*w.shape, dtype=w.dtype) for w in values[::2]]
        self.branches, self.reverse = branches, reverse
        self.blocks, self.skip = range(1, len(self.layers), branches), None
        self.gates, self.start = [gate(i == 0) for i in range(len(self.blocks) - 1)], start
        for p, v in zip(self.parameters(), values, strict=True):
            p.data = v.copy()

    def forward(self, x):
        for i, gate in zip(self.blocks[:-1], self.gates, strict=True):
            x = gate(operations.tanh(self.block(i, x)))
        out = self.block(self.blocks[-1], x)
        return self.start(out) if self.start else out

    def block(self, i, x):
        if self.branches == 1:
            return self.layers[i](x)
        order = sorted(range(self.branches), reverse=self.reverse)
        outs = [self.layers[i + j](x) * (j + 1) for j in order if j != self.skip]
        return outs[0] + outs[1] if len(outs) > 1 else outs[0]


def wrap_model(values, size, branches=1, bucket_bytes=None, late=None):
    """Wrap a model with gates between its blocks, on the first ranks; return its initial parameters.

    Parameters
    ----------
    branches : int
        Layers side by side in a block, 1 or 2. Ranks with an odd number use them in another order, so the order of hooks differs, too.
    bucket_bytes : int, optional
        Passed to `MyDP` if it is given.
    late : int, optional
        The rank that begins its backward only when all other ranks have reached their lowest gate.
    """
    everyone, MyDP = student("everyone"), student("MyDP")
    names = get_ipython().user_ns
    trial = names["trial"] = {"told": []}
    comm = names["comm"] = everyone.Split(color=int(everyone.Get_rank() >= size))
    between = everyone.Split(color=int(everyone.Get_rank() >= size))
    if everyone.Get_rank() >= size:
        return None
    me = comm.Get_rank()

    def gate(lowest):
        return Gate(trial, between, late if lowest and late is not None and late != me else None)

    with without_builtin_ddp():
        start = LateStart(trial, between) if late == me else None
        trial["model"] = model = Net(values, branches, me % 2 > 0, gate, start)
        trial["wrapped"] = MyDP(model) if bucket_bytes is None else MyDP(model, bucket_bytes)
    if any(p.data is None for p in model.parameters()):
        raise ValueError("A parameter's data is None. Collectives return nothing: they fill the array that they are given.")
    return [p.data.copy() for p in model.parameters()]


def train_step(x, target, lr, through_gates, skip=None):
    """Take a training step on the first ranks; return all parameters after it, and their gradients."""
    trial = student("trial")
    if "model" not in trial:
        return None
    trial["model"].skip = skip
    trial["gates"], parameters = through_gates, trial["model"].parameters()
    with without_builtin_ddp():
        for p in parameters:
            p.grad = None
        out = trial["wrapped"](x)
        if not isinstance(out, Tensor):
            raise TypeError(f"MyDP.forward must return the model's output, a Tensor; got {out!r}.")
        ((out * target).sum() * (1 / len(x))).backward()
        for request in trial["told"]:
            request.Wait()
        trial["told"].clear()
        SGD(trial["wrapped"].parameters(), lr).step()
    return [p.data.copy() for p in parameters], [p.grad for p in parameters]


@contextmanager
def without_builtin_ddp():
    """Make the ready-made wrapper unusable inside a `with` block, also through saved references."""

    def not_here(*_, **__):
        raise TypeError("The ready-made DistributedDataParallel belongs to part 13. Write MyDP yourself, with hooks and all-reduces.")

    make = DistributedDataParallel.__init__
    code, make.__code__ = make.__code__, not_here.__code__
    try:
        yield
    finally:
        make.__code__ = code


def restore_comm():
    everyone = student("everyone")
    get_ipython().user_ns["comm"] = everyone
