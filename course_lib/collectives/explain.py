"""The sentences about collectives that cannot be: who waits where, who calls what, and why."""

from __future__ import annotations

import inspect
import os
import sys
import time
from types import FrameType

import numpy as np

from course_lib import wording
from course_lib.collectives import board as status
from course_lib.collectives.board import Board
from course_lib.collectives.calls import DTYPES, OPERATIONS, RECV, REDUCTIONS, ROOTED, SEND

CELL = ("cell ", "<cell")  # how the file names of cells begin, see `engine.handler`
LIBRARY = os.path.dirname(os.path.dirname(__file__)) + os.sep

# A call's key on the board ends in this many bits of its number within the cell.
NUMBER_BITS = 26

ALL_SAID = 1.0  # seconds for all ranks to find that their calls differ, once one has: until then, each shows its own


def group_name(members: tuple[int, ...], size: int) -> str:
    """A group of `size` ranks in all as messages name it: world{0–7}, group{2, 3}."""
    name = "world" if len(members) == size else "group"
    return f"{name}{{{wording.spans(members)}}}"


def where() -> str:
    """The place in the student's code that called a collective, such as "cell [5], line 7"."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(LIBRARY):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"


def names_in(frame: FrameType) -> dict[str, object]:
    """Return a running function's names and values, without making its frame keep them.

    Before Python 3.13, a frame that was asked for its names keeps their values until its function returns, including arrays that the
    function has let go of.
    """
    kept = frame.f_locals
    found = dict(kept)
    alone = sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.getrefcount(kept) == 3
    if alone:  # three references: the frame's, `kept`, and getrefcount's own argument; with more, the student has it, by `locals()`
        kept.clear()
    return found


def describe(operation: int, dtype: int, count: int, detail: int) -> str:
    """A call in words, such as "Allreduce of 6 float32 (op SUM)"."""
    name = OPERATIONS[operation]
    if dtype < 0:
        return name
    reduction = f" (op {REDUCTIONS[detail % 16]})" if detail % 16 else ""
    if name in ROOTED:
        reduction = f" (root {detail // 16 - 1})"
    return f"{name} of {count} {DTYPES.get(dtype, 'numbers')}{reduction}"


def mismatch(calls: dict[str, list[int]], group: str) -> str:
    """What each rank of a group calls, when they do not all call the same, and the usual cause."""
    ordered = sorted(calls.items(), key=lambda item: (-len(item[1]), item[1]))
    said = "; ".join(f"{wording.ranks(who)}: {what}" for what, who in ordered)
    names = {what.split(" ")[0] for what in calls}
    if len(names) > 1:
        hint = "All ranks of a group must call the same collective: look for an if on the rank."
    elif len({what.split(" ")[2] for what in calls if " of " in what}) > 1:
        hint = "The count must be the same on all ranks: look at the shape of the array on each rank, and at its divisor."
    elif len({what.split(" ")[3] for what in calls if " of " in what}) > 1:
        hint = "The dtype must be the same on all ranks: np.empty and np.zeros make float64 unless dtype= is given."
    else:
        hint = f"All ranks must pass the same {'root' if names & set(ROOTED) else 'op'}."
    return f"the ranks of {group} make different calls. {said}. {hint}"


def different(board: Board, members: tuple[int, ...], key: int) -> str:
    """What is said where the ranks of a group make different calls with this key."""

    def call(rank: int) -> list[int] | tuple[int, ...] | None:
        row = board.rows[rank]
        shown = [row[i] for i in (status.OPERATION, status.DTYPE, status.COUNT, status.DETAIL)] if row[status.KEY] == key else None
        return board.notices.found(rank, key) or shown

    deadline = time.monotonic() + (ALL_SAID if board.hosts else 0)
    while None in (calls := {r: call(r) for r in members}).values() and time.monotonic() < deadline:
        time.sleep(0.001)  # another machine knew of a call, and this one hears of that before it hears of the call
    said: dict[str, list[int]] = {}
    for rank, made in calls.items():
        if made:
            said.setdefault(describe(*made), []).append(rank)
    return mismatch(said, group_name(members, board.size))


def tagged(tag: int) -> str:
    """A message's tag in words, where there is one."""
    return f" with tag {tag}" if tag > 0 else ""


def unfit(array: np.ndarray, message: object, place: str) -> str:
    """What is said of a message that does not fit the array that receives it."""
    if message.dtype != array.dtype.num:
        hint = "The dtype must be the same on both ranks: np.empty and np.zeros make float64 unless dtype= is given."
    else:
        hint = "The size must be the same on both ranks: look at the shape of the array that is sent, and of the one that receives."
    source = message.source
    return f"{place}: {array.size} {array.dtype} are to be received from rank {source}, and rank {source} has sent {message}. {hint}"


def left_alone(rank: int, where_: str) -> str:
    """What a rank says whose partner has left a transfer in the middle."""
    return f"rank {rank} was left alone in the middle of {where_}: another rank was interrupted, or has ended its cell without waiting."


