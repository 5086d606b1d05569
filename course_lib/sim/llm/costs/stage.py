"""Costs of the stages of a pipeline, and of the communication between its ranks and with their replicas."""

from __future__ import annotations

from functools import cache, lru_cache

from course_lib.sim.core.hardware import Link
from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.costs.activations import HALF_BYTES
from course_lib.sim.llm.costs.exchanges import Exchanges
from course_lib.sim.llm.costs.layer import head_cost, layer_cost
from course_lib.sim.llm.costs.products import Cost
from course_lib.sim.llm.transformer import Transformer

# Bytes per parameter (Rajbhandari et al., 2020, "ZeRO", section 3.1, with 32-bit gradients as in Megatron-LM).
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 4, 12
UPDATE_TRAFFIC_BYTES = 34  # bytes that Adam and gradient clipping read and write per parameter
FP8_WEIGHT_BYTES = 2  # of a weight converted to 8 bits once per step, and of its transpose


class SharedCosts:
    """Links and costs of layers that many configurations of a model on a cluster share: a search evaluates thousands.

    Parameters
    ----------
    model : Transformer
    cluster : Cluster
    """

    def __init__(self, model: Transformer, cluster: Cluster):
        self.model, self.cluster = model, cluster
        self.link, self.between, self.parameters = cache(cluster.link), cache(self._between), cache(self._parameters)
        self.exchanges, self.layer, self.head = cache(self._exchanges), cache(self._layer), cache(self._head)

    def _between(self, node: bool, pod: bool) -> Link:
        """Link between two devices of the same node, of the same pod, or neither."""
        size = self.cluster.node if node else self.cluster.pod if pod else self.cluster.gpus
        return self.cluster.between(0, size - 1)

    def _exchanges(self, tensor: int, context: int, expert: int, expert_tensor: int) -> Exchanges:
        c = Configuration(tensor, context=context, expert=expert, expert_tensor=expert_tensor)
        return Exchanges.of(self.cluster, c, self.link)

    def _layer(self, experts: bool, own: Configuration) -> Cost:
        cluster, exchanges = self.cluster, self.exchanges(own.tensor, own.context, own.expert, own.expert_tensor)
        cost = layer_cost(self.model, cluster.device, exchanges.tensor, own, cluster.software, exchanges, experts)
        slow = cluster.slowest
        return Cost(cost.forward * slow, cost.backward * slow, cost.saved, cost.spare, cost.exchanged * slow)

    def _head(self, own: Configuration) -> Cost:
        cluster, slow = self.cluster, self.cluster.slowest
        cost = head_cost(self.model, cluster.device, self.link(own.tensor, 1), own, cluster.software)
        return Cost(cost.forward * slow, cost.backward * slow, cost.saved, cost.spare, cost.exchanged * slow)

    def _parameters(self, experts: bool, tensor: int, expert: int, expert_tensor: int) -> tuple[float, float]:
        """Parameters of a layer on a device: of its experts, and all others."""
        m = self.model
        if not experts:
            return 0.0, m.layer_parameters() / tensor
        others = m.attention_matrices() + m.shared_experts * m.expert_matrices() + 2 * m.hidden
        routed = m.experts / expert * m.expert_matrices() / expert_tensor
        return routed, others / tensor + m.hidden * m.experts


