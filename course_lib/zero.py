"""ZeRO, stage by stage, on a stack of fully connected layers.

Data parallel ranks that all hold the full state waste memory. ZeRO (Rajbhandari et al., SC'20, "ZeRO: memory optimizations toward
training trillion parameter models", section 5) lets each of n ranks keep only 1/n of an increasing part of it::

    stage 0   nothing is sharded: gradients are all-reduced, and every rank updates everything
    stage 1   shards the optimizer state: gradients are reduce-scattered, a rank updates its shard, and
              all gather the parameters
    stage 2   shards also the gradients: a rank keeps only its shard of them
    stage 3   shards also the parameters: a layer's are gathered when it needs them, and freed at once

Stages 0 to 2 are here. The student writes the layer of stage 3 (part 08) and the optimizer of all stages (part 09), which updates
the shards that a layer gives it. `ShardedAdam` is stage 1 for the parameters of a model on `autograd` (part 36).
"""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
from mpi4py import MPI

from course_lib import memory, students, traffic
from course_lib.autograd import Adam, Parameter
from course_lib.layers import softmax_cross_entropy
from course_lib.memory import track

STAGES = (0, 1, 2, 3)


class ZeroLinear:
    """Fully connected layer ``x @ w + b`` of stages 0 to 2, with whole parameters on every rank.

    Weight and bias are in one flat array, padded with zeros to a multiple of the number of ranks, and so are their gradients: one
    exchange each.

    Parameters
    ----------
    comm : Communicator
        The data parallel ranks.
    w, b : numpy.ndarray
        ``(in_dim, out_dim)`` and ``(out_dim,)``, the same on all ranks; they are copied.
    stage : int
        0, 1 or 2.

    Attributes
    ----------
    w_shard, grad_w_shard : numpy.ndarray
        The part that this rank updates, a view of its shard (of everything at stage 0), and its gradient.
    b_shard, grad_b_shard : numpy.ndarray
        Empty, as the bias is part of `w_shard`.
    """

    def __init__(self, comm, w: np.ndarray, b: np.ndarray, stage: int):
        n = comm.Get_size()
        shard = -(-(w.size + b.size) // n)
        self.comm, self.stage, self.shape = comm, stage, w.shape
        self.mine = slice(comm.Get_rank() * shard, (comm.Get_rank() + 1) * shard) if stage else slice(None)
        self.flat = np.zeros(n * shard, w.dtype)
        self.w, self.b = self._views(self.flat)
        self.w[:], self.b[:] = w, b
        self.grad = np.zeros(shard if stage == 2 else n * shard, w.dtype)
        self.w_shard, self.grad_w_shard = self.flat[self.mine], self.grad if stage == 2 else self.grad[self.mine]
        self.b_shard, self.grad_b_shard = np.empty(0, w.dtype), np.empty(0, w.dtype)

    def _views(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Views of the weight and the bias in a flat array."""
        size = self.shape[0] * self.shape[1]
        return flat[:size].reshape(self.shape), flat[size : size + self.shape[1]]

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Output, ``(batch, out_dim)``, for an input ``(batch, in_dim)``."""
        self.x = x
        out = x @ self.w
        out += self.b
        return out

    def backward(self, grad: np.ndarray) -> list[np.ndarray]:
        """Gradient of the input, in a list; the parameters' gradients are summed over the ranks."""
        full = self.grad if self.stage < 2 else track("communication buffers", np.zeros_like(self.flat))
        grad_w, grad_b = self._views(full)
        np.matmul(self.x.T, grad, out=grad_w)
        np.sum(grad, axis=0, out=grad_b)
        self.x = None
        if self.stage == 0:
            self.comm.Allreduce(MPI.IN_PLACE, full)
        else:
            shard = self.grad if self.stage == 2 else np.empty_like(full[self.mine])
            self.comm.Reduce_scatter(full, shard)
            if self.stage == 1:  # keep the whole array, in which only this rank's shard is summed
                full[self.mine] = shard
        return [grad @ self.w.T]

    def gather_updated(self) -> None:
        """Take over the optimizer's update of this rank's shard, and from stage 1 on gather the other ranks' updates."""
        if self.w_shard.base is not self.flat:  # the optimizer has assigned a new array
            self.flat[self.mine], self.w_shard = self.w_shard, self.flat[self.mine]
        if self.stage:
            self.comm.Allgather(MPI.IN_PLACE, self.flat)


class ZeroModel:
    """Stack of layers with ReLU in between, trained by Adam at a stage of ZeRO.

    Parameters
    ----------
    dims : sequence of int
        Inputs, hidden units of each layer, classes.
    comm : Communicator
        The data parallel ranks.
    stage : int
        0 to 3.
    functions : object
        The student's functions: the class of part 09, and at stage 3 that of part 08.
    lr : float
        Adam's learning rate.
    seed : int
        Seed of the weights (He et al., 2015, section 2.2), which are the same at every stage.
    dtype : data type

    Raises
    ------
    ValueError
        There is no such stage.
    MissingFunction
        A class is missing.
    """

    def __init__(self, dims, comm, stage: int, functions: object = None, lr: float = 1e-3, seed: int = 0, dtype=np.float32):
        if stage not in STAGES:
            raise ValueError(f"ZeRO has stages 0 to 3; got {stage}.")
        self.stage, self.dp_comm, self.dp_size = stage, comm, comm.Get_size()
        optimizer = students.get(functions, "ZeroDPAdam")
        sharded = students.get(functions, "ZeroDPStage3FCLayer") if stage == 3 else None
        random, self.layers = np.random.default_rng(seed), []
        for fan_in, fan_out in pairwise(dims):
            w = (random.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in)).astype(dtype)
            b = np.zeros(fan_out, dtype)
            self.layers.append(
                sharded(comm, fan_in, fan_out, self.dp_size, full_w=w, full_b=b) if sharded else ZeroLinear(comm, w, b, stage)
            )
            del w
            self._track_arrays(self.layers[-1])
        self.optimizer = optimizer(self.layers, lr, 0.9, 0.999, 1e-8)

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Logits, ``(batch, classes)``, of this rank's samples; collective at stage 3."""
        self._outputs = []
        for layer in self.layers[:-1]:
            x = track("activations", layer.forward(x))
            np.maximum(x, 0, out=x)
            self._outputs.append(x)
        return track("activations", self.layers[-1].forward(x))

    def step(self, x: np.ndarray, labels: np.ndarray, lr: float | None = None) -> float:
        """Take a training step; return the mean loss over this rank's samples, before it.

        The gradient is that of the mean over all ranks' samples, of which each rank has the same number.
        """
        if lr is not None:
            self.optimizer.lr = lr
        loss, grad = softmax_cross_entropy(self.forward(x), labels)
        grad /= self.dp_size  # the ranks' gradients are summed
        for layer in reversed(self.layers):
            (grad,) = layer.backward(grad)
            track("activations", grad)
            self._track_arrays(layer)
            if self._outputs:
                output = self._outputs.pop()
                grad *= np.sign(output, out=output)  # ReLU passes the gradient where its input was positive
        self.optimizer.step()
        if self.stage < 3:
            for layer in self.layers:
                layer.gather_updated()
        for moments in self.optimizer.state.values():
            for array in moments.values():
                track("optimizer state", array)
        return loss

    def _track_arrays(self, layer) -> None:
        """Track the layer's arrays, including the student's; for a view, the array that owns its memory."""
        for kind, names in (("parameters", ("w_shard", "b_shard")), ("gradients", ("grad_w_shard", "grad_b_shard"))):
            for name in names:
                track(kind, getattr(layer, name))


def profile(stage: int, comm, functions: object, dims: tuple[int, ...], x: np.ndarray, y: np.ndarray, steps: int) -> dict:
    """Train for some steps, and measure memory, traffic and time; collective.

    Parameters
    ----------
    stage, comm, functions, dims
        As for `ZeroModel`.
    x, y : numpy.ndarray
        This rank's samples and labels; each step uses ``len(x) // steps`` of them.
    steps : int

    Returns
    -------
    dict
        "losses", the mean over the ranks for each step; "most", the peak bytes of each kind; "peak", the bytes by kind when their
        sum was largest, with tracemalloc's "true peak"; "moved" per step, as in `Ranks.traffic`; "seconds", the median time of a
        step.
    """
    batch = len(x) // steps
    held = memory.account_of_steps(lambda: ZeroModel(dims, comm, stage, functions), x[:batch], y[:batch])
    model, losses, seconds = ZeroModel(dims, comm, stage, functions), np.empty(steps), []
    traffic.reset()
    for i in range(steps):
        began, rows = time.perf_counter(), slice(i * batch, (i + 1) * batch)
        losses[i] = model.step(x[rows], y[rows])
        seconds.append(time.perf_counter() - began)
    moved = [(e.operation, list(e.ranks), e.calls / steps, e.payload / steps) for e in traffic.entries()]
    comm.Allreduce(MPI.IN_PLACE, losses)
    peak = held.peak | {"true peak": held.true_peak}
    return dict(losses=losses / comm.Get_size(), most=held.most, peak=peak, moved=moved, seconds=float(np.median(seconds)))


class ShardedAdam:
    """Adam of stage 1: this rank updates its part of a flat array of all parameters, of which it keeps the moments.

    Parameters
    ----------
    params : list of Parameter
        The same on all ranks, of one dtype.
    comm : Communicator
        The data parallel ranks.
    lr : float

    Methods
    -------
    step()
        Reduce-scatter the gradients, update this rank's part with their mean, and all-gather the parameters; collective.
    """

    def __init__(self, params: list[Parameter], comm, lr: float = 1e-3):
        self.params, self.comm = params, comm
        self.pad = -sum(p.data.size for p in params) % comm.Get_size()
        flat = self._flat([p.data for p in params])
        self.shard = Parameter(np.split(flat, comm.Get_size())[comm.Get_rank()].copy())
        self.adam = Adam([self.shard], lr)

    def _flat(self, arrays: list[np.ndarray]) -> np.ndarray:
        return np.pad(np.concatenate([a.ravel() for a in arrays]), (0, self.pad))

    def step(self) -> None:
        flat = self._flat([p.grad for p in self.params])
        grad = np.empty_like(self.shard.data)
        self.comm.Reduce_scatter(flat, grad)
        self.shard.grad = grad / self.comm.Get_size()
        self.adam.step()
        self.comm.Allgather(self.shard.data, flat)
        at = 0
        for p in self.params:
            p.data, at = flat[at : at + p.data.size].reshape(p.shape), at + p.data.size


# Bytes per parameter, gradient, and state of Adam: two moments, and in mixed precision also a float32 copy (section 3.1).
FLOAT32, MIXED_PRECISION = (4, 4, 8), (2, 2, 12)


def state_bytes_by_kind(stage: int, parameters: int, n: int, bytes_each: tuple[int, int, int] = FLOAT32) -> dict[str, float]:
    """Bytes that a rank holds between steps, by kind, as in section 3.1 and figure 1 of the paper.

    The paper counts mixed precision. It has the same 16 bytes per parameter as float32, but more of them in the optimizer state: with many
    ranks, stages 1 and 2 save a factor of 4 and 8 there, and of 2 and 4 in float32.

    Parameters
    ----------
    stage : int
    parameters : int
        Number of parameters of the whole model.
    n : int
        Number of ranks.
    bytes_each : (int, int, int)
        Bytes per parameter of the parameter, its gradient, and the optimizer state.

    Examples
    --------
    >>> state_bytes_by_kind(2, 1000, 4)
    {'parameters': 4000.0, 'gradients': 1000.0, 'optimizer state': 2000.0}
    >>> state_bytes_by_kind(2, 1000, 4, MIXED_PRECISION)
    {'parameters': 2000.0, 'gradients': 500.0, 'optimizer state': 3000.0}
    """
    parameter, gradient, state = (float(parameters * size) for size in bytes_each)
    return {
        "parameters": parameter / (n if stage >= 3 else 1),
        "gradients": gradient / (n if stage >= 2 else 1),
        "optimizer state": state / (n if stage >= 1 else 1),
    }
