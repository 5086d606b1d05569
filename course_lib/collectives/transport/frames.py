"""Frames on the socket between an isolated rank and the broker; the keys of their headers are listed in `cluster.isolated.broker`.

A frame is the length of the header (uint32) and that of the payload (uint64), little-endian; the header, a JSON object; and the payload.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import TypeAlias

FRAME_LENGTHS = struct.Struct("<IQ")
MAX_HEADER_BYTES = CHUNK_BYTES = 1 << 16
INITIAL_PAYLOAD_BYTES = 1 << 20  # allocated at first for an announced payload, whatever its length
Buffer: TypeAlias = bytes | bytearray | memoryview  # a memoryview with format "B"


class FrameReader:
    """Assembles frames from the bytes received on a socket; a large payload is received in place and never copied.

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
        """Call recv once; return the number of bytes, 0 at the end of the stream."""
        if self._payload is not None:
            if self._filled == len(self._payload):  # allocated as data arrives, not as announced
                self._payload += bytes(min(self._length - self._filled, max(self._filled, INITIAL_PAYLOAD_BYTES)))
            with memoryview(self._payload) as view:
                count = self._connection.recv_into(view[self._filled :])
            self._filled += count
            return count
        data = self._connection.recv(CHUNK_BYTES)
        self._buffer += data
        return len(data)

    def lengths(self) -> tuple[int, int] | None:
        """Return the lengths of the next frame's header and payload, or None if they are not here yet."""
        return FRAME_LENGTHS.unpack_from(self._buffer) if self._payload is None and len(self._buffer) >= FRAME_LENGTHS.size else None

    def next_frame(self) -> tuple[bytes, bytearray] | None:
        """Return the next frame, header and payload, or None if it is not complete yet."""
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
    """Encode a frame as a list of buffers to be sent; a small one as a single buffer."""
    text, parts = json.dumps(header).encode(), [memoryview(part) for part in payload if len(part)]
    length = sum(map(len, parts))
    parts.insert(0, memoryview(FRAME_LENGTHS.pack(len(text), length) + text))
    return [memoryview(b"".join(parts))] if length <= CHUNK_BYTES else parts


class FrameConnection:
    """Sends and receives whole frames; an interrupt ends a wait, but never splits a frame.

    Parameters
    ----------
    connection : socket.socket
    """

    def __init__(self, connection: socket.socket):
        self._connection, self._incoming = connection, FrameReader(connection)
        self._in_frame = self._interrupted = False
        self._taken = None  # a frame that an interrupt kept from being handed over

    def send(self, header: dict, *payload: Buffer) -> None:
        """Send a frame; the payload may be given in several parts."""
        frame = encode_frame(header, *payload)
        self._in_frame = True
        for piece in frame:
            self._connection.sendall(piece)
        self._release()

    def receive(self) -> tuple[dict, bytearray]:
        """Block until a frame is here, and return its header and payload.

        Raises
        ------
        EOFError
            The broker has closed the connection.
        """
        while True:
            self._in_frame = True
            self._taken = self._taken or self._next_frame()
            self._release()
            if self._taken:
                return self._hand_over()
            select.select([self._connection], [], [])
            self._in_frame = True
            count = self._incoming.receive()
            self._release()
            if not count:
                raise EOFError("the broker is gone")

    def poll(self) -> tuple[dict, bytearray] | None:
        """Return a frame if one is here, else None; never blocks."""
        self._in_frame = True
        try:
            self._taken = self._taken or self._next_frame()
            if not self._taken and select.select([self._connection], [], [], 0)[0]:
                self._incoming.receive()
                self._taken = self._next_frame()
        finally:
            self._release()
        return self._hand_over()

    def _hand_over(self) -> tuple[dict, bytearray] | None:
        frame, self._taken = self._taken, None
        return frame

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt, but only after the frame in flight; called by the SIGINT handler."""
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
