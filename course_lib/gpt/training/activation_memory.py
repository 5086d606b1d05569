"""Activations of a model's layers: what recomputing them costs and saves, and the memory of a step over time, measured on one rank."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from course_lib import memory
from course_lib.autograd import Module, Sequential, Tensor, no_grad
from course_lib.autograd.functional import gelu
from course_lib.gpt.fsdp.wrapping import call_in_backward
from course_lib.gpt.model.block import Block
from course_lib.gpt.model.decoder import loss_of
from course_lib.gpt.model.divided_stage import DividedStage

ROUNDED_TO = 10**5  # bytes
Ranges = Sequence[tuple[int, int]]  # (start, stop) of layers that are recomputed together, in order


class LayerCost(NamedTuple):
    """Cost of one layer.

    Attributes
    ----------
    seconds : float
        Time of its forward.
    kept : int
        Bytes that it keeps for its backward, its input included.
    input : int
        Bytes of its input alone.
    work : int
        Further bytes that its backward needs while it runs.
    """

    seconds: float
    kept: int
    input: int
    work: int


def peak_memory(costs: Sequence[LayerCost], ranges: Ranges) -> int:
    """Return the largest number of bytes that a step holds if these ranges are recomputed.

    Examples
    --------
    >>> costs = [LayerCost(1.0, 5, 1, 1)] * 4
    >>> peak_memory(costs, []), peak_memory(costs, [(0, 1), (1, 2), (2, 3), (3, 4)]), peak_memory(costs, [(0, 2), (2, 4)])
    (21, 9, 12)
    """
    starts, found, held = dict(ranges), 0, 0
    at = 0
    while at < len(costs):
        stop = starts.get(at, at + 1)
        here = held
        for cost in costs[at:stop]:
            here += cost.kept
            found = max(found, here + cost.work)
        held = held + costs[at].input if at in starts else here
        at = stop
    return found


def extra_seconds(costs: Sequence[LayerCost], ranges: Ranges) -> float:
    """Return the time of the forwards that are run once more."""
    return sum(cost.seconds for start, stop in ranges for cost in costs[start:stop])


def run_layers(layers: Sequence[Module], ranges: Ranges, checkpoint: Callable, x: Tensor) -> Tensor:
    """Run layers in order, each range of them through the student's `checkpoint`."""
    at = 0
    for start, stop in [*ranges, (len(layers), len(layers))]:
        for layer in layers[at:start]:
            x = layer(x)
        if start < stop:
            x = checkpoint(Sequential(*layers[start:stop]), x)
        at = stop
    return x


def halves(layers: Sequence[Module]) -> list[Module]:
    """Split each block of a model in two layers: attention and the MLP, each with its norm and its residual connection.

    >>> [type(layer).__name__ for layer in halves([Block(8, 2, np.random.default_rng(0))])]
    ['Attention', 'Mlp']
    """
    return [half for layer in layers for half in ((Attention(layer), Mlp(layer)) if isinstance(layer, Block) else (layer,))]


class Attention(Module):
    """The first half of a block."""

    def __init__(self, block: Block):
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        block = self.block
        return x + block.leave(block.attend(block.column_parallel(block.qkv, block.norm1(x))), block.comm)


class Mlp(Attention):
    """The second half of a block."""

    def forward(self, x: Tensor) -> Tensor:
        block = self.block
        return x + block.leave(block.down(gelu(block.column_parallel(block.up, block.norm2(x)))), block.comm)


