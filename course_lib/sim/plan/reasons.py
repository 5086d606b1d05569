"""Reasons for a configuration: what happens with another choice, one at a time, and what would change the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from course_lib.sim.core.hardware import GIB
from course_lib.sim.llm.analytic import estimate
from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import Configuration, problems, recompute_modes
from course_lib.sim.llm.costs.stage import StageCosts
from course_lib.sim.llm.events import Step
from course_lib.sim.llm.transformer import Transformer
from course_lib.sim.plan.search import Candidate, simulated
from course_lib.utils import wording

AXES = ("tensor", "context", "pipeline", "expert", "expert_tensor", "interleave", "micro_batch")
MANY = 1500  # candidates that are looked at again when something changes: the fastest, and those that take the least memory
SMALL = 0.005  # of a step's seconds: less is no reason


def reasons(step: Step) -> list[str]:
    """Say for each choice what its neighbours would cost, as sentences.

    A neighbour has twice or half of one axis (replicas make up for it), or another way to recompute or to shard. Only the neighbours that a
    person would ask about are listed: those that are impossible, do not fit, or are slower.
    """
    found = []
    for name in (*AXES, "zero", "recompute"):
        value, sentences = getattr(step.configuration, name), []
        for other, c in _neighbours(step.model, step.configuration, name):
            sentences.append(f"{other}: {_why_not(step, name, c)}")
        if sentences:
            found.append(f"{name.replace('_', ' ')} {value}, not " + "; not ".join(sentences))
    return found


def _neighbours(model: Transformer, c: Configuration, name: str) -> Iterator[tuple[object, Configuration]]:
    value = getattr(c, name)
    if name in ("zero", "recompute"):
        some = recompute_modes(model)
        others = [one for one in ((1, 2, 3) if name == "zero" else some) if one != (c.sharding if name == "zero" else value)]
        yield from ((other, replace(c, **{name: other})) for other in others if c.context * c.data > 1 or name == "recompute")
        return
    if (name.startswith("expert") and not model.experts) or (name == "interleave" and c.pipeline == 1):
        return
    for other in [value // 2] * (value % 2 == 0) + [2 * value]:
        changed = replace(c, **{name: other})
        if name in ("tensor", "context", "pipeline"):
            whole = c.gpus // max(changed.gpus // c.data, 1)
            changed = replace(changed, data=max(whole, 1))
        if name == "tensor":
            changed = replace(
                changed, sequence_parallel=other > 1, expert_tensor=other if c.expert_tensor == value > 1 else c.expert_tensor
            )
        if name in ("tensor", "context", "pipeline"):
            changed = replace(changed, expert=min(c.expert, max(changed.expert_replicas * changed.expert, 1)))
        stages = changed.pipeline * changed.interleave
        yield other, replace(changed, uneven=bool(model.layers % stages))


def _why_not(step: Step, name: str, c: Configuration) -> str:
    model, cluster = step.model, step.cluster
    if name == "tensor" and c.tensor > cluster.node:
        return f"leaves the domain of {cluster.node} devices that fast links connect"
    for problem in problems(model, cluster, c):
        return problem.rstrip(".")
    seconds, nbytes = estimate(model, cluster, c, True)
    if nbytes > cluster.device.memory:
        return f"takes {nbytes / GIB:.0f} GiB, but a device has {cluster.device.memory / GIB:.0f}"
    more = seconds / estimate(model, cluster, step.configuration)[0] - 1
    if more < SMALL:
        return "about as fast" if more > -SMALL else f"{-more:.1%} faster by closed forms, but slower when simulated"
    return f"{more:.1%} slower{_cause(step, c)}"


def _cause(step: Step, c: Configuration) -> str:
    """Say what takes longer: exchanges, the bubble, or what is done once a step."""
    parts, other = (_parts(step.model, step.cluster, one) for one in (step.configuration, c))
    name, more = max(((name, other[name] - parts[name]) for name in parts), key=lambda one: one[1])
    return f", as {name} {'takes' if name == 'the bubble' else 'take'} {wording.seconds(more)} more" if more > 0 else ""


def _parts(model: Transformer, cluster: Cluster, c: Configuration) -> dict[str, float]:
    """Seconds of a step by cause, roughly, on a rank in the middle of the pipeline."""
    costs, m, rank = StageCosts(model, cluster, c), c.micro_batches(model), c.pipeline // 2
    stages = [costs.stage(chunk * c.pipeline + rank) for chunk in range(c.interleave)]
    exchanged = sum(stage.exchanged for stage in stages)
    busy = sum(stage.forward + stage.backward for stage in stages)
    return {
        "computation and memory": m * (busy - exchanged),
        "exchanges within layers": m * exchanged,
        "the bubble": (c.pipeline - 1) * busy / c.interleave,
        "exchanges among replicas and the optimizer": sum(costs.reduce(rank, chunk) for chunk in range(c.interleave))
        + costs.update(rank)
        + costs.gather(rank),
    }


def changes(steps: Sequence[Step], fitting: Sequence[Candidate]) -> list[str]:
    """Say what would change the answer, as sentences: a network twice as fast, texts twice as long, half the memory.

    Parameters
    ----------
    steps : sequence of Step
        The best, fastest first.
    fitting : sequence of (float, float, Configuration)
        Candidates of the search, fastest first; many of them are looked at again.
    """
    best = steps[0]
    model, cluster = best.model, best.cluster
    some = [*fitting[:MANY], *sorted(fitting[MANY:], key=lambda one: one[1])[:MANY]]
    network = replace(cluster.network, bandwidth=2 * cluster.network.bandwidth)
    half = replace(cluster.device, memory=cluster.device.memory / 2)
    cases = {
        "A network twice as fast": (model, replace(cluster, network=network)),
        "Texts twice as long, and half as many": (replace(model, sequence=2 * model.sequence, batch=max(model.batch // 2, 1)), cluster),
        "Half the memory": (model, replace(cluster, device=half)),
    }
    found = []
    for what, (changed, place) in cases.items():
        again = [(*estimate(changed, place, c, True), c) for *_, c in some if not any(problems(changed, place, c))]
        again = sorted((one for one in again if one[1] <= place.device.memory), key=lambda one: one[0])
        if not again:
            found.append(f"{what}: none of the candidates fits.")
            continue
        step = simulated(changed, place, again, 1, 5, 200_000)[0]
        same = "the same configuration" if step.configuration == best.configuration else str(step.configuration)
        found.append(f"{what}: {same}, {wording.seconds(step.seconds)} ({step.seconds / best.seconds - 1:+.1%}).")
    return found
