"""The autograd framework: steps of a perceptron and of ResNet-9, against PyTorch's eager steps and a plain NumPy loop.

One process, one thread. Float32. The perceptron: 1024-256-256-256-32, tanh, no biases, batch 64, with the step of SGD. ResNet-9 of the
usual width, batch 32, 32 x 32 x 3: forward and backward.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from benchmarks import mpi
from benchmarks.turns import turns
from course_lib.autograd import SGD, Linear, Module, Sequential, Tanh, cross_entropy
from course_lib.ddp import pytorch
from course_lib.training.resnet import resnet9

DIMS, BATCH, LR = (1024, 256, 256, 256, 32), 64, 0.1
IMAGES, WIDTH = 32, 64
TURNS = turns(15)
STEPS = 20

Step = Callable[[], object]


def perceptron(x: np.ndarray, y: np.ndarray) -> Step:
    """Return a step of our framework."""
    layers = [Linear(a, b, bias=False) for a, b in pairwise(DIMS)]
    model = Sequential(*[part for layer in layers for part in (layer, Tanh())][:-1])
    optimizer = SGD(model.parameters(), LR)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def plain(x: np.ndarray, y: np.ndarray) -> Step:
    """Return the same step in plain NumPy."""
    random = np.random.default_rng(0)
    weights = [(random.standard_normal((a, b)) * np.sqrt(2 / a)).astype(np.float32) for a, b in pairwise(DIMS)]
    rows = np.arange(BATCH)

    def step() -> None:
        outputs = [x]
        for w in weights[:-1]:
            outputs.append(np.tanh(outputs[-1] @ w))
        logits = outputs[-1] @ weights[-1]
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        _loss = -np.mean(np.log(p[rows, y]))
        p[rows, y] -= 1
        grad, grads = p / BATCH, []
        for i in reversed(range(len(weights))):
            grads.append(outputs[i].T @ grad)
            if i:
                grad = (grad @ weights[i].T) * (1 - outputs[i] ** 2)
        for w, g in zip(weights, reversed(grads), strict=True):
            w -= LR * g

    return step


def torch_perceptron(x: np.ndarray, y: np.ndarray) -> Step:
    """Return the same step in PyTorch."""
    import torch
    from torch import nn

    layers = [nn.Linear(a, b, bias=False) for a, b in pairwise(DIMS)]
    model = nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())][:-1])
    optimizer, loss = torch.optim.SGD(model.parameters(), LR), nn.CrossEntropyLoss()
    xt, yt = torch.from_numpy(x), torch.from_numpy(y)

    def step() -> None:
        optimizer.zero_grad()
        loss(model(xt), yt).backward()
        optimizer.step()

    return step


def network(x: np.ndarray, y: np.ndarray) -> Step:
    """Return a step of our ResNet-9, forward and backward."""
    model: Module = resnet9(WIDTH)

    def step() -> None:
        model.zero_grad()
        cross_entropy(model(x), y).backward()

    return step


def torch_network(x: np.ndarray, y: np.ndarray) -> Step:
    """Return the same step in PyTorch."""
    import torch
    from torch import nn

    def block(a: int, b: int, pool: bool = False) -> nn.Module:
        parts = [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        return nn.Sequential(*parts, *([nn.MaxPool2d(2)] if pool else []))

    class TorchResidual(nn.Module):
        def __init__(self, n: int):
            super().__init__()
            self.inner = nn.Sequential(block(n, n), block(n, n))

        def forward(self, x):
            return x + self.inner(x)

    w = WIDTH
    deep = block(2 * w, 4 * w, True), block(4 * w, 8 * w, True), TorchResidual(8 * w), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(8 * w, 10)
    model = nn.Sequential(block(3, w), block(w, 2 * w, True), TorchResidual(2 * w), *deep)
    xt, yt = torch.from_numpy(x.transpose(0, 3, 1, 2).copy()), torch.from_numpy(y)
    loss = nn.CrossEntropyLoss()

    def step() -> None:
        model.zero_grad()
        loss(model(xt), yt).backward()

    return step


def in_turns(steps: dict[str, Step], turns: int, count: int) -> dict[str, list[float]]:
    """Time `count` steps of each, turn by turn; a first turn warms up."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(turns + 1):
        for name, step in steps.items():
            began = time.perf_counter()
            for _ in range(count):
                step()
            taken[name].append(time.perf_counter() - began)
    return {name: values[1:] for name, values in taken.items()}


def measure() -> None:
    """Print the seconds of all, as JSON."""
    random = np.random.default_rng(0)
    x, y = random.standard_normal((BATCH, DIMS[0]), np.float32), random.integers(0, DIMS[-1], BATCH)
    small = {"ours": perceptron(x, y), "plain": plain(x, y)}
    x, y_images = random.standard_normal((IMAGES, 32, 32, 3), np.float32), random.integers(0, 10, IMAGES)
    large = {"ours": network(x, y_images)}
    if pytorch.available():
        import torch

        torch.set_num_threads(1)
        x_rows = random.standard_normal((BATCH, DIMS[0]), np.float32)
        small["torch"], large["torch"] = torch_perceptron(x_rows, y), torch_network(x, y_images)
    print(json.dumps([in_turns(small, TURNS, STEPS), in_turns(large, 5, 1) if "torch" in large else {}]))


def figures() -> Iterator[tuple[str, list[float], float]]:
    small, large = mpi.run(1, __name__)
    yield "mlp-step/plain-numpy", [a / b for a, b in zip(small["ours"], small["plain"], strict=True)], 1.15
    if "torch" not in small:
        print("bench: PyTorch's steps were left out: torch is not installed (pip install -e '.[torch]').", file=sys.stderr)
        return
    yield "mlp-step/torch", [a / b for a, b in zip(small["ours"], small["torch"], strict=True)], 1.5
    yield "resnet9-step/torch", [a / b for a, b in zip(large["ours"], large["torch"], strict=True)], 1.45


if __name__ == "__main__":
    measure()
