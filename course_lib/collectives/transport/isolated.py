"""State of an isolated rank: its rank, the number of ranks, its calls and groups.

Its connection to the broker is None on other ranks. While a virtual rank runs, this is its state
(`check.cases.virtual_group`).
"""

from __future__ import annotations

import socket

from course_lib.collectives.transport import Transport
from course_lib.collectives.transport.frames import FrameConnection

connection: FrameConnection | None = None
rank, size = 0, 1
call_count = 0  # the number of the latest call
unanswered: set[int] = set()  # calls
answers: dict[int, tuple[dict, bytes]] = {}  # by call: answers not consumed yet
transports: dict[tuple[int, ...], Transport] = {}  # by group: its world ranks


def join(opened: socket.socket, this: int, of: int) -> FrameConnection:
    """Make this process isolated rank `this` of `of`; returns the connection to the broker over the given socket."""
    global connection, rank, size
    connection, rank, size = FrameConnection(opened), this, of
    return connection
