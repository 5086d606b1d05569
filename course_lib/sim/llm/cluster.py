"""Clusters as numbers: devices in nodes, and the network between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from course_lib.sim.core.hardware import Link, require_positive
from course_lib.sim.llm.hardware.device import Device
from course_lib.sim.llm.hardware.presets import A100_DEVICE, DEVICE_PRESETS, H100_DEVICE
from course_lib.sim.llm.hardware.software import MEGATRON_2022, Software

__all__ = ["A100_DEVICE", "DEVICE_PRESETS", "H100_DEVICE", "STEP_OVERHEAD_SECONDS", "Cluster", "Device"]

# Assumed, see `measured.fit.sensitivity`: seconds of a step outside its layers, and the spread of the devices' speeds.
STEP_OVERHEAD_SECONDS, SPREAD = 0.05, 0.01


@dataclass(frozen=True)
class Cluster:
    """Identical devices in nodes, and the network between them.

    Parameters
    ----------
    device : Device
    gpus : int
        Number of devices.
    node : int
        Devices per node, by default as the device is sold.
    inside, network : Link, optional
        Links of a device, within its node and beyond it; by default as the device is sold.
    pod : int
        Devices behind one switch; 0 if a single switch connects all of them.
    oversubscription : float
        Factor by which a device's bandwidth shrinks beyond its pod.
    overhead : float
        Seconds of a step outside the layers and the optimizer: launching, reading the texts, reporting the loss.
    software : Software
        The training program.
    spread : float
        Standard deviation of the devices' speeds, as a fraction: a step waits for the slowest.

    Raises
    ------
    ValueError
        A number is out of range.

    Notes
    -----
    Devices are numbered so that tensor parallel ranks are adjacent, then context parallel ones, then data parallel ones, then the stages
    of the pipeline, as Megatron-LM places them.
    """

    device: Device
    gpus: int
    node: int | None = None
    inside: Link | None = None
    network: Link | None = None
    pod: int = 0
    oversubscription: float = 1.0
    overhead: float = STEP_OVERHEAD_SECONDS
    software: Software = MEGATRON_2022
    spread: float = SPREAD

    def __post_init__(self):
        for name in ("inside", "network"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self.device, name))
        if self.node is None:
            object.__setattr__(self, "node", self.device.node)
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
        if not 0 <= self.spread <= 0.1:
            raise ValueError(f"a cluster's spread is a fraction, 0 to 0.1; got {self.spread!r}.")

    @property
    def slowest(self) -> float:
        """Time of the slowest device relative to an average one.

        The largest of n normally distributed times is about ``spread * sqrt(2 log(n))`` above the mean. Devices of the same kind differ in
        speed, as their clocks follow their temperature and power (Sinha et al., 2022, "Not all GPUs are created equal").
        """
        return 1.0 + self.spread * math.sqrt(2 * math.log(self.gpus))

    def link(self, n: int, stride: int, alone: bool = False) -> Link:
        """Link of a device of a group to its neighbour in the group's ring.

        Parameters
        ----------
        n : int
            Number of devices in the group.
        stride : int
            Distance between the group's devices in the cluster.
        alone : bool
            Whether a device sends all that leaves the node itself: no ring.
        """
        span = n * stride
        if self.gpus <= self.node or self.node % span == 0:
            return self.inside
        # Members in the same node have a link out each; if groups and nodes do not align, some node has one member only.
        members_per_node = self.node // stride if self.node % stride == span % self.node == 0 else 1
        return self._out(1 if alone else max(members_per_node, 1), self.pod % span == 0)

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
