"""A bare loop of generators and a heap: the least that processing events costs in Python."""

from __future__ import annotations

import gc
import heapq
import time
from collections.abc import Iterator


def seconds(ranks: int, events: int) -> float:
    """Time a loop that processes `events` events: each rank is a generator, and the earliest one continues."""
    gc.collect()  # so that earlier objects are not collected during the measurement
    began = time.perf_counter()
    going = [_rank(rank, events // ranks) for rank in range(ranks)]
    heap = [(0.0, rank) for rank in range(ranks)]
    while heap:
        _, rank = heapq.heappop(heap)
        when = next(going[rank], None)
        if when is not None:
            heapq.heappush(heap, (when, rank))
    return time.perf_counter() - began


def _rank(rank: int, events: int) -> Iterator[float]:
    now = 0.0
    for i in range(events):
        now += 1.0 + (7 * i + rank) % 3
        yield now
