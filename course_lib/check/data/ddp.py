"""Check of part 14's `MyDP`: steps against a single process, and gates that show when gradients are exchanged.

`wrap_model`, `train_step` and `restore_comm` run on the ranks, `DdpCheck` in the notebook's kernel.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import numpy as np

from course_lib.autograd import SGD, Linear, Module, Tensor, operations
from course_lib.check import Check
from course_lib.cluster.replies import RanksError
from course_lib.ddp import DistributedDataParallel
from course_lib.engine import traffic_gates
from course_lib.engine.namespace import get_ipython, student


def wrap_model(values, size):
    """Wrap a model with gates between its layers, on the first ranks; return its initial parameters."""
    everyone, MyDP = student("everyone"), student("MyDP")

    class Gate(Module):
        """Identity in forward; backward changes the gradient by a number, received once enough has been sent."""

        def forward(self, x):
            return Tensor.from_operation(
                x.data, (x,), lambda grad: (gate_gradient(grad, traffic_gates.pass_gate()) if trial["gates"] else grad,)
            )

    class Net(Module):
        """Linear layers with tanh and a gate in between, and one unused layer."""

        def __init__(self):
            self.layers = [Linear(*w.shape, dtype=w.dtype) for w in values[::2]]
            self.gates = [Gate() for _ in self.layers]
            for p, v in zip(self.parameters(), values, strict=True):
                p.data = v.copy()

        def forward(self, x):
            for layer, gate in zip(self.layers[:-2], self.gates[1:], strict=False):
                x = gate(operations.tanh(layer(x)))
            return self.layers[-2](x)

    names = get_ipython().user_ns
    trial = names["trial"] = {}
    names["comm"] = everyone.Split(color=int(everyone.Get_rank() >= size))
    if everyone.Get_rank() >= size:
        return None
    with without_builtin_ddp():
        trial["model"] = model = Net()
        trial["wrapped"] = MyDP(model)
    if any(p.data is None for p in model.parameters()):
        raise ValueError("A parameter's data is None. Collectives return nothing: they fill the array that they are given.")
    return [p.data.copy() for p in model.parameters()]


def train_step(x, target, lr, through_gates):
    """Take a training step on the first ranks; return all parameters after it, and their gradients."""
    trial = student("trial")
    if not trial:
        return None
    trial["gates"], parameters = through_gates, trial["model"].parameters()
    with without_builtin_ddp():
        for p in parameters:
            p.grad = None
        out = trial["wrapped"](x)
        if not isinstance(out, Tensor):
            raise TypeError(f"MyDP.forward must return the model's output, a Tensor; got {out!r}.")
        ((out * target).sum() * (1 / len(x))).backward()
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


def gate_gradient(grad, number):
    """Apply a gate to a gradient: nonlinearly, so that reducing only after backward cannot give the right result."""
    return grad * np.where(grad > 0, grad.dtype.type(number), grad.dtype.type(number / 4))


def restore_comm():
    everyone = student("everyone")
    get_ipython().user_ns["comm"] = everyone


def reference_gradients(values, x, target, numbers=()):
    """Gradients of a single process, with gates of these numbers, the last layer's first."""
    outputs, grads, n = [x], [np.zeros_like(v) for v in values], len(values) - 2
    for i in range(0, n, 2):
        out = outputs[-1] @ values[i] + values[i + 1]
        outputs.append(np.tanh(out) if i < n - 2 else out)
    grad, numbers = target / len(x), iter(numbers)
    for i in reversed(range(0, n, 2)):
        grads[i], grads[i + 1] = outputs[i // 2].T @ grad, grad.sum(axis=0)
        below = grad @ values[i].T
        grad = (gate_gradient(below, number) if (number := next(numbers, None)) else below) * (1 - outputs[i // 2] ** 2)
    return grads


def _known_mistakes(before, grads, x, target, size, rank):
    """Parameters after steps with wrong gradients, by the mistake that gives them."""
    own = reference_gradients(before, x[rank], target[rank])
    return {
        "as before the step": before,
        "after a step with the sum, not the mean": [w - 0.1 * size * g for w, g in zip(before, grads, strict=True)],
        "after a step with the gradient of this rank's own samples (a hook that returns None changes nothing)": [
            w - 0.1 * g for w, g in zip(before, own, strict=True)
        ],
        "after a step with this rank's own gradient divided by the number of ranks": [
            w - 0.1 / size * g for w, g in zip(before, own, strict=True)
        ],
    }


def _gradient_scale(grads, wants):
    """Factor between the gradients and the sums over all ranks; `train` checks that it is the mean, and of which model."""
    if any(np.shape(g) != w.shape for g, w in zip(grads, wants, strict=False)):
        return 1.0  # the comparison reports it
    return sum(float(np.vdot(g, w)) for g, w in zip(grads, wants, strict=False)) / sum(float(np.vdot(w, w)) for w in wants)


class DdpCheck(Check):
    """A `Check` of a data parallel wrapper on the first ranks of `ranks`."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks

    def train(self, size: int = 4, layers: int = 3, steps: int = 3, dtype: type = np.float64) -> None:
        """Train on `size` ranks, and compare with training on the whole batch."""
        values, dims, samples = self._draw(size, layers, dtype)
        want = values[0]

        def compare(answers, when, cause, known):
            for r, parameters in enumerate(answers):
                mistakes = known(r)
                for i, (got, expected) in enumerate(zip(parameters, want, strict=True)):
                    name, rtol = f"parameter {i} {when}", 1e-9 if dtype is np.float64 else 1e-3
                    instead = {what: arrays[i] for what, arrays in mistakes.items()}
                    self.array(got, expected, name=name, rank=r, rtol=rtol, scale=3.0, cause=cause, instead=instead)

        answers = self.ranks.call(wrap_model, [dict(values=v, size=size) for v in values], show=self.show)[:size]
        cause = "a parameter that is not broadcast, or a root other than rank 0"
        compare(answers, "at the start", cause, lambda r: {f"that of rank {k}": each for k, each in enumerate(values[:size]) if k})
        for number in range(1, steps + 1):
            x, target = (self.random.standard_normal((size, samples, n)).astype(dtype) for n in (dims[0], dims[-1]))
            answers = self._step(size, x, target, lr=0.1)
            if size > 1 and not any(payload for rank in self.ranks.traffic[:size] for *_, payload in rank):
                cause = (
                    "hooks that are not registered, or that wait until the hooks of all parameters have run (the unused layer's never do)"
                )
                self.fail(f"no gradient was exchanged in step {number}", cause)
            grads = reference_gradients(want, x.reshape(-1, dims[0]), target.reshape(-1, dims[-1]))
            before, want = want, [w - dtype(0.1) * g for w, g in zip(want, grads, strict=True)]
            cause = "a hook that does not return the mean, the mean of another gradient, or hooks that are registered again in each forward"
            known = partial(_known_mistakes, before, grads, x, target, size)
            compare([p for p, _ in answers], f"after step {number}", cause, known)
        self.ranks.call(restore_comm)

    def exchanges(self, size: int = 4, layers: int = 3, dtype: type = np.float64) -> None:
        """Check when gradients are exchanged: a gradient passes a gate once those above have been exchanged, and is changed there."""
        values, dims, samples = self._draw(size, layers, dtype)
        sizes = [v.nbytes for v in values[0][:-2]]
        self.ranks.call(wrap_model, [dict(values=v, size=size) for v in values], show=self.show)
        most, rtol = 2 * (size - 1) / size * sum(sizes), 1e-9 if dtype is np.float64 else 1e-3
        for _ in range(2):
            x, target = (self.random.standard_normal((size, samples, n)).astype(dtype) for n in (dims[0], dims[-1]))
            numbers = self.random.uniform(0.5, 2, layers - 1)
            gates = [(sum(sizes[-2 * (j + 1) :]), float(f)) for j, f in enumerate(numbers)]
            try:
                answers = self._step(size, x, target, lr=0.0, gates=gates)
            except RanksError as error:
                if "TooEarly" not in error.short:
                    raise
                self.fail(
                    f"backward continues before the gradients above have been exchanged ({error.short})", "collectives after backward"
                )
            own = [reference_gradients(parameters, x[r], target[r], numbers) for r, (parameters, _) in enumerate(answers)]
            sums = [sum(each) for each in zip(*own, strict=True)]
            for r, (_, grads) in enumerate(answers):
                if any(getattr(g, "dtype", None) != dtype for g in grads[:-2]) or any(g is not None for g in grads[-2:]):
                    self.fail(f"rank {r} has gradients of the wrong dtype, or a gradient for the unused layer", "np.empty without dtype=")
                self.sent(self.ranks.traffic[r], most, name="a step", rank=r, cause="gradients that are exchanged twice")
                wants = sums[:-2]
                share = min(max(_gradient_scale(grads, wants), 1e-3), 10.0)
                for i, want in enumerate(wants):
                    cause = "gradients that are not averaged over all ranks, or not computed by the model's own backward"
                    name, want = f"gradient {i}, scaled during the step,", (want * share).astype(dtype)
                    self.array(grads[i], want, name=name, rank=r, rtol=rtol, scale=3.0 * share, cause=cause)
        self.ranks.call(restore_comm)

    def _draw(self, size: int, layers: int, dtype: type) -> tuple[list, list[int], int]:
        """Draw parameters for each of four ranks, the layer sizes, and the number of samples per rank."""
        dims, samples = [int(d) for d in self.random.integers(1, 8, layers + 1)], int(self.random.integers(1, 5))
        self.case = f"{size} ranks with {samples} samples each, layers {' x '.join(map(str, dims))}, {np.dtype(dtype)}"
        shapes = [shape for a, b in zip([*dims[:-1], 2], [*dims[1:], 3], strict=True) for shape in ((a, b), (b,))]
        return [[self.random.standard_normal(s).astype(dtype) for s in shapes] for _ in range(4)], dims, samples

    def _step(self, size: int, x: np.ndarray, target: np.ndarray, lr: float, gates: list | None = None) -> list:
        given = [dict(x=x[r % size], target=target[r % size], lr=lr, through_gates=gates is not None) for r in range(4)]
        return self.ranks.call(train_step, given, show=self.show, gates=gates)[:size]
