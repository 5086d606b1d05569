"""Configuration of a training step: the grid of devices and the other choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral

from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.transformer import Transformer
from course_lib.utils.wording import shown

RECOMPUTE_MODES = ("none", "selective", "full")
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
        Whether data parallel ranks shard the optimizer state (Rajbhandari et al., 2020, stage 1).
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    interleave: int = 1
    micro_batch: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"
    sharded_optimizer: bool = False

    @property
    def gpus(self) -> int:
        """Number of devices used."""
        return self.tensor * self.pipeline * self.data

    def micro_batches(self, model: Transformer) -> int:
        """Micro-batches per data parallel replica and step."""
        return model.batch // (self.data * self.micro_batch)

    def __str__(self) -> str:
        axes = f"t {self.tensor} × p {self.pipeline} × d {self.data}"
        more = [f"v {self.interleave}"] if self.interleave > 1 else []
        more += [f"micro-batches of {self.micro_batch}", f"recompute {self.recompute}"]
        more += ["sequence parallel"] if self.sequence_parallel is True else []
        more += ["optimizer sharded"] if self.sharded_optimizer is True else []
        return ", ".join([axes, *more])


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
    for name in ("tensor", "pipeline", "data", "interleave", "micro_batch"):
        value = getattr(c, name)
        if not isinstance(value, Integral) or isinstance(value, bool) or not 1 <= value <= MAX_AXIS_SIZE:
            yield f"{name} must be a whole number from 1 to {MAX_AXIS_SIZE:,}; got {shown(value)}."
            return
    if not isinstance(c.recompute, str) or c.recompute not in RECOMPUTE_MODES:
        yield f"recompute must be one of {', '.join(RECOMPUTE_MODES)}; got {shown(c.recompute)}."
    for name in ("sequence_parallel", "sharded_optimizer"):
        if not isinstance(getattr(c, name), bool):
            yield f"{name} must be True or False; got {shown(getattr(c, name))}."
    if c.gpus != cluster.gpus:
        yield f"{c.tensor} × {c.pipeline} × {c.data} are {c.gpus} devices, but the cluster has {cluster.gpus}."
    if c.tensor > cluster.node:
        yield f"tensor={c.tensor} does not fit in a node of {cluster.node}: the network is too slow for its many exchanges."
    elif cluster.gpus > cluster.node and cluster.node % c.tensor:
        yield f"tensor={c.tensor} does not divide a node of {cluster.node}: some of its groups would span two nodes."
    stages = c.pipeline * c.interleave
    for name, value, what, whole, why in (
        ("tensor", c.tensor, "heads", model.heads, "a tensor parallel rank holds whole heads"),
        ("tensor", c.tensor, "heads of keys and values", model.kv_heads, "a tensor parallel rank holds whole heads"),
        ("tensor", c.tensor, "width of the MLP", model.feed_forward, "a tensor parallel rank holds whole columns"),
        ("pipeline × interleave", stages, "layers", model.layers, "a stage holds whole layers"),
        ("data × micro_batch", c.data * c.micro_batch, "batch", model.batch, "all replicas have the same number of micro-batches"),
    ):
        if whole % value:
            yield f"{name}={value} does not divide {whole}, the {what}: {why}."
    if c.sequence_parallel and model.sequence % c.tensor:
        yield f"tensor={c.tensor} does not divide {model.sequence}, the positions of a text, which sequence parallel ranks split."
    if c.interleave > 1 and c.pipeline == 1:
        yield "interleave needs a pipeline, but pipeline is 1."
    if c.interleave > 1 and model.batch % (c.data * c.micro_batch) == 0 and c.micro_batches(model) % c.pipeline:
        yield f"an interleaved pipeline of {c.pipeline} needs a multiple of that many micro-batches; got {c.micro_batches(model)}."


def check_configuration(model: Transformer, cluster: Cluster, c: Configuration) -> None:
    """Raise PlanError with the first of `problems`, if there is one."""
    for problem in _problems(model, cluster, c):
        raise PlanError(f"{model.name} on {cluster.gpus} devices: {problem}")
