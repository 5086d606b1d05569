"""`Transport`, the protocol that carries out a communicator's calls; implemented by `mpi`, `relay` (isolated and virtual ranks) and `nccl`.

The contract, tested on all of them in `tests/contract`:

- A collective is carried out once all ranks of the group have made the same call. If their calls differ, all ranks raise the same
  `MismatchError`, and the next collective works.
- A legal MPI program never raises. If a rank can never arrive, every rank blocked on it raises, within seconds, a `DeadlockError` that
  names them all. A slow rank causes no error, however long it takes.
- Every wait can be interrupted: all methods are called with interrupts deferred, and waits raise them.
- Messages match as in MPI. One that does not fit its receive raises on the receiver only.
- Nothing that a call leaves behind matches anything in the next cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    from course_lib.collectives.calls import Call
    from course_lib.collectives.progress.operations import Operation


OutgoingMessage = tuple[object, int, int]  # array, destination (world rank), tag
IncomingMessage = tuple[object, tuple[int, ...], int]  # receive buffer, possible sources (world ranks), tag or `calls.WILDCARD`


def split_members(members: tuple[int, ...], wishes: np.ndarray, color: int) -> tuple[int, ...]:
    """Return the ranks of one color, ordered by key; ``wishes[i]`` is the color and the key that member i passed to `Transport.split`."""
    chosen = sorted((i for i in range(len(members)) if wishes[i, 0] == color), key=lambda i: wishes[i, 1])
    return tuple(members[i] for i in chosen)


class Transport(Protocol):
    """Carries out the calls of one group, on one rank.

    Attributes
    ----------
    members : tuple of int
        World ranks, in the group's order.
    rank : int
        This rank's position in `members`.
    host : Transport
        The transport for arrays in host memory, for the same ranks: itself, unless this one is for arrays on GPUs.
    """

    members: tuple[int, ...]
    rank: int
    host: Transport

    def check(self, value: object, what: str, where: str) -> object:
        """Return the array of a buffer argument if this transport can send it, else raise TypeError or ValueError.

        See `buffers.checked_array`.
        """

    def run(self, call: Call) -> None:
        """Carry out a blocking collective; returns once it is complete on this rank.

        Raises
        ------
        MismatchError
            The ranks make different calls.
        DeadlockError
            Some rank can no longer make the call.
        """

    def start(self, call: Call) -> Operation:
        """Start a nonblocking collective."""

    def exchange(self, outgoing: OutgoingMessage | None, incoming: IncomingMessage | None, call_name: str) -> tuple[int, int] | None:
        """Send an array, receive another one, or both concurrently; blocks until all of it is complete.

        Parameters
        ----------
        outgoing : OutgoingMessage or None
        incoming : IncomingMessage or None
        call_name : str
            The call, as error messages name it, such as "Sendrecv".

        Returns
        -------
        (int, int) or None
            Source (world rank) and tag of the received message.

        Raises
        ------
        CollectiveError
            As `wait`.
        """

    def send(self, array: object, dest: int, tag: int, call_name: str) -> Operation:
        """Start to send an array to a world rank."""

    def receive(self, array: object, sources: tuple[int, ...], tag: int, call_name: str) -> Operation:
        """Start to receive an array from one of these world ranks."""

    def wait(self, operation: Operation) -> None:
        """Block until an operation from `start`, `send` or `receive` is complete.

        Raises
        ------
        CollectiveError
            The operation has failed, or can no longer complete.
        """

    def test(self, operation: Operation) -> bool:
        """Advance an operation; return whether it is complete."""

    def split(self, color: int, key: int) -> Transport | None:
        """Create a transport for the ranks of the same color, ordered by key; None for the color MPI.UNDEFINED. Collective."""

    def synchronize(self) -> None:
        """Block until pending computations on this rank's arrays are complete: on a GPU they run asynchronously."""
