"""The line of a rank that is kept apart: no MPI to the other ranks, only a socket to a relay in the notebook's own process.

Grading keeps ranks apart, so that bytes are counted where an answer cannot reach; see `relayed` and `cluster.relay`. A frame is two
lengths, a header in JSON, and bytes.
"""

from __future__ import annotations

import json
import select
import socket
import struct

LENGTHS = struct.Struct("<IQ")
HEADER_LIMIT = 1 << 16  # bytes
line: Line | None = None  # of this process, if it is such a rank
rank, size = 0, 1


class Line:
    """Sends and receives whole frames; an interrupt breaks off a wait, never a frame.

    Parameters
    ----------
    connection : socket.socket
    """

    def __init__(self, connection: socket.socket):
        self._connection, self._buffer = connection, bytearray()
        self._held = self._interrupted = False

    def send(self, header: dict, payload: bytes | memoryview = b"") -> None:
        """Send a frame."""
        text = json.dumps(header).encode()
        self._held = True
        self._connection.sendall(LENGTHS.pack(len(text), len(payload)) + text)
        if len(payload):
            self._connection.sendall(payload)
        self._let_go()

    def receive(self) -> tuple[dict, bytes]:
        """Wait for a frame.

        Raises
        ------
        EOFError
            The other side is gone.
        """
        while True:
            self._held = True
            frame = self._take()
            self._let_go()
            if frame:
                return frame
            select.select([self._connection], [], [])
            self._held = True
            data = self._connection.recv(1 << 20)
            self._buffer += data
            self._let_go()
            if not data:
                raise EOFError("the relay is gone")

    def poll(self) -> tuple[dict, bytes] | None:
        """A frame, if one has come; without waiting."""
        self._held = True
        try:
            frame = self._take()
            if not frame and select.select([self._connection], [], [], 0)[0]:
                self._buffer += self._connection.recv(1 << 20)
                frame = self._take()
        finally:
            self._let_go()
        return frame

    def interrupt(self) -> None:
        """What the handler of SIGINT calls: raise KeyboardInterrupt, after the frame that is on its way."""
        self._interrupted = True
        if not self._held:
            self._let_go()

    def _let_go(self) -> None:
        self._held = False
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    def _take(self) -> tuple[dict, bytes] | None:
        if len(self._buffer) < LENGTHS.size:
            return None
        header, payload = LENGTHS.unpack_from(self._buffer)
        start, end = LENGTHS.size + header, LENGTHS.size + header + payload
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:  # a slice of the buffer would be a second copy
            frame = json.loads(bytes(view[LENGTHS.size : start])), bytes(view[start:end])
        del self._buffer[:end]
        return frame


def join(connection: socket.socket, this: int, of: int) -> Line:
    """Make this process rank `this` of `of`."""
    global line, rank, size
    line, rank, size = Line(connection), this, of
    return line
