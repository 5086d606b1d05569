"""Continuous batching, with part 34's solution, against static batching: the same 100 texts on the same engine on 2 ranks, by the clock.

A model of width 256 with 4 blocks; more texts arrive than either can serve at once. At least 1.5 times the tokens a second means at most
two thirds of the seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import mpi
from benchmarks.turns import turns
from course_lib.gpt.model import Sizes
from course_lib.gpt.serving import Engine, ServingModel, draw_weights
from course_lib.gpt.serving.simulation import StaticScheduler, arrivals

SIZES = Sizes(vocabulary=256, width=256, heads=8, depth=4, length=128)
TEXTS, RATE, BLOCKS, BLOCK, MOST = 100, 400.0, 64, 16, 8
TURNS = turns(9)


def serve_all(functions: object, comm: object, model: ServingModel, scheduler: Callable | None) -> float:
    """Serve drawn texts; return the seconds until the last one is done. Rank 0's clock says who has come."""
    engine = Engine(model, functions, comm, BLOCKS, BLOCK, MOST, scheduler)
    coming, come = arrivals(np.random.default_rng(5), TEXTS, RATE), np.zeros(1, np.int64)
    began, there = time.perf_counter(), 0
    while there < TEXTS or engine.texts:
        come[0] = sum(at <= time.perf_counter() - began for at, _ in coming)
        comm.Bcast(come, root=0)
        for _, text in coming[there : come[0]]:
            engine.add(text)
        there = int(come[0])
        engine.step()
    return time.perf_counter() - began


def measure(folder: str) -> None:
    """Serve in both ways, turn by turn; rank 0 prints the ratios."""
    from course_lib import students
    from course_lib.collectives import Communicator

    comm, functions = Communicator(), students.load(folder)
    model = ServingModel(SIZES, draw_weights(SIZES), comm.Get_size(), comm.Get_rank())
    serve_all(functions, comm, model, None)
    ratios = [serve_all(functions, comm, model, None) / serve_all(functions, comm, model, StaticScheduler) for _ in range(TURNS)]
    if comm.Get_rank() == 0:
        print(json.dumps(ratios))


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    with tempfile.TemporaryDirectory() as folder:
        reference.write(folder)
        yield "continuous/static-batching", mpi.run(2, __name__, folder), 1 / 1.5


if __name__ == "__main__":
    measure(sys.argv[1])
