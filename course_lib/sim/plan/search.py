"""Search for the best configurations of a model on a cluster: closed forms select candidates, the event simulation ranks them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from course_lib.sim.core.hardware import GIB
from course_lib.sim.llm.analytic import estimate
from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import RECOMPUTE_MODES, Configuration, PlanError, problems
from course_lib.sim.llm.events import Step, simulate
from course_lib.sim.llm.transformer import Transformer

MAX_SIMULATED = 50
MICRO_BATCHES = (1, 2, 4, 8, 16)  # texts per micro-batch
MEMORY_ESTIMATE_SLACK = 1.03  # relative error of the closed form of memory


def configurations(model: Transformer, cluster: Cluster, micro_batches: Iterable[int] = MICRO_BATCHES) -> Iterator[Configuration]:
    """Yield all consistent configurations, whatever memory they take, with micro-batches of these sizes."""
    for tensor in _divisors(cluster.gpus, cluster.node):
        for pipeline in _divisors(cluster.gpus // tensor, model.layers):
            data = cluster.gpus // tensor // pipeline
            for interleave in _divisors(model.layers // pipeline, model.layers) if pipeline > 1 else [1]:
                for micro_batch in micro_batches:
                    grid = dict(tensor=tensor, pipeline=pipeline, data=data, interleave=interleave, micro_batch=micro_batch)
                    if any(problems(model, cluster, Configuration(**grid))):
                        continue
                    for recompute in RECOMPUTE_MODES if not model.fused else ("none", "full"):  # fused: there are no scores to keep
                        for sequence in (False, True) if tensor > 1 and model.sequence % tensor == 0 else (False,):
                            for sharded in (False, True) if data > 1 else (False,):
                                more = dict(recompute=recompute, sequence_parallel=sequence, sharded_optimizer=sharded)
                                yield Configuration(**grid, **more)


def best(
    model: Transformer, cluster: Cluster, count: int = 5, max_simulated: int = MAX_SIMULATED, micro_batches: Iterable[int] = MICRO_BATCHES
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

    Raises
    ------
    PlanError
        No configuration fits.
    """
    candidates = [(*estimate(model, cluster, c), c) for c in configurations(model, cluster, micro_batches)]
    if not candidates:
        raise PlanError(
            f"no configuration of {model.name} fits {cluster.gpus} devices: its heads, layers and batch have no suitable common divisors."
        )
    fitting = [one for one in candidates if one[1] <= MEMORY_ESTIMATE_SLACK * cluster.device.memory]
    if not fitting:
        least = min(nbytes for _, nbytes, _ in candidates) / GIB
        device = f"{cluster.device.name} has {cluster.device.memory / GIB:.1f} GiB"
        raise PlanError(f"{model.name} does not fit: every configuration takes at least {least:.1f} GiB on a device, but {device}.")
    fitting.sort(key=lambda one: one[0])
    steps: list[Step] = []
    for tried, (*_, c) in enumerate(fitting):
        if tried >= max_simulated and len(steps) >= count:
            break
        step = simulate(model, cluster, c, keep=False)
        steps += [step] if step.fits else []
    if not steps:
        raise PlanError(f"{model.name} does not fit: all configurations need more than {cluster.device.name} has.")
    return sorted(steps, key=lambda step: step.seconds)[:count]


def _divisors(whole: int, most: int) -> list[int]:
    return [n for n in range(1, min(whole, most) + 1) if whole % n == 0]
