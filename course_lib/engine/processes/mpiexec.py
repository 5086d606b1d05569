"""Find mpiexec, and run the ranks with it; ``python -m course_lib.engine.processes.mpiexec`` returns when it exits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from course_lib.engine.processes import stub, watchdog, zygote

# One thread per rank: with more, 8 ranks on 2 cores would compete for the cores.
THREAD_VARIABLES = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR", "VECLIB_MAXIMUM")}
NO_ZYGOTE = "COURSE_NO_ZYGOTE"  # set it to start each rank as a new Python process, as on macOS

# MPICH's gforker opens no port. The usual launcher, where gforker is missing, must not wait for
# ssh, a resource manager or a host name.
LAUNCHERS = {"mpiexec.gforker": (), "mpiexec": ("-launcher", "fork", "-rmk", "user", "-hosts", "localhost")}

# The ranks of one machine communicate through shared memory; MPI need not open ports (UCX), or
# only on the loopback interface (libfabric).
LOOPBACK_VARIABLES = {"UCX_TLS": "self,posix", "FI_TCP_IFACE": "lo0" if sys.platform == "darwin" else "lo"}

# UCX is initialized but not used between ranks of one machine: small queues save 4 MB per rank.
SMALL_QUEUE_VARIABLES = {"UCX_POSIX_SEG_SIZE": "128", "UCX_POSIX_FIFO_SIZE": "16", "MPIR_CVAR_CH4_NUM_PACK_BUFFERS_PER_CHUNK": "4"}


class StartError(RuntimeError):
    """The ranks did not start; the message has the end of their log."""


def find_mpiexec() -> str:
    """Return the path of the mpiexec that belongs to this Python's MPI; that of another MPI would not work with it."""
    for place in (Path(sys.prefix) / "bin", Path(sys.executable).parent):
        for name in LAUNCHERS:
            if (place / name).exists():
                return str(place / name)
    raise StartError(
        f"no mpiexec in {Path(sys.prefix) / 'bin'}. It comes with the package mpich: run `make lab` or "
        "`make doctor` in the course folder, or `pip install mpich`."
    )


def run_ranks(mpiexec: str, n: int, folder: str) -> int:
    """Run mpiexec until it exits; return its exit code.

    On Linux, the ranks are forked from one zygote. Elsewhere, forking a process that has loaded
    system libraries is not safe, and each rank is a new Python process.
    """
    mpi = [mpiexec, *LAUNCHERS.get(Path(mpiexec).name, ()), "-n", str(n)]
    if sys.platform != "linux" or os.environ.get(NO_ZYGOTE):
        return subprocess.call([*mpi, sys.executable, "-m", "course_lib.engine", folder])
    return zygote.main(n, folder, [*mpi, sys.executable, "-I", "-S", stub.__file__, zygote.address(folder)])


if __name__ == "__main__":
    watchdog.watch_from_environment()
    sys.exit(run_ranks(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
