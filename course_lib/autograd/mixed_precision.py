"""Mixed precision training: 16-bit parameters with 32-bit master copies, and loss scaling.

Micikevicius et al., 2018, "Mixed precision training", sections 3.1 and 3.2. A step that is small compared with its parameter would be lost
in 16 bits, so it is applied to the 32-bit copy. A small gradient would be 0 in float16, so the loss, and with it all gradients, is
multiplied by a scale, which is divided out before the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from course_lib.autograd.modules import Parameter
from course_lib.autograd.optimizers import Optimizer
from course_lib.autograd.tensor import Tensor, array_namespace
from course_lib.trace.recorder import operation

MIN_LOSS_SCALE = 1.0  # the scale goes no lower: a value that is infinite then is infinite without scaling


class MixedPrecision:
    """Optimize 16-bit parameters through 32-bit master copies.

    Parameters
    ----------
    params : iterable of Parameter
        float16, or bfloat16 of `ml_dtypes`; other dtypes may be mixed in.
    optimizer : callable
        Makes the optimizer of the copies, for example ``lambda copies: Adam(copies, lr=1e-3)``.
    scale : float
        Initial factor of the loss. It is halved when a gradient is not finite, and that step is skipped.
    interval : int
        Number of consecutive finite steps after which the scale is doubled.
    comm : Communicator, optional
        The ranks that must skip a step together, as a gradient may be infinite on one of them only.

    Attributes
    ----------
    master_params : list of Parameter
        float32.
    optimizer : Optimizer
    scale : float

    Examples
    --------
    >>> from course_lib.autograd import SGD
    >>> w = Parameter(np.ones(1, np.float16))
    >>> mixed = MixedPrecision([w], lambda copies: SGD(copies, lr=1e-4))
    >>> for _ in range(10):  # each step alone is too small for float16
    ...     mixed.zero_grad()
    ...     mixed.scale_loss(w.sum()).backward()
    ...     assert mixed.step()
    >>> float(w.data[0])
    0.9990234375
    """

    def __init__(
        self,
        params: Iterable[Parameter],
        optimizer: Callable[[list[Parameter]], Optimizer],
        scale: float = 2.0**12,
        interval: int = 1000,
        comm=None,
    ):
        self.params = list(params)
        self.master_params = [Parameter(p.data.astype(np.float32)) for p in self.params]
        self.optimizer = optimizer(self.master_params)
        self.scale, self.interval, self.comm, self._good_steps = float(scale), interval, comm, 0

    def zero_grad(self) -> None:
        """Reset all gradients to None."""
        for p in (*self.params, *self.master_params):
            p.grad = None

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Scale the loss; call `backward` on the result."""
        return loss * self.scale

    @operation
    def step(self) -> bool:
        """Update the parameters, unless a gradient is not finite on some rank.

        Returns
        -------
        bool
            Whether the step was taken.
        """
        finite = True
        for p, copy in zip(self.params, self.master_params, strict=True):
            copy.grad = None if p.grad is None else p.grad.astype(np.float32) * np.float32(1 / self.scale)
            finite = finite and (copy.grad is None or bool(array_namespace(copy.grad).isfinite(copy.grad).all()))
        if not self._all(finite):
            self.scale, self._good_steps = max(MIN_LOSS_SCALE, self.scale / 2), 0
            return False
        self.optimizer.step()
        for p, copy in zip(self.params, self.master_params, strict=True):
            p.data[...] = copy.data
        self._good_steps += 1
        if self._good_steps % self.interval == 0:
            self.scale *= 2
        return True

    def _all(self, finite: bool) -> bool:
        if self.comm is None:
            return finite
        mine, everyone = np.array([float(not finite)]), np.empty(1)
        self.comm.Allreduce(mine, everyone)
        return not everyone[0]
