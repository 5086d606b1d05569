"""A step by closed forms: fast, and about what the simulation of events gives."""

from __future__ import annotations

from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import Configuration, check_configuration
from course_lib.sim.llm.schedule import warmup_forwards
from course_lib.sim.llm.stage_costs import StageCosts
from course_lib.sim.llm.transformer import Transformer


def estimate(model: Transformer, cluster: Cluster, c: Configuration) -> tuple[float, float]:
    """About how long a step takes, and how much a rank holds, by closed forms.

    The slowest rank of the pipeline is busy with all micro-batches; beside that, it waits for the first one to come and the last one to go
    (Narayanan et al., 2021, section 2.2). Gradients of a chunk are reduced when all micro-batches have been there: the last chunk's first.

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
    crossing = cluster.node // (c.tensor * c.data)  # the first rank in the second node: its messages go out, and those of the one before
    busy, held, after = [], [], []
    for rank in {0, p // 2, p - 1, *(r for r in (crossing - 1, crossing) if 0 <= r < p)}:
        stages = [costs.stage(chunk * p + rank) for chunk in range(v)]
        sent = (v - (rank == p - 1)) * costs.message[rank] + (v - (rank == 0)) * costs.message[rank - 1]
        busy.append(sum(stage.forward + stage.backward for stage in stages) + sent)
        rounds, rest = divmod(min(warmup_forwards(rank, p, v) + 1, v * m), p * v)  # of the micro-batches that are on their way at once
        flying = [rounds * p + min(max(rest - chunk * p, 0), p) for chunk in range(v)]
        saved = sum(n * stage.saved for n, stage in zip(flying, stages, strict=True))
        held.append(sum(costs.state(rank).values()) + saved + stages[0].spare)
        last, all_before = costs.reduce(rank, 0), sum(costs.reduce(rank, chunk) for chunk in range(v))
        hidden = (v - 1) * min(p, m) * stages[0].backward
        after.append(max(last, all_before - hidden) + costs.update(rank) + costs.gather(rank))
    seconds = m * max(busy) + (p - 1) * (sum(busy) / len(busy)) / v + max(after) + cluster.overhead
    return seconds, max(held)
