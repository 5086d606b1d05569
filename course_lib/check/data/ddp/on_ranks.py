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
    """Identity in forward; backward waits here for the numbers of the other ranks' lowest gates, and of those below the first layer."""

    def passed(self, grad):
        number, product = np.empty(1), 1.0
        for other in range(self.between.Get_size()):
            for _ in range(2 * (other != self.between.Get_rank())):
                self.between.Recv(number, source=other)
                product *= float(number[0])
        return gate_gradient(grad, product)


class Net(Module):
    """Blocks of linear layers with tanh and a gate in between, and one layer that is not used.

    Parameters
    ----------
    start, bottom : Gate or None
        The first in backward, above all layers, and the last one, below all layers.
    unused : int
        Layers that are not used: the first one, or none.
    """

    def __init__(self, values, branches, reverse, gate, start=None, bottom=None, unused=1):
        self.layers = [Linear(*w.shape, dtype=w.dtype) for w in values[::2]]
        self.branches, self.reverse = branches, reverse
        self.blocks, self.skip = range(unused, len(self.layers), branches), None
        self.gates, self.start, self.bottom = [gate(i == 0) for i in range(len(self.blocks) - 1)], start, bottom
        for p, v in zip(self.parameters(), values, strict=True):
            p.data = v.copy()

    def forward(self, x):
        if self.bottom:
            x = self.bottom(Tensor(x.data if isinstance(x, Tensor) else x, requires_grad=True))
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

    def skipped(self):
        """Return the parameters of the branches that are left out."""
        layers = [self.layers[i + self.skip] for i in self.blocks] if self.skip is not None else []
        return [p for layer in layers for p in layer.parameters()]


def wrap_model(values, size, branches=1, bucket_bytes=None, late=None, second=None):
    """Wrap a model with gates between its blocks, on the first ranks; return its initial parameters.

    Parameters
    ----------
    values, second : list of numpy.ndarray
        Parameters of the model, and of another one that is wrapped, too, if it is given: one without an unused layer.
    branches : int
        Layers side by side in a block, 1 or 2. Ranks with an odd number use them in another order, so the order of hooks differs, too.
    bucket_bytes : int, optional
        Passed to `MyDP` if it is given.
    late : int, optional
        The rank that begins its backward only when all other ranks have reached their lowest gate, and one below the first layer, which
        they reach after the last hook.
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

    bottom = None if late is None else gate(lowest=True)
    start = LateStart(trial, between) if late == me else None
    models = [Net(values, branches, me % 2 > 0, gate, start, bottom)]
    if second is not None:
        models.append(Net(second, branches, me % 2 > 0, gate, unused=0))
    with without_builtin_ddp():
        wrapped = [MyDP(model) if bucket_bytes is None else MyDP(model, bucket_bytes) for model in models]
    trial["models"] = list(zip(models, wrapped, strict=True))
    parameters = [p for model in models for p in model.parameters()]
    if any(p.data is None for p in parameters):
        raise ValueError("A parameter's data is None. Collectives return nothing: they fill the array that they are given.")
    return [p.data.copy() for p in parameters]


def train_step(x, target, lr, through_gates, skip=None, trained=(0,), keep=False):
    """Take a training step on the first ranks; return all parameters after it, and their gradients.

    Parameters
    ----------
    skip : int, optional
        The branch that all blocks leave out.
    trained : tuple of int
        Which of the models are trained; several with one backward.
    keep : bool
        Whether parameters of branches that are left out keep the gradients of the step before.
    """
    trial = student("trial")
    if "models" not in trial:
        return None
    trial["gates"], parameters = through_gates, []
    for model, _ in trial["models"]:
        model.skip = skip
        kept = [id(p) for p in model.skipped()] if keep else []
        for p in model.parameters():
            p.grad = p.grad if id(p) in kept else None
            parameters.append(p)
    chosen, loss = [trial["models"][i][1] for i in trained], 0.0
    with without_builtin_ddp():
        for wrapped in chosen:
            out = wrapped(x)
            if not isinstance(out, Tensor):
                raise TypeError(f"MyDP.forward must return the model's output, a Tensor; got {out!r}.")
            loss = (out * target).sum() * (1 / len(x)) + loss
        loss.backward()
        for request in trial["told"]:
            request.Wait()
        trial["told"].clear()
        for wrapped in chosen:
            SGD(wrapped.parameters(), lr).step()
    return [p.data.copy() for p in parameters], [p.grad for p in parameters]


@contextmanager
def without_builtin_ddp():
    """Make the ready-made wrapper unusable inside a `with` block, also through saved references."""

    def not_here(*_, **__):
        raise TypeError("The ready-made DistributedDataParallel belongs to part 13. Write MyDP yourself, with hooks and all-reduces.")

    answer = student("MyDP")
    if isinstance(answer, type) and issubclass(answer, DistributedDataParallel):
        not_here()
    make = DistributedDataParallel.__init__
    code, make.__code__ = make.__code__, not_here.__code__
    try:
        yield
    finally:
        make.__code__ = code


def restore_comm():
    everyone = student("everyone")
    get_ipython().user_ns["comm"] = everyone
