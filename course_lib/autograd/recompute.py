"""Activation recomputation: keep only the input of a part of a model, and recompute the rest when `backward` needs it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from course_lib.autograd.tensor import Tensor, no_grad, run_backward


def checkpoint(function: Callable[[Tensor], Tensor], x: Tensor, then: Callable[[], object] | None = None) -> Tensor:
    """Compute ``function(x)``, keeping only `x` for backward (Chen et al., 2016, "Training deep nets with sublinear memory cost").

    Parameters
    ----------
    function : callable
        Called again in backward, where it must do the same: with the same dropout, and with collectives that all ranks call.
        Parameters in it get their gradients then; the hooks of one that is also used elsewhere are called for both.
    x : Tensor
        Floating point, or integers such as tokens.
    then : callable, optional
        Called in backward when all gradients of this part are complete, before those of earlier operations.
    """
    with no_grad():
        out = function(x).data

    def backward(grad):
        fresh = Tensor(x.data, requires_grad=x.dtype.kind not in "iu")
        run_backward(function(fresh), grad)
        if then is not None:
            then()
        return fresh.grad, None

    # Its parameters need gradients even if the input does not.
    return Tensor.from_operation(out, (x, Tensor(np.empty(0), requires_grad=True)), backward)
