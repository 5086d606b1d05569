"""ZeRO, stage by stage, on a stack of fully connected layers.

Data parallel ranks that all hold everything waste memory. ZeRO (Rajbhandari et al., SC'20,
"ZeRO: memory optimizations toward training trillion parameter models", section 5) lets each of
n ranks keep 1/n of more and more:

    stage 0   nothing sharded: gradients are all-reduced, every rank updates everything
    stage 1   the optimizer's state: a rank updates its shard, and all gather the parameters
    stage 2   gradients, too: they are reduce-scattered instead of all-reduced
    stage 3   parameters, too: a layer's are gathered when it needs them, and dropped at once

Stages 0 to 2 are here. The layer and the optimizer of stage 3 are the student's, of parts 08
and 09.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from mpi4py import MPI

from course_lib import functions as students
from course_lib.layers import softmax_cross_entropy
from course_lib.memory import track

STAGES = (0, 1, 2, 3)


class Layer:
    """``x @ w + b`` of stages 0 to 2: whole parameters on every rank.

    Weight and bias lie in one flat array, padded with zeros to a multiple of the ranks, and so
    do their gradients: one exchange each.

    Parameters
    ----------
    comm : Communicator
        The data parallel ranks.
    w, b : numpy.ndarray
        ``(in_dim, out_dim)`` and ``(out_dim,)``, the same on all ranks; they are copied.
    stage : int
        0, 1 or 2.
    """

    def __init__(self, comm, w: np.ndarray, b: np.ndarray, stage: int):
        n = comm.Get_size()
        shard = -(-(w.size + b.size) // n)
        self.comm, self.stage, self.shape = comm, stage, w.shape
        self.mine = slice(comm.Get_rank() * shard, (comm.Get_rank() + 1) * shard)
        self.flat = track("parameters", np.zeros(n * shard, w.dtype))
        self.w, self.b = self._views(self.flat)
        self.w[:], self.b[:] = w, b
        self.grad = track("gradients", np.zeros(shard if stage == 2 else n * shard, w.dtype))

    def _views(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The weight and the bias in a flat array."""
        size = self.shape[0] * self.shape[1]
        return flat[:size].reshape(self.shape), flat[size : size + self.shape[1]]

    def forward(self, x: np.ndarray) -> np.ndarray:
        """The output, ``(batch, out_dim)``, for an input ``(batch, in_dim)``."""
        self.x = x
        out = x @ self.w
        out += self.b
        return out

    def backward(self, grad: np.ndarray) -> list[np.ndarray]:
        """The gradient of the input, in a list; the parameters' gradients are summed over the ranks."""
        full = self.grad if self.stage < 2 else track("communication buffers", np.zeros_like(self.flat))
        grad_w, grad_b = self._views(full)
        np.matmul(self.x.T, grad, out=grad_w)
        np.sum(grad, axis=0, out=grad_b)
        self.x = None
        if self.stage < 2:
            self.comm.Allreduce(MPI.IN_PLACE, full)
        else:
            self.comm.Reduce_scatter(full, self.grad)
        return [grad @ self.w.T]


class Adam:
    """Adam (Kingma and Ba, 2015, algorithm 1) for `Layer`: whole at stage 0, on this rank's shard at stages 1 and 2.

    It works block by block, in place, so that it needs no temporary arrays of the model's size.

    Parameters
    ----------
    layers : list of Layer
    lr, beta1, beta2, eps : float
    """

    BLOCK = 16384  # elements: a block of each array fits into a core's cache

    def __init__(self, layers: list[Layer], lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8):
        self.layers, self.t = layers, 0
        self.lr, self.beta1, self.beta2, self.eps = lr, beta1, beta2, eps
        self.state = []
        for layer in layers:
            size = layer.flat.size if layer.stage == 0 else layer.flat[layer.mine].size
            self.state.append([track("optimizer state", np.zeros(size, layer.flat.dtype)) for _ in range(2)])

    def step(self) -> None:
        """Update the parameters from the gradients; from stage 1 on, gather what the other ranks have updated."""
        self.t += 1
        for layer, (m, v) in zip(self.layers, self.state, strict=True):
            values = layer.flat if layer.stage == 0 else layer.flat[layer.mine]
            grads = layer.grad[layer.mine] if layer.stage == 1 else layer.grad
            for start in range(0, len(values), self.BLOCK):
                block = slice(start, start + self.BLOCK)
                self._update(values[block], grads[block], m[block], v[block])
            if layer.stage:
                layer.comm.Allgather(MPI.IN_PLACE, layer.flat)

    def _update(self, w: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray) -> None:
        m *= self.beta1
        v *= self.beta2
        scratch = g * (1 - self.beta1)
        m += scratch
        np.multiply(g, g, out=scratch)
        scratch *= 1 - self.beta2
        v += scratch
        np.divide(v, 1 - self.beta2**self.t, out=scratch)
        np.sqrt(scratch, out=scratch)
        scratch += self.eps
        np.divide(m, scratch, out=scratch)
        scratch *= self.lr / (1 - self.beta1**self.t)
        w -= scratch