def too_late(rank: int, where_: str, limit: float) -> str:
    """What a rank says that has waited too long, where ranks share no status board."""
    return (
        f"rank {rank} waited {limit:g} s in {where_} ({where()}), and not all ranks came. "
        "Every rank of the group must make the same call: look for an if on the rank around it. "
        "(These ranks share no status board, so what the others do is not known.)"
    )


def who(ranks: list[int], board: Board) -> str:
    """Ranks as a sentence names them, with their machines where these are several: "ranks 0, 1 (n1) and rank 4 (n2)"."""
    if not board.hosts:
        return wording.ranks(ranks)
    there: dict[str, list[int]] = {}
    for r in ranks:
        there.setdefault(board.hosts.where(r), []).append(r)
    return " and ".join(f"{wording.ranks(some)} ({machine})" for machine, some in there.items())


def _waits(row: status.Row, board: Board) -> bool:
    return row.state in status.STANDS and row.round == board.round


def _waiting(rows: list[status.Row], board: Board) -> dict[int, str]:
    """The ranks that wait, and what they say of it. With them those that are in the same call and have not said so yet.

    Where many ranks share a core, that takes them a while.
    """
    said = {row.rank: board.text(row.rank) for row in rows if _waits(row, board)}
    calls = {row.key: said[row.rank] for row in rows if row.rank in said and row.key > 0}
    late = [row for row in rows if row.state == status.COMPUTING and row.round == board.round and row.key in calls]
    return said | {row.rank: calls[row.key] for row in late}


def deadlock(board: Board) -> str:
    """Who waits where, and why nobody comes; the same words on every stuck rank."""
    rows = board.snapshot()
    waits: dict[str, list[int]] = {}
    reasons: dict[str, list[int]] = {}
    wanted, kinds = 0, set()  # by those who wait; which operations these wait in
    waiting, late = _waiting(rows, board), status.late_ranks(rows)
    for row in rows:
        if row.rank in waiting:
            wanted |= row.members
    for row in rows:
        if not wanted >> row.rank & 1:
            continue
        if row.rank in waiting:
            members = tuple(r for r in range(board.size) if row.members >> r & 1)
            call = place = waiting[row.rank]
            if row.key >= 0:  # for others, the text says all
                number, group = row.key % (1 << NUMBER_BITS), group_name(members, board.size)
                call = f"{OPERATIONS[row.operation]} #{number} on {group}" + (f" ({place})" if place else "")
            kinds.add(row.operation)
            waits.setdefault(call, []).append(row.rank)
        elif row.state == status.LOST:
            reasons.setdefault("is lost: nothing is heard from there any more", []).append(row.rank)
        elif row.rank in late:
            reasons.setdefault("has not begun the cell yet", []).append(row.rank)
        elif row.round < board.round:
            reasons.setdefault("was not asked to run this cell", []).append(row.rank)
        elif row.state == status.FINISHED:
            reasons.setdefault("has finished the cell without it", []).append(row.rank)
        elif row.state == status.RAISED:
            reasons.setdefault(f"has raised {board.text(row.rank) or 'an error'}", []).append(row.rank)
        elif row.state == status.GONE:
            reasons.setdefault("has ended", []).append(row.rank)
    parts = [f"{who(w, board)} wait{'s' if len(w) == 1 else ''} in {c}" for c, w in waits.items()]
    for reason, some in reasons.items():
        if len(some) > 1:
            reason = reason.replace("has ", "have ", 1).replace("was ", "were ", 1).replace("is lost", "are lost", 1)
        parts.append(f"{who(some, board)} {reason}")
    messages = kinds & {SEND, RECV}
    if any(reason.startswith("is lost") for reason in reasons):
        hint = "A machine or its network has failed: ranks.restart(rerun=True) brings up new ranks."
    elif any(reason.startswith("has raised") for reason in reasons):
        hint = "Fix that error first."
    elif messages and reasons:
        hint = "What one rank receives, another one must send: look for an if on the rank, and at the ranks and tags in the calls."
    elif messages:
        hint = f"They wait for each other: {_advice(kinds, list(waits))}"
    elif len(waits) > 1:
        hint = "They wait for each other: all ranks of a group must make the same calls in the same order."
    else:
        hint = (
            "Every rank of the group must make the call, the same number of times: look for an if on the rank, "
            "or a loop of another length, around it."
        )
    return "; ".join(parts) + ". " + hint


def _advice(kinds: set[int], calls: list[str]) -> str:
    """What to do where ranks wait in such operations, one of them a message, for each other."""
    if kinds - {SEND, RECV}:
        return "some for a message, some in a collective. What comes before the collective on one rank must not need what comes after it."
    if all(call.startswith("Sendrecv") for call in calls):
        return "the rank that is the source of each Sendrecv must send to it in the same step: look at dest, source and the tags."
    if kinds == {SEND}:
        return "all send, and nobody receives. One of them must receive before it sends, or all of them use Sendrecv."
    if kinds == {RECV}:
        return (
            "all receive, and nothing that they take was sent. Look at dest, source and tags, or send before you receive, or use Sendrecv."
        )
    return "what one rank sends, another one must receive at that moment. Look at dest, source and the tags, and at the order of the calls."
