"""Functions that the checks of part 30's collectives run on the ranks; see `collectives.check`."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from course_lib.collectives import Communicator, buffers
from course_lib.collectives.instrumentation.recording import recording
from course_lib.engine.namespace import get_ipython, student
from course_lib.trace.recorder import Event


def make_group(color, key):
    """Make this rank's group, in a request of its own: `Split` is a collective, and the next request must have none."""
    get_ipython().user_ns["trial_group"] = student("everyone").Split(color=color, key=key)


def call_collective(function, x, more, watched):
    """Call the student's function on this rank's group.

    Returns the result, `x` after the call, whether the result shares memory with it, if `watched` the messages sent and the collectives,
    in the form of `Ranks.messages`, and what the result of the call before is now. A name in `more` that NumPy has stands for its function.
    """
    more = [getattr(np, value) if isinstance(value, str) else value for value in more]
    with recording() if watched else nullcontext() as recorder:
        out = student(function)(x, student("trial_group"), *more)
    made = []
    for kind, name, *_, nbytes, peer, _, _ in (Event(*fields) for fields in (recorder.events if watched else ())):
        if kind.endswith(("send", "collective")):
            made.append(("to", peer, nbytes) if kind.endswith("send") else (name, -1, 0))
    names = get_ipython().user_ns
    earlier, names["trial_result"] = names.get("trial_result"), out
    return out, x, isinstance(out, np.ndarray) and np.shares_memory(out, x), made, earlier


class LoneTransport:
    """A rank of a group without the other ranks: messages that it sends are only noted, and each one that it receives is `array`."""

    def __init__(self, size, rank, array):
        self.members, self.rank, self.host = tuple(range(size)), rank, self
        self.check = buffers.checked_array
        self.array, self.sent, self.received = array, [], 0

    def exchange(self, outgoing, incoming, call_name):
        if outgoing:
            self.send(*outgoing, call_name)
        if incoming:
            self.receive(*incoming, call_name)
            return incoming[1][0], 0

    def send(self, array, dest, tag, call_name):
        self.sent.append((dest, array.nbytes))

    def receive(self, array, sources, tag, call_name):
        array[...] = self.array
        self.received += 1


def broadcast_alone(size, ranks, x, root):
    """Call the student's broadcast as each of these ranks of a group of `size`: the results, and the number received and what was sent."""
    found = []
    for rank in ranks:
        transport = LoneTransport(size, rank, x)
        out = student("tree_broadcast")(x.copy() if rank == root else np.zeros_like(x), Communicator(transport=transport), root)
        found.append((out, transport.received, transport.sent))
    return found


def choose_often(cases):
    """Return what the student's `choose` says for each case."""
    return [student("choose")(*case) for case in cases]
