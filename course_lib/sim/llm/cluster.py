"""Clusters as numbers: what a device computes and streams, and what links carry."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from course_lib.sim.hardware import GIB, Link

TILES = ((128, 256), (256, 128), (128, 128))  # rows and columns of the result that one processor makes at once
SMALL_TILE = 1.1  # a small tile reads its operands more often: so much longer


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
    stream : float
        The part of `memory_bandwidth` that operations number by number reach.
    attention : float
        The part of `matrix` that the small products of attention's heads reach.
    """

    name: str
    flops: float
    processors: int
    memory_bandwidth: float
    memory: float
    matrix: float
    stream: float = 0.8
    attention: float = 0.7

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
        for rows, columns in TILES:
            waves = math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / self.processors)
            longer = SMALL_TILE if rows * columns < TILES[0][0] * TILES[0][1] else 1.0
            begun = 2.0 * rows * columns * k / one * longer
            best = min(best, waves * (begun + self.stream_time(rows * columns * written * self.processors)))
        return max(best, 2 * (m * k + n * k + m * n) / self.memory_bandwidth)

    def stream_time(self, nbytes: float) -> float:
        """Seconds to read and write so many bytes of its memory."""
        return nbytes / (self.memory_bandwidth * self.stream)


# Of a device, each way; NCCL's own tests report such parts of what the data sheets say.
NVLINK, HDR = Link(300e9, 0.78, 10e-6), Link(25e9, 0.9, 10e-6)  # A100: NVLink 3, InfiniBand with 200 Gb/s
NVLINK_4, NDR = Link(450e9, 0.78, 10e-6), Link(50e9, 0.9, 10e-6)  # H100: NVLink 4, InfiniBand with 400 Gb/s


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
    inside, network : Link
        Of a device, within its node and beyond it.
    pod : int
        Devices behind one switch; 0 where one switch has all of them.
    oversubscription : float
        How many times less a device gets beyond its pod.
    overhead : float
        Seconds of a step that are neither a layer's nor the optimizer's: launching, reading the texts, telling the loss.
    """

    device: Device
    gpus: int
    node: int = 8
    inside: Link = NVLINK
    network: Link = HDR
    pod: int = 0
    oversubscription: float = 1.0
    overhead: float = 0.0

    def __post_init__(self):
        for name in ("gpus", "node"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"a cluster's {name} must be a whole number, 1 or more; got {value!r}.")

    def link(self, n: int, apart: int) -> Link:
        """What a device of a group has to its neighbour in the group's ring.

        Parameters
        ----------
        n : int
            Devices of the group.
        apart : int
            Every which device of the cluster is in it.
        """
        if n * apart <= self.node:
            return self.inside
        together = max(self.node // apart, 1)  # of a node, in the same group: each has a way out of its own
        less = self.oversubscription if self.pod and n * apart > self.pod else 1.0
        bandwidth = min(self.network.bandwidth * self.network.efficiency * together / less, self.inside.bandwidth * self.inside.efficiency)
        return Link(bandwidth, 1.0, self.network.latency)


# Data sheets: NVIDIA A100 80 GB SXM and H100 SXM. `matrix` of the A100 is fitted, see `published`; the H100's is taken to be the same.
A100 = Device("A100 80 GB", 312e12, 108, 2039e9, 80 * GIB, matrix=0.907)
H100 = Device("H100 80 GB", 989e12, 132, 3352e9, 80 * GIB, matrix=0.75)
DEVICES = {"a100": A100, "h100": H100}


def cluster(device: str, gpus: int, **changes: object) -> Cluster:
    """A cluster of nodes of eight, as they are sold: A100 with 200 Gb/s for each device, H100 with 400.

    Raises
    ------
    ValueError
        There is no such device.
    """
    if device not in DEVICES:
        raise ValueError(f"there is no device {device!r}: choose one of {', '.join(DEVICES)}, or describe it in a file (--cluster).")
    found = Cluster(DEVICES[device], gpus, overhead=OVERHEAD)
    if device == "h100":
        found = replace(found, inside=NVLINK_4, network=NDR)
    return replace(found, **changes)


OVERHEAD = 0.0844  # seconds, fitted: see `published`
