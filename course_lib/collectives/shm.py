"""MPICH's shared memory, without the files that it would leave behind.

MPICH keeps a file in /dev/shm until its processes end in good order. Ranks that are killed leave theirs:
memory that nobody gives back, under a name that a later job may meet and cannot start with.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mpi4py import MPI

PREFIX = "/dev/shm/mpich_shm_"


def forget_files() -> None:
    """Remove the names of the shared memory that this process has mapped; the memory itself stays. Collective."""
    MPI.COMM_WORLD.Barrier()  # now every rank has mapped it
    with contextlib.suppress(OSError):  # only Linux has this list
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.split(maxsplit=5)[-1]
            # A name that is gone already, "... (deleted)", may by now be another job's.
            if path.startswith(PREFIX) and not line.endswith(" (deleted)"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