def layer_costs(layers: Sequence[Module], tokens: np.ndarray, comm: object, turns: int = 5) -> list[LayerCost]:
    """Measure each layer on its own; collective. All ranks get the same: the largest on any rank, bytes rounded up to whole 100 kB.

    Gradients of the layers' parameters are there before, as from an earlier micro-batch.

    Parameters
    ----------
    layers : sequence of Module
    tokens : numpy.ndarray
        int ``(batch, positions)``.
    comm : Communicator
    turns : int
        Forwards of which the median is taken.
    """
    found, x = [], Tensor(tokens)
    for layer in layers:
        for _ in range(2):
            with memory.watch():
                given = Tensor(x.data, requires_grad=x.dtype.kind == "f")
                before = tracemalloc.get_traced_memory()[0]
                out = layer(given)
                after = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()
                out.backward(np.ones_like(out.data))
                peak = tracemalloc.get_traced_memory()[1]
        kept = after - before - out.data.nbytes + x.data.nbytes
        sizes = -(-np.array([kept, x.data.nbytes, peak - after + out.data.nbytes]) // ROUNDED_TO) * ROUNDED_TO
        found.append([_median_seconds(layer, x, turns), *sizes])
        x = Tensor(out.data)
    largest = np.empty((len(found), 4))
    comm.Allreduce(np.array(found, float), largest, op=MPI.MAX)
    return [LayerCost(float(seconds), *(int(nbytes) for nbytes in sizes)) for seconds, *sizes in largest]


def _median_seconds(layer: Module, x: Tensor, turns: int) -> float:
    took = []
    with no_grad():
        for _ in range(turns):
            began = time.perf_counter()
            layer(x)
            took.append(time.perf_counter() - began)
    return float(np.median(took))


def step_memory(layers: Sequence[Module], ranges: Ranges, checkpoint: Callable, tokens: np.ndarray) -> dict:
    """Run a step's forward and backward, and measure its memory over time.

    Parameters
    ----------
    layers, ranges, checkpoint
        As for `run_layers`.
    tokens : numpy.ndarray
        int ``(batch, positions)``.

    Returns
    -------
    dict
        "seconds" since the start and "held", the bytes beyond those at the start, at marks before and after each layer, with the peak
        between two marks in the middle between them, of the fastest of three steps; "peak", the largest; "took", the time of a step that is
        not measured.
    """
    labels = np.roll(tokens, -1, axis=1)

    def step(model: Sequence[Module]) -> float:
        began = time.perf_counter()
        loss_of(run_layers(model, ranges, checkpoint, Tensor(tokens)), labels).backward()
        return time.perf_counter() - began

    took = min(step(layers) for _ in range(4))
    with memory.watch():
        step(layers)  # only what is allocated within the block is measured: now this includes the gradients
        marks = min((_marks(step, layers) for _ in range(3)), key=lambda found: found[-1][0])
    seconds, held = [0.0], [0]
    for (earlier, _, _), (later, peak, now) in pairwise(marks):
        seconds += [(earlier + later) / 2, later]
        held += [peak, now]
    return dict(seconds=seconds, held=held, peak=max(held), took=took)


def kept_by_divided(stage: DividedStage, tokens: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    """Measure the bytes that a stage keeps of a micro-batch after its forward, and after `backward_input`.

    Parameters
    ----------
    stage : DividedStage
        Nothing is in flight in it, and its parameters have gradients.
    tokens, labels : numpy.ndarray
        int ``(batch, positions)``.
    """
    x = tokens if stage.first else np.ones_like(stage.buffer(tokens))
    found = []
    with memory.watch():
        before = tracemalloc.get_traced_memory()[0]
        stage.forward(0, x, labels)
        found.append(tracemalloc.get_traced_memory()[0] - before)
        stage.backward_input(0, 1.0 if stage.last else np.ones_like(stage.buffer(tokens)))
        found.append(tracemalloc.get_traced_memory()[0] - before)
        stage.backward_weight(0)
    return found[0], found[1]


def _marks(step: Callable, layers: Sequence[Module]) -> list[tuple[float, int, int]]:
    """Seconds since the start of a step, the peak since the mark before, and the bytes held, at each mark."""
    marks = [(0.0, 0, 0)]

    def mark() -> None:
        now, peak = tracemalloc.get_traced_memory()
        marks.append((time.perf_counter() - began, peak - base, now - base))
        tracemalloc.reset_peak()

    model = [_Marked(layer, mark) for layer in layers]
    tracemalloc.reset_peak()
    base, began = tracemalloc.get_traced_memory()[0], time.perf_counter()
    step(model)
    mark()
    return marks


class _Marked(Module):
    """A layer that calls a function after its forward and before its backward."""

    def __init__(self, layer: Module, mark: Callable[[], None]):
        self.layer, self.mark = layer, mark

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        self.mark()
        return call_in_backward((out,), self.mark)
