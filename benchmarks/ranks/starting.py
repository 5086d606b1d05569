"""Starting eight ranks up to the first result of a cell, against ipyparallel's own cluster; and stopping them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator

import ipyparallel

from benchmarks.turns import turns
from course_lib.cluster import Ranks

TURNS = turns(5)


def ours() -> tuple[float, float]:
    """Return the seconds to start and to stop."""
    began = time.perf_counter()
    ranks = Ranks(8)
    ranks.run("1 + 1")
    up = time.perf_counter()
    ranks.stop()
    return up - began, time.perf_counter() - up


def stock() -> float:
    """Return the seconds that ipyparallel.Cluster takes to start, with all its defaults."""
    began = time.perf_counter()
    cluster = ipyparallel.Cluster(engines="mpi", n=8, log_level=50)
    client = cluster.start_and_connect_sync()
    client[:].execute("1 + 1", block=True)
    seconds = time.perf_counter() - began
    client.close()
    cluster.stop_cluster_sync()
    return seconds


def figures() -> Iterator[tuple[str, list[float], float]]:
    warnings.simplefilter("ignore")
    ratios, stops = [], []
    for _ in range(TURNS):
        up, down = ours()
        ratios.append(up / stock())
        stops.append(down)
    yield "start-8-ranks/stock", ratios, 0.14
    yield "stop-8-ranks-seconds", stops, 0.05
