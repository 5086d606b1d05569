"""Pipeline stage: the layers of one rank, and what it keeps of each micro-batch between forward and backward."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from course_lib.autograd import Module, Parameter, Tensor
from course_lib.gpt.model.decoder import Embed, Head, loss_of
from course_lib.trace import span


class Stage:
    """Layers of one pipeline rank.

    Parameters
    ----------
    layers : list of Module
        An `Embed` at the beginning makes this the first stage, a `Head` at the end the last one; see `decoder.layers`.
    width : int
        Width of the activations between stages.
    dtype : data type
        Dtype of the activations.
    loss : callable
        Computes a Tensor from logits and labels.
    share : int
        Number of ranks that share the positions of an activation (sequence parallelism): each holds ``1 / share`` of them.

    Attributes
    ----------
    done : list of tuple
        Work done so far: "F" or "B", and the micro-batch.
    """

    def __init__(self, layers: list[Module], width: int, dtype=np.float32, loss: Callable = loss_of, share: int = 1):
        self.layers, self.width, self.dtype, self.loss, self.share = layers, width, np.dtype(dtype), loss, share
        self.first, self.last = isinstance(layers[0], Embed), isinstance(layers[-1], Head)
        self.done: list[tuple[str, int]] = []
        self._in_flight: dict[int, tuple[Tensor | None, Tensor]] = {}

    def buffer(self, tokens: np.ndarray) -> np.ndarray:
        """Allocate an array to receive from another rank: a micro-batch's activation, or the gradient of one.

        Parameters
        ----------
        tokens : numpy.ndarray
            ``(batch, positions)``, the tokens of the micro-batch.

        Returns
        -------
        numpy.ndarray
            ``(batch, positions / share, width)``.
        """
        if np.ndim(tokens) != 2 or getattr(tokens, "dtype", np.dtype(float)).kind not in "iu":
            raise ValueError(f"stage.buffer takes the tokens of a micro-batch, whole numbers (batch, positions); got {_describe(tokens)}.")
        return np.empty((tokens.shape[0], tokens.shape[1] // self.share, self.width), self.dtype)

    def forward(self, k: int, x: np.ndarray, labels: np.ndarray) -> np.ndarray | float:
        """Run a micro-batch through the layers, and keep what backward needs.

        Parameters
        ----------
        k : int
            Number of the micro-batch.
        x : numpy.ndarray
            On the first rank the tokens, int ``(batch, positions)``; on the others the previous rank's output.
        labels : numpy.ndarray
            int ``(batch, positions)``; only the last rank uses them.

        Returns
        -------
        numpy.ndarray or float
            ``(batch, positions, width)`` for the next rank; on the last one the mean loss over the micro-batch's tokens.
        """
        if k in self._in_flight:
            raise ValueError(
                f"stage.forward: micro-batch {k} has already been through forward, and waits for its backward. "
                "Each goes through forward once."
            )
        self._check_input(x, self.first, k)
        with self._work("forward", k):
            given = None if self.first else Tensor(x, requires_grad=True)
            out = given if given is not None else x
            for layer in self.layers:
                out = layer(out)
            if self.last:
                out = self.loss(out, labels)
            self._in_flight[k] = given, out
        return out.item() if self.last else out.data

    def backward(self, k: int, grad: np.ndarray | float) -> np.ndarray | None:
        """Run a micro-batch backward: add to the gradients of the parameters, and free what forward kept.

        Parameters
        ----------
        k : int
            Number of the micro-batch.
        grad : numpy.ndarray or float
            Gradient of what forward returned, with the same shape; a number on the last rank.

        Returns
        -------
        numpy.ndarray or None
            Gradient of `x`, for the previous rank; None on the first rank.
        """
        given, out = self._check_backward(k, grad, "backward")
        with self._work("backward", k):
            del self._in_flight[k]
            out.backward(np.asarray(grad, self.dtype).reshape(out.shape))
        return None if given is None else given.grad

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """List the parameters, by layer and name."""
        return [(f"{i}.{name}", p) for i, layer in enumerate(self.layers) for name, p in layer.named_parameters()]

    def order(self) -> str:
        """Work done so far, as text.

        >>> from course_lib.gpt.model.decoder import Sizes
        >>> stage = Stage([Embed(Sizes(5, 2, 1, 1, 3), np.random.default_rng(0))], 2)
        >>> out = stage.forward(0, np.array([[1, 2]]), None)
        >>> stage.backward(0, np.ones_like(out))
        >>> stage.order()
        'F0 B0'
        """
        return " ".join(f"{kind}{k}" for kind, k, *_ in self.done)

    @contextmanager
    def _work(self, kind: str, k: int) -> Iterator[None]:
        """Name a piece of work in traces, and note it when it is done."""
        with span(kind, micro_batch=k):
            yield
        self.done.append((kind[0].upper(), k))

    def _check_backward(self, k: int, grad: object, name: str) -> tuple[Tensor | None, Tensor]:
        """Return what is in flight of a micro-batch, after checking the arguments of the method of this name."""
        if k not in self._in_flight:
            here = f"in flight: {', '.join(map(str, sorted(self._in_flight)))}" if self._in_flight else "none is in flight"
            raise ValueError(f"stage.{name}: micro-batch {k} has not been through forward, or has already been through backward; {here}.")
        given, out = self._in_flight[k]
        if self.last and (np.size(grad) != 1 or grad is None):
            raise ValueError(f"stage.{name}: on the last rank grad is a number, the weight of this loss; got {_describe(grad)}.")
        if not self.last and np.shape(grad) != out.shape:
            raise ValueError(
                f"stage.{name}: the gradient of micro-batch {k} must have shape {out.shape}, like its output; got {_describe(grad)}."
            )
        return given, out

    def _check_input(self, x: object, tokens: bool, k: int) -> None:
        if tokens and (not isinstance(x, np.ndarray) or x.dtype.kind not in "iu"):
            raise ValueError(f"stage.forward: on the first rank x is the tokens of micro-batch {k}, whole numbers; got {_describe(x)}.")
        if not tokens and (np.ndim(x) != 3 or np.shape(x)[2] != self.width or getattr(x, "dtype", None) != self.dtype):
            kind = f"(batch, positions, {self.width}), {self.dtype}"
            raise ValueError(f"stage.forward: x is what the previous rank sent for micro-batch {k}, {kind}; got {_describe(x)}.")


class Paced:
    """Mixin for a stage whose work takes a given time: it computes, and then sleeps until that time is over.

    So the stages of a pipeline take the times that they are meant to take, even if several ranks share a core.
    """

    _seconds: dict[str, float]

    @contextmanager
    def _work(self, kind: str, k: int) -> Iterator[None]:
        until = time.monotonic() + self._seconds[kind]
        with super()._work(kind, k):
            yield
            time.sleep(max(0.0, until - time.monotonic()))


class PacedStage(Paced, Stage):
    """Stage whose work takes given times, see `Paced`.

    Parameters
    ----------
    layers, width, dtype
        As for `Stage`; they should be small.
    forward, backward : float
        Seconds for one micro-batch.
    """

    def __init__(self, layers: list[Module], width: int, dtype=np.float32, *, forward: float, backward: float):
        super().__init__(layers, width, dtype)
        self._seconds = {"forward": forward, "backward": backward}


def _describe(value: object) -> str:
    return f"an array of shape {value.shape}, {value.dtype}" if isinstance(value, np.ndarray) else repr(value)[:100]
