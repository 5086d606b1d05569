"""Language models on clusters: seconds of the search over all configurations, and the event simulation against a bare loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.simulation import bare
from benchmarks.turns import turns
from course_lib.sim.llm.cluster import A100_DEVICE, H100_DEVICE, Cluster
from course_lib.sim.llm.configuration import Configuration
from course_lib.sim.llm.events import simulate
from course_lib.sim.llm.transformer import GPT_175B, MODEL_PRESETS
from course_lib.sim.plan.search import best

TURNS = turns(5)
RATIO = 8.0  # times as long as the bare loop


def figures() -> Iterator[tuple[str, list[float], float]]:
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        best(replace(GPT_175B, batch=1536), Cluster(A100_DEVICE, 1024))
        taken.append(time.perf_counter() - began)
    yield "plan-175b-1024/second", taken, 20.0
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        best(MODEL_PRESETS["deepseek-v3"], Cluster(H100_DEVICE, 2048), whole=True)
        taken.append(time.perf_counter() - began)
    yield "plan-experts-all-axes-2048/second", taken, 20.0
    model, place = replace(GPT_175B, batch=512), Cluster(A100_DEVICE, 512)
    shared = Configuration(8, 8, 8, interleave=6, sequence_parallel=True, recompute="selective", sharded_optimizer=True)
    assert shared.micro_batches(model) == 64
    ratios, seconds = [], []
    for turn in range(TURNS + 1):
        began = time.perf_counter()
        events = len(simulate(model, place, shared).events)
        taken_now = time.perf_counter() - began
        if turn:  # the first turn warms up
            seconds.append(taken_now)
            ratios.append(taken_now / bare.seconds(8, events))
    yield "llm-events-512-gpus-96-layers-64-micro-batches/bare", ratios, RATIO
    yield "llm-events-512-gpus-96-layers-64-micro-batches/second", seconds, 5.0
