"""Ranks on two machines under Slurm, 2 × 4, with the status board across them, against bare blocking mpi4py on the same ranks.

Slurm and both machines run here, see tests/helpers/slurm_cluster.py: the two mirrors and 8 ranks share this machine's cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks import mpi
from benchmarks.turns import turns

ROOT = Path(__file__).resolve().parents[2]
RANKS, OPTIONS = 8, "--nodes=2 --overcommit"
SIZES = ((4096, 200, 1.3), (1 << 20, 20, 1.1))  # bytes, calls per turn, and the limit
STEPS = 10
STEPS_LIMIT = 1.5
TURNS = turns(11)
NAMED_LIMIT, START_LIMIT, FAILED_LIMIT = 1.0, 10.0, 15.0  # seconds


def measure(folder: str) -> None:
    """Time ours and bare MPI on each rank, turn by turn; rank 0 prints the ratios."""
    import numpy as np
    from mpi4py import MPI

    from course_lib import students
    from course_lib.collectives import Communicator
    from course_lib.layers import MLP

    bare, checked = MPI.COMM_WORLD, Communicator()

    def ratios(ours, theirs) -> list[float]:
        return [mpi.seconds(ours) / mpi.seconds(theirs) for _ in range(TURNS + 1)][1:]

    results = {}
    for nbytes, n, _ in SIZES:
        send = np.ones(nbytes // 4, np.float32)
        recv = np.empty_like(send)
        calls = [lambda c=c, s=send, r=recv, n=n: [c.Allreduce(s, r) for _ in range(n)] for c in (checked, bare)]
        results[str(nbytes)] = ratios(*calls)
    random = np.random.default_rng(bare.Get_rank() // 4)
    x, y = random.random((60, 784), np.float32), random.integers(0, 10, 60)
    models = [MLP((784, 256, 10), comm, students.load(folder), 4, 2, megatron=True) for comm in (checked, bare)]
    results["steps"] = ratios(*(lambda m=m: [m.step(x, y, 0.01) for _ in range(STEPS)] for m in models))
    if bare.Get_rank() == 0:
        print(json.dumps(results))


def figures() -> Iterator[tuple[str, list[float], float]]:
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    import slurm_cluster

    from grading.authoring import reference

    if slurm_cluster.missing():
        print(f"hosts: left out, {', '.join(slurm_cluster.missing())} not installed (apt install slurm-wlm munge)")
        return
    slurm, before = slurm_cluster.Slurm(), dict(os.environ)
    os.environ.update(slurm.environment)
    try:
        with tempfile.TemporaryDirectory(prefix="course-bench-") as folder:
            reference.write(folder)
            words = ["srun", "--mpi=pmi2", f"--ntasks={RANKS}", *OPTIONS.split(), sys.executable, "-m", __name__, folder]
            done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=600, check=True)
        results = json.loads(done.stdout)
        for nbytes, _, limit in SIZES:
            yield f"allreduce-{nbytes}-bytes-2-machines/bare", results[str(nbytes)], limit
        yield f"{STEPS}-steps-mp-4-dp-2-2-machines/bare-mpi4py", results["steps"], STEPS_LIMIT
        yield from _seconds()
        yield "failed-machine-named-seconds", [_failure(slurm) for _ in range(3)], FAILED_LIMIT
    finally:
        slurm.stop()
        os.environ.clear()
        os.environ.update(before)


def _seconds() -> Iterator[tuple[str, list[float], float]]:
    """Measure what a student waits for: 8 ranks, and the message that names a deadlock."""
    from course_lib.cluster import Ranks

    up, named = [], []
    for _ in range(3):
        ranks = Ranks(RANKS, slurm=OPTIONS)
        up.append(ranks.seconds)
        try:
            ranks.run("from course_lib.collectives import Communicator\ncomm = Communicator()")
            for _ in range(3):
                began = time.perf_counter()
                replies = ranks.run("if comm.Get_rank() != 5:\n    comm.Barrier()")
                named.append(time.perf_counter() - began)
                assert "(n2)" in replies[0][1]["error"]["message"]
        finally:
            ranks.stop()
    yield "start-8-ranks-2-machines-seconds", up, START_LIMIT
    yield "deadlock-2-machines-named-seconds", named, NAMED_LIMIT


def _failure(slurm) -> float:
    """Return the seconds from the moment at which a machine falls silent to the message that names it."""
    from course_lib.cluster import Ranks, RanksGone

    ranks, stopped = Ranks(RANKS, slurm=OPTIONS), []

    def fail() -> None:
        stopped.append(time.perf_counter())
        for process in processes:
            process.suspend()

    processes = slurm.of_node("n2")
    threading.Timer(1.0, fail).start()
    try:
        ranks.run("import time\ntime.sleep(60)")
    except RanksGone as gone:
        assert "n2" in str(gone)
        return time.perf_counter() - stopped[0]
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        ranks.stop()
    raise AssertionError("nobody noticed")


if __name__ == "__main__":
    measure(sys.argv[1])
