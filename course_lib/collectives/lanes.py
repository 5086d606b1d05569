"""The fast way of `Sendrecv`: what a sending and a receiving step do, in fewer ones, where nothing else is on its way.

A lane is made once for a destination, a source and a tag, and then called with the arrays; what does not change is worked out before.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from course_lib.collectives import pending
from course_lib.collectives.mailbox import TAGS, Mailbox, Receiving, Sending, kind
from course_lib.collectives.notices import IN_ORDER, RING, WORDS

Exchange = Callable[[np.ndarray, np.ndarray], list | None]


def lane(box: Mailbox, dest: int, source: int, group: int, tag: int, turns: int) -> Exchange:
    """A function that sends to one world rank and receives from another, or the same, at once.

    Parameters
    ----------
    turns : int
        How often to look for the other side before that is left to steps.

    Returns
    -------
    callable
        From the arrays to send and to receive into, fit for MPI and of one dtype, to the list of steps that are left to wait for, the
        receive first; or to None where this way is not open, and nothing was sent.
    """
    notices, sent, Isend, Irecv, now = box.board.notices, box.sent, box.mpi.Isend, box.mpi.Irecv, pending.now
    mine, read_by_dest = notices.mine, notices.place_of_reads(dest)
    theirs, out, into = notices.table(source), notices.ring_to(dest), notices.ring_of_mine()
    following, taken, accepted, rest = notices.following, notices.place_taken(source), notices.place_accepted(source), range(turns)
    epoch, common = -1, 0

    def exchange(send: np.ndarray, recv: np.ndarray) -> list | None:
        nonlocal epoch, common
        number = sent[dest] + 1
        if now.open or box.posted or box.arrived or number - read_by_dest[0] > RING or not IN_ORDER:
            return None
        if epoch != now.epoch:
            if box.epoch != now.epoch:
                return None
            epoch, common = now.epoch, kind(group, tag, 0)
        what, count = common | send.dtype.num, send.size
        sent[dest] = number
        place = out + number % RING * WORDS
        mine[place + 1], mine[place + 2] = what, count
        mine[place] = number
        outgoing = Isend(send, dest, number % TAGS)
        come = following[source]
        place = into + come % RING * WORDS
        for _ in rest:
            if theirs[place] == come:
                if theirs[place + 1] != what or theirs[place + 2] != recv.size:
                    break
                following[source] = come + 1
                mine[taken] = come
                incoming = Irecv(recv, source, come % TAGS)
                mine[accepted + come % RING] = come
                test = incoming.Test
                for _ in rest:
                    if test():
                        test = outgoing.Test
                        if test():
                            return []
                receiving = Receiving.of(box, source, incoming, recv, "Sendrecv")
                return [receiving, Sending.of(box, dest, number, outgoing, tag, "Sendrecv")]
        receiving = Receiving(box, (source,), group, tag, recv, "Sendrecv")
        return [receiving, Sending.of(box, dest, number, outgoing, tag, "Sendrecv")]

    return exchange
