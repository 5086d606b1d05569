"""Memory that the ranks of one machine share, in a file that has no name any more once all have opened it."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile

import numpy as np
from mpi4py import MPI


def memory(comm, nbytes: int) -> mmap.mmap | None:
    """So many zeros that all ranks of `comm` see; collective.

    Returns
    -------
    mmap.mmap or None
        None on all ranks where there is no room for it, or where they are on several machines.
    """
    name, path, mapped = np.zeros(4096, np.uint8), "", None
    if comm.Get_rank() == 0:
        with contextlib.suppress(OSError):
            path = _file(nbytes)
        name[: len(path.encode())] = list(path.encode())
    comm.Bcast(name, root=0)
    try:
        with open(name[name > 0].tobytes().decode(), "r+b") as file:
            mapped = mmap.mmap(file.fileno(), nbytes)
    except (OSError, ValueError):
        mapped = None
    everywhere = np.array([mapped is not None], np.int64)
    comm.Allreduce(everywhere.copy(), everywhere, MPI.MIN)  # also: all have opened it
    if path:
        os.unlink(path)
    return mapped if everywhere[0] else None


def _file(nbytes: int) -> str:
    """The path of a new file of zeros, in memory where there is such a folder and twice the room."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < 2 * nbytes:
        raise OSError(f"{folder} is nearly full")
    descriptor, path = tempfile.mkstemp(prefix=f"course-shared-{os.getpid()}-", dir=folder)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, nbytes)
        else:
            os.ftruncate(descriptor, nbytes)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    return path
