"""Memory that the ranks of a machine share: our own, and MPICH's without the files that it would leave behind.

MPICH keeps a file in /dev/shm until its processes end in good order. Those that are killed leave theirs: memory that nobody gives
back, under a name that a later process may meet. A process that mpiexec has not started names its file by its number; when there is
one of that name already, MPI ends it, with "Out of memory" and exit code 15.

Where Linux has no Yama, MPICH also reads other ranks' memory (process_vm_readv). Some containers forbid that, as docker 20.10 does, and MPI
then ends all ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

SHM_FOLDER, MPICH_PREFIX, COURSE_PREFIX = Path("/dev/shm"), "mpich_shm_", "course-shared-"  # ours has a name only until all have opened it
STALE_SECONDS = 600.0  # seconds after which nobody opens a file any more: all ranks of a job do that when they start
CMA_VARIABLE = "MPIR_CVAR_CH4_CMA_ENABLE"  # "0": MPICH leaves other ranks' memory alone, and copies twice


def remove_stale_files() -> None:
    """Before MPI starts: remove what this user's killed processes have left, and what stands in this process's way."""
    if not can_read_other_processes():
        os.environ[CMA_VARIABLE] = "0"
    own = f"{MPICH_PREFIX}{os.getpid():x}_0"
    with contextlib.suppress(OSError):  # only Linux has this folder
        for file in os.scandir(SHM_FOLDER):
            if file.name.startswith((MPICH_PREFIX, COURSE_PREFIX)):
                with contextlib.suppress(OSError):
                    about = file.stat(follow_symlinks=False)
                    old = about.st_uid == os.geteuid() and time.time() - about.st_mtime > STALE_SECONDS
                    if old or file.name == own:
                        os.unlink(file)


def can_read_other_processes() -> bool:
    """Return whether the system lets a process read another's memory; a filter that forbids it does so for its own, too."""
    byte, libc = ctypes.create_string_buffer(1), ctypes.CDLL(None)
    place = (ctypes.c_size_t * 2)(ctypes.addressof(byte), 1)
    return hasattr(libc, "process_vm_readv") and libc.process_vm_readv(os.getpid(), place, 1, place, 1, 0) == 1


def unlink_mapped_files() -> None:
    """Remove the names of the shared memory that this process has mapped; the memory itself stays. Collective."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()  # now every rank has mapped it
    with contextlib.suppress(OSError):  # only Linux has this list
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.split(maxsplit=5)[-1]
            # A name that is gone already, "... (deleted)", may by now be another job's.
            if path.startswith(f"{SHM_FOLDER}/{MPICH_PREFIX}") and not line.endswith(" (deleted)"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)


def allocate(comm: MPI.Comm, nbytes: int) -> mmap.mmap | None:
    """Map zeros that all ranks of `comm` see; collective.

    Returns
    -------
    mmap.mmap or None
        None on all ranks where there is no room, or where they are on several machines.
    """
    if (found := allocate_file(comm, nbytes, [(0, nbytes)])) is None:
        return None
    os.close(found[1])
    return found[0]


def allocate_file(comm: MPI.Comm, nbytes: int, reserve: list[tuple[int, int]]) -> tuple[mmap.mmap, int] | None:
    """The same, with the file's descriptor.

    The file has no name any more once all have opened it, so nothing of it is left behind.

    Parameters
    ----------
    comm : MPI.Comm or Communicator
    nbytes : int
    reserve : list of (int, int)
        Offset and length, in bytes, of what the system must have room for now.

    Returns
    -------
    (mmap.mmap, int) or None
        None on all ranks where there is no room, or where they are on several machines.
    """
    import numpy as np
    from mpi4py import MPI

    name, path, mapped, descriptor = np.zeros(4096, np.uint8), "", None, -1
    if comm.Get_rank() == 0:
        with contextlib.suppress(OSError):
            path = _create(nbytes, reserve)
        name[: len(path.encode())] = list(path.encode())
    comm.Bcast(name, root=0)
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(name[name > 0].tobytes().decode(), os.O_RDWR | os.O_CLOEXEC)
        mapped = mmap.mmap(descriptor, nbytes)
    everywhere = np.array([mapped is not None], np.int64)
    comm.Allreduce(everywhere.copy(), everywhere, MPI.MIN)  # also: all have opened it
    if path:
        os.unlink(path)
    if everywhere[0]:
        return mapped, descriptor
    if descriptor >= 0:
        os.close(descriptor)
    return None


def _create(nbytes: int, reserve: list[tuple[int, int]]) -> str:
    """The path of a new file of zeros, in memory where there is such a folder and twice the room."""
    folder = str(SHM_FOLDER) if SHM_FOLDER.is_dir() else tempfile.gettempdir()
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < 2 * sum(length for _, length in reserve):
        raise OSError(f"{folder} is nearly full")
    descriptor, path = tempfile.mkstemp(prefix=f"{COURSE_PREFIX}{os.getpid()}-", dir=folder)
    try:
        os.ftruncate(descriptor, nbytes)
        for start, length in reserve if hasattr(os, "posix_fallocate") else ():
            os.posix_fallocate(descriptor, start, length)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    return path
