"""Requests to the ranks, and their replies: every wait can be interrupted, and has an end."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

from course_lib import wording
from course_lib.cluster import replies
from course_lib.cluster.connection import ClusterConnection, RanksGone
from course_lib.cluster.replies import Interrupted
from course_lib.interrupts import defer_interrupts

Requests = dict[int, dict]  # by rank
Show = Callable[[list[tuple[int, str]]], None]
INTERRUPT_ACK_SECONDS = 10.0  # seconds until a rank that is there has taken an interrupt
INTERRUPT_INTERVAL_SECONDS = 0.5  # seconds from one interrupt to the next
MAX_IGNORED_INTERRUPTS, MAX_UNDELIVERED_INTERRUPTS = 7, 40  # interrupts until a rank is ended that has taken one, or none


def ask(connection: ClusterConnection, requests: Requests, limit: float | None = None, show: Show | None = None) -> dict[int, dict | None]:
    """Send each rank its request, and wait for all replies.

    Parameters
    ----------
    connection : Connection
    requests : dict of int to dict
        What to do, by rank.
    limit : float, optional
        Seconds after which the ranks are interrupted.
    show : callable, optional
        Is given what ranks print while they run: a list of ranks and texts.

    Returns
    -------
    dict of int to (dict or None)
        The replies; None for a rank that was interrupted before it could give one.

    Raises
    ------
    RanksGone
        A process ended, or a rank did not react to an interrupt.
    Interrupted
        The user interrupted; the ranks are interrupted, too, and answer again.
    """
    connection.client.wait_for_interrupts(INTERRUPT_ACK_SECONDS)
    connection.client.new_output()  # of an earlier request
    deadline = time.monotonic() + limit if limit else None
    futures: dict[int, Future] = {}
    late: list[int] = []
    told: dict[int, str] = {}
    try:
        with defer_interrupts():  # whoever is asked is to be interrupted, too
            futures = {r: connection.client.request(r, q) for r, q in requests.items()}
        while wait(futures.values(), 0.25).not_done:
            connection.client.flush_replies()
            connection.check()
            if show and (printed := connection.client.new_output()):
                show(printed)
            if told != (told := dict(connection.client.stalls)):
                print(f"{replies.stall_message(told)}. If nobody comes, stop the cell.", file=sys.stderr, flush=True)
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
        what = f"still ran after {limit:g} s, and was interrupted. Does a loop never end?"
        place = (found[r] or {}).get("error") or {}
        found[r] = {"outputs": [], "abandoned": True, "error": error("TimeLimit", what, place.get("lines", []))}
    return found


def left_messages(found: dict[int, dict | None]) -> bool:
    """Return whether messages in flight must not match later receives: a rank says so, or one has failed while another had sent."""
    answers = [reply for reply in found.values() if reply]
    failed = any(reply["error"] for reply in answers)
    return any(reply.get("abandoned") or (failed and reply.get("sent")) for reply in answers)


def _interrupt(connection: ClusterConnection, futures: dict[int, Future]) -> None:
    """Interrupt until all have answered; end ranks that do not react.

    Slow is not stubborn: a rank is asked so many times after it has taken an interrupt, and a busy machine may take its time to tell it.
    """
    told: dict[int, list[Future]] = {r: [] for r in futures}
    taken: dict[int, int] = {}  # which interrupt a rank had taken first
    for number in itertools.count():  # not seconds: where the whole machine stood still, no rank was stubborn
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
        why = f" {said[0].upper()}{said[1:]}: Python cannot interrupt that. The course's Communicator can be, and says who waits for whom."
    elif all(r in taken for r in stubborn):
        why = " Does an `except:` in a loop catch the interrupt, too? `except Exception:` does not."
    raise RanksGone(f"{wording.ranks(stubborn)} did not react to the interrupt, so all ranks were ended.{why} {connection.restart_advice}")


def settle(connection: ClusterConnection) -> None:
    """After an interrupt, an engine drops what is queued: ask until all ranks answer again."""
    connection.client.wait_for_interrupts(INTERRUPT_ACK_SECONDS)
    for _ in range(20):
        futures = {r: connection.client.request(r, {"do": "nothing"}) for r in range(connection.n)}
        wait(futures.values(), 1.0)
        if all(f.done() and connection.client.answer(f) is not None for f in futures.values()):
            return
    connection.end()
    raise RanksGone(f"the ranks did not answer after an interrupt, and were stopped. {connection.restart_advice}")


def error(name: str, message: str, lines: list[str] | None = None) -> dict:
    """An error as a reply has it."""
    return {"name": name, "message": message, "place": "", "lines": lines or [], "kind": [name]}
