"""Traffic gates: a rank passes a gate only if it has sent enough by then, and so receives a number that it cannot know otherwise.

A check of *when* data is exchanged builds gates into the computation of the answer: the gradient is right only with the numbers of the
gates. On isolated ranks, the coordinator holds the gates, and decides by its own counts.
"""

from __future__ import annotations

from course_lib import traffic
from course_lib.collectives.transport import isolated

Gate = tuple[float, ...]  # bytes of payload that must have been sent, the gate's number, and optionally the most that may have been sent

_remaining: list[Gate] = []


class TooEarly(RuntimeError):
    """A gate was reached before enough had been sent."""


class TooLate(RuntimeError):
    """A gate was reached after too much had been sent."""


def set_gates(gates: list[Gate]) -> None:
    """Set the gates of a request."""
    _remaining[:] = gates


def pass_gate() -> float:
    """Pass the next gate and return its number.

    Raises
    ------
    TooEarly, TooLate
        This rank has sent too little so far, or too much.
    """
    if isolated.connection:
        from course_lib.collectives.transport import relay  # not at the top: it starts MPI, which the zygote must not

        isolated.connection.send({"gate": True})
        while "gate" not in (frame := isolated.connection.receive())[0]:
            relay.store_answer(frame)  # to a nonblocking call
        sent, needed, number, *most = frame[0]["gate"]
    else:
        needed, number, *most = _remaining.pop(0)
        sent = sum(e.payload for e in traffic.entries() if len(e.ranks) > 1)
    if sent < needed:
        raise TooEarly(f"{sent:,.0f} bytes have been sent so far; expected at least {needed:,.0f}")
    if most and sent > most[0]:
        raise TooLate(f"{sent:,.0f} bytes have been sent so far; expected at most {most[0]:,.0f}")
    return number
