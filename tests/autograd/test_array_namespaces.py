"""Modules and optimizers take all array functions from the arrays' own namespace, so that they run on CuPy's arrays, too."""

import sys
import types

import numpy as np
import pytest

from course_lib.autograd import (
    SGD,
    Adam,
    BatchNorm2d,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    Residual,
    Sequential,
    Tanh,
    cross_entropy,
)
from course_lib.training.resnet import accuracy


class Elsewhere(np.ndarray):
    """An array as if on a GPU: it does not mix with NumPy's arrays, and NumPy's functions do not take it."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **kwargs):
        for value in (*inputs, *out):
            if type(value) is np.ndarray and value.ndim:
                raise TypeError(f"{ufunc.__name__}: an array of this machine's memory meets one of the GPU's")
        plain = [v.view(np.ndarray) if isinstance(v, Elsewhere) else v for v in inputs]
        targets = {"out": tuple(v.view(np.ndarray) for v in out)} if out else {}
        result = getattr(ufunc, method)(*plain, **targets, **kwargs)
        return out[0] if out else np.asarray(result).view(Elsewhere)

    def __array_function__(self, func, types, args, kwargs):
        raise TypeError(f"numpy.{func.__name__} was called with an array of the GPU")

    def __array__(self, *args, **kwargs):
        raise TypeError("implicit conversion to a NumPy array, as CuPy forbids it")


def here(value):
    if isinstance(value, Elsewhere):
        return value.view(np.ndarray)
    return type(value)(here(v) for v in value) if isinstance(value, (tuple, list)) else value


class Namespace(types.ModuleType):
    """NumPy's functions, for arrays that are elsewhere."""

    def __getattr__(self, name):
        function = getattr(np, name)
        if not callable(function) or isinstance(function, type):
            return function

        def called(*args, **kwargs):
            result = function(*here(args), **{k: here(v) for k, v in kwargs.items()})
            return result.view(Elsewhere) if isinstance(result, np.ndarray) else result

        return called


@pytest.fixture
def cupy(monkeypatch):
    module = Namespace("cupy")
    module.get_array_module = lambda array: module if isinstance(array, Elsewhere) else np
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def network():
    random = np.random.default_rng(0)
    inner = Sequential(Conv2d(4, 4, padding=1, random=random), BatchNorm2d(4), ReLU())
    return Sequential(
        Conv2d(3, 4, padding=1, random=random), Residual(inner), MaxPool2d(2), Flatten(), Linear(64, 8, random=random), Tanh(), Linear(8, 5)
    )


@pytest.mark.parametrize(("kind", "words"), [(SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01)), (Adam, dict(lr=0.01))])
def test_training_elsewhere_gives_the_same(cupy, kind, words):
    random, trained = np.random.default_rng(1), []
    x, y = random.standard_normal((6, 8, 8, 3)).astype(np.float32), random.integers(0, 5, 6)
    start = network()
    for move in (np.asarray, cupy.asarray):
        model = network()
        for p, q in zip(model.parameters(), start.parameters(), strict=True):
            p.data = q.data.copy()
        model.to(types.SimpleNamespace(asarray=move))
        optimizer = kind(model.parameters(), **words)
        for _ in range(3):
            optimizer.zero_grad()
            cross_entropy(model(move(x)), move(y)).backward()
            optimizer.step()
        assert all(type(p.data) is type(move(x)) is type(p.grad) for p in model.parameters())
        trained.append(([here(p.data) for p in model.parameters()], accuracy(model, move(x), move(y))))
    assert trained[0][1] == trained[1][1]
    for a, b in zip(trained[0][0], trained[1][0], strict=True):
        assert a.dtype == b.dtype == np.float32 and np.allclose(a, b, rtol=1e-5, atol=1e-6)
