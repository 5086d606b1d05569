"""Zygote: a process that imports everything once, and forks each rank.

Eight engines that each import IPython, NumPy and the rest take eight times 0.6 s of a core.
The zygote imports once. For each rank, mpiexec starts a small `stub`, which sends its environment
and its connection to mpiexec to the zygote; a fork takes over both.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings

from course_lib.engine import memory_limit
from course_lib.engine.processes import imports, supervisor, watchdog

# Imported by every rank in its first cells; here, they are imported once for all.
PRELOADED_MODULES = (
    "ipykernel.debugger",
    "ipykernel.ipkernel",
    "ipykernel.kernelapp",
    "ipyparallel.engine.app",
    "ipyparallel.engine.kernel",
    "IPython.core.completerlib",
    "IPython.core.displayhook",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "bdb",
    "tornado.platform.asyncio",
    "numpy",
    "course_lib.collectives.communicator",
    "course_lib.collectives.transport.mpi",
    "course_lib.engine.requests.handler",
)


def main(n: int, folder: str, mpiexec: list[str]) -> int:
    """Run mpiexec, fork the `n` ranks whose stubs it starts, and become their supervisor.

    Parameters
    ----------
    n : int
        Number of ranks.
    folder : str
        The folder with the controller's connection files, and with this process's socket.
    mpiexec : list of str
        The command that starts the stubs.

    Returns
    -------
    int
        mpiexec's exit code, if it exits before all ranks are forked; otherwise this function does not return.
    """
    ranks: list[tuple[int, int, socket.socket]] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address(folder))
        server.listen(128)
        process = subprocess.Popen(mpiexec)
        engine, most = _prepare(folder), memory_limit.per_rank(n)
        gc.freeze()  # keeps the collector from touching, and thus copying, pages shared with the forks
        server.settimeout(0.2)
        while len(ranks) < n:
            if process.poll() is not None:
                return process.returncode
            with contextlib.suppress(TimeoutError):
                stub, _ = server.accept()
                ranks.append((*_fork(stub, [server, *(other for *_, other in ranks)], engine, most), stub))
    for *_, stub in ranks:
        stub.set_inheritable(True)
    watched = watchdog.owner()
    facts = process.pid, [(pid, rank, stub.fileno()) for pid, rank, stub in ranks], watched[0] if watched else None
    os.execv(sys.executable, [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(facts), folder])


def address(folder: str) -> str:
    """Return the path of the zygote's Unix socket."""
    return f"{folder}/zygote"


def _prepare(folder: str):
    """Import everything, and create the engine that every fork continues with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imports.leave_out("debugpy")
        import mpi4py

        mpi4py.rc.initialize = False  # each rank does that, see `ipengine`: a process that has initialized MPI cannot fork
        for name in PRELOADED_MODULES:
            importlib.import_module(name)
        from course_lib.engine import ipengine

        return ipengine.prepare(folder)


def _fork(stub: socket.socket, not_its_own: list[socket.socket], engine, most: int) -> tuple[int, int]:
    """Fork a rank, which takes over its stub's environment and connection to mpiexec.

    Parameters
    ----------
    stub : socket.socket
        The connection to the stub.
    not_its_own : list of socket.socket
        Connections to close in the fork.
    engine : RankEngine
    most : int
        The rank's memory limit in bytes; 0 for none.

    Returns
    -------
    (int, int)
        Process id and rank; returns only in the zygote.
    """
    length, (descriptor,), *_ = socket.recv_fds(stub, 8, 1)
    size, data = int.from_bytes(length, "big"), b""
    while len(data) < size:
        data += stub.recv(size - len(data))
    environment = json.loads(data)
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid, int(environment["PMI_RANK"])
    for connection in not_its_own:
        connection.close()
    number, held = int(environment["PMI_FD"]), os.dup(stub.fileno())
    stub.detach()
    held = os.dup(held) if held == number else held
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.set_inheritable(number, True)
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_end_with, args=(socket.socket(fileno=held),), daemon=True).start()
    sys.argv = ["course_lib.engine"]
    memory_limit.apply(most)
    code = 1
    try:
        from course_lib.engine import ipengine

        ipengine.serve(engine)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_with(stub: socket.socket) -> None:
    """Kill this rank when its stub is gone: mpiexec ends the stubs when one rank dies."""
    with contextlib.suppress(OSError):
        stub.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)
