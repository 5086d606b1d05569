"""Error messages about failed calls: which rank waits where, which rank calls what, and the usual cause.

The input is data, such as the deadlock detector's `Snapshot` or the signatures that ranks exchanged; no code parses the messages.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from types import FrameType

import numpy as np

from course_lib.collectives.calls import ALLTOALL, DTYPES, OPERATIONS, RECV, REDUCING, REDUCTIONS, ROOTED, SEND, USER_DEFINED
from course_lib.collectives.snapshot import COMPUTING, FINISHED, GONE, IN_CALL, LOST, RAISED, RankView, Snapshot
from course_lib.utils import wording

CELL_FILE_PREFIXES = ("cell ", "<cell")  # prefixes of the file names given to cells, see `engine.requests.handler`
CALL_NUMBER_MASK = 0xFFFF_FFFF  # low bits of a collective's key: twice its number in the cell, see `progress.rendezvous`
LIBRARY_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep


def group_name(members: tuple[int, ...], size: int) -> str:
    """Name a group as messages do, in a world of `size` ranks: world{0–7}, group{2, 3}."""
    name = "world" if len(members) == size else "group"
    return f"{name}{{{wording.spans(members)}}}"


def call_number(key: int) -> int:
    """Return a collective's number among those of its group in this cell, from its key."""
    return (key & CALL_NUMBER_MASK) >> 1


def call_site() -> str:
    """Return the place in the student's code from which this call came, such as "cell [5], line 7"."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(LIBRARY_FOLDER):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"


def frame_locals(frame: FrameType) -> dict[str, object]:
    """Return the local variables of a running function without keeping them alive.

    Before Python 3.13, reading ``frame.f_locals`` makes the frame hold the values until its function returns, including arrays that the
    function has deleted.
    """
    kept = frame.f_locals
    found = dict(kept)
    alone = sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.getrefcount(kept) == 3
    if alone:  # three references: the frame's, `kept`, and getrefcount's argument; a fourth would be the student's, from `locals()`
        kept.clear()
    return found


def describe(operation: int, dtype: int, count: int, detail: int) -> str:
    """Describe a call by its signature, such as "Allreduce of 6 float32 (op SUM)"."""
    name = OPERATIONS[operation]
    if dtype < 0:
        return name
    if operation == ALLTOALL and detail:  # the exchange of counts within an Alltoallv
        return f"Alltoallv of {DTYPES.get(detail // 16 - 1, 'numbers')}"
    more = ""
    if operation in REDUCING:
        code = detail % 16
        more = f" (op {'your own' if code == USER_DEFINED else REDUCTIONS[code - 1][0]})"
    if operation in ROOTED:
        more = f" (root {detail // 16 - 1})"
    return f"{name} of {count} {DTYPES.get(dtype, 'numbers')}{more}"


def mismatch(calls: dict[int, tuple[int, int, int, int]], group: str) -> str:
    """Return the message of a MismatchError: what each rank of the group calls, and the usual cause.

    Parameters
    ----------
    calls : dict of int to (int, int, int, int)
        Each rank's signature: operation, dtype, count and detail.
    group : str
        The group's name, see `group_name`.
    """
    by_text = wording.grouped((describe(*call), rank) for rank, call in calls.items())
    ordered = sorted(by_text.items(), key=lambda item: (-len(item[1]), sorted(item[1])))
    said = "; ".join(f"{wording.ranks(ranks)}: {text}" for text, ranks in ordered)
    operations, dtypes, counts, details = (set(part) for part in zip(*calls.values(), strict=True))
    if len({text.split(" ")[0] for text in by_text}) > 1:
        hint = "All ranks of a group must call the same collective: look for an if on the rank."
    elif len(counts) > 1:
        hint = "The count must be the same on all ranks: look at the shape of the array on each rank, and at its divisor."
    elif len(dtypes) > 1 or operations == {ALLTOALL}:
        hint = "The dtype must be the same on all ranks: np.empty and np.zeros make float64 unless dtype= is given."
    elif operations & ROOTED:
        hint = "All ranks must pass the same root."
    elif len({detail % 16 for detail in details}) > 1:
        hint = "All ranks must pass the same op."
    else:
        hint = "All ranks must pass the same list of recvcounts."
    return f"the ranks of {group} make different calls. {said}. {hint}"


def tagged(tag: int) -> str:
    """Describe a message's tag; empty for tag 0 and for any tag."""
    return f" with tag {tag}" if tag > 0 else ""


def message_mismatch(array: np.ndarray, message: object, place: str) -> str:
    """Return the MismatchError text for a message that does not fit the receive buffer.

    Parameters
    ----------
    array : numpy.ndarray
        The receive buffer.
    message : matching.Envelope
    place : str
        The receive's place in the student's code.
    """
    if message.dtype != array.dtype.num:
        hint = "The dtype must be the same on both ranks: np.empty and np.zeros make float64 unless dtype= is given."
    else:
        hint = "The size must be the same on both ranks: look at the shape of the array that is sent and of the one that receives it."
    source = message.source
    return f"{place}: expected {array.size} {array.dtype} from rank {source}, but rank {source} sent {message}. {hint}"


def left_alone(rank: int, where_: str, unread: Sequence[int] = ()) -> str:
    """Return the DeadlockError text for a rank whose partner has left a transfer in progress; `unread`: with whom messages are open."""
    said = f"rank {rank} was left alone in the middle of {where_}: another rank was interrupted, or ended its cell without waiting"
    others = sorted({*unread} - {rank})
    return f"{said}; or its messages to {wording.ranks(others)} fill all buffers, as nobody receives them." if others else f"{said}."