shared_costs = lru_cache(maxsize=16)(SharedCosts)


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
        c, shared = configuration, shared_costs(model, cluster)
        self.shared = shared
        # The inputs of a layer's cost, which many configurations share.
        own = dict(tensor=c.tensor, context=c.context, micro_batch=c.micro_batch, sequence_parallel=c.sequence_parallel)
        self.own = Configuration(**own, recompute=c.recompute, precision=c.precision, expert=c.expert, expert_tensor=c.expert_tensor)
        self.exchanges = shared.exchanges(c.tensor, c.context, c.expert, c.expert_tensor)
        # Replicas of the experts' parameters, and of all others: their number, and a link of each device.
        self.copies = {False: c.context * c.data, True: c.expert_replicas}
        alone = cluster.software.one_port
        self.replicas = {False: shared.link(c.context * c.data, c.tensor, alone)}
        self.replicas[True] = shared.link(c.expert_replicas, c.expert * c.expert_tensor, alone) if model.experts else self.replicas[False]
        self.last = c.pipeline * c.interleave - 1
        self.message = self._messages() if c.pipeline > 1 else [0.0]
        # Computed once, not per stage.
        kinds = [False] * (model.expert_layers < model.layers) + [True] * (model.expert_layers > 0)
        self._sizes = {experts: shared.parameters(experts, c.tensor, c.expert, c.expert_tensor) for experts in kinds}
        self._layers = {experts: self._sharded(shared.layer(experts, self.own), experts) for experts in kinds}
        self._head = shared.head(self.own)
        self._cost, self._count, self.held, self.all_counts = map(cache, (self._cost_of, self._count_of, self._held, self._all_counts))
        self.stage = cache(self._stage)

    def _messages(self) -> list[float]:
        """Seconds per message: each tensor parallel rank sends its part; without sequence parallelism, they then gather the whole."""
        c, m, between = self.c, self.model, self.shared.between
        nbytes, replicas = HALF_BYTES * c.micro_batch * m.sequence // c.context * m.hidden, c.tensor * c.context * c.data
        whole = 0.0 if c.sequence_parallel or c.tensor == 1 else self.exchanges.tensor.all_gather(nbytes, c.tensor)
        node, pod = self.cluster.node, self.cluster.pod or c.gpus
        ends = [(rank * replicas, (rank + 2) * replicas - 1) for rank in range(c.pipeline - 1)]
        ends.append((0, c.gpus - 1))  # from the last rank to the first one's next chunk
        links = [between(a // node == b // node, a // node == b // node or a // pod == b // pod) for a, b in ends]
        return [link.send(nbytes / c.tensor) + whole for link in links]

    def _over_replicas(self, nbytes: float, experts: bool) -> float:
        """Seconds to gather an array over the replicas, or to sum and scatter it."""
        n = self.copies[experts]
        return self.replicas[experts].all_gather(nbytes, n) if n > 1 and nbytes else 0.0

    def _sharded(self, cost: Cost, experts: bool) -> Cost:
        """Cost of a layer whose weights, or gradients, replicas shard: their exchange is behind computation, as far as that lasts."""
        stage = self.c.sharding
        routed, others = self._sizes[experts]
        gather, scatter = (self._over_replicas(size * routed, True) + self._over_replicas(size * others, False) for size in (2, 4))
        ahead, behind = (gather if stage == 3 else 0.0), scatter + (gather if stage == 3 else 0.0) if stage >= 2 else 0.0
        forward, backward = max(cost.forward, ahead), max(cost.backward, behind)
        more = forward + backward - cost.forward - cost.backward
        return Cost(forward, backward, cost.saved, cost.spare, cost.exchanged + more)

    def _held(self, stage: int) -> tuple[int, int, int]:
        """Layers of a stage without and with experts, and its matrices of vocabulary size."""
        m, layers = self.model, self.c.stage_layers(self.model.layers, stage)
        dense = len(layers) if not m.experts else len(range(layers.start, min(layers.stop, max(m.dense_layers, layers.start))))
        ends = (stage == 0) + (stage == self.last) if self.last or not m.tied else 1
        return dense, len(layers) - dense, ends

    def _stage(self, stage: int) -> Cost:
        """Cost of a pipeline stage for one micro-batch, including the embedding on the first and the output matrix on the last."""
        return self._cost(self.held(stage), stage if stage in (0, self.last) else -1)

    def _cost_of(self, held: tuple[int, int, int], end: int) -> Cost:
        forward = backward = saved = exchanged = 0.0
        for n, cost in zip(held, (self._layers.get(False), self._layers.get(True)), strict=False):
            if n:
                forward, backward = forward + n * cost.forward, backward + n * cost.backward
                saved, exchanged = saved + n * cost.saved, exchanged + n * cost.exchanged
        spare = max(cost.spare for cost in self._layers.values())
        if end == self.last:
            head = self._head
            forward, backward, exchanged = forward + head.forward, backward + head.backward, exchanged + head.exchanged
        return Cost(forward, backward, saved + self.ends(end), spare, exchanged)

    def ends(self, stage: int) -> float:
        """Bytes that a stage keeps for the embedding (the mask of its dropout) and for the output matrix and loss."""
        c, m = self.c, self.model
        positions = c.micro_batch * m.sequence // c.context
        mask = positions * m.hidden / (c.tensor if c.sequence_parallel else 1) if m.dropout else 0.0
        last = self._head.saved if stage == self.last else 0.0
        return (mask if stage == 0 else 0.0) + last

    def counts(self, rank: int, chunk: int) -> dict[bool, float]:
        """Parameters on a device of one chunk of this pipeline rank's layers: of experts (True), and all others."""
        return self._count(self.held(chunk * self.c.pipeline + rank))

    def _count_of(self, held: tuple[int, int, int]) -> dict[bool, float]:
        *numbers, ends = held
        found = {True: 0.0, False: ends * self.model.vocabulary * self.model.hidden / self.c.tensor}
        for experts, n in zip((False, True), numbers, strict=True):
            if n:
                routed, others = self._sizes[experts]
                found[True], found[False] = found[True] + n * routed, found[False] + n * others
        return found

    def _all_counts(self, rank: int) -> dict[bool, float]:
        chunks = [self.counts(rank, chunk) for chunk in range(self.c.interleave)]
        return {experts: sum(one[experts] for one in chunks) for experts in (True, False)}

    def parameters(self, rank: int, chunk: int | None = None) -> float:
        """Parameters on a device of this pipeline rank, of one chunk of its layers or of all."""
        return sum((self.all_counts(rank) if chunk is None else self.counts(rank, chunk)).values())

    def state(self, rank: int) -> dict[str, float]:
        """Bytes that a device holds permanently, by kind."""
        stage, counts = self.c.sharding, self.all_counts(rank)
        shards = {experts: n / self.copies[experts] for experts, n in counts.items()}
        whole, shard = sum(counts.values()), sum(shards.values())
        weights = WEIGHT_BYTES * (shard if stage == 3 else whole) + (FP8_WEIGHT_BYTES * whole if self.c.precision == "fp8" else 0.0)
        if stage == 3:  # two layers at a time are gathered
            weights += 2 * WEIGHT_BYTES * max(sum(self._sizes[experts]) for experts in self._layers)
        gradients, optimizer = (shard if stage >= 2 else whole), (shard if stage else whole)
        return {"weights": weights, "gradients": GRADIENT_BYTES * gradients, "optimizer state": OPTIMIZER_BYTES * optimizer}

    def reduce(self, rank: int, chunk: int) -> float:
        """Seconds to reduce a chunk's gradients over the replicas after its backward; each gets its shard of the sum, or all of it."""
        c = self.c
        if c.sharding >= 2:  # those of the layers have been reduced during backward
            ends = self.held(chunk * c.pipeline + rank)[2] * self.model.vocabulary * self.model.hidden / c.tensor
            return self._over_replicas(GRADIENT_BYTES * ends, False)
        once = sum(self._over_replicas(GRADIENT_BYTES * n, experts) for experts, n in self.counts(rank, chunk).items())
        return once if c.sharding else 2 * once

    def tie(self, rank: int) -> float:
        """Seconds to sum the gradients of the embedding on the first and on the last rank, if the output matrix is the embedding."""
        c, m = self.c, self.model
        if not m.tied or c.pipeline == 1 or rank not in (0, c.pipeline - 1):
            return 0.0
        return self.cluster.between(0, c.gpus - 1).all_reduce(GRADIENT_BYTES * m.vocabulary * m.hidden / c.tensor, 2)

    def update(self, rank: int) -> float:
        """Seconds of the optimizer's step."""
        counts = self.all_counts(rank)
        n = sum(n / self.copies[experts] if self.c.sharding else n for experts, n in counts.items())
        return self.cluster.device.stream_time(UPDATE_TRAFFIC_BYTES * n)

    def gather(self, rank: int) -> float:
        """Seconds to gather the new weights from replicas that shard the optimizer state."""
        if self.c.sharding not in (1, 2):
            return 0.0
        return sum(self._over_replicas(WEIGHT_BYTES * n, experts) for experts, n in self.all_counts(rank).items())
