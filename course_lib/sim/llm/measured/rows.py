"""Published measurements of training steps, with the settings that their authors state.

Which rows are fitted was decided before fitting, by one rule: **of each device, the rows on a single node**. They determine one number of
that device (`Device.matrix`); all other rows are held out. So the simulator does what a planner can do: measure one node, then predict
thousands of devices.

What is neither fitted nor on a data sheet is assumed: round numbers, with their sources beside them in `hardware`. They were set while the
errors of other rows were in view, too; `fit.sensitivity` shows how little the errors depend on any one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from course_lib.sim.llm.cluster import A100_DEVICE, H100_DEVICE, Cluster, Device
from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.hardware.presets import NETWORK_EFFICIENCIES
from course_lib.sim.llm.hardware.software import DEEPSPEED_2021, LLAMA_2024, MEGATRON_2021, MEGATRON_2022, MEGATRON_CORE, Software
from course_lib.sim.llm.transformer import GPT_1T, GPT_22B, GPT_175B, GPT_530B, MODEL_PRESETS, Transformer

KORTHIKANTI = "Korthikanti et al., 2022, table 5: A100 80 GB, sequence 2048, vocabulary 51200"
NARAYANAN = "Narayanan et al., 2021, table 1: A100 80 GB, sequence 2048, vocabulary 51200, full recomputation"
NARAYANAN_2 = "Narayanan et al., 2021, table 2: as table 1, micro-batches of 1"
GRATTAFIORI = "Grattafiori et al., 2024, table 4: H100, 405B, 16.8 million tokens a step"
NEMO = "NVIDIA NeMo 24.07, performance summary: H100, fp8"
RECIPES = "NVIDIA DGX Cloud benchmarking recipes 25.04, Llama 3.1: H100, sequence 8192"


@dataclass(frozen=True)
class Measured:
    """A measured step.

    Attributes
    ----------
    source, name : str
    model : Transformer
    configuration : Configuration
    seconds : float
    device : Device
    software : Software
    place : dict
        What else is known of the cluster, as keywords of `Cluster`.
    """

    source: str
    name: str
    model: Transformer
    configuration: Configuration
    seconds: float
    device: Device = A100_DEVICE
    software: Software = MEGATRON_2022
    place: dict = field(default_factory=dict)

    @property
    def fitted(self) -> bool:
        """True if the row determines `Device.matrix`: it was measured on a single node."""
        return self.configuration.gpus <= self.device.node and self.source != NEMO

    @property
    def cluster(self) -> Cluster:
        """Cluster of the measurement."""
        return Cluster(self.device, self.configuration.gpus, software=self.software, **self.place)


def _korthikanti(model: Transformer, batch: int, full: float, selective: float, **sizes: int) -> list[Measured]:
    model = replace(model, batch=batch)
    plain = Configuration(**sizes, recompute="full")
    both = replace(plain, recompute="selective", sequence_parallel=True)
    return [
        Measured(KORTHIKANTI, f"{model.name}, full recomputation", model, plain, full),
        Measured(KORTHIKANTI, f"{model.name}, sequence parallel, selective", model, both, selective),
    ]


def _narayanan(name: str, shape: tuple[int, int, int], grid: tuple[int, int, int], batch: int, tflops: float, *more: int) -> Measured:
    """A row of table 1: FLOP per second and device, counted by the paper's equation 3, which includes recomputation.

    The paper states neither the size of micro-batches nor the number of chunks; both are those of examples/sc21/run_table_1.sh in
    Megatron-LM's repository, which also says which rows use PyTorch's data parallelism.
    """
    (heads, hidden, layers), (tensor, pipeline, gpus), (micro_batch, interleave) = shape, grid, more
    model = Transformer(name, layers, hidden, heads, batch=batch)
    configuration = Configuration(tensor, pipeline, gpus // tensor // pipeline, interleave, micro_batch, recompute="full")
    software = replace(MEGATRON_2021, gradients="layer") if pipeline == 1 else MEGATRON_2021
    seconds = _equation_3(model) / (gpus * tflops * 1e12)
    return Measured(NARAYANAN, f"{name}, {gpus} devices", model, configuration, seconds, software=software)


def _equation_3(m: Transformer) -> float:
    last = m.vocabulary / (16 * m.layers * m.hidden)
    return 96 * m.batch * m.sequence * m.layers * m.hidden**2 * (1 + m.sequence / (6 * m.hidden) + last)


def _narayanan_2(model: Transformer, batch: int, pipeline: int, interleave: int, rates: dict[int, float]) -> list[Measured]:
    """Rows of table 2 with tensor, pipeline and data parallelism: FLOP per second and device, by number of devices.

    The number of chunks is not stated. It is that of the nearest model of table 1: four or five layers for 175B, one for 530B.
    """
    model = replace(model, batch=batch)
    found = []
    for gpus, tflops in rates.items():
        configuration = Configuration(8, pipeline, gpus // 8 // pipeline, interleave, recompute="full")
        seconds, name = _equation_3(model) / (gpus * tflops * 1e12), f"{model.name}, {gpus} devices"
        found.append(Measured(NARAYANAN_2, name, model, configuration, seconds, software=MEGATRON_2021))
    return found


# Layers, devices along data and sequence come from the table; the first and the last stage have a layer less each, and a chunk is a layer
# (section 3.3.2). The network is RoCE, in pods of 3,072 devices with an oversubscription of 7 beyond (section 3.3.1). FLOP per second count
# the half of the scores that the mask leaves: see `openings`.
def _grattafiori(gpus: int, data: int, context: int, sequence: int, tflops: float) -> Measured:
    model = replace(MODEL_PRESETS["405b"], sequence=sequence, batch=2**24 // sequence)
    configuration = Configuration(8, 16, data, 8, 1, True, sharded_optimizer=True, context=context, uneven=True)
    network = replace(H100_DEVICE.network, efficiency=NETWORK_EFFICIENCIES["roce"])
    place = dict(network=network, pod=3072, oversubscription=7.0)
    name, seconds = f"405B, {gpus} devices, {sequence} positions", model.flop() / (gpus * tflops * 1e12)
    return Measured(GRATTAFIORI, name, model, configuration, seconds, H100_DEVICE, LLAMA_2024, place)


def _recipe(name: str, precision: str, batch: int, seconds: float, **sizes: int | bool) -> Measured:
    model = replace(MODEL_PRESETS[name.lower()], batch=batch, sequence=8192, vocabulary=128256)
    configuration = Configuration(**sizes, sequence_parallel=sizes.get("tensor", 1) > 1, sharded_optimizer=True, precision=precision)
    named = f"{name}, {configuration.gpus} devices, {precision}"
    return Measured(RECIPES, named, model, configuration, seconds, H100_DEVICE, MEGATRON_CORE)


_405B = dict(tensor=8, pipeline=8, context=2, interleave=8, uneven=True)
MEASURED = [
    *_korthikanti(GPT_22B, 4, 1.42, 1.10, tensor=8, micro_batch=4),
    *_korthikanti(GPT_175B, 64, 18.13, 13.75, tensor=8, pipeline=8, interleave=3),
    *_korthikanti(GPT_530B, 280, 49.05, 37.83, tensor=8, pipeline=35, interleave=3),
    *_korthikanti(GPT_1T, 512, 94.42, 71.49, tensor=8, pipeline=64),
    _narayanan("1.7B", (24, 2304, 24), (1, 1, 32), 512, 137, 16, 1),
    _narayanan("3.6B", (32, 3072, 30), (2, 1, 64), 512, 138, 16, 1),
    _narayanan("7.5B", (32, 4096, 36), (4, 1, 128), 512, 142, 16, 1),
    _narayanan("18.4B", (48, 6144, 40), (8, 1, 256), 1024, 135, 8, 1),
    _narayanan("39.1B", (64, 8192, 48), (8, 2, 512), 1536, 138, 4, 1),
    _narayanan("76.1B", (80, 10240, 60), (8, 4, 1024), 1792, 140, 2, 3),
    _narayanan("145.6B", (96, 12288, 80), (8, 8, 1536), 2304, 148, 2, 2),
    _narayanan("310.1B", (128, 16384, 96), (8, 16, 1920), 2160, 155, 1, 2),
    _narayanan("529.6B", (128, 20480, 105), (8, 35, 2520), 2520, 163, 1, 3),
    _narayanan("1008.0B", (160, 25600, 128), (8, 64, 3072), 3072, 163, 1, 1),
    *_narayanan_2(GPT_175B, 1536, 12, 2, {384: 153, 768: 149, 1536: 141}),
    *_narayanan_2(GPT_530B, 2240, 35, 3, {560: 171, 1120: 167, 2240: 159}),
    _grattafiori(8192, 64, 1, 8192, 430),
    _grattafiori(16384, 128, 1, 8192, 400),
    _grattafiori(16384, 8, 16, 131072, 380),
    # The recipes give six sizes of clusters; these are the smallest and the largest, as the others lie between them.
    _recipe("8B", "bf16", 128, 12.27, context=2, data=4),
    _recipe("8B", "fp8", 128, 9.33, context=2, data=4),
    _recipe("8B", "bf16", 2048, 12.33, context=2, data=64),
    _recipe("8B", "fp8", 2048, 9.54, context=2, data=64),
    _recipe("70B", "bf16", 128, 14.66, tensor=4, pipeline=4, context=2, data=2, interleave=5),
    _recipe("70B", "fp8", 128, 9.86, tensor=4, pipeline=8, data=2, interleave=5),
    _recipe("70B", "bf16", 4096, 14.66, tensor=4, pipeline=4, context=2, data=64, interleave=5),
    _recipe("70B", "fp8", 4096, 10.15, tensor=4, pipeline=8, data=64, interleave=5),
    _recipe("405B", "bf16", 256, 19.78, data=4, **_405B),
    _recipe("405B", "fp8", 256, 12.37, data=4, **_405B),
    _recipe("405B", "bf16", 1024, 19.87, data=16, **_405B),
    _recipe("405B", "fp8", 1024, 12.56, data=16, **_405B),
]
# Models with experts. Neither what is recomputed nor how well the experts are balanced is stated, so these rows are shown and not counted.
EXPERTS = "NVIDIA, Megatron Bridge performance summaries 25.09 and 26.04.01: H100, fp8, sequence 4096"


def _experts(name: str, gpus: int, batch: int, tokens: float, **sizes: int) -> Measured:
    """A row: tokens per second and device."""
    model = replace(MODEL_PRESETS[name], batch=batch)
    configuration = Configuration(**sizes, data=gpus // 16, sequence_parallel=True, precision="fp8", uneven=True, zero=1)
    seconds = batch * model.sequence / (gpus * tokens)
    return Measured(EXPERTS, f"{model.name}, {gpus} devices", model, configuration, seconds, H100_DEVICE, MEGATRON_CORE)


# The same table's rows with ZeRO-3 alone are shown and not counted, either, as `Software.one_port` was concluded from them.
ZERO_3 = f"{NARAYANAN_2.split(':')[0]}: DeepSpeed's ZeRO-3"


def _zero_3(model: Transformer, batch: int, gpus: int, micro_batch: int, tflops: float) -> Measured:
    model = replace(model, batch=batch)
    configuration = Configuration(data=gpus, micro_batch=micro_batch, recompute="full", zero=3)
    seconds = _equation_3(model) / (gpus * tflops * 1e12)
    return Measured(ZERO_3, f"{model.name}, {gpus} devices, ZeRO-3", model, configuration, seconds, software=DEEPSPEED_2021)


FURTHER = [
    _zero_3(GPT_175B, 1536, 384, 4, 144),
    _zero_3(GPT_175B, 1536, 768, 2, 88),
    _zero_3(GPT_175B, 1536, 1536, 1, 44),
    _zero_3(GPT_530B, 2560, 640, 4, 138),
    _zero_3(GPT_530B, 2240, 1120, 2, 98),
    _zero_3(GPT_530B, 2240, 2240, 1, 48),
    _experts("qwen3-235b", 256, 8192, 1712, tensor=2, pipeline=8, interleave=4, expert=32),
    _experts("deepseek-v3", 1024, 8192, 1297, tensor=2, pipeline=8, interleave=4, expert=64),
]


# Read and simulated once, after everything else was set, and nothing was changed since: how well an unseen table is met.
def _nemo(model: Transformer, gpus: int, batch: int, tokens: float, *sizes: int, micro_batch: int = 1) -> Measured:
    """A row: tokens per second and device."""
    (tensor, pipeline, context, interleave), model = sizes, replace(model, batch=batch)
    data = gpus // (tensor * pipeline * context)
    switches = dict(sequence_parallel=tensor > 1, sharded_optimizer=True, precision="fp8")
    configuration = Configuration(tensor, pipeline, data, interleave, micro_batch, context=context, **switches)
    seconds = batch * model.sequence / (gpus * tokens)
    return Measured(NEMO, f"{model.name}, {gpus} devices", model, configuration, seconds, H100_DEVICE, MEGATRON_CORE)


_GPT = dict(fused=True, dropout=False)
_NEMOTRON = Transformer("Nemotron 340B", 96, 18432, 96, 4096, 256000, kv_heads=8, tied=False, **_GPT)
_LLAMA_3 = dict(vocabulary=128256, sequence=8192)
UNSEEN = [  # without the two smaller Nemotrons, whose sizes the page does not state
    _nemo(Transformer("GPT3 5B", 24, 4096, 32, **_GPT), 64, 2048, 22521, 1, 1, 1, 1, micro_batch=4),
    _nemo(Transformer("GPT3 20B", 44, 6144, 48, **_GPT), 64, 256, 5851, 2, 1, 1, 1, micro_batch=2),
    _nemo(replace(GPT_175B, **_GPT), 128, 256, 726, 4, 8, 1, 6),
    _nemo(replace(GPT_175B, **_GPT), 512, 2048, 782, 4, 8, 1, 6, micro_batch=2),
    _nemo(replace(MODEL_PRESETS["7b"], name="Llama 2 7B"), 8, 128, 16847, 1, 1, 1, 1),
    _nemo(replace(MODEL_PRESETS["13b"], name="Llama 2 13B"), 16, 128, 8646, 1, 4, 1, 10),
    _nemo(replace(MODEL_PRESETS["70b"], name="Llama 2 70B"), 64, 128, 1707, 4, 4, 1, 20),
    _nemo(_NEMOTRON, 128, 32, 322, 8, 8, 1, 12),
    _nemo(replace(MODEL_PRESETS["8b"], name="Llama 3 8B"), 8, 128, 12036, 1, 1, 2, 1),
    _nemo(replace(MODEL_PRESETS["70b"], name="Llama 3 70B", **_LLAMA_3), 64, 128, 1533, 4, 4, 2, 5),
]
SOURCES = tuple(dict.fromkeys(row.source for row in MEASURED))
