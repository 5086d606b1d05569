"""Wake asyncio's event loop on an isolated rank by an eventfd: a socket pair could be used to hide megabytes of data."""

from __future__ import annotations

import os
from asyncio.selector_events import BaseSelectorEventLoop


class Wakeup:
    """An eventfd in place of both sockets of the pair that asyncio uses; it has no buffer."""

    def __init__(self):
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return the file descriptor to poll."""
        return self._descriptor

    def send(self, data: bytes) -> int:
        """Wake the loop."""
        os.eventfd_write(self._descriptor, len(data))
        return len(data)

    def recv(self, size: int) -> bytes:
        """Reset the eventfd; BlockingIOError if nothing has woken the loop."""
        os.eventfd_read(self._descriptor)
        return b"\0"

    def close(self) -> None:
        """Close the descriptor; safe to call again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def install() -> None:
    """Make all new event loops use `Wakeup`."""
    BaseSelectorEventLoop._make_self_pipe = _make


def _make(loop: BaseSelectorEventLoop) -> None:
    loop._ssock = loop._csock = Wakeup()
    loop._internal_fds += 1
    loop._add_reader(loop._ssock.fileno(), loop._read_from_self)
