"""Clusters as numbers: what a device computes and streams, and what links carry."""

from __future__ import annotations

import math
from dataclasses import dataclass

from course_lib.sim.core.hardware import GIB, Link, require_positive

# Assumed: no data sheet says so, and nothing was fitted to it. `reference_data.sensitivity` shows what a change of them does.
STREAM_EFFICIENCY, ATTENTION_EFFICIENCY, SMALL_TILE_SLOWDOWN = 0.8, 0.7, 1.1
STEP_OVERHEAD_SECONDS = 0.0844  # seconds, fitted: see `reference_data`

TILE_SHAPES = ((128, 256), (256, 128), (128, 128))  # rows and columns of the result that one processor makes at once


@dataclass(frozen=True)
class Device:
    """A GPU.

    Parameters
    ----------
    name : str
    flops : float
        FLOP a second at most, 16 bits, dense.
    processors : int
        Streaming multiprocessors.
    memory_bandwidth, memory : float
        Bytes a second, and bytes.
    matrix : float
        The part of `flops` that a processor reaches inside a tile of a large matrix product.
    inside, network : Link
        As it is sold: to devices of its node, and to others.
    stream : float
        The part of `memory_bandwidth` that operations number by number reach.
    attention : float
        The part of `matrix` that the small products of attention's heads reach.
    small_tile : float
        How many times longer a small tile takes for its FLOP: it reads its operands more often.

    Raises
    ------
    ValueError
        A number cannot be.
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
                raise ValueError(f"the device {self.name}: {name} is a part, 1 at most; got {getattr(self, name)}.")

    def product(self, m: int, n: int, k: int, written: int = 2) -> float:
        """Seconds of a matrix product of ``(m, k)`` by ``(k, n)``.

        Its result is made in tiles, one a processor, in waves: the last wave may leave processors idle. What a wave has made is written
        before the next one begins (NVIDIA, "Matrix multiplication background user's guide", sections 3 and 4).

        Parameters
        ----------
        m, n, k : int
        written : int
            Bytes that are written for each number of the result, and read, where it is added to what is there.
        """
        one, best = self.flops * self.matrix / self.processors, math.inf
        for rows, columns in TILE_SHAPES:
            waves = math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / self.processors)
            longer = self.small_tile if rows * columns < TILE_SHAPES[0][0] * TILE_SHAPES[0][1] else 1.0
            begun = 2.0 * rows * columns * k / one * longer
            best = min(best, waves * (begun + self.stream_time(rows * columns * written * self.processors)))
        return max(best, 2 * (m * k + n * k + m * n) / self.memory_bandwidth)

    def stream_time(self, nbytes: float) -> float:
        """Seconds to read and write so many bytes of its memory."""
        return nbytes / (self.memory_bandwidth * self.stream)


@dataclass(frozen=True)
class Cluster:
    """Equal devices in nodes, and the network between them.

    Parameters
    ----------
    device : Device
    gpus : int
        All of them.
    node : int
        Devices of a node.
    inside, network : Link, optional
        Of a device, within its node and beyond it; as the device is sold by default.
    pod : int
        Devices behind one switch; 0 where one switch has all of them.
    oversubscription : float
        How many times less a device gets beyond its pod.
    overhead : float
        Seconds of a step that are neither a layer's nor the optimizer's: launching, reading the texts, telling the loss.

    Raises
    ------
    ValueError
        A number cannot be.

    Notes
    -----
    Devices are numbered so that tensor parallel ranks are next to each other, then data parallel ones, then the pipeline's stages, as
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
            raise ValueError(f"a pod has whole nodes of {self.node}; got a pod of {self.pod}.")
        require_positive(self, "a cluster", "oversubscription")
        if self.oversubscription < 1 or not 0 <= self.overhead < math.inf:
            wrong = f"{self.oversubscription} and {self.overhead}"
            raise ValueError(f"a cluster's oversubscription is 1 or more, and its overhead 0 seconds or more; got {wrong}.")

    def link(self, n: int, stride: int) -> Link:
        """What a device of a group has to its neighbour in the group's ring.

        Parameters
        ----------
        n : int
            Devices of the group.
        stride : int
            Every which device of the cluster is in it.
        """
        span = n * stride
        if self.gpus <= self.node or self.node % span == 0:
            return self.inside
        # Members in the same node have a way out each; where groups and nodes do not fit together, some node has one member only.
        members_per_node = self.node // stride if self.node % stride == span % self.node == 0 else 1
        return self._out(max(members_per_node, 1), self.pod % span == 0)

    def between(self, first: int, last: int) -> Link:
        """What one of these devices has to another of them, which need not be in its node."""
        if first // self.node == last // self.node:
            return self.inside
        return self._out(1, self.pod and first // self.pod == last // self.pod)

    def _out(self, members_per_node: int, within_pod: bool) -> Link:
        less = 1.0 if within_pod or not self.pod or self.gpus <= self.pod else self.oversubscription
        bandwidth = min(
            self.network.bandwidth * self.network.efficiency * members_per_node / less, self.inside.bandwidth * self.inside.efficiency
        )
        return Link(bandwidth, 1.0, self.network.latency)


# NCCL's own tests report about such parts of what NVLink and InfiniBand have; the latencies are assumed, too.
_NVLINK_EFFICIENCY, _INFINIBAND_EFFICIENCY, _LINK_LATENCY_SECONDS = 0.78, 0.9, 10e-6


def _links(nvlink: float, infiniband: float) -> dict[str, Link]:
    return dict(
        inside=Link(nvlink, _NVLINK_EFFICIENCY, _LINK_LATENCY_SECONDS),
        network=Link(infiniband, _INFINIBAND_EFFICIENCY, _LINK_LATENCY_SECONDS),
    )


# Data sheets: NVIDIA A100 80 GB SXM with HDR InfiniBand, H100 SXM with NDR.
# `matrix` of the A100 is fitted, see `reference_data`; that of the
# H100 is assumed: a tensor core that is three times as fast waits more often for what it multiplies.
A100_DEVICE = Device("A100 80 GB", 312e12, 108, 2039e9, 80 * GIB, matrix=0.907, **_links(300e9, 25e9))
H100_DEVICE = Device("H100 80 GB", 989e12, 132, 3352e9, 80 * GIB, matrix=0.75, **_links(450e9, 50e9))
DEVICES = {"a100": A100_DEVICE, "h100": H100_DEVICE}
