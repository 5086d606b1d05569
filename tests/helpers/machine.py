"""The machine: what it has, how busy it is, and commands run in a shell of it."""

import os
import subprocess
import sys
from pathlib import Path

from course_lib import datasets
from course_lib.utils import host


def patient(seconds):
    """Seconds that stand for so many of a quiet machine: more where more processes want a core than there are."""
    return seconds * host.processes_per_core()


def fashion_files():
    """The folder in which Debian's package dataset-fashion-mnist (or COURSE_DATA_DIR) has the real images; None without them."""
    places = [Path(p) for p in (os.environ.get(datasets.DATA_DIR_ENV), "/usr/share/datasets/fashion-mnist") if p]
    return next((p for p in places if list(p.glob("**/train-images-idx3-ubyte*"))), None)


def mpiexec(n, *command, **options):
    """A Python command on n ranks, to its end."""
    full = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(n), sys.executable, *command]
    return subprocess.run(full, capture_output=True, text=True, timeout=120, **options)


def training(n, *words, folder):
    """`python -m course_lib.training` on n ranks, with the functions of this folder."""
    return mpiexec(n, "-m", "course_lib.training", *words, "--functions", str(folder))
