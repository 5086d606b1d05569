"""`Tensor`: an array that records how it was computed, so that gradients can flow back (reverse-mode differentiation).

Each operation creates a new tensor and stores in it a function that computes the gradients of the inputs from the gradient of
the result. `backward` calls these functions, the last operation first, and sums the gradients that arrive at each tensor (Baydin
et al., 2018, "Automatic differentiation in machine learning: a survey", section 3.2). Arithmetic operators are added by
`operations`.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

_creation_counter = itertools.count()
_grad_enabled = True
_after_backward: list[Callable[[], None]] = []


def array_namespace(array: object):
    """Module with the functions for an array: NumPy, or CuPy for an array on a GPU."""
    cupy = sys.modules.get("cupy")
    return cupy.get_array_module(array) if cupy is not None else np


def grad_enabled() -> bool:
    """Return whether operations build a graph; False within `no_grad`."""
    return _grad_enabled


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing for `backward` inside a `with` block, which saves memory in evaluation."""
    global _grad_enabled
    before, _grad_enabled = _grad_enabled, False
    try:
        yield
    finally:
        _grad_enabled = before


def after_backward(function: Callable[[], None]) -> None:
    """Call a function once, when the current `backward` has computed all gradients."""
    _after_backward.append(function)


class Tensor:
    """An array in a computation.

    Parameters
    ----------
    data : array_like
        NumPy or CuPy; not copied.
    requires_grad : bool
        Whether `backward` should accumulate a gradient in `grad`.

    Attributes
    ----------
    data : numpy.ndarray
    grad : numpy.ndarray or None
        Sum of all gradients since it was last None; same shape and dtype as `data`.
    grad_buffer : numpy.ndarray or None
        Array that an operation may write the next gradient to, saving memory and a copy.

    Examples
    --------
    >>> w = Tensor([3.0, 4.0], requires_grad=True)
    >>> loss = (w * w).sum()
    >>> loss.backward()
    >>> w.grad.tolist()
    [6.0, 8.0]
    """

    __slots__ = ("__weakref__", "_backward", "_hooks", "_inputs", "_lent_buffer", "_number", "data", "grad", "grad_buffer", "requires_grad")
    __array_priority__ = 1000  # so that array + tensor calls this class

    def __init__(self, data: object, requires_grad: bool = False):
        self.data = data if hasattr(data, "dtype") and hasattr(data, "shape") else np.asarray(data)
        if requires_grad and self.data.dtype.kind != "f" and self.data.dtype.name != "bfloat16":
            raise TypeError(f"only floating point tensors have gradients; this one has dtype {self.data.dtype}.")
        self.grad, self.requires_grad = None, requires_grad
        self.grad_buffer = self._lent_buffer = None
        self._inputs, self._backward, self._hooks, self._number = (), None, None, next(_creation_counter)

    @classmethod
    def from_operation(cls, data: object, inputs: Sequence[Tensor], backward: Callable) -> Tensor:
        """Make a tensor that is the result of an operation.

        Parameters
        ----------
        data : numpy.ndarray
        inputs : sequence of Tensor
        backward : callable
            Computes the gradients of the inputs from the gradient of the result, one each; None for an input without one.
        """
        result = Tensor(data)
        if _grad_enabled:
            for source in inputs:
                if source.requires_grad:
                    result.requires_grad, result._inputs, result._backward = True, tuple(inputs), backward
                    break
        return result

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.data.shape

    @property
    def dtype(self):
        """Dtype of the array."""
        return self.data.dtype

    def item(self) -> float:
        """Return the only number of a tensor."""
        return self.data.item()

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return f"Tensor({self.data!r}{', requires_grad=True' if self.requires_grad else ''})"

    def register_hook(self, hook: Callable) -> Callable[[], None]:
        """Call a function in `backward` as soon as this tensor's gradient is final.

        Parameters
        ----------
        hook : callable
            Receives the gradient, an array of the tensor's shape; a return value other than None replaces it. A hook that changes
            the array in place changes the gradient, too.

        Returns
        -------
        callable
            Call it to remove the hook.
        """
        if not self.requires_grad:
            raise ValueError("register_hook: this tensor has no gradient (requires_grad is False).")
        if not callable(hook):
            raise TypeError(f"register_hook: the hook must be a function; got {hook!r}. (Pass the function itself, without ().)")
        self._hooks = self._hooks or {}
        key = next(_creation_counter)
        self._hooks[key] = hook
        return lambda: self._hooks.pop(key, None)

    def take_grad_buffer(self) -> object:
        """Return the array that the gradient may be written to, once; None if there is none or an earlier gradient is kept."""
        if self.grad_buffer is None or self.grad is not None:
            return None
        self._lent_buffer, self.grad_buffer = self.grad_buffer, None
        return self._lent_buffer

    def backward(self, grad: object = None) -> None:
        """Compute the gradients of this tensor with respect to everything it was computed from, and add them to their `grad`.

        Parameters
        ----------
        grad : array_like, optional
            Gradient of this tensor itself; 1 for a single number.

        Raises
        ------
        ValueError
            There is no gradient to compute, it was computed before, or `grad` is missing or has another shape.
        """
        if not self.requires_grad:
            raise ValueError(
                "backward: nothing that this tensor was computed from requires a gradient, or its backward has been called before."
            )
        if grad is None:
            if self.data.size != 1:
                raise ValueError(
                    f"backward: this tensor has shape {self.shape}, so it needs `grad`: only a single number, such as a loss, does not."
                )
            grad = array_namespace(self.data).ones_like(self.data)
        if grad.shape != self.shape:
            raise ValueError(f"backward: grad has shape {grad.shape}, but the tensor has shape {self.shape}.")
        try:
            run_backward(self, grad)
            while _after_backward:
                _after_backward.pop(0)()
        finally:
            _after_backward.clear()


