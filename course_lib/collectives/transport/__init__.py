"""`Transport`, which carries a communicator's calls, and its contract. MPI, the broker of isolated ranks, and NCCL have one each.

The contract, which `tests/contract` holds all of them to:

- A collective is carried out when all ranks of the group have made the same call. Where their calls differ, all raise the same
  `MismatchError`, and go on with the next one.
- A legal program never raises. Where a rank can never come, all who wait for it raise a `DeadlockError` that names them all, within
  seconds; slow is not stuck. Every wait can be interrupted: all is called where interrupts
  are deferred, and a wait raises them.
- Messages match as in MPI; one that does not fit its receive raises there, and nowhere else.
- What a call leaves behind matches nothing in the next cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from course_lib.collectives.calls import Call
    from course_lib.collectives.progress.operations import Operation


OutgoingMessage = tuple[object, int, int]  # an array, the world rank that gets it, and the tag
IncomingMessage = tuple[object, tuple[int, ...], int]  # an array, the world ranks from which it may come, and the tag or `calls.WILDCARD`


class Transport(Protocol):
    """Carrier of the calls of one group, on one rank.

    Attributes
    ----------
    members : tuple of int
        World ranks, in the group's order.
    rank : int
        The place of this rank among them.
    host : Transport
        Carries arrays in the host's memory for the same ranks: itself, except where arrays lie on GPUs.
    """

    members: tuple[int, ...]
    rank: int
    host: Transport

    def check(self, value: object, what: str, where: str) -> object:
        """The array that `value` is, if this transport can move it; TypeError or ValueError says what is wrong with it."""

    def run(self, call: Call) -> None:
        """Carry out a collective, and return when it is over on this rank.

        Raises
        ------
        MismatchError
            The ranks make different calls.
        DeadlockError
            Not all of them come.
        """

    def start(self, call: Call) -> Operation:
        """Begin a collective that does not block."""

    def exchange(self, outgoing: OutgoingMessage | None, incoming: IncomingMessage | None, call_name: str) -> tuple[int, int] | None:
        """Send an array, receive another one, or both at once; return when that has ended, with source and tag of what has come.

        `call_name` names the call for a person. Raises as `wait` does.
        """

    def send(self, array: object, dest: int, tag: int, call_name: str) -> Operation:
        """Begin to send an array to a world rank."""

    def receive(self, array: object, sources: tuple[int, ...], tag: int, call_name: str) -> Operation:
        """Begin to receive an array from one of these world ranks."""

    def wait(self, operation: Operation) -> None:
        """Wait until what `start`, `send` or `receive` began has ended.

        Raises
        ------
        CollectiveError
            It cannot end, or it has failed.
        """

    def test(self, operation: Operation) -> bool:
        """Drive it on, and return whether it has ended."""

    def split(self, color: int, key: int) -> Transport | None:
        """A transport for the ranks of the same color, in the order of their keys; None for the color MPI.UNDEFINED."""

    def synchronize(self) -> None:
        """Wait until the arrays on this rank are what the program before this line makes them: a GPU may still be at it."""
