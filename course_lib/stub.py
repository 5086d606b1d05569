"""What mpiexec starts for each rank: it has the zygote fork the real process, and lives as long.

Run by path with ``python -I -S``, so that it starts in hundredths of a second.
"""

import json
import os
import socket
import sys


def main(address: str) -> int:
    """Hand this process's MPI connection to the zygote; return the rank's exit code."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    environment = {**os.environ, "COURSE_STUB": str(os.getpid())}
    numbers = [int(environment[name]) for name in ("PMI_FD",) if name in environment]
    data = json.dumps({"environment": environment, "descriptors": numbers}).encode()
    socket.send_fds(connection, [len(data).to_bytes(8, "big")], numbers)
    connection.sendall(data)
    for number in numbers:
        os.close(number)  # or mpiexec would not notice that the rank is gone
    answer = b""
    while part := connection.recv(64):
        answer += part
    return int(answer or 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
