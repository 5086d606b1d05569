"""Memory shared by the ranks of one machine: the course's own segments, and the clean-up of those that MPICH leaves behind.

MPICH keeps a file in /dev/shm until its processes exit normally. Killed processes leave theirs behind: memory that is never freed, under a
name that a later process may collide with. A process not started by mpiexec names its file after its process id; if that file exists
already, MPI aborts it with "Out of memory" and exit code 15.

On a Linux without Yama, MPICH also reads other ranks' memory directly (process_vm_readv). Some containers forbid that, docker 20.10 for
instance, and MPI then aborts all ranks.
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

SHM_FOLDER, MPICH_PREFIX, COURSE_PREFIX = Path("/dev/shm"), "mpich_shm_", "course-shared-"  # ours is unlinked once open everywhere
STALE_SECONDS = 600.0  # age from which a file cannot belong to a job that is starting: all of its ranks open it at start-up
CMA_VARIABLE = "MPIR_CVAR_CH4_CMA_ENABLE"  # "0": MPICH copies through shared memory instead of reading other ranks' memory


def remove_stale_files() -> None:
    """Remove shared-memory files of this user's killed processes, and any that would collide with this one; call before MPI starts."""
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
    """Return whether process_vm_readv is allowed; a filter that forbids it also does so for the process's own memory, which is tried."""
    byte, libc = ctypes.create_string_buffer(1), ctypes.CDLL(None)
    place = (ctypes.c_size_t * 2)(ctypes.addressof(byte), 1)
    return hasattr(libc, "process_vm_readv") and libc.process_vm_readv(os.getpid(), place, 1, place, 1, 0) == 1


def unlink_mapped_files() -> None:
    """Unlink MPICH's shared-memory files that this process has mapped; the mappings stay. Collective.

    After that, killed ranks leave nothing behind.
    """
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()  # every rank has mapped the files now
    with contextlib.suppress(OSError):  # only Linux has this list
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.split(maxsplit=5)[-1]
            # A path shown as "... (deleted)" is unlinked already, and may by now be a file of another job.
            if path.startswith(f"{SHM_FOLDER}/{MPICH_PREFIX}") and not line.endswith(" (deleted)"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)


def allocate(comm: MPI.Comm, nbytes: int) -> mmap.mmap | None:
    """Map `nbytes` zero bytes that all ranks of `comm` share; collective.

    Returns
    -------
    mmap.mmap or None
        None on all ranks if there is no room, or if the ranks are on several machines.
    """
    if (found := allocate_file(comm, nbytes, [(0, nbytes)])) is None:
        return None
    os.close(found[1])
    return found[0]


def allocate_file(comm: MPI.Comm, nbytes: int, reserve: list[tuple[int, int]]) -> tuple[mmap.mmap, int] | None:
    """Map shared memory as `allocate` does, and return the file descriptor, too.

    The file is unlinked once all ranks have opened it, so nothing is left behind however they end.

    Parameters
    ----------
    comm : MPI.Comm or Communicator
    nbytes : int
    reserve : list of (int, int)
        Offset and length, in bytes, of the parts to allocate now. The rest is allocated on first use, where running out is a bus error.

    Returns
    -------
    (mmap.mmap, int) or None
        None on all ranks if there is no room, or if the ranks are on several machines.
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
    comm.Allreduce(everywhere.copy(), everywhere, MPI.MIN)  # also a barrier: all ranks have opened the file
    if path:
        os.unlink(path)
    if everywhere[0]:
        return mapped, descriptor
    if descriptor >= 0:
        os.close(descriptor)
    return None


def _create(nbytes: int, reserve: list[tuple[int, int]]) -> str:
    """Create a file of `nbytes` zeros, in /dev/shm if it exists, and return its path; OSError unless twice the reserved bytes are free."""
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
