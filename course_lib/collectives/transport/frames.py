"""The connection of an isolated rank: whole frames on a socket to the broker in the notebook's own process.

A frame is two lengths, a header in JSON, and bytes.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import TypeAlias

FRAME_LENGTHS = struct.Struct("<IQ")
MAX_HEADER_BYTES = CHUNK_BYTES = 1 << 16  # bytes
INITIAL_PAYLOAD_BYTES = 1 << 20  # bytes that are set aside at first for a payload that was announced
Buffer: TypeAlias = bytes | bytearray | memoryview  # of bytes


class FrameReader:
    """Assemble what comes on a socket into frames; a large payload is received in place and never copied.

    Parameters
    ----------
    connection : socket.socket
    """

    def __init__(self, connection: socket.socket):
        self._connection, self._buffer = connection, bytearray()
        self._header, self._payload, self._filled, self._length = b"", None, 0, 0

    def __len__(self) -> int:
        return len(self._buffer) + self._filled

    def receive(self) -> int:
        """Receive once; return the number of bytes."""
        if self._payload is not None:
            if self._filled == len(self._payload):  # announced bytes take memory as they come, and not before
                self._payload += bytes(min(self._length - self._filled, max(self._filled, INITIAL_PAYLOAD_BYTES)))
            with memoryview(self._payload) as view:
                count = self._connection.recv_into(view[self._filled :])
            self._filled += count
            return count
        data = self._connection.recv(CHUNK_BYTES)
        self._buffer += data
        return len(data)

    def lengths(self) -> tuple[int, int] | None:
        """The lengths of the next frame's header and payload, once they have come."""
        return FRAME_LENGTHS.unpack_from(self._buffer) if self._payload is None and len(self._buffer) >= FRAME_LENGTHS.size else None

    def next_frame(self) -> tuple[bytes, bytearray] | None:
        """The next frame, header and payload, if it is whole."""
        if lengths := self.lengths():
            start = FRAME_LENGTHS.size + lengths[0]
            if len(self._buffer) < start:
                return None
            end = min(start + lengths[1], len(self._buffer))
            self._header, self._payload, self._length = bytes(self._buffer[FRAME_LENGTHS.size : start]), self._buffer[start:end], lengths[1]
            self._filled = len(self._payload)
            del self._buffer[:end]
        if self._payload is None or self._filled < self._length:
            return None
        frame, self._payload, self._filled = (self._header, self._payload), None, 0
        return frame


def encode_frame(header: dict, *payload: Buffer) -> list[memoryview]:
    """A frame as it is sent: in one piece where it is small."""
    text, parts = json.dumps(header).encode(), [memoryview(part) for part in payload if len(part)]
    length = sum(map(len, parts))
    parts.insert(0, memoryview(FRAME_LENGTHS.pack(len(text), length) + text))
    return [memoryview(b"".join(parts))] if length <= CHUNK_BYTES else parts


class FrameConnection:
    """Sends and receives whole frames; an interrupt breaks off a wait, never a frame.

    Parameters
    ----------
    connection : socket.socket
    """

    def __init__(self, connection: socket.socket):
        self._connection, self._incoming = connection, FrameReader(connection)
        self._in_frame = self._interrupted = False

    def send(self, header: dict, *payload: Buffer) -> None:
        """Send a frame; the payload may come in several parts."""
        frame = encode_frame(header, *payload)
        self._in_frame = True
        for piece in frame:
            self._connection.sendall(piece)
        self._release()

    def receive(self) -> tuple[dict, bytearray]:
        """Wait for a frame.

        Raises
        ------
        EOFError
            The other side is gone.
        """
        while True:
            self._in_frame = True
            frame = self._next_frame()
            self._release()
            if frame:
                return frame
            select.select([self._connection], [], [])
            self._in_frame = True
            count = self._incoming.receive()
            self._release()
            if not count:
                raise EOFError("the broker is gone")

    def poll(self) -> tuple[dict, bytearray] | None:
        """A frame, if one has come; without waiting."""
        self._in_frame = True
        try:
            frame = self._next_frame()
            if not frame and select.select([self._connection], [], [], 0)[0]:
                self._incoming.receive()
                frame = self._next_frame()
        finally:
            self._release()
        return frame

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt after the frame in flight; for the handler of SIGINT."""
        self._interrupted = True
        if not self._in_frame:
            self._release()

    def _release(self) -> None:
        self._in_frame = False
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    def _next_frame(self) -> tuple[dict, bytearray] | None:
        frame = self._incoming.next_frame()
        return frame and (json.loads(frame[0]), frame[1])
