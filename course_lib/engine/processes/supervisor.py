"""Supervisor of the ranks forked by a zygote: when one of them exits, it ends all.

The zygote execs this program, which keeps its children, after forking the last rank: with its imports, the zygote would take five
times the memory. Run by path with ``python -I -S``; the folder at the end of the command line is not used, and only identifies the
cluster in process listings.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys

RANK_ENDED = "rank {rank} ended with code {code}"  # the line in the log
POLL_MILLISECONDS = 500  # polling interval without pidfds


def main(mpiexec: int, ranks: list[list[int]], owner: int | None) -> int:
    """Wait for mpiexec and the ranks; return mpiexec's exit code, or 1 if a rank exited or the owner is gone.

    Parameters
    ----------
    mpiexec : int
        Process id of mpiexec.
    ranks : list of (int, int, int)
        Process id, rank, and file descriptor of the connection to the rank's stub.
    owner : int, optional
        Process id of the notebook's kernel.
    """
    running = {pid: (rank, socket.socket(fileno=stub)) for pid, rank, stub in ranks}
    watched, poll = [], select.poll()
    with contextlib.suppress(AttributeError, OSError):  # older Linux kernels have no pidfds
        watched += [os.pidfd_open(pid) for pid in (mpiexec, *running, *([owner] if owner else []))]
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
    whole = len(watched) == 1 + len(running) + bool(owner)
    while True:
        for pid, (rank, _) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                print(RANK_ENDED.format(rank=rank, code=os.waitstatus_to_exitcode(status)), flush=True)
                return _end_all(mpiexec, running, pid)
        ended, status = os.waitpid(mpiexec, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if owner and not _there(owner):
            return _end_all(mpiexec, running)
        poll.poll(None if whole else POLL_MILLISECONDS)


def _there(pid: int) -> bool:
    """Return whether a process runs; a zombie counts as ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _end_all(mpiexec: int, running: dict, gone: int | None = None) -> int:
    """Kill the ranks (but `gone`, which has exited) and mpiexec: MPI cannot continue without all of them."""
    others = [pid for pid in running if pid != gone]
    for pid in others:
        os.kill(pid, signal.SIGKILL)
    for pid in others:
        os.waitpid(pid, 0)
    for _, stub in running.values():
        with contextlib.suppress(OSError):
            stub.sendall(b"1")
        stub.close()
    os.kill(mpiexec, signal.SIGKILL)
    os.waitpid(mpiexec, 0)
    return 1


if __name__ == "__main__":
    sys.exit(main(*json.loads(sys.argv[1])))
