"""Closed forms for a step: fast estimates, close to the simulation of events."""

from __future__ import annotations

from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import Configuration, check_configuration
from course_lib.sim.llm.costs.schedule import warmup_forwards
from course_lib.sim.llm.costs.stage import StageCosts
from course_lib.sim.llm.transformer import Transformer


def estimate(model: Transformer, cluster: Cluster, c: Configuration, checked: bool = False) -> tuple[float, float]:
    """Estimate the duration of a step and the peak memory of a rank by closed forms.

    The slowest rank of the pipeline is busy with all micro-batches; in addition it waits for the first to arrive and the last to leave
    (Narayanan et al., 2021, section 2.2). A chunk's gradients are reduced once all its micro-batches are done: the last chunk's first.

    Parameters
    ----------
    model : Transformer
    cluster : Cluster
    c : Configuration
    checked : bool
        Whether it is known to fit the model and the cluster, which then is not checked again.

    Returns
    -------
    seconds, nbytes : float

    Raises
    ------
    PlanError
        The configuration does not fit the model or the cluster.
    """
    if not checked:
        check_configuration(model, cluster, c)
    costs, p, v, m = StageCosts(model, cluster, c), c.pipeline, c.interleave, c.micro_batches(model)
    # The first rank in the second node: its messages cross the network, and so do those of the rank before.
    crossing = -1 if cluster.software.hidden_messages else cluster.node // (c.tensor * c.context * c.data)
    busy, held, after = {}, [], []
    for rank in {0, p // 2, p - 1, *(r for r in (crossing - 1, crossing) if 0 <= r < p)}:
        stages = [costs.stage(chunk * p + rank) for chunk in range(v)]
        sent = (v - (rank == p - 1)) * costs.message[rank] + (v - (rank == 0)) * costs.message[rank - 1]
        sent *= not cluster.software.hidden_messages
        busy[rank] = sum(stage.forward + stage.backward for stage in stages) + sent
        rounds, rest = divmod(min(warmup_forwards(rank, p, v) + 1, v * m), p * v)  # of the micro-batches in flight
        flying = [rounds * p + min(max(rest - chunk * p, 0), p) for chunk in range(v)]
        saved = sum(n * stage.saved for n, stage in zip(flying, stages, strict=True))
        held.append(sum(costs.state(rank).values()) + saved + stages[0].spare)
        after.append(_reduced_after(costs, rank, m) + costs.tie(rank) + costs.update(rank) + costs.gather(rank))
    most = max(busy.values())
    others = busy[0] + busy[p - 1] + (p - 2) * busy[p // 2] - most if p > 1 else 0.0
    seconds = m * most + others / v + max(after) + cluster.overhead
    if cluster.software.hidden_messages and p > 1:
        # Behind computation, but not on the way to the last rank and back, nor between chunks while there are only forwards.
        rounds = (v - 1) * min(max(2 - m / p, 0), 1)
        seconds += (2 + rounds) * sum(costs.message)
    return seconds, max(held)


def _reduced_after(costs: StageCosts, rank: int, micro_batches: int) -> float:
    """Seconds from the end of backward until the gradients are reduced."""
    c, overlap = costs.c, costs.cluster.software.gradients
    chunks = [costs.reduce(rank, chunk) for chunk in range(c.interleave)]
    if overlap == "none":
        return sum(chunks)
    backward = costs.stage(rank).backward
    last, hidden = chunks[0], (c.interleave - 1) * min(c.pipeline, micro_batches) * backward
    if overlap == "layer":
        layers = max(sum(costs.held(rank)[:2]), 1)
        ahead = backward * (1 - 1 / layers)
        last, hidden = max(last / layers, last - ahead), hidden + ahead
    return max(last, sum(chunks) - hidden)
