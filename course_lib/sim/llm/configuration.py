"""Configuration of a training step: the grid of devices and the other choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral

from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.transformer import Transformer
from course_lib.utils.wording import shown

RECOMPUTE_MODES = ("none", "selective", "full")
PRECISIONS = ("bf16", "fp8")
ZERO_STAGES = (0, 1, 2, 3)
MAX_AXIS_SIZE = 1_000_000  # no cluster has more of anything


class PlanError(ValueError):
    """This model cannot be trained like this on this cluster; the message says why."""


@dataclass(frozen=True)
class Configuration:
    """Grid of devices, and the other choices.

    Parameters
    ----------
    tensor, pipeline, data : int
        Devices along each axis.
    interleave : int
        Chunks of layers per pipeline rank (Narayanan et al., 2021, section 2.2).
    micro_batch : int
        Texts per micro-batch.
    sequence_parallel : bool
        Whether tensor parallel ranks split the positions wherever they do not split heads or columns (Korthikanti et al., 2022).
    recompute : str
        The part of a layer that backward recomputes: "none", "selective" (the scores of attention) or "full" (all of it).
    sharded_optimizer : bool
        Whether data parallel ranks shard the optimizer state (Rajbhandari et al., 2020, stage 1): the same as ``zero=1``.
    context : int
        Devices that split a text's positions for attention, too: keys and values travel along a ring (Liu et al., 2023, "Ring attention").
    expert, expert_tensor : int
        Devices that share out a layer's experts, and devices that split each of them; both are taken from the tensor, context and data
        axes, which the other layers use instead (Liu et al., 2025, "MoE parallel folding").
    zero : int
        What replicas shard: 1 the optimizer state, 2 the gradients, too, 3 the weights, too (FSDP, which gathers them for each use).
    precision : str
        Of the operands of matrix products: "bf16" or "fp8" (Micikevicius et al., 2022, "FP8 formats for deep learning").
    uneven : bool
        Whether the first and the last stage have fewer layers than the others (as Grattafiori et al., 2024, section 3.3.2).
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    interleave: int = 1
    micro_batch: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"
    sharded_optimizer: bool = False
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    zero: int = 0
    precision: str = "bf16"
    uneven: bool = False

    @property
    def gpus(self) -> int:
        """Number of devices used."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def sharding(self) -> int:
        """ZeRO stage, 0 to 3."""
        return max(self.zero, int(self.sharded_optimizer))

    @property
    def expert_replicas(self) -> int:
        """Devices that hold the same shard of the same experts."""
        return self.tensor * self.context * self.data // (self.expert * self.expert_tensor)

    def micro_batches(self, model: Transformer) -> int:
        """Micro-batches per data parallel replica and step."""
        return model.batch // (self.data * self.micro_batch)

    def stage_layers(self, layers: int, stage: int) -> range:
        """Layers of one of the ``pipeline * interleave`` stages, by number.

        >>> uneven = Configuration(pipeline=4, uneven=True)
        >>> [len(uneven.stage_layers(10, stage)) for stage in range(4)]
        [2, 3, 3, 2]
        """
        stages = self.pipeline * self.interleave
        most = -(-layers // stages)
        first = most - (most * stages - layers) // 2
        begin = 0 if stage == 0 else first + (stage - 1) * most
        return range(begin, layers if stage == stages - 1 else first + stage * most)

    def __str__(self) -> str:
        context = f" × c {self.context}" if self.context != 1 else ""
        axes = f"t {self.tensor}{context} × p {self.pipeline} × d {self.data}"
        more = [f"v {self.interleave}"] if self.interleave > 1 else []
        more += [f"e {self.expert}" + (f" × et {self.expert_tensor}" if self.expert_tensor != 1 else "")] if self.expert != 1 else []
        more += [f"micro-batches of {self.micro_batch}", f"recompute {self.recompute}"]
        more += ["sequence parallel"] if self.sequence_parallel is True else []
        more += ["optimizer sharded"] if (self.sharded_optimizer is True and self.zero < 2) or self.zero == 1 else []
        more += [f"ZeRO {self.zero}"] if self.zero in ZERO_STAGES[2:] else []
        more += ["fp8"] if self.precision == "fp8" else []
        more += ["uneven stages"] if self.uneven is True else []
        return ", ".join([axes, *more])


def recompute_modes(model: Transformer) -> tuple[str, ...]:
    """Return the ways to recompute; fused attention has no scores that "selective" could recompute."""
    return ("none", "full") if model.fused else RECOMPUTE_MODES


def problems(model: Transformer, cluster: Cluster, c: Configuration) -> list[str]:
    """List the inconsistencies, except for memory, as sentences; empty if there are none.

    >>> from course_lib.sim.llm.cluster import A100_DEVICE, Cluster
    >>> from course_lib.sim.llm.transformer import GPT_22B
    >>> problems(GPT_22B, Cluster(A100_DEVICE, 7), Configuration(tensor=7))[0]
    'tensor=7 does not divide 64, the heads: a tensor parallel rank holds whole heads.'
    """
    return list(_problems(model, cluster, c))


def _problems(model: Transformer, cluster: Cluster, c: Configuration) -> Iterator[str]:
    if not isinstance(c, Configuration):
        yield f"a configuration is expected, Configuration(tensor=..., pipeline=..., ...); got {type(c).__name__}."
        return
    for name in ("tensor", "pipeline", "data", "interleave", "micro_batch", "context", "expert", "expert_tensor"):
        value = getattr(c, name)
        if not isinstance(value, Integral) or isinstance(value, bool) or not 1 <= value <= MAX_AXIS_SIZE:
            yield f"{name} must be a whole number from 1 to {MAX_AXIS_SIZE:,}; got {shown(value)}."
            return
    choices = (("recompute", RECOMPUTE_MODES, str), ("precision", PRECISIONS, str), ("zero", ZERO_STAGES, int))
    for name, some, kind in choices:
        value = getattr(c, name)
        if not isinstance(value, kind) or isinstance(value, bool) or value not in some:
            yield f"{name} must be one of {', '.join(map(str, some))}; got {shown(value)}."
            return
    for name in ("sequence_parallel", "sharded_optimizer", "uneven"):
        if not isinstance(getattr(c, name), bool):
            yield f"{name} must be True or False; got {shown(getattr(c, name))}."
    yield from _problems_of_devices(model, cluster, c)
    yield from _problems_of_sizes(model, c)
    yield from _problems_of_experts(model, c)


def _problems_of_devices(model: Transformer, cluster: Cluster, c: Configuration) -> Iterator[str]:
    if c.gpus != cluster.gpus:
        context = f" × {c.context}" if c.context > 1 else ""
        yield f"{c.tensor}{context} × {c.pipeline} × {c.data} are {c.gpus} devices, but the cluster has {cluster.gpus}."
    if c.tensor > cluster.node:
        yield f"tensor={c.tensor} does not fit in a node of {cluster.node}: the network is too slow for its many exchanges."
    elif cluster.gpus > cluster.node and cluster.node % c.tensor:
        yield f"tensor={c.tensor} does not divide a node of {cluster.node}: some of its groups would span two nodes."
    if c.precision == "fp8" and not cluster.device.flops8:
        yield f"precision fp8 needs matrix products in 8 bits, which {cluster.device.name} does not have (flops8 is 0)."


def _problems_of_sizes(model: Transformer, c: Configuration) -> Iterator[str]:
    stages = c.pipeline * c.interleave
    for name, value, what, whole, why in (
        ("tensor", c.tensor, "heads", model.heads, "a tensor parallel rank holds whole heads"),
        ("tensor", c.tensor, "heads of keys and values", model.kv_heads, "a tensor parallel rank holds whole heads"),
        ("tensor", c.tensor, "width of the MLP", model.feed_forward, "a tensor parallel rank holds whole columns"),
        ("pipeline × interleave", 1 if c.uneven else stages, "layers", model.layers, "a stage holds whole layers"),
        ("data × micro_batch", c.data * c.micro_batch, "batch", model.batch, "all replicas have the same number of micro-batches"),
        ("2 × context", 2 * c.context if c.context > 1 else 1, "positions of a text", model.sequence, "ranks hold two equal pieces each"),
    ):
        if whole % value:
            yield f"{name}={value} does not divide {whole}, the {what}: {why}."
    if c.uneven:
        most = -(-model.layers // stages)
        if (most * stages - model.layers + 1) // 2 > most:
            yield f"{model.layers} layers on {stages} stages: the first and the last cannot have that many layers fewer than the others."
    if c.sequence_parallel and (model.sequence // c.context) % c.tensor:
        yield f"tensor={c.tensor} does not divide {model.sequence}, the positions of a text, which sequence parallel ranks split."
    if c.context > 1 and not model.fused:
        yield f"context={c.context} needs fused attention: its pieces are merged without their scores (fused is False)."
    if c.interleave > 1 and c.pipeline == 1:
        yield "interleave needs a pipeline, but pipeline is 1."
    if c.interleave > 1 and model.batch % (c.data * c.micro_batch) == 0 and c.micro_batches(model) % c.pipeline:
        yield f"an interleaved pipeline of {c.pipeline} needs a multiple of that many micro-batches; got {c.micro_batches(model)}."


def _problems_of_experts(model: Transformer, c: Configuration) -> Iterator[str]:
    if not model.experts:
        for name in ("expert", "expert_tensor"):
            if getattr(c, name) > 1:
                yield f"{name}={getattr(c, name)} needs a model with experts; {model.name} has none."
        return
    if model.experts % c.expert:
        yield f"expert={c.expert} does not divide {model.experts}, the experts: a rank holds whole experts, or splits them all."
    if c.tensor % c.expert_tensor or model.expert_feed_forward % c.expert_tensor:
        yield f"expert_tensor={c.expert_tensor} must divide tensor={c.tensor} and {model.expert_feed_forward}, the width of an expert."
    if c.tensor * c.context * c.data % (c.expert * c.expert_tensor):
        have = f"{c.tensor} × {c.context} × {c.data} devices of a stage"
        yield f"expert × expert_tensor={c.expert * c.expert_tensor} does not divide the {have}: groups of experts fill a stage."
    if c.tensor > 1 and not c.sequence_parallel:
        yield "experts with tensor > 1 need sequence_parallel: otherwise all tensor parallel ranks send the same positions to the experts."


def check_configuration(model: Transformer, cluster: Cluster, c: Configuration) -> None:
    """Raise PlanError with the first of `problems`, if there is one."""
    for problem in _problems(model, cluster, c):
        raise PlanError(f"{model.name} on {cluster.gpus} devices: {problem}")
