"""Exchanges of a configuration: which devices take part in each, over which links, and how many seconds they take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from course_lib.sim.core.hardware import Link
from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import Configuration


@dataclass(frozen=True)
class AllToAll:
    """Exchange of each device of a group with every other: what stays in the node takes its links, the rest the network, at once.

    Parameters
    ----------
    n, near : int
        Devices of the group, and how many of them are in the same node; the fewest, if groups and nodes do not align.
    inside, network : Link
        Of each device.
    """

    n: int
    near: int
    inside: Link
    network: Link

    def seconds(self, nbytes: float, copies: float = 1.0) -> float:
        """Seconds in which each device sends `nbytes` to the group, a share to each member; `copies` is the part that leaves the node."""
        if self.n == 1:
            return 0.0
        within = self.inside.send(nbytes * (self.near - 1) / self.n) if self.near > 1 else 0.0
        beyond = self.network.send(copies * nbytes * (1 - self.near / self.n)) if self.near < self.n else 0.0
        return max(within, beyond)


@dataclass(frozen=True)
class Exchanges:
    """Links of the groups that a layer's ranks exchange with.

    Devices are numbered along tensor, then context, then data, then pipeline; the ranks of a group of experts are adjacent in the order of
    expert tensor, then expert (as Megatron-LM places them).
    """

    tensor: Link
    context: Link
    expert_tensor: Link
    experts: AllToAll

    @classmethod
    def of(cls, cluster: Cluster, c: Configuration, link: Callable[..., Link] | None = None) -> Exchanges:
        """Links of this configuration; `link` is a faster way to ask for the same as ``cluster.link``."""
        t, e, et, link = c.tensor, c.expert, c.expert_tensor, link or cluster.link
        near = max(math.gcd(e * et, cluster.node) // et, 1) if cluster.gpus > cluster.node else e
        return cls(link(t, 1), link(c.context, t), link(et, 1), AllToAll(e, near, cluster.inside, link(e, et, True)))
