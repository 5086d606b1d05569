"""Clusters as numbers: compute and memory rates of devices, bandwidths of links."""

from __future__ import annotations

import math
from dataclasses import dataclass

from course_lib.sim.core.hardware import GIB, Link, require_positive

# Assumed: neither from a data sheet nor fitted. `reference_data.sensitivity` shows the effect of changing them.
STREAM_EFFICIENCY, ATTENTION_EFFICIENCY, SMALL_TILE_SLOWDOWN = 0.8, 0.7, 1.1
STEP_OVERHEAD_SECONDS = 0.0844  # seconds, fitted: see `reference_data`

TILE_SHAPES = ((128, 256), (256, 128), (128, 128))  # rows and columns of the result that one processor computes at a time


@dataclass(frozen=True)
class Device:
    """A GPU.

    Parameters
    ----------
    name : str
    flops : float
        Peak FLOP per second, 16 bits, dense.
    processors : int
        Number of streaming multiprocessors.
    memory_bandwidth, memory : float
        Bytes per second, and bytes.
    matrix : float
        Fraction of `flops` that a processor reaches inside a tile of a large matrix product.
    inside, network : Link
        Links as sold: to devices of its node, and to others.
    stream : float
        Fraction of `memory_bandwidth` that elementwise operations reach.
    attention : float
        Fraction of `matrix` that the small products of attention heads reach.
    small_tile : float
        Slowdown of a small tile per FLOP, as it reads its operands more often.

    Raises
    ------
    ValueError
        A number is out of range.
    """

    name: str
    flops: float
    processors: int
    memory_bandwidth: float
    memory: float
    matrix: float
    inside: Link
    network: Link
    stream: float = STREAM_EFFICIENCY
    attention: float = ATTENTION_EFFICIENCY
    small_tile: float = SMALL_TILE_SLOWDOWN

    def __post_init__(self):
        parts = ("matrix", "stream", "attention")
        require_positive(self, f"the device {self.name}", "flops", "processors", "memory_bandwidth", "memory", "small_tile", *parts)
        for name in parts:
            if getattr(self, name) > 1:
                raise ValueError(f"the device {self.name}: {name} is a fraction, at most 1; got {getattr(self, name)}.")

    def product(self, m: int, n: int, k: int, written: int = 2) -> float:
        """Seconds of a matrix product of ``(m, k)`` by ``(k, n)``.

        The result is computed in tiles, one per processor, in waves: the last wave may leave processors idle. The result of a wave is
        written before the next one begins (NVIDIA, "Matrix multiplication background user's guide", sections 3 and 4).

        Parameters
        ----------
        m, n, k : int
        written : int
            Bytes written per number of the result, and read, if it is added to existing values.
        """
        one, best = self.flops * self.matrix / self.processors, math.inf
        for rows, columns in TILE_SHAPES:
            waves = math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / self.processors)
            longer = self.small_tile if rows * columns < TILE_SHAPES[0][0] * TILE_SHAPES[0][1] else 1.0
            begun = 2.0 * rows * columns * k / one * longer
            best = min(best, waves * (begun + self.stream_time(rows * columns * written * self.processors)))
        return max(best, 2 * (m * k + n * k + m * n) / self.memory_bandwidth)

    def stream_time(self, nbytes: float) -> float:
        """Seconds to read and write this many bytes of device memory."""
        return nbytes / (self.memory_bandwidth * self.stream)


@dataclass(frozen=True)
class Cluster:
    """Identical devices in nodes, and the network between them.

    Parameters
    ----------
    device : Device
    gpus : int
        Number of devices.
    node : int
        Devices per node.
    inside, network : Link, optional
        Links of a device, within its node and beyond it; by default as the device is sold.
    pod : int
        Devices behind one switch; 0 if a single switch connects all of them.
    oversubscription : float
        Factor by which a device's bandwidth shrinks beyond its pod.
    overhead : float
        Seconds of a step outside the layers and the optimizer: launching, reading the texts, reporting the loss.

    Raises
    ------
    ValueError
        A number is out of range.

    Notes
    -----
    Devices are numbered so that tensor parallel ranks are adjacent, then data parallel ones, then the stages of the pipeline, as
    Megatron-LM places them.
    """

    device: Device
    gpus: int
    node: int = 8
    inside: Link | None = None
    network: Link | None = None
    pod: int = 0
    oversubscription: float = 1.0
    overhead: float = STEP_OVERHEAD_SECONDS

    def __post_init__(self):
        for name in ("inside", "network"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self.device, name))
        for name, least in (("gpus", 1), ("node", 1), ("pod", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"a cluster's {name} must be a whole number, {least} or more; got {value!r}.")
        if self.pod % self.node:
            raise ValueError(f"a pod must consist of whole nodes of {self.node}; got a pod of {self.pod}.")
        require_positive(self, "a cluster", "oversubscription")
        if self.oversubscription < 1 or not 0 <= self.overhead < math.inf:
            wrong = f"{self.oversubscription} and {self.overhead}"
            raise ValueError(f"a cluster's oversubscription must be 1 or more, and its overhead 0 seconds or more; got {wrong}.")

    def link(self, n: int, stride: int) -> Link:
        """Link of a device of a group to its neighbour in the group's ring.

        Parameters
        ----------
        n : int
            Number of devices in the group.
        stride : int
            Distance between the group's devices in the cluster.
        """
        span = n * stride
        if self.gpus <= self.node or self.node % span == 0:
            return self.inside
        # Members in the same node have a link out each; if groups and nodes do not align, some node has one member only.
        members_per_node = self.node // stride if self.node % stride == span % self.node == 0 else 1
        return self._out(max(members_per_node, 1), self.pod % span == 0)

    def between(self, first: int, last: int) -> Link:
        """Link between two of these devices, which may be in different nodes."""
        if first // self.node == last // self.node:
            return self.inside
        return self._out(1, self.pod and first // self.pod == last // self.pod)

    def _out(self, members_per_node: int, within_pod: bool) -> Link:
        less = 1.0 if within_pod or not self.pod or self.gpus <= self.pod else self.oversubscription
        bandwidth = min(
            self.network.bandwidth * self.network.efficiency * members_per_node / less, self.inside.bandwidth * self.inside.efficiency
        )
        return Link(bandwidth, 1.0, self.network.latency)


# NCCL's own tests report about these fractions of the bandwidths of NVLink and InfiniBand; the latencies are assumed, too.
_NVLINK_EFFICIENCY, _INFINIBAND_EFFICIENCY, _LINK_LATENCY_SECONDS = 0.78, 0.9, 10e-6


def _links(nvlink: float, infiniband: float) -> dict[str, Link]:
    return dict(
        inside=Link(nvlink, _NVLINK_EFFICIENCY, _LINK_LATENCY_SECONDS),
        network=Link(infiniband, _INFINIBAND_EFFICIENCY, _LINK_LATENCY_SECONDS),
    )


# Data sheets: NVIDIA A100 80 GB SXM with HDR InfiniBand, H100 SXM with NDR.
# `matrix` of the A100 is fitted, see `reference_data`; that of the H100 is assumed: tensor cores three times as fast wait more often
# for their operands.
A100_DEVICE = Device("A100 80 GB", 312e12, 108, 2039e9, 80 * GIB, matrix=0.907, **_links(300e9, 25e9))
H100_DEVICE = Device("H100 80 GB", 989e12, 132, 3352e9, 80 * GIB, matrix=0.75, **_links(450e9, 50e9))
DEVICE_PRESETS = {"a100": A100_DEVICE, "h100": H100_DEVICE}
