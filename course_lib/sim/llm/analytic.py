"""Closed forms for a step: fast estimates, close to the simulation of events."""

from __future__ import annotations

from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import Configuration, check_configuration
from course_lib.sim.llm.schedule import warmup_forwards
from course_lib.sim.llm.stage_costs import StageCosts
from course_lib.sim.llm.transformer import Transformer


def estimate(model: Transformer, cluster: Cluster, c: Configuration) -> tuple[float, float]:
    """Estimate the duration of a step and the peak memory of a rank by closed forms.

    The slowest rank of the pipeline is busy with all micro-batches; in addition it waits for the first to arrive and the last to leave
    (Narayanan et al., 2021, section 2.2). A chunk's gradients are reduced once all its micro-batches are done: the last chunk's first.

    Returns
    -------
    seconds, nbytes : float

    Raises
    ------
    PlanError
        The configuration does not fit the model or the cluster.
    """
    check_configuration(model, cluster, c)
    costs, p, v, m = StageCosts(model, cluster, c), c.pipeline, c.interleave, c.micro_batches(model)
    crossing = cluster.node // (
        c.tensor * c.data
    )  # the first rank in the second node: its messages cross the network, and so do those of the rank before
    busy, held, after = [], [], []
    for rank in {0, p // 2, p - 1, *(r for r in (crossing - 1, crossing) if 0 <= r < p)}:
        stages = [costs.stage(chunk * p + rank) for chunk in range(v)]
        sent = (v - (rank == p - 1)) * costs.message[rank] + (v - (rank == 0)) * costs.message[rank - 1]
        busy.append(sum(stage.forward + stage.backward for stage in stages) + sent)
        rounds, rest = divmod(min(warmup_forwards(rank, p, v) + 1, v * m), p * v)  # of the micro-batches in flight
        flying = [rounds * p + min(max(rest - chunk * p, 0), p) for chunk in range(v)]
        saved = sum(n * stage.saved for n, stage in zip(flying, stages, strict=True))
        held.append(sum(costs.state(rank).values()) + saved + stages[0].spare)
        last, all_before = costs.reduce(rank, 0), sum(costs.reduce(rank, chunk) for chunk in range(v))
        hidden = (v - 1) * min(p, m) * stages[0].backward
        after.append(max(last, all_before - hidden) + costs.update(rank) + costs.gather(rank))
    seconds = m * max(busy) + (p - 1) * (sum(busy) / len(busy)) / v + max(after) + cluster.overhead
    return seconds, max(held)
