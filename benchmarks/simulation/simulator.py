"""The simulator: how much longer a run takes than a bare loop with as many events, and how that grows with their number.

A loop, its simulation and its statistics count; drawing does not. Seconds are only informative: they depend on the machine and the day.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.simulation import bare

# Loop, sizes, and the limit relative to the bare loop: what is kept, as half of it could not be reached. Of about 2 µs for an event,
# statistics take 0.4 and garbage collection 0.1 to 0.3; of the rest, no function takes a tenth.
LOOPS = {
    "data-parallel-64x64": ("train_ddp", dict(world_size=64, num_layers=64, global_batch_size=2048, batch_size=32), 4.0),
    "1f1b-16x16-256-micro-batches": ("part3_training_loop", dict(world_size=16, num_layers=16, global_batch_size=256, batch_size=1), 9.0),
    "zero-64x64": ("part1_training_loop", dict(world_size=64, num_layers=64, global_batch_size=64, batch_size=1), 6.6),
}
GROWTH = (128, 512, 2048)  # micro-batches: three sizes of the same pipeline


def seconds(loop: Callable, turns: int, **sizes: int) -> tuple[list[float], int]:
    """Return the seconds of each turn, and the number of events."""
    from course_lib.sim import run

    taken, events = [], 0
    for _ in range(turns):
        began = time.perf_counter()
        result = run(loop, **sizes)
        taken.append(time.perf_counter() - began)
        events = sum(len(m.rows) for m in result.models)
        del result
    return taken, events


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    loops = reference.loops()
    seconds(loops["train_ddp"], 2, world_size=8, num_layers=8, global_batch_size=64, batch_size=8)
    for name, (loop, sizes, most) in LOOPS.items():
        ratios = []
        for _ in range(11):
            (taken,), events = seconds(loops[loop], 1, **sizes)
            ratios.append(taken / bare.seconds(sizes["world_size"], events))
        yield f"sim-{name}/bare", ratios, most
    sizes = dict(world_size=64, num_layers=64, global_batch_size=512, batch_size=1)
    yield "sim-1f1b-64x64-512-micro-batches/second", seconds(loops["part3_training_loop"], 5, **sizes)[0], 5.0
    each = []
    for batches in GROWTH:
        sizes = dict(world_size=8, num_layers=8, global_batch_size=batches, batch_size=1)
        taken, events = seconds(loops["part3_training_loop"], 7, **sizes)
        each.append([t / events for t in taken])
    smallest = statistics.median(each[0])
    for batches, taken in zip(GROWTH[1:], each[1:], strict=True):
        yield f"sim-event-of-{batches}-micro-batches/event-of-{GROWTH[0]}", [t / smallest for t in taken], 1.3
    sizes = dict(world_size=1024, num_layers=128, global_batch_size=1024, batch_size=1)
    yield "sim-zero-1024x128/second", seconds(loops["part1_training_loop"], 3, **sizes)[0], 30.0
    unit = 1 if sys.platform == "darwin" else 1024
    yield "sim-zero-1024x128-memory/gigabyte", [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1024**3], 4.0
