"""Cost of a trace: microseconds for each recorded call, and the step of part 28's model with and without, on 2 ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext

from benchmarks import mpi
from benchmarks.turns import turns

CALLS = 2000
TURNS = turns(15)
STEPS = 5
MAX_MICROSECONDS, MAX_STEP = 3.0, 1.02


def measure() -> None:
    """Time both on each rank, turn by turn; rank 0 prints the differences and the ratios."""
    import numpy as np

    from course_lib.collectives import Communicator
    from course_lib.collectives.instrumentation.recording import recording
    from course_lib.gpt.settings import Settings
    from course_lib.gpt.text import load_text
    from course_lib.gpt.training.trainer import Trainer

    comm = Communicator()
    send, recv = np.ones(4, np.float32), np.empty(4, np.float32)
    trainer = Trainer(Settings(dp=2), None, comm, load_text()[0])

    def calls() -> None:
        for _ in range(CALLS):
            comm.Allreduce(send, recv)

    def steps() -> None:
        for _ in range(STEPS):
            trainer.train_step()

    found: dict[str, list[float]] = {"calls": [], "steps": []}
    for turn in range(TURNS + 1):
        taken = {}
        for traced in (False, True):
            with recording() if traced else nullcontext():
                taken[traced] = mpi.seconds(calls), mpi.seconds(steps)
        if turn:
            found["calls"].append((taken[True][0] - taken[False][0]) / CALLS * 1e6)
            found["steps"].append(taken[True][1] / taken[False][1])
    if comm.Get_rank() == 0:
        print(json.dumps(found))


def figures() -> Iterator[tuple[str, list[float], float]]:
    found = mpi.run(2, __name__)
    yield "traced-call-microseconds", found["calls"], MAX_MICROSECONDS
    yield "traced-gpt-step/plain", found["steps"], MAX_STEP


if __name__ == "__main__":
    measure()
