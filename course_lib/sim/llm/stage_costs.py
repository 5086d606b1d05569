"""Costs of the stages of a pipeline, and of the communication between its ranks and with their replicas."""

from __future__ import annotations

from functools import cache

from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.layer import HALF_BYTES, Cost, head_cost, layer_cost
from course_lib.sim.llm.transformer import Transformer

# Bytes per parameter (Rajbhandari et al., 2020, "ZeRO", section 3.1, with 32-bit gradients as in Megatron-LM).
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 4, 12
UPDATE_TRAFFIC_BYTES = 34  # bytes that Adam and gradient clipping read and write per parameter


class StageCosts:
    """Costs of the stages in one configuration.

    Parameters
    ----------
    model : Transformer
    cluster : Cluster
    configuration : Configuration

    Attributes
    ----------
    message : list of float
        For each pipeline rank, seconds of a message to the next rank, or back from there, during which the sender does nothing else.
    """

    def __init__(self, model: Transformer, cluster: Cluster, configuration: Configuration):
        self.model, self.cluster, self.c = model, cluster, configuration
        c = configuration
        # The inputs of a layer's cost, which many configurations share.
        self.own = Configuration(c.tensor, micro_batch=c.micro_batch, sequence_parallel=c.sequence_parallel, recompute=c.recompute)
        self.tensor = cluster.link(c.tensor, 1)
        self.replicas = cluster.link(c.data, c.tensor)
        self.last = c.pipeline * c.interleave - 1
        self.message = self._messages() if c.pipeline > 1 else [0.0]
        # Computed once, not per stage: a search evaluates thousands of configurations.
        self._layer = layer_cost(model, cluster.device, self.tensor, self.own)
        self._head = head_cost(model, cluster.device, self.tensor, self.own)
        self._layers = model.layers // (c.pipeline * c.interleave) * model.layer_parameters()
        self.stage = cache(self._stage)

    def _messages(self) -> list[float]:
        """Seconds per message: each tensor parallel rank sends its part; without sequence parallelism, they then gather the whole."""
        c, m = self.c, self.model
        nbytes, replicas = HALF_BYTES * c.micro_batch * m.sequence * m.hidden, c.tensor * c.data
        whole = 0.0 if c.sequence_parallel or c.tensor == 1 else self.tensor.all_gather(nbytes, c.tensor)
        links = [self.cluster.between(rank * replicas, (rank + 2) * replicas - 1) for rank in range(c.pipeline - 1)]
        links.append(self.cluster.between(0, c.gpus - 1))  # from the last rank to the first one's next chunk
        return [link.send(nbytes / c.tensor) + whole for link in links]

    def _stage(self, stage: int) -> Cost:
        """Cost of a pipeline stage for one micro-batch, including the embedding on the first and the output matrix on the last."""
        one, n = self._layer, self.model.layers // (self.c.pipeline * self.c.interleave)
        forward, backward, saved, exchanged = n * one.forward, n * one.backward, n * one.saved, n * one.exchanged
        if stage == self.last:
            end = self._head
            forward, backward, exchanged = forward + end.forward, backward + end.backward, exchanged + end.exchanged
        return Cost(forward, backward, saved + self.ends(stage), one.spare, exchanged)

    def ends(self, stage: int) -> float:
        """Bytes that a stage keeps for the embedding (the mask of its dropout) and for the output matrix and loss."""
        c, m = self.c, self.model
        mask = c.micro_batch * m.sequence * m.hidden / (c.tensor if c.sequence_parallel else 1) if m.dropout else 0.0
        last = self._head.saved if stage == self.last else 0.0
        return (mask if stage == 0 else 0.0) + last

    def parameters(self, rank: int, chunk: int | None = None) -> float:
        """Parameters on a device of this pipeline rank, of one chunk of its layers or of all."""
        c, m = self.c, self.model
        chunks = range(c.interleave) if chunk is None else [chunk]
        ends = sum(k * c.pipeline + rank in (0, self.last) for k in chunks) if self.last else 1
        return (len(chunks) * self._layers + ends * m.vocabulary * m.hidden) / c.tensor

    def state(self, rank: int) -> dict[str, float]:
        """Bytes that a device holds permanently, by kind."""
        n = self.parameters(rank)
        share = self.c.data if self.c.sharded_optimizer else 1
        return {"weights": WEIGHT_BYTES * n, "gradients": GRADIENT_BYTES * n, "optimizer state": OPTIMIZER_BYTES * n / share}

    def reduce(self, rank: int, chunk: int) -> float:
        """Seconds to reduce a chunk's gradients over the replicas; each gets its shard of the sum, or all of it."""
        c, nbytes = self.c, GRADIENT_BYTES * self.parameters(rank, chunk)
        if c.data == 1:
            return 0.0
        return self.replicas.reduce_scatter(nbytes, c.data) if c.sharded_optimizer else self.replicas.all_reduce(nbytes, c.data)

    def update(self, rank: int) -> float:
        """Seconds of the optimizer's step."""
        share = self.c.data if self.c.sharded_optimizer else 1
        return self.cluster.device.stream_time(UPDATE_TRAFFIC_BYTES * self.parameters(rank) / share)

    def gather(self, rank: int) -> float:
        """Seconds to gather the new weights from replicas that shard the optimizer state."""
        c = self.c
        return self.replicas.all_gather(WEIGHT_BYTES * self.parameters(rank), c.data) if c.sharded_optimizer and c.data > 1 else 0.0
