"""Layout of the status board, and reading it, also in processes without MPI: the notebook's kernel reads it for `cluster.panel`.

The part of a rank, in 64-bit words:

====================================  =====================================================================================
Words                                 Content
====================================  =====================================================================================
0 to 12                               Row: state, cell, and the call in which the rank waits; see the constants below
``TEXT_START``, ``TEXT_WORDS``        Text, UTF-8, ends with a zero byte: where the rank waits, or what it raised
``LINE_START``, ``LINE_WORDS``        Text of the same form: the last line that the rank has printed
``PAIRS_START``, ``PAIR_WORDS`` each  For each other rank: messages sent to it, messages read from it, ids accepted from it
from the next multiple of             One page per group (index: its context): ``ARRIVED_KEY``, ``LEFT_KEY``, and a ring with
``PAGE_WORDS``                        the signatures of its latest collectives; see `progress.rendezvous`
after the pages                       Two slots of ``SLOT_BYTES`` for the arrays of small collectives
====================================  =====================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Collection

from course_lib.collectives.calls import BLOCKING_FORM, RECV, SEND
from course_lib.collectives.deadlock import agent
from course_lib.collectives.deadlock.detector import rank_mask
from course_lib.collectives.snapshot import COMPUTING, DEADLOCK_RAISING, GONE, LOST, WAITING, RankView, Snapshot

MAX_RANKS = 64  # a group is a bit mask in one word

# The words of a row: the call's key (0: none), the rank's state, the cell's number, the mask of ranks that run the cell, and the call's
# operation, mask of members and detail. DEADLOCKED_KEY: the key of the last call given up as a deadlock. CONTEXTS: the number of pages.
# For the panel: the process's id, the bytes that it has sent in all, and since when the rank is in the call, and in its state
# (nanoseconds of `time.monotonic_ns`, which all processes of a machine share).
KEY, STATE, ROUND, TARGETS, OPERATION, MEMBERS, DETAIL, DEADLOCKED_KEY, CONTEXTS, PID, SENT, CALL_SINCE, STATE_SINCE = range(13)
TEXT_START, TEXT_WORDS = 16, 32
LINE_START, LINE_WORDS = TEXT_START + TEXT_WORDS, 32
PAIRS_START = LINE_START + LINE_WORDS
# With each other rank: messages sent to it, messages read from it, and the ids of its latest messages that have matched a receive here.
SENT_COUNT, READ_COUNT, ACCEPTED_IDS, PAIR_WORDS, ACCEPTED_SLOTS = 0, 1, 2, 10, 8
PAGE_WORDS = 512
ARRIVED_KEY, LEFT_KEY = 0, 1  # first words of a page: the key of the latest collective that this rank has entered, and has left
MAX_CONTEXTS = 512  # MPICH has room for 2048 communicators, and each group uses two or three
SLOT_BYTES = 1 << 19
CAUGHT_SECONDS = 1.0  # a rank that raised DeadlockError and whose cell still runs after this time has caught it


def first_page(size: int) -> int:
    """Return the offset, in words, of the first group's page in the part of each of `size` ranks."""
    return -(-(PAIRS_START + PAIR_WORDS * size) // PAGE_WORDS) * PAGE_WORDS


def words(size: int) -> int:
    """Return the number of words in the part of each of `size` ranks, without its slots."""
    return first_page(size) + MAX_CONTEXTS * PAGE_WORDS


def byte_layout(size: int) -> dict[str, int]:
    """Return the layout of the board of `size` ranks in bytes, as `agent.Agent` takes it."""
    return {
        "part": 8 * words(size) + 2 * SLOT_BYTES,
        "row": 8 * (PAIRS_START + PAIR_WORDS * size),
        "head": 8 * first_page(size),
        "page": 8 * PAGE_WORDS,
        "contexts": 8 * CONTEXTS,
        "pid": 8 * PID,
    }


def store(records: bytes, parts: list[memoryview], size: int) -> None:
    """Copy an agent's records (see `agent.Agent.states`) into the parts of its ranks.

    Parameters
    ----------
    records : bytes
    parts : list of memoryview
        The part of each rank, as bytes.
    size : int
        Number of ranks.
    """
    row, head, page = (byte_layout(size)[name] for name in ("row", "head", "page"))
    at = 0
    while at < len(records):
        rank, groups = agent.RECORD.unpack_from(records, at)
        at += agent.RECORD.size
        part = parts[rank]
        part[:row] = records[at : at + row]
        at += row
        for context in range(groups):
            start = head + context * page
            part[start : start + 8] = records[at : at + 8]
            at += 8


class BoardReader:
    """Reads the states of all ranks from a status board, or from a copy of it.

    Parameters
    ----------
    machines : tuple of str
        The machine of each rank; empty if there is only one.
    parts : list of memoryview
        The part of each rank, as bytes, at least up to the last page in use.

    Attributes
    ----------
    bytes, parts : list of memoryview
        The part of each rank, as bytes and as 64-bit words.
    """

    def __init__(self, machines: tuple[str, ...], parts: list[memoryview]):
        self.machines, self.size, self.bytes = machines, len(parts), parts
        self.parts = [part.cast("q") for part in parts]
        self._pages, self._giving_up = first_page(len(parts)), {}

    def lost(self) -> Collection[str]:
        """Return the machines that no longer respond."""
        return ()

    def page_offset(self, context: int) -> int:
        """Return the offset, in words, of a group's page in each rank's part."""
        return self._pages + context * PAGE_WORDS

    def page(self, rank: int, context: int) -> memoryview:
        """Return a rank's page for a group."""
        start = self.page_offset(context)
        return self.parts[rank][start : start + PAGE_WORDS]

    def state(self, rank: int) -> int:
        """Return the state of a rank as far as it is known on this machine; COMPUTING for a rank that has caught its DeadlockError.

        A rank has caught the error if it is in another call, or if its cell still runs after `CAUGHT_SECONDS`. It cannot report that
        itself: no Python thread of a rank runs during a long C call.
        """
        row = self.parts[rank]
        if self.machines and row[STATE] != GONE and self.machines[rank] in self.lost():
            return LOST
        if row[STATE] != DEADLOCK_RAISING:
            return row[STATE]
        call, (known, since) = (row[ROUND], row[DEADLOCKED_KEY]), self._giving_up.get(rank, (None, 0.0))
        if call != known:
            since = time.monotonic()
            self._giving_up[rank] = call, since
        caught = row[KEY] not in (0, row[DEADLOCKED_KEY]) or time.monotonic() - since > CAUGHT_SECONDS
        return COMPUTING if caught else DEADLOCK_RAISING

    def text(self, rank: int) -> str:
        """Return the text of a rank."""
        return self._text(rank, TEXT_START, TEXT_WORDS)

    def line(self, rank: int) -> str:
        """Return the last line that a rank has printed."""
        return self._text(rank, LINE_START, LINE_WORDS)

    def since(self, rank: int) -> int:
        """Return since when a rank is in its call, if it waits, or in its state: nanoseconds of its machine's `time.monotonic_ns`."""
        return self.parts[rank][CALL_SINCE if self.state(rank) in (WAITING, DEADLOCK_RAISING) else STATE_SINCE]

    def _text(self, rank: int, start: int, words: int) -> str:
        return bytes(self.bytes[rank][8 * start : 8 * (start + words)]).split(b"\0", 1)[0].decode(errors="replace")

    def snapshot(self) -> Snapshot:
        """Take a snapshot of all ranks."""
        return Snapshot(tuple(self._view(r) for r in range(self.size)), self.machines)

    def _view(self, rank: int) -> RankView:
        row = self.parts[rank]
        key, members, operation, detail = row[KEY], row[MEMBERS], row[OPERATION], row[DETAIL]
        state, arrived, released = self.state(rank), 0, False
        collective = collective_key(key, operation, detail)
        if state == COMPUTING and key > 0 and self.page(rank, context_of(key))[LEFT_KEY] >= key:
            key = 0  # the rank has left that call
        elif state != COMPUTING:
            others = [r for r in range(self.size) if members >> r & 1 and r != rank]
            if collective:
                arrived = rank_mask(r for r in others if self.page(r, context_of(collective))[ARRIVED_KEY] >= collective)
                released = all(arrived >> r & 1 for r in others)
            elif operation == RECV:
                released = any(self._unread(r, rank) for r in others)
            elif operation == SEND:
                released = any((self._unread(rank, r) and self.state(r) == WAITING) or self.accepted(rank, r, detail) for r in others)
        if row[KEY] != key and state == WAITING:  # the row changed while it was read: the rank is in another call by now
            state = COMPUTING
        return RankView(rank, state, row[ROUND], row[TARGETS], key, operation, members, arrived, released, self.text(rank))

    def _unread(self, source: int, dest: int) -> bool:
        """Return whether messages from `source` to `dest` have not been taken out of MPI's queue yet."""
        return self.parts[source][pair_offset(dest) + SENT_COUNT] > self.parts[dest][pair_offset(source) + READ_COUNT]

    def accepted(self, source: int, dest: int, message: int) -> bool:
        """Return whether a message, by its id, has matched a receive on rank `dest`."""
        return self.parts[dest][pair_offset(source) + ACCEPTED_IDS + message % ACCEPTED_SLOTS] == message


def pair_offset(other: int) -> int:
    """Return the offset, in words, of the message counts with rank `other` in each rank's part."""
    return PAIRS_START + PAIR_WORDS * other


def collective_key(key: int, operation: int, detail: int) -> int:
    """Return the key of the collective for which a rank waits, from its row; 0 if it waits for a message, or for nothing."""
    return key if key > 0 else detail if operation in BLOCKING_FORM else 0


def context_of(key: int) -> int:
    """Return the group's context id, from the key of a collective; see `progress.rendezvous`."""
    return key >> 32 & (MAX_CONTEXTS - 1)
