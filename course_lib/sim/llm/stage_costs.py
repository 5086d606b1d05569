"""What the stages of a pipeline take, and what goes on between its ranks and their replicas."""

from __future__ import annotations

from functools import cache

from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.layer import HALF_BYTES, Cost, head_cost, layer_cost
from course_lib.sim.llm.transformer import Transformer

# Bytes for each parameter (Rajbhandari et al., 2020, "ZeRO", section 3.1, with gradients in 32 bits as in Megatron-LM).
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 4, 12
UPDATE_TRAFFIC_BYTES = 34  # bytes that Adam and the clipping of gradients read and write for each parameter


class StageCosts:
    """Of one configuration.

    Parameters
    ----------
    model : Transformer
    cluster : Cluster
    configuration : Configuration

    Attributes
    ----------
    message : list of float
        For each rank of the pipeline, seconds from it to the next one, or back from there, in which the sender does nothing else.
    """

    def __init__(self, model: Transformer, cluster: Cluster, configuration: Configuration):
        self.model, self.cluster, self.c = model, cluster, configuration
        c = configuration
        # What a layer's costs depend on: many configurations have it in common.
        self.own = Configuration(c.tensor, micro_batch=c.micro_batch, sequence_parallel=c.sequence_parallel, recompute=c.recompute)
        self.tensor = cluster.link(c.tensor, 1)
        self.replicas = cluster.link(c.data, c.tensor)
        self.last = c.pipeline * c.interleave - 1
        self.message = self._messages() if c.pipeline > 1 else [0.0]
        # Once here, and not for each stage: a search looks at thousands of configurations.
        self._layer = layer_cost(model, cluster.device, self.tensor, self.own)
        self._head = head_cost(model, cluster.device, self.tensor, self.own)
        self._layers = model.layers // (c.pipeline * c.interleave) * model.layer_parameters()
        self.stage = cache(self._stage)

    def _messages(self) -> list[float]:
        """Each of the tensor parallel ranks sends its part; those that share no positions then gather the whole among them."""
        c, m = self.c, self.model
        nbytes, replicas = HALF_BYTES * c.micro_batch * m.sequence * m.hidden, c.tensor * c.data
        whole = 0.0 if c.sequence_parallel or c.tensor == 1 else self.tensor.all_gather(nbytes, c.tensor)
        links = [self.cluster.between(rank * replicas, (rank + 2) * replicas - 1) for rank in range(c.pipeline - 1)]
        links.append(self.cluster.between(0, c.gpus - 1))  # from the last rank to the first one's next chunk
        return [link.send(nbytes / c.tensor) + whole for link in links]

    def _stage(self, stage: int) -> Cost:
        """A stage of the pipeline for one micro-batch; the first one has the embedding, the last one the vocabulary."""
        one, n = self._layer, self.model.layers // (self.c.pipeline * self.c.interleave)
        forward, backward, saved, exchanged = n * one.forward, n * one.backward, n * one.saved, n * one.exchanged
        if stage == self.last:
            end = self._head
            forward, backward, exchanged = forward + end.forward, backward + end.backward, exchanged + end.exchanged
        return Cost(forward, backward, saved + self.ends(stage), one.spare, exchanged)

    def ends(self, stage: int) -> float:
        """Bytes that a stage keeps for the embedding, which is the mask of its dropout, and for the vocabulary."""
        c, m = self.c, self.model
        mask = c.micro_batch * m.sequence * m.hidden / (c.tensor if c.sequence_parallel else 1) if m.dropout else 0.0
        last = self._head.saved if stage == self.last else 0.0
        return (mask if stage == 0 else 0.0) + last

    def parameters(self, rank: int, chunk: int | None = None) -> float:
        """That a device of this rank of the pipeline has; of one chunk of its layers, or of all."""
        c, m = self.c, self.model
        chunks = range(c.interleave) if chunk is None else [chunk]
        ends = sum(k * c.pipeline + rank in (0, self.last) for k in chunks) if self.last else 1
        return (len(chunks) * self._layers + ends * m.vocabulary * m.hidden) / c.tensor

    def state(self, rank: int) -> dict[str, float]:
        """Bytes that a device holds all the time, by kind."""
        n = self.parameters(rank)
        share = self.c.data if self.c.sharded_optimizer else 1
        return {"weights": WEIGHT_BYTES * n, "gradients": GRADIENT_BYTES * n, "optimizer state": OPTIMIZER_BYTES * n / share}

    def reduce(self, rank: int, chunk: int) -> float:
        """Seconds in which replicas add up the gradients of a chunk; each gets its part of the sum, or all of it."""
        c, nbytes = self.c, GRADIENT_BYTES * self.parameters(rank, chunk)
        if c.data == 1:
            return 0.0
        return self.replicas.reduce_scatter(nbytes, c.data) if c.sharded_optimizer else self.replicas.all_reduce(nbytes, c.data)

    def update(self, rank: int) -> float:
        """Seconds of the optimizer's step."""
        share = self.c.data if self.c.sharded_optimizer else 1
        return self.cluster.device.stream_time(UPDATE_TRAFFIC_BYTES * self.parameters(rank) / share)

    def gather(self, rank: int) -> float:
        """Seconds in which replicas that share the optimizer gather the new weights."""
        c = self.c
        return self.replicas.all_gather(WEIGHT_BYTES * self.parameters(rank), c.data) if c.sharded_optimizer and c.data > 1 else 0.0
