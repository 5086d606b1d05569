"""Shared by the benchmarks: a module run on ranks, and a stopwatch for ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

from course_lib.engine.processes.mpiexec import LAUNCHERS, THREAD_VARIABLES, find_mpiexec


def run(n: int, module: str, *words: str) -> object:
    """Run ``python -m module words`` on n ranks; return what rank 0 printed, parsed as JSON."""
    mpiexec = find_mpiexec()
    command = [mpiexec, *LAUNCHERS[os.path.basename(mpiexec)], "-n", str(n), sys.executable, "-m", module, *words]
    done = subprocess.run(command, env={**os.environ, **THREAD_VARIABLES}, stdout=subprocess.PIPE, text=True, check=True, timeout=900)
    return json.loads(done.stdout)


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds until all ranks have made the call; collective."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    began = time.perf_counter()
    call()
    MPI.COMM_WORLD.Barrier()
    return time.perf_counter() - began
