"""Whether the machines of the ranks are there, as the kernel sees it: each has a mirror (see `collectives.hosts`), which sends a beat.

ipyparallel does not notice when a machine fails: its connections just stay silent. So do Slurm's for minutes.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import time

from course_lib.collectives.mirror import SILENT, WATCHER, answer, greeting
from course_lib.engine.mpiexec import StartError

CONNECT = 10.0  # seconds to reach one


class Watch:
    """Connections to the mirrors of some machines.

    Parameters
    ----------
    places : dict of str to (str, int, str)
        By machine: address and port of its mirror, and the secret.

    Raises
    ------
    StartError
        A machine does not answer.
    """

    def __init__(self, places: dict[str, tuple[str, int, str]]):
        self._connections: dict[str, socket.socket] = {}
        self._heard: dict[str, float] = {}
        self._looked = 0.0
        for machine, (address, port, secret) in places.items():
            try:
                self._connections[machine] = _connect(address, port, bytes.fromhex(secret))
            except OSError as error:
                self.close()
                raise StartError(
                    f"this kernel cannot reach {machine} at {address}:{port} ({error}). The ranks run, but nobody would notice if that "
                    "machine failed. Can this machine open connections to those of the cluster? COURSE_ADDRESS names the network to use."
                ) from None

    def lost(self) -> list[str]:
        """The machines from which nothing has come for `SILENT` seconds while somebody looked."""
        now = time.monotonic()
        resumed, self._looked = now - self._looked > SILENT / 2, now  # nobody looked: what has come since then waits there
        for machine, connection in self._connections.items():
            with contextlib.suppress(OSError):
                while connection.recv(4096):
                    self._heard[machine] = now
            if resumed:
                self._heard[machine] = now
        return [machine for machine in self._connections if now - self._heard[machine] > SILENT]

    def close(self) -> None:
        """Watch no longer."""
        for connection in self._connections.values():
            connection.close()


def _connect(address: str, port: int, secret: bytes) -> socket.socket:
    connection = socket.create_connection((address, port), CONNECT)
    try:
        nonce, mine = _exactly(connection, 16), os.urandom(16)
        connection.sendall(greeting(secret, nonce, WATCHER) + mine)
        if not hmac.compare_digest(_exactly(connection, 32), answer(secret, mine)):
            raise OSError("something else listens there")
    except BaseException:
        connection.close()
        raise
    connection.setblocking(False)
    return connection


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise OSError("it has closed the connection")
        data += more
    return data
