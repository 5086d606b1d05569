"""The state of each rank in words and symbols, from a copy of the status board."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from course_lib.cluster.panel.source import Source
from course_lib.collectives import diagnostics
from course_lib.collectives.calls import OPERATIONS, RECV, SEND
from course_lib.collectives.deadlock import agent
from course_lib.collectives.deadlock.layout import SENT
from course_lib.collectives.snapshot import (
    COMPUTING,
    DEADLOCK_RAISING,
    DEADLOCKED,
    FINISHED,
    GONE,
    LOST,
    RAISED,
    SILENT,
    WAITING,
    RankView,
    Snapshot,
)
from course_lib.utils import wording

# Kinds of states, each with a symbol: none is told by its colour alone.
SYMBOLS = {"computing": "▶", "waits": "‖", "silent": "…", "resting": "○", "raised": "!", "gone": "✕", "unknown": "?"}
RUNNING = ("computing", "waits", "silent")
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MAX_TEXT = 200  # characters of what a rank says about itself


class Absence(StrEnum):
    """Reasons why there are no ranks, in a few words."""

    STARTING = "new ranks are starting"
    IDLE = "stopped while idle"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True)
class RankStatus:
    """State of one rank.

    Attributes
    ----------
    rank : int
    kind : str
        A key of `SYMBOLS`.
    text : str
        What it does, such as "waits in Allreduce #1 on group{0, 4} for rank 4 (cell [5], line 7)".
    short : str
        The same in two or three words.
    seconds : float or None
        For how long; None if that is not known.
    memory : int or None
        Resident memory of its process in bytes.
    sent : int
        Bytes that it has sent since it started.
    line : str
        The last line that it has printed.
    since : int
        Changes when its state does.
    """

    rank: int
    kind: str
    text: str
    short: str
    seconds: float | None = None
    memory: int | None = None
    sent: int = 0
    line: str = ""
    since: int = 0

    @property
    def symbol(self) -> str:
        """The symbol of its state."""
        return SYMBOLS[self.kind]

    @property
    def held(self) -> str:
        """Its memory with a unit; empty if it is not known."""
        return "" if self.memory is None else wording.memory(self.memory)


def statuses(source: Source, stalls: Mapping[int, str]) -> list[RankStatus]:
    """Describe each rank.

    Parameters
    ----------
    source : Source
    stalls : mapping of int to str
        By rank, the plain MPI call in which it has stalled, and its place; from `cluster.client.Client`.
    """
    snapshot, unseen = source.snapshot(), source.unseen()
    late, found = snapshot.late(), []
    for view in snapshot.ranks:
        held, machine = source.memory[view.rank], source.machines[view.rank] if source.machines else ""
        if machine in unseen and machine:
            kind, text, short = "unknown", f"unknown: {machine} has not answered yet", "unknown"
        elif held == agent.GONE_BYTES:
            kind, text, short = "gone", "gone: its process has ended", "gone"
        else:
            kind, text, short = _describe(view, snapshot, late, stalls.get(view.rank))
        since = source.since(view.rank)
        known = kind not in ("gone", "unknown") and since and view.rank not in late
        found.append(
            RankStatus(
                view.rank,
                kind,
                _plain(text),
                _plain(short),
                max(0.0, (source.now[view.rank] - since) / 1e9) if known else None,
                held if held >= 0 and kind not in ("gone", "unknown") else None,
                source.parts[view.rank][SENT],
                _plain(source.line(view.rank)),
                since,
            )
        )
    return found


def _describe(view: RankView, snapshot: Snapshot, late: set[int], stall: str | None) -> tuple[str, str, str]:
    """Return the kind of a rank's state, its description, and a short one."""
    state = view.state
    if state == LOST:
        return "unknown", f"unknown: {snapshot.machines[view.rank]} no longer responds", "no answer"
    if state == GONE:
        return "gone", "gone: its process has ended", "gone"
    if view.rank in late:
        return "waits", "has not begun the cell yet", "not begun yet"
    if state == COMPUTING and view.round and stall:
        return "waits", f"waits in {stall}, which the course cannot look into", "waits in MPI"
    if state == COMPUTING and view.round:
        return "computing", "computing", "computing"
    if state == SILENT:
        return "silent", "silent on purpose: it stands still, and will go on", "silent"
    if state in (WAITING, DEADLOCK_RAISING):
        return _wait(view, len(snapshot.ranks))
    if state == DEADLOCKED:
        return "raised", f"raised DeadlockError in {diagnostics.pending_call(view, len(snapshot.ranks))}", "DeadlockError"
    if state == RAISED:
        return "raised", f"raised {view.text or 'an error'}", view.text.partition(" ")[0] or "an error"
    return "resting", "resting" if state == FINISHED else "resting: no cell has run yet", "resting"


def _wait(view: RankView, size: int) -> tuple[str, str, str]:
    said = diagnostics.pending_call(view, size)
    if view.operation in (SEND, RECV):
        return "waits", f"waits in {said}", said.partition(" (")[0]
    missing = [r for r in range(size) if view.members >> r & 1 and r != view.rank and not view.arrived >> r & 1]
    if not missing:
        return "waits", f"waits in {said}: all others are there", f"in {OPERATIONS[view.operation]}"
    whom = wording.ranks(missing)
    call, bracket, place = said.partition(" (")
    return "waits", f"waits in {call} for {whom}{bracket}{place}", f"waits for {wording.spans(missing)}"


def _plain(text: str) -> str:
    """Return a rank's text without codes for a terminal, and not too long."""
    if text.isprintable():
        return text[:MAX_TEXT]
    text = _TERMINAL_CODES.sub("", text)
    return "".join(c if c.isprintable() else " " for c in text)[:MAX_TEXT]


def age(seconds: float | None) -> str:
    """Format for how long a rank has been in a state.

    >>> age(3.7), age(130), age(7300), age(None)
    ('3 s', '2 min', '2 h', '')
    """
    if seconds is None:
        return ""
    whole = int(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h"


def table(found: list[RankStatus]) -> str:
    """Format the ranks as a table in plain text."""
    rows = [("rank", "", "what it does", "for", "memory", "sent", "last line")]
    for one in found:
        rows.append((str(one.rank), one.symbol, one.text, age(one.seconds), one.held, wording.size(one.sent), one.line))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
