"""Event-by-event simulation of a training step: the pipeline's ranks, their messages, and the memory of each.

The ranks of a tensor parallel group do the same work at the same time, and so do data parallel replicas: one of each is simulated.
Everything that follows from dependencies (bubbles, memory over time, overlap) results from the simulation, not from a formula.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import Configuration, check_configuration
from course_lib.sim.llm.costs.schedule import work_order
from course_lib.sim.llm.costs.stage import StageCosts
from course_lib.sim.llm.transformer import Transformer


@dataclass(frozen=True)
class StageEvent:
    """An activity of a pipeline rank.

    Attributes
    ----------
    rank : int
    kind : str
        "forward", "backward", "message", "gradients" (reduced over replicas), "update" or "weights" (gathered from replicas).
    chunk, micro_batch : int
        -1 if not applicable.
    start, end : float
        Seconds.
    """

    rank: int
    kind: str
    chunk: int
    micro_batch: int
    start: float
    end: float


@dataclass(frozen=True)
class Step:
    """Duration and memory of a training step.

    Attributes
    ----------
    model : Transformer
    cluster : Cluster
    configuration : Configuration
    seconds : float
    events : list of StageEvent
    memory : list of (numpy.ndarray, numpy.ndarray)
        For each pipeline rank: times in seconds, and the bytes held from then on.
    state : list of dict of str to float
        For each rank, the bytes held permanently, by kind.
    """

    model: Transformer
    cluster: Cluster
    configuration: Configuration
    seconds: float
    events: list[StageEvent]
    memory: list[tuple[np.ndarray, np.ndarray]]
    state: list[dict[str, float]]

    @property
    def peaks(self) -> list[float]:
        """Peak bytes of each pipeline rank."""
        return [float(held.max()) for _, held in self.memory]

    @property
    def peak(self) -> float:
        """Peak bytes of the rank that holds most."""
        return max(self.peaks)

    @property
    def fits(self) -> bool:
        """True if the peak is within a device's memory."""
        return self.peak <= self.cluster.device.memory

    @property
    def tokens(self) -> float:
        """Tokens per second."""
        return self.model.batch * self.model.sequence / self.seconds

    @property
    def utilisation(self) -> float:
        """Model FLOPs utilisation, 0 to 1 (Chowdhery et al., 2022, "PaLM", section 4.1); of the peak in 8 bits if products have 8 bits."""
        device = self.cluster.device
        peak = device.flops8 if self.configuration.precision == "fp8" else device.flops
        return self.model.flop() / (self.seconds * self.cluster.gpus * peak)


def simulate(model: Transformer, cluster: Cluster, configuration: Configuration, keep: bool = True) -> Step:
    """Simulate a training step.

    Parameters
    ----------
    model : Transformer
    cluster : Cluster
    configuration : Configuration
    keep : bool
        Whether to keep the events; it is faster without.

    Raises
    ------
    PlanError
        The configuration does not fit the model or the cluster. It may exceed a device's memory: see `Step.fits`.
    """
    check_configuration(model, cluster, configuration)
    costs = StageCosts(model, cluster, configuration)
    run = _Simulation(costs, configuration, keep)
    ended = run.run()
    end = max(_finish_rank(run, costs, rank, when) for rank, when in enumerate(ended)) + cluster.overhead
    state = [costs.state(rank) for rank in range(configuration.pipeline)]
    memory = [_memory_timeline(changes, sum(state[rank].values())) for rank, changes in enumerate(run.changes)]
    return Step(model, cluster, configuration, end, run.events, memory, state)


