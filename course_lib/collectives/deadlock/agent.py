"""Agent: a process on each machine that serves the status of its ranks to ranks on other machines, and to the notebook's kernel.

It is not a thread of a rank, because a rank may hold the GIL for minutes in one C call. It only reads the board, and only on request. Run
by path with ``python -I -S``; its task is one line of JSON on stdin, see `host_agents`. It exits when stdin closes, that is, with its rank.
"""

import contextlib
import json
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

PING, STATES, PANEL = b".", b"?", b"!"
AUTHENTICATION_SECONDS = 5.0  # seconds for a client to authenticate
MAX_UNAUTHENTICATED = 16  # pending connections
RECORD = struct.Struct("<HH")  # a rank, and the number of groups that it has pages for
MAX_READ_TRIES = 100
GONE_BYTES, UNKNOWN_BYTES = -1, -2  # in place of the memory of a process that has ended, and of one whose memory is not known


def set_timeout(connection: socket.socket, seconds: float) -> None:
    """Set the timeout of reads and writes on a connection; 0 for none."""
    span = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes; `GONE_BYTES` if it has ended, `UNKNOWN_BYTES` on a system without /proc."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") or GONE_BYTES  # 0: it is a zombie
    except (OSError, IndexError):
        return GONE_BYTES if os.path.exists("/proc/self/statm") else UNKNOWN_BYTES


class Agent:
    """Server for the status board of this machine's ranks.

    Parameters
    ----------
    task : dict
        "memory", "listen": file descriptors. "secret": the shared key, in hexadecimal. "ranks": the ranks of this machine. The layout of
        the memory, in bytes (see `board`): "part", the size of a rank's part; "row", of its row with text and message counts; "page", of
        a group's page; "head", the offset of the first page; "contexts" and "pid", the offsets of the words with the number of pages and
        the process's id.
    """

    def __init__(self, task: dict):
        self.task, self.secret = task, bytes.fromhex(task["secret"])
        self.memory = memoryview(mmap.mmap(task["memory"], 0, prot=mmap.PROT_READ))
        self.server = socket.socket(fileno=task["listen"])
        self.unauthenticated: list[socket.socket] = []
        self.lock = threading.Lock()

    def run(self) -> None:
        """Serve until stdin closes."""
        while 0 not in (ready := select.select([0, self.server], [], [])[0]):
            if self.server in ready:
                with contextlib.suppress(OSError, RuntimeError):  # no more descriptors, or threads
                    self.accept(self.server.accept()[0])

    def accept(self, peer: socket.socket) -> None:
        """Serve a new connection in a thread; if too many are pending authentication, drop the oldest of those."""
        set_timeout(peer, AUTHENTICATION_SECONDS)
        with self.lock:
            self.unauthenticated.append(peer)
            oldest = self.unauthenticated.pop(0) if len(self.unauthenticated) > MAX_UNAUTHENTICATED else None
        if oldest:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer: socket.socket) -> None:
        """Authenticate both sides of a connection, then answer its questions until it closes."""
        with contextlib.suppress(Exception), Connection(os.dup(peer.fileno())) as connection:  # an unauthenticated peer may send anything
            try:
                deliver_challenge(connection, self.secret)
                answer_challenge(connection, self.secret)
            finally:
                with self.lock:
                    known = peer in self.unauthenticated
                    self.unauthenticated = [other for other in self.unauthenticated if other is not peer]
            while known:
                set_timeout(peer, 0)
                question = connection.recv_bytes(1)
                connection.send_bytes({STATES: self.states, PANEL: self.panel}.get(question, lambda: PING)())
        peer.close()

    def states(self) -> bytes:
        """Return the row of each rank of this machine, and the key of the latest collective it has entered in each of its groups."""
        return b"".join(self.state(place, rank) for place, rank in enumerate(self.task["ranks"]))

    def panel(self) -> bytes:
        """Return this machine's `time.monotonic_ns`, the memory of each of its ranks in bytes, and their states."""
        starts = range(self.task["pid"], len(self.task["ranks"]) * self.task["part"], self.task["part"])
        memory = [resident_bytes(struct.unpack_from("q", self.memory, start)[0]) for start in starts]
        return struct.pack(f"{1 + len(memory)}q", time.monotonic_ns(), *memory) + self.states()

    def state(self, place: int, rank: int) -> bytes:
        """Return one rank's record, read until two reads agree: not half of one state and half of the next."""
        found = self.read(place)
        for _ in range(MAX_READ_TRIES):
            if found == (found := self.read(place)):
                break
        return RECORD.pack(rank, found[0]) + found[1]

    def read(self, place: int) -> tuple[int, bytes]:
        """Return the number of groups for which a rank has pages, and the bytes of its row and of each page's `ARRIVED_KEY`."""
        task, start = self.task, place * self.task["part"]
        (groups,) = struct.unpack_from("q", self.memory, start + task["contexts"])
        pages = range(start + task["head"], start + task["head"] + groups * task["page"], task["page"])
        return groups, bytes(self.memory[start : start + task["row"]]) + b"".join(bytes(self.memory[p : p + 8]) for p in pages)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        Agent(json.loads(sys.stdin.buffer.raw.readline())).run()
    os._exit(0)
