"""Memory of activations: published formulas, and bytes that the simulated ranks hold."""

from __future__ import annotations

from dataclasses import replace

from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.costs.stage import StageCosts
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.measured.comparison import Comparison
from course_lib.sim.llm.measured.rows import KORTHIKANTI, MEASURED, Measured
from course_lib.sim.llm.transformer import Transformer

# Fraction of tensor parallelism's activations that each method keeps, by Korthikanti et al., 2022, table 2 and figure 7.
ACTIVATION_STRATEGIES = {
    "sequence parallel": dict(sequence_parallel=True),
    "selective recomputation": dict(recompute="selective"),
    "both": dict(sequence_parallel=True, recompute="selective"),
    "full recomputation": dict(recompute="full"),
}


def activation_formula(model: Transformer, tensor: int, sequence_parallel: bool = False, recompute: str = "none") -> float:
    """Bytes of a layer's activations per position of each text and unit of width (table 2)."""
    t, scores = tensor, 5 * model.heads * model.sequence / model.hidden
    if recompute == "full":
        return 2.0
    kept = 24 / t + (scores / t if recompute == "none" else 0.0)
    return kept + (10 / t if sequence_parallel else 10.0)


def activations() -> list[Comparison]:
    """Activations of layers relative to tensor parallelism's: by the formulas, and as held by the simulated ranks."""
    found = []
    for m in [row for row in MEASURED if row.source == KORTHIKANTI][::2]:
        plain = replace(m.configuration, recompute="none")
        whole, base = activation_formula(m.model, plain.tensor), _activation_bytes(m, plain)
        for way, switches in ACTIVATION_STRATEGIES.items():
            theirs = activation_formula(m.model, plain.tensor, **switches) / whole
            found.append(Comparison(f"{m.model.name}, {way}", theirs, _activation_bytes(m, replace(plain, **switches)) / base))
    return found


def _activation_bytes(measured: Measured, configuration: Configuration) -> float:
    """Peak bytes that a middle stage of the pipeline keeps of its layers, excluding what is being recomputed."""
    model, place, stage = measured.model, measured.cluster, configuration.pipeline // 2
    step, costs = simulate(model, place, configuration, keep=False), StageCosts(model, place, configuration)
    kept = step.peaks[stage] - sum(step.state[stage].values()) - costs.stage(stage).spare
    return kept - (costs.ends(0) if configuration.pipeline == 1 else 0.0)
