"""Optimizers, which update parameters in place."""

from __future__ import annotations

from collections.abc import Iterable

from course_lib.autograd.modules import Parameter
from course_lib.autograd.tensor import array_namespace
from course_lib.trace.recorder import operation


class Optimizer:
    """Base class of all optimizers; a parameter without a gradient is left unchanged.

    Attributes
    ----------
    params : list of Parameter
    lr : float
        Learning rate; may be changed between steps.
    """

    def __init__(self, params: Iterable[Parameter], lr: float, weight_decay: float = 0.0):
        self.params, self.lr, self.weight_decay = list(params), lr, weight_decay
        if not self.params:
            raise ValueError("an optimizer needs parameters; got none.")

    def zero_grad(self) -> None:
        """Reset all gradients to None."""
        for p in self.params:
            p.grad = None

    @operation
    def step(self) -> None:
        """Update the parameters with their gradients."""
        for i, p in enumerate(self.params):
            if p.grad is not None:
                try:
                    self._update(i, p, p.grad + self.weight_decay * p.data if self.weight_decay else p.grad)
                except ValueError:
                    if p.grad.shape == p.data.shape:
                        raise
                    hint = "Is it the gradient of another parameter? A hook that is defined in a loop and sets p.grad uses the p of the "
                    hint += "loop's last iteration: it should return the gradient."
                    if p.grad.size == p.data.size:
                        hint = "It has as many elements: is a reshape to the parameter's shape missing?"
                    what = f"parameter {i} has shape {p.data.shape}, but its gradient has shape {p.grad.shape}."
                    raise ValueError(f"{what} {hint}") from None

    def _update(self, i: int, p: Parameter, grad) -> None:
        raise NotImplementedError


class SGD(Optimizer):
    """Gradient descent with optional momentum: ``velocity = momentum * velocity + grad; p -= lr * velocity``.

    With Nesterov's momentum, as in PyTorch: ``p -= lr * (grad + momentum * velocity)``.

    Parameters
    ----------
    params : iterable of Parameter
    lr : float
    momentum : float
    weight_decay : float
        Fraction of the parameter that is added to its gradient.
    nesterov : bool

    Attributes
    ----------
    velocity : dict of int to array
        By index of the parameter in `params`; no entry before its first step, and none without momentum.
    """

    def __init__(self, params: Iterable[Parameter], lr: float, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False):
        super().__init__(params, lr, weight_decay)
        self.momentum, self.nesterov, self.velocity = momentum, nesterov, {}

    def _update(self, i: int, p: Parameter, grad) -> None:
        if self.momentum:
            if i in self.velocity:
                self.velocity[i] *= self.momentum
                self.velocity[i] += grad
            else:
                self.velocity[i] = grad.copy()
            grad = grad + self.momentum * self.velocity[i] if self.nesterov else self.velocity[i]
        p.data -= p.data.dtype.type(self.lr) * grad


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015, algorithm 1); the weight decay is added to the gradient.

    Attributes
    ----------
    state : dict of int to tuple
        By index of the parameter in `params`: the number of its steps, and the two moments; no entry before its first step.
    """

    def __init__(
        self,
        params: Iterable[Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, lr, weight_decay)
        self.betas, self.eps, self.state = betas, eps, {}

    def _update(self, i: int, p: Parameter, grad) -> None:
        xp, (one, two) = array_namespace(p.data), self.betas
        t, m, v = self.state.get(i) or (0, xp.zeros_like(p.data), xp.zeros_like(p.data))
        t += 1
        m *= one
        m += (1 - one) * grad
        v *= two
        v += (1 - two) * grad * grad
        self.state[i] = t, m, v
        p.data -= (self.lr / (1 - one**t)) * m / (xp.sqrt(v / (1 - two**t)) + self.eps)
