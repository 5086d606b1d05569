"""MPICH's shared memory, without the files that it would leave behind.

MPICH keeps a file in /dev/shm until its processes end in good order. Those that are killed leave theirs: memory that nobody gives
back, under a name that a later process may meet. A process that mpiexec has not started names its file by its number; when there is
one of that name already, MPI ends it, with "Out of memory" and exit code 15.

Where Linux has no Yama, MPICH also reads other ranks' memory (process_vm_readv). Some containers forbid that, as docker 20.10 does, and MPI
then ends all ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path

FOLDER, NAME = Path("/dev/shm"), "mpich_shm_"
LEFT_BEHIND = 600.0  # seconds after which nobody opens a file any more: all ranks of a job do that when they start
READS_OTHERS = "MPIR_CVAR_CH4_CMA_ENABLE"  # "0": MPICH leaves other ranks' memory alone, and copies twice


def make_way() -> None:
    """Before MPI starts: remove what this user's killed processes have left, and what stands in this process's way."""
    if not may_read():
        os.environ[READS_OTHERS] = "0"
    own = f"{NAME}{os.getpid():x}_0"
    with contextlib.suppress(OSError):  # only Linux has this folder
        for file in os.scandir(FOLDER):
            if file.name.startswith(NAME):
                with contextlib.suppress(OSError):
                    about = file.stat(follow_symlinks=False)
                    old = about.st_uid == os.geteuid() and time.time() - about.st_mtime > LEFT_BEHIND
                    if old or file.name == own:
                        os.unlink(file)


def may_read() -> bool:
    """Whether the system lets a process read another's memory; a filter that forbids it does so for the own, too."""
    byte, libc = ctypes.create_string_buffer(1), ctypes.CDLL(None)
    place = (ctypes.c_size_t * 2)(ctypes.addressof(byte), 1)
    return hasattr(libc, "process_vm_readv") and libc.process_vm_readv(os.getpid(), place, 1, place, 1, 0) == 1


def forget_files() -> None:
    """Remove the names of the shared memory that this process has mapped; the memory itself stays. Collective."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()  # now every rank has mapped it
    with contextlib.suppress(OSError):  # only Linux has this list
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.split(maxsplit=5)[-1]
            # A name that is gone already, "... (deleted)", may by now be another job's.
            if path.startswith(f"{FOLDER}/{NAME}") and not line.endswith(" (deleted)"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
