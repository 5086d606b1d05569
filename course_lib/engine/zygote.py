"""One process that has imported everything, and becomes a rank by forking.

Eight engines that each import IPython, NumPy and the rest take eight times 0.6 s of a core.
The zygote imports once. For each rank, mpiexec starts a small stub (`stub`); it sends
its environment and its connection to mpiexec here, and a fork takes both over.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import warnings

from course_lib.engine import watchdog

# What the log says of a rank that ended by itself; mpiexec then ends the others.
ENDED = "rank {rank} ended with code {code}"


def main(address: str, arguments: list[str], mpiexec: list[str]) -> int:
    """Run mpiexec and be the zygote of the ranks that it starts; returns mpiexec's exit code.

    Parameters
    ----------
    address : str
        Path of the Unix socket to listen on.
    arguments : list of str
        The engines' command line.
    mpiexec : list of str
        The command that starts the stubs.
    """
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(128)
        process = subprocess.Popen(mpiexec)
        _import_everything()
        gc.freeze()  # forks share these objects; the collector need not touch them
        return _serve(server, arguments, process)


def _import_everything() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.modules["debugpy"] = None  # see engine.__main__
        import ipykernel.debugger
        import ipykernel.ipkernel
        import ipykernel.kernelapp  # noqa: F401
        import ipyparallel.engine.app
        import ipyparallel.engine.kernel  # noqa: F401
        import IPython.core.displayhook  # noqa: F401
        import numpy  # noqa: F401

        import course_lib.engine.handler  # noqa: F401


def _serve(server: socket.socket, arguments: list[str], mpiexec: subprocess.Popen) -> int:
    ranks: dict[int, tuple[socket.socket, str]] = {}  # process id -> its stub and its rank
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        selector.register(reader, selectors.EVENT_READ)
        while mpiexec.poll() is None:
            for key, _ in selector.select(watchdog.PERIOD):
                if key.fileobj is server:
                    stub, _ = server.accept()
                    pid, rank = _fork(stub, [server, *(s for s, _ in ranks.values())], arguments)
                    ranks[pid] = stub, rank
                else:
                    os.read(reader, 4096)
            for pid, (stub, rank) in list(ranks.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    code = os.waitstatus_to_exitcode(status)
                    del ranks[pid]
                    print(ENDED.format(rank=rank, code=code), flush=True)
                    return _end_all(ranks, stub, mpiexec)
    return mpiexec.returncode


def _end_all(ranks: dict, stub: socket.socket, mpiexec: subprocess.Popen) -> int:
    """One rank ended: MPI cannot go on without it, so end the others, and mpiexec."""
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    for pid in ranks:
        os.waitpid(pid, 0)
    for connection in (stub, *(other for other, _ in ranks.values())):
        with contextlib.suppress(OSError):
            connection.sendall(b"1")
        connection.close()
    mpiexec.kill()
    mpiexec.wait()
    return 1


def _fork(stub: socket.socket, not_its_own: list[socket.socket], arguments: list[str]) -> tuple[int, str]:
    length, descriptors, *_ = socket.recv_fds(stub, 8, 4)
    size, data = int.from_bytes(length, "big"), b""
    while len(data) < size:
        data += stub.recv(size - len(data))
    message = json.loads(data)
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid, message["environment"]["PMI_RANK"]
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for connection in not_its_own:
        connection.close()
    held = os.dup(stub.fileno())
    stub.detach()
    for descriptor, number in zip(descriptors, message["descriptors"], strict=True):
        held = os.dup(held) if held == number else held
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.set_inheritable(number, True)
    os.environ.clear()
    os.environ.update(message["environment"])
    threading.Thread(target=_end_with, args=(socket.socket(fileno=held),), daemon=True).start()
    sys.argv = ["course_lib.engine", *arguments]
    code = 1
    try:
        from course_lib.engine.__main__ import main

        main()
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
    """End this rank when its stub is gone: mpiexec ends the stubs when one rank dies."""
    with contextlib.suppress(OSError):
        stub.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)
