"""PyTorch's own DistributedDataParallel on the course's ranks, for comparison, if PyTorch is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from course_lib.collectives.deadlock.board import open_board

INSTALL_HINT = "PyTorch is not installed, and this part works without it. To see both side by side: pip install -e '.[torch]'"


def available() -> bool:
    """Tell whether PyTorch is installed."""
    return importlib.util.find_spec("torch") is not None


def train(weights: Sequence[np.ndarray], batches: Iterable[tuple[np.ndarray, np.ndarray]], lr: float, comm) -> list[np.ndarray]:
    """Train a tanh perceptron without biases by gradient descent, with PyTorch's DDP on gloo; collective.

    Parameters
    ----------
    weights : sequence of numpy.ndarray
        Initial weights ``(inputs, outputs)`` of each layer; only rank 0's are used.
    batches : iterable of (numpy.ndarray, numpy.ndarray)
        This rank's samples and labels of each step.
    lr : float
    comm : Communicator
        The ranks.

    Returns
    -------
    list of numpy.ndarray
        The final weights, in the same form.
    """
    import torch
    from torch import nn

    layers = [nn.Linear(*w.shape, bias=False, dtype=getattr(torch, w.dtype.name)) for w in weights]
    with torch.no_grad():
        for layer, w in zip(layers, weights, strict=True):
            layer.weight.copy_(torch.from_numpy(w.T.copy()))
    with process_group(comm):
        parts = [part for layer in layers for part in (layer, nn.Tanh())][:-1]
        model = nn.parallel.DistributedDataParallel(nn.Sequential(*parts))
        optimizer, loss = torch.optim.SGD(model.parameters(), lr), nn.CrossEntropyLoss()
        for x, y in batches:
            optimizer.zero_grad()
            loss(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
            optimizer.step()
    return [layer.weight.detach().numpy().T.copy() for layer in layers]


@contextmanager
def process_group(comm) -> Iterator[None]:
    """Make the ranks of a communicator PyTorch's default group, on gloo with one thread a rank; collective."""
    import torch
    from torch import distributed

    several = bool(open_board().machines)
    if not several:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    torch.set_num_threads(1)
    folder = _rendezvous_folder(comm, several)
    where = f"file://{folder}/ranks"
    distributed.init_process_group("gloo", init_method=where, rank=comm.Get_rank(), world_size=comm.Get_size())
    try:
        yield
    finally:
        distributed.destroy_process_group()
        shutil.rmtree(folder, ignore_errors=True)


def _rendezvous_folder(comm, several: bool) -> str:
    """Folder of rank 0 that all ranks know, for gloo's rendezvous file; with `several` machines, one that all of them see."""
    name = np.zeros(4096, np.uint8)
    if comm.Get_rank() == 0:
        text = tempfile.mkdtemp(prefix=".course-gloo-", dir=os.getcwd() if several else None).encode()
        name[: len(text)] = list(text)
    comm.Bcast(name, root=0)
    return name[name > 0].tobytes().decode()
