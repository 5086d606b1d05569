"""Answer, on one machine, what its ranks do: a process beside them that is asked by ranks on other machines, and by the notebook.

It is no thread of a rank, because a rank that computes for minutes in one step of C would hold it up. It only reads, and only when it is
asked. Run by path with ``python -I -S``, with its task as a line of JSON, see `hosts`; it ends when its input ends, as its rank does.
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
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

PING, STATES = b".", b"?"
AUTHENTICATION_SECONDS = 5.0  # seconds for whoever connects to show that it knows the secret
MAX_UNAUTHENTICATED = 16  # connections that have not shown it yet
RECORD = struct.Struct("<HH")  # a rank, and how many groups it has pages for
MAX_READ_TRIES = 100


def set_timeout(connection: socket.socket, seconds: float) -> None:
    """Let a read or write on a connection take so long; 0: as long as it takes."""
    span = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)


class Agent:
    """Server for the status board of this machine's ranks.

    Parameters
    ----------
    task : dict
        "memory", "listen": descriptors; "secret"; "ranks": those of this machine; and in bytes "part", "row", "head", "page" and
        "contexts": how the memory is laid out, see `board`.
    """

    def __init__(self, task: dict):
        self.task, self.secret = task, bytes.fromhex(task["secret"])
        self.memory = memoryview(mmap.mmap(task["memory"], 0, prot=mmap.PROT_READ))
        self.server = socket.socket(fileno=task["listen"])
        self.unauthenticated: list[socket.socket] = []
        self.lock = threading.Lock()

    def run(self) -> None:
        """Serve until the input ends."""
        while 0 not in (ready := select.select([0, self.server], [], [])[0]):
            if self.server in ready:
                with contextlib.suppress(OSError, RuntimeError):  # no more descriptors, or threads
                    self.accept(self.server.accept()[0])

    def accept(self, peer: socket.socket) -> None:
        """Take a connection; of those that have not shown that they know the secret, the oldest makes room."""
        set_timeout(peer, AUTHENTICATION_SECONDS)
        with self.lock:
            self.unauthenticated.append(peer)
            oldest = self.unauthenticated.pop(0) if len(self.unauthenticated) > MAX_UNAUTHENTICATED else None
        if oldest:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer: socket.socket) -> None:
        """Answer one connection, once both sides have shown that they know the secret, until it closes."""
        with contextlib.suppress(Exception), Connection(os.dup(peer.fileno())) as connection:  # who is not authenticated may send anything
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
                connection.send_bytes(self.states() if question == STATES else PING)
        peer.close()

    def states(self) -> bytes:
        """The rows of this machine's ranks, and the collective to which each has come last in each of its groups."""
        return b"".join(self.state(place, rank) for place, rank in enumerate(self.task["ranks"]))

    def state(self, place: int, rank: int) -> bytes:
        """One rank's, not half of one state and half of the next."""
        found = self.read(place)
        for _ in range(MAX_READ_TRIES):
            if found == (found := self.read(place)):
                break
        return RECORD.pack(rank, found[0]) + found[1]

    def read(self, place: int) -> tuple[int, bytes]:
        """Return the number of groups for which a rank has pages, and its words."""
        task, start = self.task, place * self.task["part"]
        (groups,) = struct.unpack_from("q", self.memory, start + task["contexts"])
        pages = range(start + task["head"], start + task["head"] + groups * task["page"], task["page"])
        return groups, bytes(self.memory[start : start + task["row"]]) + b"".join(bytes(self.memory[p : p + 8]) for p in pages)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        Agent(json.loads(sys.stdin.buffer.raw.readline())).run()
    os._exit(0)
