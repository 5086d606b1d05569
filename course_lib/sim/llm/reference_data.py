"""Published measurements, compared with simulated results: `make validate`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from course_lib.plots.figures import Picture
from course_lib.sim.llm import pictures
from course_lib.sim.llm.cluster import A100_DEVICE, Cluster, Device
from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.stage_costs import StageCosts
from course_lib.sim.llm.transformer import GPT_1T, GPT_22B, GPT_175B, GPT_530B, Transformer

SOURCE = "Korthikanti et al., 2022, table 5: A100 80 GB, sequence 2048, vocabulary 51200"


@dataclass(frozen=True)
class Measured:
    """A measured iteration."""

    model: Transformer
    configuration: Configuration
    seconds: float
    fitted: bool = False

    @property
    def cluster(self) -> Cluster:
        """Cluster of the measurement."""
        return Cluster(A100_DEVICE, self.configuration.gpus)

    @property
    def name(self) -> str:
        """Name: the model and the kind of recomputation."""
        return f"{self.model.name}, {'full recomputation' if self.configuration.recompute == 'full' else 'sequence parallel, selective'}"


def _measured_pair(model: Transformer, batch: int, full: float, selective: float, fitted: bool = False, **sizes: int) -> list[Measured]:
    model = replace(model, batch=batch)
    plain = Configuration(**sizes, recompute="full")
    return [
        Measured(model, plain, full, fitted),
        Measured(model, replace(plain, recompute="selective", sequence_parallel=True), selective, fitted),
    ]


MEASURED = [
    *_measured_pair(GPT_22B, 4, 1.42, 1.10, True, tensor=8, micro_batch=4),
    *_measured_pair(GPT_175B, 64, 18.13, 13.75, tensor=8, pipeline=8, interleave=3),
    *_measured_pair(GPT_530B, 280, 49.05, 37.83, tensor=8, pipeline=35, interleave=3),
    *_measured_pair(GPT_1T, 512, 94.42, 71.49, tensor=8, pipeline=64),
]

ASSUMED_FIELDS = ("stream", "attention", "small_tile")  # fields of a device that no data sheet states

# Fraction of tensor parallelism's activations that each method keeps, by Korthikanti et al., 2022, table 2 and figure 7.
ACTIVATION_STRATEGIES = {
    "sequence parallel": dict(sequence_parallel=True),
    "selective recomputation": dict(recompute="selective"),
    "both": dict(sequence_parallel=True, recompute="selective"),
    "full recomputation": dict(recompute="full"),
}


@dataclass(frozen=True)
class Comparison:
    """A published value and the simulated one."""

    name: str
    theirs: float
    ours: float
    fitted: bool = False

    @property
    def error(self) -> float:
        """Relative error of our value."""
        return self.ours / self.theirs - 1


def times() -> list[Comparison]:
    """Seconds per iteration, measured and simulated."""
    found = [(m, simulate(m.model, m.cluster, m.configuration, keep=False).seconds) for m in MEASURED]
    return [Comparison(m.name, m.seconds, seconds, m.fitted) for m, seconds in found]


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
    for m in MEASURED[::2]:
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


def fit(device: Device = A100_DEVICE) -> tuple[float, float]:
    """Fit `Device.matrix` and the overhead of a step to the two measurements of the 22B model.

    Both include the overhead, so their difference determines the former, and the remainder the latter.
    """
    small, large = 0.5, 1.0
    full, selective = MEASURED[:2]
    while True:
        matrix = (small + large) / 2
        ours = [_simulated_seconds(m, replace(device, matrix=matrix), 0.0) for m in (full, selective)]
        if large - small < 1e-6:
            return matrix, full.seconds - ours[0]
        if ours[0] - ours[1] > full.seconds - selective.seconds:
            small = matrix
        else:
            large = matrix


def _simulated_seconds(m: Measured, device: Device, overhead: float) -> float:
    return simulate(m.model, Cluster(device, m.configuration.gpus, overhead=overhead), m.configuration, keep=False).seconds


def sensitivity() -> list[tuple[str, float, float]]:
    """Errors after changing each assumed value and fitting again: its name, and the mean and the worst error."""
    inside, network = A100_DEVICE.inside, A100_DEVICE.network
    others = {
        f"{name} a tenth {way}": {name: getattr(A100_DEVICE, name) * by}
        for name in ASSUMED_FIELDS
        for way, by in (("less", 0.9), ("more", 1.1))
    }
    others |= {
        f"NVLink a tenth {way}": {"inside": replace(inside, efficiency=inside.efficiency * by)}
        for way, by in (("less", 0.9), ("more", 1.1))
    }
    others |= {"InfiniBand a tenth less": {"network": replace(network, efficiency=network.efficiency * 0.9)}}
    others |= {
        f"latencies {way}": {"inside": replace(inside, latency=by), "network": replace(network, latency=by)}
        for way, by in (("halved", 5e-6), ("doubled", 2e-5))
    }
    found = []
    for name, changes in others.items():
        device = replace(A100_DEVICE, **changes)
        matrix, overhead = fit(device)
        rows = [Comparison(m.name, m.seconds, _simulated_seconds(m, replace(device, matrix=matrix), overhead), m.fitted) for m in MEASURED]
        found.append((name, *errors(rows)))
    return found


def errors(rows: list[Comparison]) -> tuple[float, float]:
    """Mean and worst error of the values that were not fitted."""
    found = [abs(row.error) for row in rows if not row.fitted]
    return sum(found) / len(found), max(found)


def table(rows: list[Comparison], heading: str, unit: str) -> str:
    """Format rows as text, with the mean and the worst error below."""
    width = max(len(row.name) for row in rows)
    lines = [heading, f"{'':{width}}{'theirs':>7}{'ours':>7}{'error':>8}"]
    for row in rows:
        theirs, ours = (f"{value:7.1%}" if unit == "%" else f"{value:7.2f}" for value in (row.theirs, row.ours))
        lines.append(f"{row.name:{width}}{theirs}{ours}{row.error:+8.2%}{' fitted' if row.fitted else ''}")
    mean, worst = errors(rows)
    return "\n".join([*lines, f"{'mean and worst error, fitted rows excluded':{width}}  {mean:.2%}, {worst:.2%}"])


def picture(rows: list[Comparison]) -> Picture:
    """Draw the times as a scatter plot."""
    return pictures.scatter([(row.name, row.theirs, row.ours, row.fitted) for row in rows], "Seconds per iteration, simulated and measured")
