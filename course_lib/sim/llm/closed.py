"""A step by closed forms: fast, and nearly what the simulation of events gives."""

from __future__ import annotations

from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.parts import Costs
from course_lib.sim.llm.schedule import warm_up
from course_lib.sim.llm.transformer import Transformer


def estimate(model: Transformer, cluster: Cluster, c: Configuration) -> tuple[float, float]:
    """About how long a step takes, and how much a rank holds, by closed forms.

    The slowest rank of the pipeline is busy with all micro-batches; beside that, it waits for the first one to come and the last one to go
    (Narayanan et al., 2021, section 2.2).

    Returns
    -------
    seconds, nbytes : float
    """
    costs, p, v, m = Costs(model, cluster, c), c.pipeline, c.interleave, c.micro_batches(model)
    busy, held = [], []
    for rank in {0, p // 2, p - 1}:
        stages = [costs.stage(chunk * p + rank) for chunk in range(v)]
        edges = 2 * v - (rank == 0) - (rank == p - 1)
        busy.append(sum(stage.forward + stage.backward for stage in stages) + edges * costs.message)
        flying = min(warm_up(rank, p, v) + 1, v * m)
        held.append(sum(costs.state(rank).values()) + flying * sum(stage.saved for stage in stages) / v + stages[0].spare)
    seconds = m * max(busy) + (p - 1) * (sum(busy) / len(busy)) / v
    seconds += max(costs.reduce(rank, 0) + costs.update(rank) + costs.gather(rank) for rank in (0, p - 1)) + cluster.overhead
    return seconds, max(held)
