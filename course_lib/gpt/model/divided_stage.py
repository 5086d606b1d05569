"""Pipeline stage whose backward is divided: the gradient of its input first, those of its weights later (part 35).

Qi et al., 2023, "Zero Bubble Pipeline Parallelism", section 1, call the two B and W. Divided are the matrix products, as in practice: the
gradients of norms and embeddings cost little, and belong to B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from course_lib.autograd import Module, Parameter, Tensor
from course_lib.autograd.operations import matmul_arrays
from course_lib.gpt.model.block import ParallelLinear
from course_lib.gpt.model.decoder import Sizes, layers
from course_lib.gpt.model.stage import Paced, Stage
from course_lib.trace import span

WEIGHT_GRADIENT = "weight grad"
Through = Callable[["Product", np.ndarray], np.ndarray]


class Product:
    """A matrix product of a micro-batch's forward, ``x @ weight``.

    Attributes
    ----------
    x : numpy.ndarray
        ``(batch, positions, inputs)``. It is in memory as long as something refers to it or to this product.
    weight : Parameter
        ``(inputs, outputs)``.
    """

    __slots__ = ("__weakref__", "weight", "x")

    def __init__(self, x: np.ndarray, weight: Parameter):
        self.x, self.weight = x, weight


class DividedStage(Stage):
    """Stage that calls the student's functions for the two parts of its backward.

    Parameters
    ----------
    layers, width, dtype
        As for `Stage`; the layers are changed.
    backward_input : callable
        Called with this stage, the number of a micro-batch, and the gradient of what forward returned; returns that of `x`.
    backward_weight : callable
        Called with this stage and the number of a micro-batch.

    Attributes
    ----------
    kept : dict of int to object
        By micro-batch: for `backward_input` to keep what `backward_weight` needs.
    """

    def __init__(self, layers: list[Module], width: int, dtype=np.float32, *, backward_input: Callable, backward_weight: Callable):
        super().__init__(layers, width, dtype)
        self.kept: dict[int, object] = {}
        self._functions = backward_input, backward_weight
        self._through: Through | None = None
        for layer in layers:
            for name, child in list(layer.children()):
                if isinstance(child, ParallelLinear):
                    setattr(layer, name, _ProductLayer(child.weight, lambda product, grad: self._gradient(product, grad)))

    def backward_input(self, k: int, grad: np.ndarray | float) -> np.ndarray | None:
        """B: compute the gradient of the stage's input, for the previous rank; arguments and result as for `backward`."""
        with self._work("backward", k):
            return self._functions[0](self, k, grad)

    def backward_weight(self, k: int) -> None:
        """W: add to the gradients of the weights."""
        with self._work(WEIGHT_GRADIENT, k):
            self._functions[1](self, k)

    def back(self, k: int, grad: np.ndarray | float, through: Through) -> np.ndarray | None:
        """Go back through the layers of a micro-batch, the last one first, and free what forward kept.

        Parameters
        ----------
        k : int
        grad : numpy.ndarray or float
            Gradient of what forward returned.
        through : callable
            Called at each matrix product, with its `Product` and the gradient of its result, ``(batch, positions, outputs)``; returns the
            gradient of the product's x. Everything else, such as norms and attention, is done here.

        Returns
        -------
        numpy.ndarray or None
            Gradient of `x`, for the previous rank; None on the first rank.
        """
        given, out = self._check_backward(k, grad, "back")
        self._through = through
        try:
            del self._in_flight[k]
            out.backward(np.asarray(grad, self.dtype).reshape(out.shape))
        finally:
            self._through = None
        return None if given is None else given.grad

    def backward(self, k: int, grad: np.ndarray | float) -> np.ndarray | None:
        """Raise an error: here, backward has two parts."""
        raise ValueError(f"stage.backward: this stage's backward is divided: backward_input({k}, grad), and later backward_weight({k}).")

    def _gradient(self, product: Product, grad: np.ndarray) -> np.ndarray:
        found = self._through(product, grad)
        if getattr(found, "shape", None) != product.x.shape or getattr(found, "dtype", None) != product.x.dtype:
            got = f"{found.shape}, {found.dtype}" if isinstance(found, np.ndarray) else repr(found)[:100]
            raise ValueError(
                f"stage.back: `through` must return the gradient of the product's x, {product.x.shape}, {product.x.dtype}; got {got}."
            )
        return found


class _ProductLayer(Module):
    """A `ParallelLinear` that leaves its backward to a function; its weight is a constant to autograd."""

    def __init__(self, weight: Parameter, gradient: Through):
        self.weight, self.gradient = weight, gradient

    def forward(self, x: Tensor) -> Tensor:
        product, gradient = Product(x.data, self.weight), self.gradient
        rows = matmul_arrays(x.data.reshape(-1, x.shape[-1]), self.weight.data)
        return Tensor.from_operation(rows.reshape(*x.shape[:-1], -1), (x,), lambda grad: (gradient(product, grad),))


class PacedDividedStage(Paced, DividedStage):
    """Divided stage whose work takes given times, see `Paced`.

    Parameters
    ----------
    layers, width, dtype, backward_input, backward_weight
        As for `DividedStage`; the layers should be small.
    seconds : dict of str to float
        Seconds for a micro-batch's "forward", "backward" (B) and "weight grad" (W).
    """

    def __init__(self, *arguments: object, seconds: dict[str, float], **functions: Callable):
        super().__init__(*arguments, **functions)
        self._seconds = seconds


def undivided(backward_input: Callable, backward_weight: Callable) -> dict[str, Callable]:
    """Return functions of a stage that does all of its backward at once: with these, ZB-H1 is 1F1B."""

    def both(stage: DividedStage, k: int, grad: np.ndarray | float) -> np.ndarray | None:
        back = backward_input(stage, k, grad)
        backward_weight(stage, k)
        return back

    return {"backward_input": both, "backward_weight": lambda stage, k: None}


def take_paced_steps(step: Callable, ways: Mapping[str, tuple[dict, dict]], count: int, comm: object, tries: int = 3) -> None:
    """Take steps with paced stages, each in a span with the name of its way; collective.

    Parameters
    ----------
    step : callable
        ``step(stage, micro_batches, comm)``.
    ways : mapping of str to (dict, dict)
        By name: the functions of a `DividedStage`, and the seconds of a `PacedDividedStage`.
    count : int
        Number of micro-batches.
    comm : Communicator
    tries : int
        Steps of each way.
    """
    n, rank = comm.Get_size(), comm.Get_rank()
    sizes = Sizes(vocabulary=8, width=8, heads=1, depth=n, length=4)
    batches = [(np.zeros((1, 4), int), np.zeros((1, 4), int))] * count
    for name, (functions, seconds) in ways.items():
        for _ in range(tries):
            stage = PacedDividedStage(layers(sizes, n, rank), sizes.width, seconds=seconds, **functions)
            comm.Barrier()
            with span(name):
                step(stage, batches, comm)