def too_late(where_: str, limit: float) -> str:
    """Return the DeadlockError text for a wait with a time limit, for ranks whose state is unknown."""
    return f"{where_} took more than {limit:g} s: all ranks of the communicator must make this call. Look for an if on the rank around it."


def group_unusable(group: str, call: str, error: str) -> str:
    """Return the CollectiveError text for a collective on a group where an earlier one has failed in this cell."""
    return (
        f"{group} takes no more collectives in this cell: {call} has failed on this rank ({error}), and the ranks no longer agree on "
        "which call is next. Let the error end the cell; the group works again in the next one."
    )


def _on_machines(ranks: list[int], machines: tuple[str, ...]) -> str:
    """Name ranks, with their machines if there are several: "ranks 0, 1 (n1) and rank 4 (n2)"."""
    if not machines:
        return wording.ranks(ranks)
    there = wording.grouped((machines[rank], rank) for rank in ranks)
    return " and ".join(f"{wording.ranks(some)} ({machine})" for machine, some in there.items())


def _waits(snapshot: Snapshot) -> dict[int, RankView]:
    """Return the call in which each rank is blocked.

    Includes ranks that have entered the same call but do not yet show that they wait: with many ranks per core, that takes a while.
    """
    newest = snapshot.newest
    waits = {v.rank: v for v in snapshot.ranks if v.state in IN_CALL and v.round == newest}
    blocking = {v.key: v for v in waits.values() if v.key > 0}
    for view in snapshot.ranks:
        called = blocking.get(view.key)
        if view.state == COMPUTING and view.round == newest and called and called.members >> view.rank & 1:
            waits[view.rank] = called
    return waits


def deadlock(snapshot: Snapshot) -> str:
    """Return the message of a DeadlockError: which rank waits where, why the others do not arrive, and the usual cause.

    Parameters
    ----------
    snapshot : Snapshot
        In which the detector has found deadlocked ranks.
    """
    size, waiting, late = len(snapshot.ranks), _waits(snapshot), snapshot.late()
    concerned = [view for view in snapshot.ranks if any(call.members >> view.rank & 1 for call in waiting.values())]
    blocked = {view.rank: waiting[view.rank] for view in concerned if view.rank in waiting}
    absent = [view for view in concerned if view.rank not in waiting]
    calls = wording.grouped((pending_call(call, size), rank) for rank, call in blocked.items())
    reasons = wording.grouped((reason, view.rank) for view in absent if (reason := _absence(view, late, snapshot.newest)))
    parts = [f"{_on_machines(some, snapshot.machines)} wait{'s' if len(some) == 1 else ''} in {call}" for call, some in calls.items()]
    parts += [f"{_on_machines(some, snapshot.machines)} {one if len(some) == 1 else many}" for (one, many), some in reasons.items()]
    kinds = {call.operation for call in blocked.values()}
    return "; ".join(parts) + ". " + _deadlock_hint(kinds, {view.state for view in absent}, bool(reasons), waiting)


def pending_call(view: RankView, size: int) -> str:
    """Describe the call in which a rank waits; for a nonblocking collective or a message, that is the rank's own text."""
    if view.key <= 0:
        return view.text
    members = tuple(r for r in range(size) if view.members >> r & 1)
    return f"{OPERATIONS[view.operation]} #{call_number(view.key)} on {group_name(members, size)}" + (
        f" ({view.text})" if view.text else ""
    )


def _absence(view: RankView, late: set[int], newest: int) -> tuple[str, str] | None:
    """Say why a rank will not arrive: the predicate for one rank and for several; None if there is no reason."""
    if view.state == LOST:
        return "is lost: its machine no longer responds", "are lost: their machine no longer responds"
    if view.rank in late:
        return "has not begun the cell yet", "have not begun the cell yet"
    if view.round < newest:
        return "was not asked to run this cell", "were not asked to run this cell"
    if view.state == FINISHED:
        return "has finished the cell without it", "have finished the cell without it"
    if view.state == RAISED:
        return f"has raised {view.text or 'an error'}", f"have raised {view.text or 'an error'}"
    if view.state == GONE:
        return "has ended", "have ended"
    return None


def _deadlock_hint(kinds: set[int], absent: set[int], someone_absent: bool, waiting: dict[int, RankView]) -> str:
    messages = kinds & {SEND, RECV}
    if LOST in absent:
        return "A machine or its network has failed: ranks.restart(rerun=True) starts new ranks."
    if RAISED in absent:
        return "Fix that error first."
    if messages and someone_absent:
        return "What one rank receives, another one must send: look for an if on the rank, and check the ranks and tags in the calls."
    if messages:
        return f"They wait for each other: {_advice(kinds, [view.text for view in waiting.values()])}"
    if len({(view.key, view.members) if view.key > 0 else view.text for view in waiting.values()}) > 1:
        return "They wait for each other: all ranks of a group must make the same calls in the same order."
    return (
        "Every rank of the group must make the call, the same number of times: look for an if on the rank, "
        "or a loop of different length, around it."
    )


def _advice(kinds: set[int], calls: list[str]) -> str:
    """Advise on ranks that wait for each other, at least one of them for a message; `kinds`: the operations they are blocked in."""
    if kinds - {SEND, RECV}:
        return (
            "some for a message, some in a collective. What comes before the collective on one rank must not depend on what comes after it."
        )
    if all(call.startswith("Sendrecv") for call in calls):
        return "the source of each Sendrecv must send to that rank in the same step: check dest, source and the tags."
    if kinds == {SEND}:
        return "all of them send, and none receives. One of them must receive before it sends, or all of them use Sendrecv."
    if kinds == {RECV}:
        return "all of them receive, but no matching message was sent. Check dest, source and tags, send before receiving, or use Sendrecv."
    return "each send needs a receive on the other rank at the same point. Check dest, source and the tags, and the order of the calls."
