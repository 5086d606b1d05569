"""A socket proxy between each user's server and the Hub, so that nobody can take all of the Hub's connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

MAX_CONNECTIONS = 32  # connections of a user at a time; others wait
LISTEN_BACKLOG = 16  # connections that may wait


class SocketProxy:
    """Passes connections to one socket on to another.

    Parameters
    ----------
    path : Path
        Where it listens, for everybody who can see it.
    hub : Path
        The Hub's socket.
    """

    def __init__(self, path: Path, hub: Path):
        self._hub, self._passing = hub, set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        os.chmod(path, 0o666)
        self._listener.listen(LISTEN_BACKLOG)
        self._listener.setblocking(False)
        self._serving = asyncio.ensure_future(self._serve())

    def close(self) -> None:
        """Close it, and all connections through it."""
        for task in (self._serving, *self._passing):
            task.cancel()
        self._listener.close()

    async def _serve(self) -> None:
        places = asyncio.Semaphore(MAX_CONNECTIONS)
        while True:
            await places.acquire()
            try:
                inside, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            except OSError:  # out of descriptors, for instance
                places.release()
                await asyncio.sleep(1.0)
                continue
            task = asyncio.ensure_future(self._pass(inside))
            self._passing.add(task)
            task.add_done_callback(lambda task: (self._passing.discard(task), places.release()))

    async def _pass(self, inside: socket.socket) -> None:
        async with contextlib.AsyncExitStack() as ends:
            ends.callback(inside.close)
            from_inside, to_inside = await asyncio.open_connection(sock=inside)
            ends.pop_all()  # it is the writer's now
            ends.push_async_callback(_close, to_inside)
            try:
                from_hub, to_hub = await asyncio.open_unix_connection(str(self._hub))
            except OSError:
                return
            ends.push_async_callback(_close, to_hub)
            ways = [asyncio.ensure_future(_copy(*way)) for way in ((from_inside, to_hub), (from_hub, to_inside))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close one end once everything is sent."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
