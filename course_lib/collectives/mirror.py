"""Shows the ranks of one machine what those of others have on the status board. One such process a machine.

It sends on what its machine's ranks have changed, and writes what comes from the others into the memory that its ranks see. It is no
thread of a rank: one that computes for minutes in a single step of C would hold it up. Run by path with ``python -I -S``: it starts in
hundredths of a second. What it is to do comes as a line of JSON, see `hosts`; it ends when that input ends, as its rank does.
"""

import contextlib
import hashlib
import hmac
import json
import mmap
import os
import select
import socket
import struct
import sys
import time

BEAT = 0.1  # seconds from one word to the other machines to the next, also where nothing changes
SILENT = 8.0  # seconds after which a machine counts as gone from which nothing was heard
AGAIN = 0.5  # seconds until a connection is tried again
GREETING = 5.0  # seconds for it to say who it is
STRANGERS = 16  # connections that have not said it yet
BLOCK = 256  # words
MOST = 64 << 20  # bytes for a machine that takes none; it then gets the whole picture anew
WATCHER = 0xFFFF  # says who is no mirror, and wants to know whether this one is there
HEAD, RECORD = (
    struct.Struct("!Iqq"),
    struct.Struct("!HHI"),
)  # length, this machine's time, the last time that came from there; rank, block, length


