"""The shell command on Fashion-MNIST: its time apart from the steps, against its imports and reading the files once, on as many ranks.

If the real files are missing, generated ones of the same size are used.
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.training.perceptron import images
from benchmarks.turns import turns
from course_lib import datasets
from course_lib.engine.processes.mpiexec import THREAD_VARIABLES

GRIDS = ((1, 1), (1, 2), (2, 2), (4, 2))  # model parallel, data parallel
TURNS = turns(5)
LIMIT = 1.5
IMPORTS = "import argparse, contextlib, io, traceback, numpy, mpi4py.MPI, threadpoolctl, tqdm, course_lib.training.__main__"


def files(folder: Path) -> None:
    """Write four files in MNIST's format, for machines without the real ones."""
    x, y = images()
    for name, count, array in zip(datasets._FILES, (60_000, 60_000, 10_000, 10_000), (x * 90, y, x * 90, y), strict=True):
        array = array[:count].clip(0, 255).astype(np.uint8)
        shape = (count, 28, 28) if array.ndim > 1 else (count,)
        head = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
        with gzip.open(folder / f"{name}.gz", "wb", 1) as file:
            file.write(head + array.tobytes())


def seconds(command: list[str], environment: dict[str, str]) -> tuple[float, str]:
    """Return a command's time, and what it prints."""
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return time.perf_counter() - began, done.stdout


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    environment, mpiexec = {**os.environ, **THREAD_VARIABLES}, str(Path(sys.prefix) / "bin" / "mpiexec")  # as in README
    with tempfile.TemporaryDirectory(prefix="course-bench-") as folder:
        reference.write(folder)
        if not Path("/usr/share/datasets/fashion-mnist").exists() and datasets.DATA_DIR_ENV not in os.environ:
            files(Path(folder))
            os.environ[datasets.DATA_DIR_ENV] = environment[datasets.DATA_DIR_ENV] = folder
        for mp_size, dp_size in GRIDS:
            run = [mpiexec, "-n", str(mp_size * dp_size), sys.executable]
            words = f"-m course_lib.training --megatron-mp --mp-size {mp_size} --dp-size {dp_size} --data fashion-mnist --batch-size 120"
            ratios = []
            for _ in range(TURNS + 1):
                whole, said = seconds([*run, *words.split(), "--functions", folder], environment)
                steps = float(re.search(r"steps in ([\d.]+) s", said)[1])
                began = time.perf_counter()
                datasets.read("fashion-mnist")  # separately: ranks that wait for a reader would take its core
                reading = time.perf_counter() - began
                ratios.append((whole - steps) / (seconds([*run, "-c", IMPORTS], environment)[0] + reading))
            yield f"shell-but-steps-mp-{mp_size}-dp-{dp_size}/imports-and-one-reading", ratios[1:], LIMIT
