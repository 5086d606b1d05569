"""Stub that mpiexec starts for each rank: it has the zygote fork the real process, and lives as long as that.

Run by path with ``python -I -S``, so that it starts within hundredths of a second.
"""

import json
import os
import signal
import socket
import sys


def main(address: str) -> int:
    """Hand this process's MPI connection to the zygote; return the rank's exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # mpiexec's signal to the other processes when one rank dies
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    number = int(os.environ["PMI_FD"])
    data = json.dumps(dict(os.environ)).encode()
    socket.send_fds(connection, [len(data).to_bytes(8, "big")], [number])
    connection.sendall(data)
    os.close(number)  # otherwise mpiexec would not notice the end of the rank
    if os.path.exists("/bin/sh"):  # can wait, too, with a tenth of the memory
        os.dup2(connection.fileno(), 0)
        os.execv("/bin/sh", ["sh", "-c", "read code; exit ${code:-1}"])
    return int(connection.recv(64) or 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