class Link:
    """A connection: to another mirror, or to somebody who has yet to say who it is."""

    def __init__(self, connection: socket.socket, peer: int | None = None, connecting: bool = False):
        self.socket, self.peer, self.connecting = connection, peer, connecting
        self.into, self.out = bytearray(), bytearray()
        self.known, self.nonce, self.since = False, os.urandom(16), time.monotonic()
        self.watches, self.told, self.echo, self.awaited = False, 0.0, 0, b""
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Mirror:
    """All that this process knows.

    Parameters
    ----------
    facts : dict
        "memory", "poke", "listen": descriptors; "secret"; "host": this machine's number; "ranks": of each machine; "peers": the
        address and port of each; "blocks": of a rank's table; "each", "row", "tables", "words", "marks", "heard": how the memory is
        laid out, in bytes.
    """

    def __init__(self, facts: dict):
        self.f, self.host = facts, facts["host"]
        self.secret = bytes.fromhex(facts["secret"])
        self.memory = memoryview(mmap.mmap(facts["memory"], 0))
        self.heard = self.memory[facts["heard"] :].cast("q")
        self.poke, self.server = socket.socket(fileno=facts["poke"]), socket.socket(fileno=facts["listen"])
        self.poke.setblocking(False)
        self.server.setblocking(False)
        self.links: dict[int, Link] = {}  # by descriptor
        self.sent: dict[tuple[int, int], bytes] = {}
        self.marks: dict[int, bytes] = {}
        self.tries: dict[int, float] = {}

    # What the ranks of this machine have changed.

    def _view(self, rank: int, block: int) -> memoryview:
        """A rank's row (block 0), or a part of its table of notices."""
        start = rank * self.f["each"]
        if not block:
            return self.memory[start : start + self.f["row"]]
        first = start + self.f["tables"] + (block - 1) * 8 * BLOCK
        return self.memory[first : min(first + 8 * BLOCK, start + self.f["tables"] + self.f["words"])]

    def _whole(self, view: memoryview) -> bytes:
        """What stands there, not half of one state and half of the next."""
        found = bytes(view)
        for _ in range(100):
            if found == (found := bytes(view)):
                break
        return found

    def changes(self) -> bytes:
        """The records of all that has changed since the last time. Notices first: whoever sees a row is to see what came before it."""
        rows, tables = [], []
        for rank in self.f["ranks"][self.host]:
            row = self._whole(self._view(rank, 0))
            if row != self.sent.get((rank, 0)):
                self.sent[rank, 0] = row
                rows.append(RECORD.pack(rank, 0, len(row)) + row)
            start = rank * self.f["each"] + self.f["marks"]
            marks, before = bytes(self.memory[start : start + self.f["blocks"] * 8]), self.marks.get(rank, b"")
            if marks != before:
                self.marks[rank] = marks
                for b in range(self.f["blocks"]):
                    if marks[8 * b : 8 * b + 8] != before[8 * b : 8 * b + 8]:
                        data = self.sent[rank, b + 1] = self._whole(self._view(rank, b + 1))
                        tables.append(RECORD.pack(rank, b + 1, len(data)) + data)
        return b"".join(tables + rows)

    def everything(self) -> bytes:
        """The records of all that was sent so far, for one who comes anew."""
        order = sorted(self.sent, key=lambda place: not place[1])
        return b"".join(RECORD.pack(*place, len(self.sent[place])) + self.sent[place] for place in order)

    def tell(self) -> None:
        """Send what has changed, and a beat."""
        echoes = {link.peer: link.echo for link in self.links.values() if link.known}
        changed = self.changes()
        for link in list(self.links.values()):
            if link.known and not link.watches:
                self._send(link, HEAD.pack(len(changed), time.monotonic_ns(), echoes[link.peer]) + changed)

    # What comes from others.

    def take(self, link: Link) -> None:
        """Write into the memory what another machine has sent."""
        while len(link.into) >= HEAD.size:
            length, stamp, echo = HEAD.unpack_from(link.into)
            if len(link.into) < HEAD.size + length:
                return
            data, at = bytes(link.into[HEAD.size : HEAD.size + length]), 0
            del link.into[: HEAD.size + length]
            while at < length:
                rank, block, size = RECORD.unpack_from(data, at)
                at += RECORD.size
                if rank in self.f["ranks"][link.peer]:
                    _write(self._view(rank, block).cast("q"), memoryview(data)[at : at + size].cast("q"), 8 if block else size // 8)
                at += size
            link.echo = stamp
            # It has looked at its ranks after it had got what left here at that time.
            self.heard[link.peer] = max(self.heard[link.peer], echo)

    # Connections.

    def connect(self) -> None:
        """Connections to the machines before this one, where there are none."""
        there, now = {link.peer for link in self.links.values()}, time.monotonic()
        for peer in range(self.host):
            if peer not in there and now >= self.tries.get(peer, 0.0):
                self.tries[peer] = now + AGAIN
                connection = socket.socket()
                self._add(Link(connection, peer, connecting=True))
                with contextlib.suppress(OSError):
                    connection.connect(tuple(self.f["peers"][peer]))

    def _add(self, link: Link) -> None:
        self.links[link.socket.fileno()] = link

    def drop(self, link: Link) -> None:
        """Close a connection."""
        self.links.pop(link.socket.fileno(), None)
        link.socket.close()

    def accept(self) -> None:
        """Somebody connects; of those who do not say who they are, the oldest makes room."""
        with contextlib.suppress(OSError):
            link = Link(self.server.accept()[0])
            strangers = [other for other in self.links.values() if not other.known and not other.connecting]
            if len(strangers) >= STRANGERS:
                self.drop(strangers[0])
            self._add(link)
            self._send(link, link.nonce)

    def greet(self, link: Link) -> None:
        """Who is it? Both sides show that they know the secret."""
        if link.connecting:
            if len(link.into) >= 16 and link.nonce:
                self._send(link, greeting(self.secret, bytes(link.into[:16]), self.host) + link.nonce)
                del link.into[:16]
                link.since, link.awaited, link.nonce = time.monotonic(), answer(self.secret, link.nonce), b""
            if not link.nonce and len(link.into) >= 32:
                if not hmac.compare_digest(bytes(link.into[:32]), link.awaited):
                    self.drop(link)
                    return
                del link.into[:32]
                self._know(link)
        elif len(link.into) >= 34 + 16:
            peer = int.from_bytes(link.into[:2], "big")
            mutual = peer == WATCHER or self.host < peer < len(self.f["peers"])
            if not mutual or not hmac.compare_digest(bytes(link.into[:34]), greeting(self.secret, link.nonce, peer)):
                self.drop(link)
                return
            self._send(link, answer(self.secret, bytes(link.into[34:50])))
            del link.into[:50]
            link.watches, link.peer = peer == WATCHER, None if peer == WATCHER else peer
            for other in [o for o in self.links.values() if o.known and not link.watches and o.peer == peer]:
                self.drop(other)  # it comes again, as that one broke
            self._know(link)

    def _know(self, link: Link) -> None:
        link.known = True
        if not link.watches:
            changed = self.everything()
            self._send(link, HEAD.pack(len(changed), time.monotonic_ns(), 0) + changed)

    def _send(self, link: Link, data: bytes) -> None:
        link.out += data
        self.flush(link)
        if len(link.out) > MOST:
            self.drop(link)

    def flush(self, link: Link) -> None:
        """Send what waits there, as far as it goes."""
        try:
            while link.out:
                del link.out[: link.socket.send(link.out)]
        except BlockingIOError:
            pass
        except OSError:
            self.drop(link)

    def read(self, link: Link) -> None:
        """Take what has come on a connection."""
        try:
            data = link.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(link)
            return
        if link.watches:
            return
        link.into += data
        if not link.known:
            self.greet(link)
        if link.known and not link.watches:
            self.take(link)

    def run(self) -> None:
        """Go on until the input ends."""
        next_beat = 0.0
        while True:
            poll, now = select.poll(), time.monotonic()
            for descriptor in (0, self.poke.fileno(), self.server.fileno()):
                poll.register(descriptor, select.POLLIN)
            for descriptor, link in self.links.items():
                poll.register(descriptor, select.POLLIN | (select.POLLOUT if link.out else 0))
            events = dict(poll.poll(max(0, (next_beat - now) * 1000)))
            if 0 in events:
                self.tell()  # that they have ended
                return
            poked = self.poke.fileno() in events
            with contextlib.suppress(BlockingIOError):
                while poked:
                    self.poke.recv(1)
            if self.server.fileno() in events:
                self.accept()
            for link in [self.links[d] for d in events if d in self.links]:
                event = events.get(link.socket.fileno(), 0)  # none, if another one has just taken its place
                if event & select.POLLOUT:
                    self.flush(link)
                if event & ~select.POLLOUT and link.socket.fileno() >= 0:
                    self.read(link)
            now = time.monotonic()
            if poked or now >= next_beat:
                self.tell()
            if now >= next_beat:
                next_beat = now + BEAT
                self.heard[self.host] = time.monotonic_ns()
                self.connect()
                for link in [o for o in self.links.values() if not o.known and now - o.since > GREETING]:
                    self.drop(link)
                for link in [o for o in self.links.values() if o.watches and not o.out and now - o.told > AGAIN]:
                    link.told = now
                    self._send(link, b".")


def greeting(secret: bytes, nonce: bytes, who: int) -> bytes:
    """Who connects, and that it knows the secret."""
    role = who.to_bytes(2, "big")
    return role + hmac.digest(secret, b"who" + nonce + role, hashlib.sha256)


def answer(secret: bytes, nonce: bytes) -> bytes:
    """That the other side knows it, too."""
    return hmac.digest(secret, b"here" + nonce, hashlib.sha256)


def _write(to: memoryview, words: memoryview, group: int) -> None:
    """Write what differs; in each group the first word, by which readers know the others, comes last."""
    for start in range(0, len(words), group):
        if to[start : start + group] != words[start : start + group]:
            for i in range(min(start + group, len(words)) - 1, start - 1, -1):
                if to[i] != words[i]:
                    to[i] = words[i]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        Mirror(json.loads(sys.stdin.buffer.raw.readline())).run()
