"""State of an isolated rank: its rank, the number of ranks, and its connection to the broker (None on other ranks)."""

from __future__ import annotations

import socket

from course_lib.collectives.transport.frames import FrameConnection

connection: FrameConnection | None = None
rank, size = 0, 1


def join(opened: socket.socket, this: int, of: int) -> FrameConnection:
    """Make this process isolated rank `this` of `of`; returns the connection to the broker over the given socket."""
    global connection, rank, size
    connection, rank, size = FrameConnection(opened), this, of
    return connection
