"""Modules: functions with trainable parameters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from course_lib.autograd import operations
from course_lib.autograd.tensor import Tensor, array_namespace


class Parameter(Tensor):
    """A trainable tensor."""

    __slots__ = ()

    def __init__(self, data: np.ndarray):
        super().__init__(data, requires_grad=True)


class Module:
    """Function with parameters; subclasses define `forward`.

    Parameters and modules that are attributes, or items of a list attribute, belong to the module.

    Attributes
    ----------
    training : bool
        Whether the module is in training mode; see `train` and `eval`.
    """

    training = True

    def forward(self, x: Tensor) -> Tensor:
        """Output for an input; subclasses override it."""
        raise NotImplementedError

    def __call__(self, x: object) -> Tensor:
        return self.forward(operations.as_tensor(x))

    def __iter__(self) -> Iterator:
        raise TypeError(f"{type(self).__name__} is a module, not a list: parameters() returns its parameters, children() its submodules.")

    def __getattr__(self, name: str) -> object:
        hint = ": each of its parameters() has one" if name in ("data", "grad", "shape", "dtype", "size") else ""
        raise AttributeError(f"{type(self).__name__} is a module and has no {name}{hint}.", name=name, obj=self)

    def children(self) -> Iterator[tuple[str, Module]]:
        """Yield the direct submodules with their names."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, (list, tuple)):
                yield from ((f"{name}.{i}", v) for i, v in enumerate(value) if isinstance(v, Module))

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Yield all parameters, including those of submodules, always in the same order.

        >>> [name for name, _ in Sequential(Linear(2, 3), Linear(3, 1, bias=False)).named_parameters()]
        ['modules.0.weight', 'modules.0.bias', 'modules.1.weight']
        """
        for name, value in vars(self).items():
            if isinstance(value, Parameter):
                yield prefix + name, value
            elif isinstance(value, (list, tuple)):
                yield from ((f"{prefix}{name}.{i}", v) for i, v in enumerate(value) if isinstance(v, Parameter))
        for name, module in self.children():
            yield from module.named_parameters(f"{prefix}{name}.")

    def parameters(self) -> list[Parameter]:
        """List all parameters; a shared one appears once."""
        return list({id(p): p for _, p in self.named_parameters()}.values())

    def train(self, training: bool = True) -> Module:
        """Set `training` for this module and its submodules."""
        self.training = training
        for _, module in self.children():
            module.train(training)
        return self

    def eval(self) -> Module:
        """Set evaluation mode: the opposite of `train`."""
        return self.train(False)

    def zero_grad(self) -> None:
        """Reset all gradients to None."""
        for p in self.parameters():
            p.grad = None

    def to(self, xp) -> Module:
        """Move all arrays to another namespace, ``model.to(cupy)`` for a GPU."""
        for p in self.parameters():
            p.data = xp.asarray(p.data)
        for _, module in self.children():
            module.to(xp)
        for name, value in vars(self).items():
            if hasattr(value, "dtype") and not isinstance(value, Tensor):
                setattr(self, name, xp.asarray(value))
        return self


class Linear(Module):
    """``x @ weight + bias``.

    Parameters
    ----------
    inputs, outputs : int
    bias : bool
    random : numpy.random.Generator, optional
        Draws the weight with standard deviation ``sqrt(2 / inputs)`` (He et al., 2015, section 2.2).
    dtype : data type
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True, random: np.random.Generator | None = None, dtype=np.float32):
        random = random or np.random.default_rng()
        self.weight = Parameter((random.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)).astype(dtype))
        self.bias = Parameter(np.zeros(outputs, dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if x.data.ndim < 2 or x.shape[-1] != self.weight.shape[0]:
            raise ValueError(f"Linear: the input must have shape (batch, {self.weight.shape[0]}); got {x.shape}.")
        return operations.linear(x, self.weight, self.bias)


class Conv2d(Module):
    """Convolution over ``(batch, height, width, channels)`` with stride 1 and no bias.

    Parameters
    ----------
    channels, out_channels : int
    kernel : int
    padding : int
    random, dtype
        As for `Linear`.
    """

    def __init__(self, channels: int, out_channels: int, kernel: int = 3, padding: int = 0, random=None, dtype=np.float32):
        random = random or np.random.default_rng()
        shape = (kernel, kernel, channels, out_channels)
        self.weight = Parameter((random.standard_normal(shape) * np.sqrt(2 / (kernel * kernel * channels))).astype(dtype))
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        if x.data.ndim != 4 or x.shape[3] != self.weight.shape[2]:
            raise ValueError(f"Conv2d: the input must be (batch, height, width, {self.weight.shape[2]}); got {x.shape}.")
        return operations.conv2d(x, self.weight, self.padding)


class BatchNorm2d(Module):
    """Normalise each channel: by the batch in training, by running means in evaluation (Ioffe and Szegedy, 2015).

    Parameters
    ----------
    channels : int
    momentum : float
        Weight of the new batch in the running statistics.
    """

    def __init__(self, channels: int, momentum: float = 0.1, dtype=np.float32):
        self.weight, self.bias = Parameter(np.ones(channels, dtype)), Parameter(np.zeros(channels, dtype))
        self.running_mean, self.running_variance = np.zeros(channels, dtype), np.ones(channels, dtype)
        self.momentum = momentum

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            xp = array_namespace(x.data)
            rate = 1 / xp.sqrt(self.running_variance + xp.asarray(1e-5, x.dtype))
            return (x - Tensor(self.running_mean)) * Tensor(rate) * self.weight + self.bias
        flat = x.data.reshape(-1, x.shape[-1])
        mean = flat.mean(axis=0)
        variance = flat.var(axis=0)
        for running, now in ((self.running_mean, mean), (self.running_variance, variance * (len(flat) / max(len(flat) - 1, 1)))):
            running += self.momentum * (now - running)
        return operations.batch_norm(x, self.weight, self.bias, mean, variance)


class ReLU(Module):
    """Positive part."""

    def forward(self, x: Tensor) -> Tensor:
        return operations.relu(x)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return operations.tanh(x)


class MaxPool2d(Module):
    """Largest value of each ``size x size`` square."""

    def __init__(self, size: int = 2):
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return operations.max_pool2d(x, self.size)


class Flatten(Module):
    """Reshape ``(batch, ...)`` to ``(batch, features)``."""

    def forward(self, x: Tensor) -> Tensor:
        return operations.reshape(x, (len(x), -1))


class Sequential(Module):
    """Modules one after the other."""

    def __init__(self, *modules: Module):
        self.modules = list(modules)

    def forward(self, x: Tensor) -> Tensor:
        for module in self.modules:
            x = module(x)
        return x


class Residual(Module):
    """``x + inner(x)`` (He et al., 2016, "Deep residual learning for image recognition", section 3.1)."""

    def __init__(self, inner: Module):
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)