class Model:
    """A stack of layers with ReLU between them, trained by Adam at a stage of ZeRO.

    Parameters
    ----------
    dims : sequence of int
        Inputs, hidden units ..., classes.
    comm : Communicator
        The data parallel ranks.
    stage : int
        0 to 3.
    functions : object
        The student's; asked for the classes of parts 08 and 09 at stage 3.
    lr : float
        Adam's learning rate.
    seed : int
        The weights are drawn from it (He et al., 2015, section 2.2), the same at every stage.
    dtype : data type

    Raises
    ------
    ValueError
        There is no such stage.
    MissingFunction
        A class of stage 3 is missing.
    """

    def __init__(self, dims, comm, stage: int, functions: object = None, lr: float = 1e-3, seed: int = 0, dtype=np.float32):
        if stage not in STAGES:
            raise ValueError(f"ZeRO has the stages 0 to 3; got {stage}.")
        self.stage, self.dp_comm, self.dp_size = stage, comm, comm.Get_size()
        stage3 = [students.get(functions, name) for name in ("ZeroDPStage3FCLayer", "ZeroDPAdam")] if stage == 3 else None
        random, self.layers = np.random.default_rng(seed), []
        for fan_in, fan_out in pairwise(dims):
            w = (random.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in)).astype(dtype)
            b = np.zeros(fan_out, dtype)
            self.layers.append(stage3[0](comm, fan_in, fan_out, self.dp_size, full_w=w, full_b=b) if stage3 else Layer(comm, w, b, stage))
            del w
        self.optimizer = stage3[1](self.layers, lr, 0.9, 0.999, 1e-8) if stage3 else Adam(self.layers, lr)

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Logits, ``(batch, classes)``, of this rank's samples; collective at stage 3."""
        self._outputs = []
        for layer in self.layers[:-1]:
            x = track("activations", layer.forward(x))
            np.maximum(x, 0, out=x)
            self._outputs.append(x)
        return track("activations", self.layers[-1].forward(x))

    def step(self, x: np.ndarray, labels: np.ndarray, lr: float | None = None) -> float:
        """One training step; returns the mean loss over this rank's samples, before it.

        The gradient is that of the mean over the samples of all ranks, of which there are equally many.
        """
        if lr is not None:
            self.optimizer.lr = lr
        loss, grad = softmax_cross_entropy(self.forward(x), labels)
        grad /= self.dp_size  # the ranks' gradients are summed
        for layer in reversed(self.layers):
            (grad,) = layer.backward(grad)
            track("activations", grad)
            self._account(layer)
            if self._outputs:
                output = self._outputs.pop()
                grad *= np.sign(output, out=output)  # ReLU lets through what was positive
        self.optimizer.step()
        self._account_state()
        return loss

    def _account(self, layer) -> None:
        """Say what the student's arrays of stage 3 are for."""
        if self.stage == 3:
            for kind, names in (("parameters", ("w_shard", "b_shard")), ("gradients", ("grad_w_shard", "grad_b_shard"))):
                for name in names:
                    track(kind, getattr(layer, name))

    def _account_state(self) -> None:
        if self.stage == 3:
            for moments in self.optimizer.state.values():
                for array in moments.values():
                    track("optimizer state", array)


def formula(stage: int, parameters: int, n: int, itemsize: int = 4) -> dict[str, float]:
    """Bytes that a rank holds between steps, by kind, as in section 3 and figure 1 of the paper.

    The paper counts half precision with a float32 copy, 2 + 2 + 12 bytes a parameter; here all is
    in one precision, and Adam has two moments: ``itemsize * (1 + 1 + 2)``.

    Parameters
    ----------
    stage : int
    parameters : int
        Of the whole model.
    n : int
        Ranks.
    itemsize : int
        Bytes of a number.

    Examples
    --------
    >>> formula(2, 1000, 4)
    {'parameters': 4000.0, 'gradients': 1000.0, 'optimizer state': 2000.0}
    """
    whole = float(parameters * itemsize)
    return {
        "parameters": whole / (n if stage >= 3 else 1),
        "gradients": whole / (n if stage >= 2 else 1),
        "optimizer state": 2 * whole / (n if stage >= 1 else 1),
    }