class _Simulation:
    """Ranks of the pipeline as generators, which yield when they can continue, or what they wait for."""

    def __init__(self, costs: StageCosts, configuration: Configuration, keep: bool):
        c = configuration
        self.costs, self.ranks, self.chunks, self.micro_batches, self.keep = (
            costs,
            c.pipeline,
            c.interleave,
            c.micro_batches(costs.model),
            keep,
        )
        self.arrived: dict[tuple, float] = {}  # arrival time, by message
        self.waiting: dict[tuple, tuple[float, int]] = {}  # the rank that waits for a message, and since when, by message
        self.heap: list[tuple[float, int]] = []
        self.events: list[StageEvent] = []
        self.changes: list[list[tuple[float, float]]] = [[] for _ in range(self.ranks)]
        self.gradients: list[list[tuple[float, int]]] = [[] for _ in range(self.ranks)]  # completion times of each chunk's gradients

    def run(self) -> list[float]:
        """Run to the end; return the time at which each rank is done."""
        ended = [0.0] * self.ranks
        ranks = [self._rank(rank) for rank in range(self.ranks)]
        for generator in ranks:
            next(generator)
        self.heap = [(0.0, rank) for rank in range(self.ranks)]
        arrived, waiting, heap, pop, push = self.arrived, self.waiting, self.heap, heapq.heappop, heapq.heappush
        while heap:
            now, rank = pop(heap)
            wanted = ranks[rank].send(now)
            if wanted.__class__ is not tuple:
                if wanted is None:
                    ended[rank] = now
                else:
                    push(heap, (wanted, rank))
            elif wanted in arrived:
                push(heap, (max(now, arrived[wanted]), rank))
            else:
                waiting[wanted] = now, rank
        assert not waiting, f"ranks wait for messages that nobody sends: {waiting}"
        return ended

    def _rank(self, rank: int) -> Iterator[object]:
        costs, last = self.costs, self.ranks * self.chunks - 1
        waits = not costs.cluster.software.hidden_messages
        now = yield 0.0
        left = [self.micro_batches] * self.chunks
        for forward, chunk, k in work_order(rank, self.ranks, self.chunks, self.micro_batches):
            stage = chunk * self.ranks + rank
            if stage != (0 if forward else last):
                now = yield (forward, stage, k)
            cost, start = costs.stage(stage), now
            now = yield start + (cost.forward if forward else cost.backward)
            if forward:
                self.changes[rank].append((start, cost.saved))
            else:
                self.changes[rank] += [(start, cost.spare), (now, -cost.saved - cost.spare)]
                left[chunk] -= 1
                if not left[chunk]:
                    self.gradients[rank].append((now, chunk))
            if self.keep:
                self.events.append(StageEvent(rank, "forward" if forward else "backward", chunk, k, start, now))
            if stage != (last if forward else 0):
                start, arrives = now, now + costs.message[rank if forward else rank - 1]
                if waits:
                    now = yield arrives
                self._send((forward, stage + (1 if forward else -1), k), arrives)
                if self.keep and arrives > start:
                    self.events.append(StageEvent(rank, "message", chunk, k, start, arrives))
        yield None

    def _send(self, message: tuple, when: float) -> None:
        since, rank = self.waiting.pop(message, (0.0, None))
        if rank is None:
            self.arrived[message] = when
        else:
            heapq.heappush(self.heap, (max(since, when), rank))


def _finish_rank(run: _Simulation, costs: StageCosts, rank: int, now: float) -> float:
    """Finish a rank's step: gradients are reduced, during the remaining computation if the software does so; then the optimizer runs."""
    free, overlap = 0.0, costs.cluster.software.gradients
    for when, chunk in run.gradients[rank]:
        took, stage = costs.reduce(rank, chunk), chunk * run.ranks + rank
        ready = now if overlap == "none" else when
        if overlap == "layer":  # the last layer's are ready when its backward is, of the last micro-batch
            layers = max(sum(costs.held(stage)[:2]), 1)
            ready = max(when - costs.stage(stage).backward * (1 - 1 / layers), when + took / layers - took)
        free, start = max(free, ready) + took, max(free, ready)
        if took and run.keep:
            run.events.append(StageEvent(rank, "gradients", chunk, -1, start, free))
    start = max(now, free)
    tied = start + costs.tie(rank)
    if run.keep and tied > start:
        run.events.append(StageEvent(rank, "gradients", -1, -1, start, tied))
    end = tied + costs.update(rank)
    if run.keep:
        run.events.append(StageEvent(rank, "update", -1, -1, tied, end))
    gathered = end + costs.gather(rank)
    if run.keep and gathered > end:
        run.events.append(StageEvent(rank, "weights", -1, -1, end, gathered))
    return gathered


def _memory_timeline(changes: list[tuple[float, float]], state: float) -> tuple[np.ndarray, np.ndarray]:
    """Times, and the bytes held from then on; at equal times, memory is freed before it is allocated."""
    changes = sorted([(0.0, 0.0), *changes])
    times, amounts = np.array(changes).T
    return times, state + np.cumsum(amounts)
