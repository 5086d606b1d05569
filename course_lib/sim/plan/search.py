"""Search for the best configurations of a model on a cluster: closed forms select candidates, the event simulation ranks them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from course_lib.sim.core.hardware import GIB
from course_lib.sim.llm.analytic import estimate
from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import Configuration, PlanError
from course_lib.sim.llm.events import Step, simulate
from course_lib.sim.llm.transformer import Transformer
from course_lib.sim.plan.space import MICRO_BATCHES, all_configurations, configurations

MAX_SIMULATED = 50
MAX_EVENTS = 1_000_000  # forwards and backwards simulated in a search of all axes: a few seconds
MEMORY_ESTIMATE_SLACK = 1.03  # relative error of the closed form of memory

Candidate = tuple[float, float, Configuration]  # seconds and bytes by closed forms


def candidates(model: Transformer, cluster: Cluster, some: Iterable[Configuration]) -> list[Candidate]:
    """Estimate configurations; return those that may fit into memory, fastest first.

    Raises
    ------
    PlanError
        There are none, or none fits.
    """
    found = [(*estimate(model, cluster, c, True), c) for c in some]
    if not found:
        raise PlanError(
            f"no configuration of {model.name} fits {cluster.gpus} devices: its heads, layers and batch have no suitable common divisors."
        )
    fitting = [one for one in found if one[1] <= MEMORY_ESTIMATE_SLACK * cluster.device.memory]
    if not fitting:
        least = min(nbytes for _, nbytes, _ in found) / GIB
        device = f"{cluster.device.name} has {cluster.device.memory / GIB:.1f} GiB"
        raise PlanError(f"{model.name} does not fit: every configuration takes at least {least:.1f} GiB on a device, but {device}.")
    return sorted(fitting, key=lambda one: one[0])


def best(
    model: Transformer,
    cluster: Cluster,
    count: int = 5,
    max_simulated: int = MAX_SIMULATED,
    micro_batches: Iterable[int] = MICRO_BATCHES,
    whole: bool = False,
    precision: str = "bf16",
) -> list[Step]:
    """Find the fastest configurations that fit into memory.

    Parameters
    ----------
    model : Transformer
    cluster : Cluster
    count : int
        Number of configurations to return, fastest first.
    max_simulated : int
        Number of configurations to simulate.
    micro_batches : iterable of int
        Micro-batch sizes to consider.
    whole : bool
        Whether to search all axes, rather than those of part 29.
    precision : str
        Of matrix products, if all axes are searched.

    Raises
    ------
    PlanError
        No configuration fits.
    """
    some = all_configurations(model, cluster, micro_batches, precision) if whole else configurations(model, cluster, micro_batches)
    return simulated(model, cluster, candidates(model, cluster, some), count, max_simulated, MAX_EVENTS if whole else math.inf)


def simulated(
    model: Transformer,
    cluster: Cluster,
    fitting: Iterable[Candidate],
    count: int,
    max_simulated: int = MAX_SIMULATED,
    max_events: float = math.inf,
) -> list[Step]:
    """Simulate the first candidates, as many as these limits allow but at least `count` that fit; return the fastest that fit.

    Raises
    ------
    PlanError
        None fits.
    """
    steps: list[Step] = []
    events = 0
    for tried, (*_, c) in enumerate(fitting):
        if (tried >= max_simulated or events >= max_events) and len(steps) >= count:
            break
        events += 2 * c.pipeline * c.interleave * c.micro_batches(model)
        step = simulate(model, cluster, c, keep=False)
        steps += [step] if step.fits else []
    if not steps:
        raise PlanError(f"{model.name} does not fit: all configurations need more than {cluster.device.name} has.")
    return sorted(steps, key=lambda step: step.seconds)[:count]
