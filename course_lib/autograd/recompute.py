"""Activation recomputation: keep the input of a piece of a model, and compute the rest again when `backward` needs it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from course_lib.autograd.tensor import Tensor, no_grad, run_backward


def checkpoint(function: Callable[[Tensor], Tensor], x: Tensor, then: Callable[[], object] | None = None) -> Tensor:
    """``function(x)``, of which only `x` is kept until backward (Chen et al., 2016, "Training deep nets with sublinear memory cost").

    Parameters
    ----------
    function : callable
        It is called once more in backward, and must do the same again: with the same dropout, and with collectives that all ranks make.
        A parameter in it gets its gradient then; one that is also used outside has its hooks called for both.
    x : Tensor
        Of floating point, or whole numbers, such as tokens.
    then : callable, optional
        Called in backward, when all gradients of the piece have been found, and before those of what came before it.
    """
    with no_grad():
        out = function(x).data

    def backward(grad):
        fresh = Tensor(x.data, requires_grad=x.dtype.kind not in "iu")
        run_backward(function(fresh), grad)
        if then is not None:
            then()
        return fresh.grad, None

    # The parameters in it need a gradient also where the input needs none.
    return Tensor.from_operation(out, (x, Tensor(np.empty(0), requires_grad=True)), backward)
