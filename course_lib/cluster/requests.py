"""Send requests to the ranks and wait for their replies; every wait can be interrupted, and ends."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

from course_lib.cluster import replies, time_limits
from course_lib.cluster.connection import RESTART_ADVICE, ClusterConnection, RanksGone
from course_lib.cluster.replies import Interrupted
from course_lib.utils import wording
from course_lib.utils.interrupts import defer_interrupts

Requests = dict[int, dict]  # by rank
Show = Callable[[list[tuple[int, str]]], None]
INTERRUPT_ACK_SECONDS = 10.0  # within which a responsive rank acknowledges an interrupt
INTERRUPT_INTERVAL_SECONDS = 0.5  # seconds from one interrupt to the next
MAX_IGNORED_INTERRUPTS, MAX_UNDELIVERED_INTERRUPTS = 7, 40  # interrupts until a rank is ended that acknowledged one, or none


def ask(connection: ClusterConnection, requests: Requests, limit: float | None = None, show: Show | None = None) -> dict[int, dict | None]:
    """Send each rank its request, and wait for all replies.

    Parameters
    ----------
    connection : ClusterConnection
    requests : dict of int to dict
        The request of each rank, see `engine.requests.handler`.
    limit : float, optional
        Seconds after which the ranks are interrupted.
    show : callable, optional
        Called with the ranks' output while they run: a list of (rank, text).

    Returns
    -------
    dict of int to (dict or None)
        The reply of each rank; None if it was interrupted before it could reply.

    Raises
    ------
    RanksGone
        A process ended, or a rank did not react to an interrupt.
    Interrupted
        The user has interrupted; the ranks are interrupted, too, and ready for new requests.
    """
    connection.client.wait_for_interrupts(INTERRUPT_ACK_SECONDS)
    connection.client.new_output()  # discard that of an earlier request
    deadline = time.monotonic() + limit if limit else None
    futures: dict[int, Future] = {}
    late: list[int] = []
    told: dict[int, str] = {}
    try:
        with defer_interrupts():  # an interrupt here would leave ranks running whose futures are unknown
            futures = {r: connection.client.request(r, q) for r, q in requests.items()}
        while wait(futures.values(), 0.25).not_done:
            connection.client.flush_replies()
            connection.check()
            if show and (printed := connection.client.new_output()):
                show(printed)
            if told != (told := dict(connection.client.stalls)):
                print(f"{replies.stall_message(told)}. If no rank answers, stop the cell.", file=sys.stderr, flush=True)
            if deadline and time.monotonic() > deadline:
                late = [r for r, f in futures.items() if not f.done()]
                _interrupt(connection, futures)
    except KeyboardInterrupt:
        _interrupt(connection, futures)
        answers = {r: connection.client.answer(f) for r, f in futures.items()}
        if None in answers.values():
            settle(connection)
        raise Interrupted(answers) from None
    found = {r: connection.client.answer(f) for r, f in futures.items()}
    for r in late:
        if found[r] and found[r].get("in_time") and not time_limits.limit():  # when graded, an answer could claim this
            continue  # it only waited until the others had taken its messages
        what = f"was still running after {limit:g} s, and was interrupted. Does a loop never end?"
        place = (found[r] or {}).get("error") or {}
        trace = {key: value for key, value in (found[r] or {}).items() if key == "trace"}
        found[r] = {"outputs": [], "abandoned": True, "error": error("TimeLimit", what, place.get("lines", []))} | trace
    return found


def left_messages(found: dict[int, dict | None]) -> bool:
    """Return whether a new epoch is needed: a rank has abandoned operations, or one has failed while another has sent messages."""
    answers = [reply for reply in found.values() if reply]
    failed = any(reply["error"] for reply in answers)
    return any(reply.get("abandoned") or (failed and reply.get("sent")) for reply in answers)


def _interrupt(connection: ClusterConnection, futures: dict[int, Future]) -> None:
    """Interrupt the ranks until all have replied; end all ranks if one does not react.

    A slow rank is not taken for an unresponsive one: interrupts count from the first that it has acknowledged, and on a busy machine
    even the first may take long to be delivered.
    """
    told: dict[int, list[Future]] = {r: [] for r in futures}
    taken: dict[int, int] = {}  # by rank: the number of the first interrupt that it acknowledged
    for number in itertools.count():  # interrupts, not seconds: if the whole machine was suspended, no rank was unresponsive
        silent = [r for r, f in futures.items() if not f.done()]
        for r, future in zip(silent, connection.client.interrupt(silent), strict=True):
            told[r].append(future)
        connection.client.flush_replies()
        if not wait(futures.values(), INTERRUPT_INTERVAL_SECONDS).not_done:
            return
        connection.check()
        for r in silent:
            if any(future.done() for future in told[r]):
                taken.setdefault(r, number)
        stubborn = [r for r in silent if not futures[r].done()]
        if stubborn and all(
            number - taken[r] >= MAX_IGNORED_INTERRUPTS if r in taken else number >= MAX_UNDELIVERED_INTERRUPTS for r in stubborn
        ):
            break
    waits = {r: place for r, place in connection.client.stalls.items() if r in stubborn}
    connection.end()
    why = ""
    if waits:
        said = replies.stall_message(waits)
        why = (
            f" {said[0].upper()}{said[1:]}: Python cannot interrupt that. "
            "A call of the course's Communicator can be interrupted, and says who waits for whom."
        )
    elif all(r in taken for r in stubborn):
        why = " Does an `except:` in a loop catch the interrupt, too? `except Exception:` does not."
    raise RanksGone(f"{wording.ranks(stubborn)} did not react to the interrupt, so all ranks were ended.{why} {RESTART_ADVICE}")


def settle(connection: ClusterConnection) -> None:
    """Send empty requests until all ranks reply again: after an interrupt, an engine drops its queued requests."""
    connection.client.wait_for_interrupts(INTERRUPT_ACK_SECONDS)
    for _ in range(20):
        futures = {r: connection.client.request(r, {"do": "nothing"}) for r in range(connection.n)}
        wait(futures.values(), 1.0)
        if all(f.done() and connection.client.answer(f) is not None for f in futures.values()):
            return
    connection.end()
    raise RanksGone(f"the ranks did not answer after an interrupt, and were stopped. {RESTART_ADVICE}")


def error(name: str, message: str, lines: list[str] | None = None) -> dict:
    """Make an error dict as in a reply, see `engine.requests.tracebacks.describe`."""
    return {"name": name, "message": message, "place": "", "lines": lines or [], "kind": [name]}
