"""Gates: a rank passes one when it has sent enough, and gets a number for it that it cannot know otherwise.

A check that wants to see *when* something is exchanged lets the answer's own computation pass gates: with the number of a gate, a
gradient goes on as it should. Where ranks are isolated, the coordinator keeps the gates, by what it has counted.
"""

from __future__ import annotations

from course_lib import traffic
from course_lib.collectives.transport import isolated

Gate = tuple[float, ...]  # payload in bytes that must be sent, its number, and perhaps the most that may be sent

_remaining: list[Gate] = []


class TooEarly(RuntimeError):
    """A gate was reached before enough was sent."""


class TooLate(RuntimeError):
    """A gate was reached when too much was sent."""


def set_gates(gates: list[Gate]) -> None:
    """Begin a request with these gates."""
    _remaining[:] = gates


def pass_gate() -> float:
    """The number of the next gate.

    Raises
    ------
    TooEarly, TooLate
        This rank has sent too little yet, or too much.
    """
    if isolated.connection:
        from course_lib.collectives.transport import relay  # starts MPI, which the process that forks ranks must not

        isolated.connection.send({"gate": True})
        while "gate" not in (frame := isolated.connection.receive())[0]:
            relay.store_answer(frame)  # of something that does not block
        sent, needed, number, *most = frame[0]["gate"]
    else:
        needed, number, *most = _remaining.pop(0)
        sent = sum(e.payload for e in traffic.entries() if len(e.ranks) > 1)
    if sent < needed:
        raise TooEarly(f"{sent:,.0f} bytes are sent so far, and {needed:,.0f} should be")
    if most and sent > most[0]:
        raise TooLate(f"{sent:,.0f} bytes are sent so far, and {most[0]:,.0f} may be")
    return number