def run_backward(root: Tensor, grad: object) -> None:
    """Call the backward functions, the last operation first; a gradient is final once all uses of its tensor have added to it."""
    uses: dict[int, int] = {id(root): 0}
    todo = [root]
    while todo:
        for tensor in todo.pop()._inputs:
            if tensor.requires_grad:
                if id(tensor) not in uses:
                    uses[id(tensor)] = 0
                    todo.append(tensor)
                uses[id(tensor)] += 1
    grads, ready = {id(root): grad}, []
    _finalize(root, grads, ready)
    while ready:
        _, tensor = heapq.heappop(ready)
        inputs, backward, grad = tensor._inputs, tensor._backward, grads.pop(id(tensor), None)
        tensor._inputs, tensor._backward, tensor.requires_grad = (), None, False  # free what it held
        # No gradient reached this tensor and none leaves it, but its inputs still count this use.
        parts = [None] * len(inputs) if grad is None else backward(grad)
        if not isinstance(parts, (tuple, list)) or len(parts) != len(inputs):
            raise TypeError(_tuple_error(backward, parts, len(inputs)))
        for source, part in zip(inputs, parts, strict=True):
            if not source.requires_grad:
                continue
            key = id(source)
            if part is not None:
                if getattr(part, "shape", None) != source.shape:
                    raise ValueError(_shape_error(backward, part, source))
                if key in grads:
                    part = grads[key] + part
                elif source._backward is None and (part is grad or part.base is not None) and part is not source._lent_buffer:
                    part = part.copy()  # a leaf's gradient must not share memory with another
                grads[key] = part
            uses[key] -= 1
            if not uses[key]:
                _finalize(source, grads, ready)


def _tuple_error(backward: Callable, parts: object, inputs: int) -> str:
    """Error message for an operation's backward that does not return one gradient per input."""
    got = f"an array of shape {parts.shape}" if hasattr(parts, "shape") else type(parts).__name__
    got += f" of {len(parts)}" if isinstance(parts, (tuple, list)) else ""
    return (
        f"an operation's backward ({_source_location(backward)}) must return a tuple with a gradient "
        f"for each input, {inputs} here; got {got}. "
        "(A tuple with one element needs a comma: (grad,). The operation's inputs are a tuple, too: (x,).)"
    )


def _shape_error(backward: Callable, part: object, source: Tensor) -> str:
    """Error message for an operation's backward that returns a gradient of the wrong shape."""
    got = part.shape if hasattr(part, "shape") else repr(part)[:80]
    where = _source_location(backward)
    return f"an operation's backward ({where}) must return a gradient of the shape of its input, {source.shape}; got {got}."


def _source_location(hook: Callable) -> str:
    """Location of a function's definition, such as "cell [5], line 3"."""
    code = getattr(hook, "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else "not a Python function"


def _finalize(tensor: Tensor, grads: dict[int, object], ready: list) -> None:
    """Process a complete gradient: call the hooks, then keep it or pass it on."""
    grad = grads.get(id(tensor))
    if grad is None:
        if tensor._backward is not None:
            heapq.heappush(ready, (-tensor._number, tensor))
        return
    for hook in list((tensor._hooks or {}).values()):
        changed = hook(grad)
        if changed is not None and getattr(changed, "shape", None) != grad.shape:
            found = f"an array of shape {changed.shape}" if hasattr(changed, "shape") else repr(changed)
            where = f"{getattr(hook, '__qualname__', hook)}, {_source_location(hook)}"
            raise ValueError(f"a hook ({where}) must return the gradient, an array of shape {grad.shape}, or None; got {found}.")
        grad = grad if changed is None else changed
    if tensor._backward is None:
        tensor.grad = grad if tensor.grad is None else tensor.grad + grad
        grads.pop(id(tensor))
    else:
        grads[id(tensor)] = grad
        heapq.heappush(ready, (-tensor._number, tensor))
