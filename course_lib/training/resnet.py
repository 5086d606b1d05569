"""ResNet-9, and its training from a shell: ``mpiexec -n 2 python -m course_lib.training.resnet --data cifar10``."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from course_lib.autograd import (
    SGD,
    ArrayDataset,
    BatchNorm2d,
    Conv2d,
    DataLoader,
    Flatten,
    Linear,
    MaxPool2d,
    Module,
    ReLU,
    Residual,
    Sequential,
    cross_entropy,
    no_grad,
)
from course_lib.datasets import images


def resnet9(width: int = 64, classes: int = 10, seed: int = 0) -> Sequential:
    """Eight convolutions and a linear layer, modelled on the CIFAR-10 entries of DAWNBench.

    Parameters
    ----------
    width : int
        Channels after the first convolution; 64 gives the usual network with 6.6 million parameters.
    classes : int
    seed : int
        Seed of the weights.
    """
    random = np.random.default_rng(seed)

    def block(channels: int, out_channels: int, pool: bool = False) -> Sequential:
        parts = [Conv2d(channels, out_channels, padding=1, random=random), BatchNorm2d(out_channels), ReLU()]
        return Sequential(*parts, *([MaxPool2d()] if pool else []))

    def residual(channels: int) -> Residual:
        return Residual(Sequential(block(channels, channels), block(channels, channels)))

    return Sequential(
        block(3, width),
        block(width, 2 * width, pool=True),
        residual(2 * width),
        block(2 * width, 4 * width, pool=True),
        block(4 * width, 8 * width, pool=True),
        residual(8 * width),
        MaxPool2d(4),
        Flatten(),
        Linear(8 * width, classes, random=random),
    )


def accuracy(model: Module, x: np.ndarray, y: np.ndarray, batch_size: int = 250) -> float:
    """Fraction of the images classified correctly, in evaluation mode."""
    model.eval()
    with no_grad():
        right = sum(
            int((model(x[i : i + batch_size]).data.argmax(axis=1) == y[i : i + batch_size]).sum()) for i in range(0, len(x), batch_size)
        )
    model.train()
    return right / len(x)


def main(argv: list[str] | None = None) -> int:
    """Train on all ranks that mpiexec started, with the ready-made wrapper of `ddp`; return the exit code."""
    from course_lib.collectives import Communicator
    from course_lib.datasets import DataError
    from course_lib.ddp import DistributedDataParallel

    comm = Communicator()
    rank, size = comm.Get_rank(), comm.Get_size()
    parser = argparse.ArgumentParser(prog="python -m course_lib.training.resnet", description="Train ResNet-9 on several ranks.")
    parser.add_argument("--data", choices=images.IMAGE_SET_NAMES, default="shapes")
    parser.add_argument("--width", type=int, default=8, help="channels of the first convolution; 64 is the usual network")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.01)
    with contextlib.nullcontext() if rank == 0 else contextlib.redirect_stderr(io.StringIO()):
        try:
            a = parser.parse_args(argv)
            if min(a.width, a.epochs, a.batch_size) < 1 or a.batch_size % size or not a.lr > 0:
                parser.error(f"width, epochs and lr must be positive, and {size} ranks must divide the batch of {a.batch_size}.")
            data = images.load(a.data)
            if a.batch_size > len(data.x_train):
                parser.error(f"a batch of {a.batch_size} is larger than the {len(data.x_train)} training images.")
        except SystemExit as ended:
            return ended.code
        except DataError as error:
            print(f"course_lib.training.resnet: {error}", file=sys.stderr)
            return 2
    with threadpool_limits(1):  # ranks share the cores
        model = DistributedDataParallel(resnet9(a.width), comm)
        optimizer = SGD(model.parameters(), a.lr, momentum=0.9, weight_decay=5e-4)
        loader = DataLoader(ArrayDataset(data.x_train, data.y_train), a.batch_size, shuffle=True, drop_last=True)
        began, steps, done = time.perf_counter(), a.epochs * len(loader), 0
        with tqdm(total=steps, unit="step", disable=rank != 0, mininterval=0.5, ascii=True) as bar:
            for _ in range(a.epochs):
                for x, y in loader:
                    optimizer.lr = a.lr * (1 - done / steps)
                    optimizer.zero_grad()
                    loss = cross_entropy(model(x[rank::size]), y[rank::size])
                    loss.backward()
                    optimizer.step()
                    done += 1
                    bar.update()
        found = accuracy(model, data.x_test, data.y_test)
    if rank == 0:
        seconds = time.perf_counter() - began
        print(f"ResNet-9, width {a.width}, {data.name}, {size} ranks: {steps} steps in {seconds:.1f} s, loss {loss.item():.3f}")
        print(f"test accuracy {found:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
