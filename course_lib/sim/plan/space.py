"""Configurations worth a look, of all axes: what can only be slower, or take more memory, is left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import Configuration, problems, recompute_modes
from course_lib.sim.llm.costs.stage import GRADIENT_BYTES, OPTIMIZER_BYTES, WEIGHT_BYTES
from course_lib.sim.llm.transformer import Transformer

MICRO_BATCHES = (1, 2, 4, 8, 16)  # texts per micro-batch
MIN_POSITIONS = 2048  # per context parallel rank: with fewer, a text is too short to be split
UNEVEN_CHUNKS = (1, 2, 4, 8)  # chunks per pipeline rank, where the stages do not divide the layers


def divisors(whole: int, most: int) -> list[int]:
    """Divisors of a number, up to `most`."""
    return [n for n in range(1, min(whole, most) + 1) if whole % n == 0]


def configurations(model: Transformer, cluster: Cluster, micro_batches: Iterable[int] = MICRO_BATCHES) -> Iterator[Configuration]:
    """Yield all consistent configurations of part 29's axes, whatever memory they take, with micro-batches of these sizes."""
    for tensor in divisors(cluster.gpus, cluster.node):
        for pipeline in divisors(cluster.gpus // tensor, model.layers):
            data = cluster.gpus // tensor // pipeline
            for interleave in divisors(model.layers // pipeline, model.layers) if pipeline > 1 else [1]:
                for micro_batch in micro_batches:
                    grid = dict(tensor=tensor, pipeline=pipeline, data=data, interleave=interleave, micro_batch=micro_batch)
                    if any(problems(model, cluster, Configuration(**grid))):
                        continue
                    for recompute in recompute_modes(model):
                        for sequence in (False, True) if tensor > 1 and model.sequence % tensor == 0 else (False,):
                            for sharded in (False, True) if data > 1 else (False,):
                                more = dict(recompute=recompute, sequence_parallel=sequence, sharded_optimizer=sharded)
                                yield Configuration(**grid, **more)


def all_configurations(
    model: Transformer, cluster: Cluster, micro_batches: Iterable[int] = MICRO_BATCHES, precision: str = "bf16"
) -> Iterator[Configuration]:
    """Yield the consistent configurations of all axes, except those whose parameters alone exceed a device's memory.

    If they do in all, the configurations that take the least are there all the same: a search can then say how much that is. Tensor
    parallel ranks always split the positions, too, and replicas always shard the optimizer state: neither costs time.
    """
    found, least = False, (math.inf, {})
    for grid in grids(model, cluster):
        for axes in _axes(model, grid, precision):
            held = least_state(model, Configuration(**axes))
            if held > cluster.device.memory:
                least = min(least, (held, axes), key=lambda one: one[0])
                continue
            for c in _details(model, cluster, axes, micro_batches):
                found = True
                yield c
    if not found and least[1]:
        yield from _details(model, cluster, least[1], micro_batches)


def configurations_of_grid(model: Transformer, cluster: Cluster, grid: dict[str, int], precision: str = "bf16") -> Iterator[Configuration]:
    """Yield the consistent configurations of all axes on one grid, whatever memory they take.

    Parameters
    ----------
    model : Transformer
    cluster : Cluster
    grid : dict of str to int
        Sizes of the tensor, context, pipeline and data axes.
    precision : str
        Of matrix products.
    """
    for axes in _axes(model, grid, precision):
        yield from _details(model, cluster, axes, MICRO_BATCHES)


def _axes(model: Transformer, grid: dict[str, int], precision: str) -> Iterator[dict]:
    """Expert axes and ZeRO stages of one grid."""
    for experts in _expert_axes(model, grid["tensor"], grid["tensor"] * grid["context"] * grid["data"]):
        for zero in (1, 2, 3) if grid["context"] * grid["data"] > 1 else (0,):
            yield dict(**grid, **experts, zero=zero, sequence_parallel=grid["tensor"] > 1, precision=precision)


def grids(model: Transformer, cluster: Cluster) -> Iterator[dict[str, int]]:
    """Yield the sizes of the tensor, context, pipeline and data axes that the model's sizes allow."""
    for tensor in divisors(cluster.gpus, cluster.node):
        if model.heads % tensor or model.kv_heads % tensor or model.feed_forward % tensor:
            continue
        most = max(model.sequence // MIN_POSITIONS, 1) if model.fused else 1
        for context in divisors(cluster.gpus // tensor, most):
            for pipeline in divisors(cluster.gpus // tensor // context, model.layers):
                data = cluster.gpus // tensor // context // pipeline
                if model.batch % data == 0:
                    yield dict(tensor=tensor, context=context, pipeline=pipeline, data=data)


def _expert_axes(model: Transformer, tensor: int, stage_devices: int) -> Iterator[dict[str, int]]:
    if not model.experts:
        yield {}
        return
    for expert_tensor in {1, tensor}:
        for expert in divisors(model.experts, stage_devices // expert_tensor):
            if stage_devices % (expert * expert_tensor) == 0 and model.expert_feed_forward % expert_tensor == 0:
                yield dict(expert=expert, expert_tensor=expert_tensor)


def _details(model: Transformer, cluster: Cluster, axes: dict, micro_batches: Iterable[int]) -> Iterator[Configuration]:
    """Micro-batches, chunks and recomputation of one grid."""
    pipeline = axes["pipeline"]
    for chunks, uneven in _chunks(model.layers, pipeline):
        for micro_batch in micro_batches if axes["context"] == 1 else (1,):  # with more, a smaller context axis would do the same
            c = Configuration(**axes, interleave=chunks, micro_batch=micro_batch, uneven=uneven)
            if any(problems(model, cluster, c)):
                continue
            for recompute in recompute_modes(model):
                yield Configuration(**axes, interleave=chunks, micro_batch=micro_batch, uneven=uneven, recompute=recompute)


def _chunks(layers: int, pipeline: int) -> list[tuple[int, bool]]:
    """Numbers of chunks per rank, and whether the first and the last stage then have fewer layers than the others."""
    if pipeline == 1:
        return [(1, False)]
    if layers % pipeline == 0:
        return [(n, False) for n in divisors(layers // pipeline, layers)]
    return [(n, True) for n in UNEVEN_CHUNKS if n <= -(-layers // pipeline)]


def least_state(model: Transformer, c: Configuration) -> float:
    """Bytes of weights, gradients and optimizer state that the fullest device has at the least."""
    routed = model.expert_layers * model.experts * model.expert_matrices()
    others = (model.parameters() - routed) / c.tensor / c.pipeline
    routed = routed / c.expert / c.expert_tensor / c.pipeline
    copies, expert_copies = c.context * c.data, c.expert_replicas
    total = 0.0
    for stage, nbytes in ((1, OPTIMIZER_BYTES), (2, GRADIENT_BYTES), (3, WEIGHT_BYTES)):
        total += nbytes * (others / copies + routed / expert_copies if c.sharding >= stage else others + routed)
    return total
