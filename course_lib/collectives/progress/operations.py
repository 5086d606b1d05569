"""Operations in flight on this rank, and the state that a cell leaves to the next. Knows of no transport; see `engine` for waits.

An operation is advanced again and again until it says that it has ended. While it cannot go on without other ranks, it says which ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from course_lib.collectives.errors import CollectiveError


class WaitCondition(NamedTuple):
    """The condition for which an operation waits: its number, the world ranks, a collective's key (else 0), and a detail for the board."""

    operation: int
    ranks: tuple[int, ...]
    key: int = 0
    detail: int = 0


class Operation(ABC):
    """Something that has begun.

    Parameters
    ----------
    members : tuple of int
        The world ranks that take part.

    Attributes
    ----------
    error : Exception or None
        Why it has ended without success.
    received : (int, int) or None
        The world rank and the tag of the message that was received.
    collective : bool
        Whether all ranks of a group begin it.
    """

    error: Exception | None = None
    received: tuple[int, int] | None = None
    collective = False

    def __init__(self, members: tuple[int, ...]):
        self.members = members

    @abstractmethod
    def advance(self) -> bool:
        """Go on as far as can be, without waiting; return whether it has ended."""

    @abstractmethod
    def is_matched(self) -> bool:
        """Return whether only the transfer is left: nothing that another rank must call first."""

    @abstractmethod
    def wait_condition(self) -> WaitCondition:
        """Return the condition for which it waits, before it is matched."""

    @abstractmethod
    def describe(self) -> str:
        """Describe where it waits, for a person."""

    def cancel(self) -> None:  # noqa: B027 - most have nothing to do
        """Its wait has failed: it takes nothing that comes later."""


@dataclass
class ProgressState:
    """The state of this process.

    Attributes
    ----------
    epoch : int
        Grows when what was left behind must not match what comes now.
    in_flight : dict
        The operations that have not ended, as keys, in the order in which they began.
    abandoned : list of (int, object)
        The epoch, and an operation or what MPI has of one that nobody waits for any more: MPI may still write to its buffers.
    has_messages : bool
        Whether this rank has sent or received a message in this epoch.
    stale : bool
        Whether there were messages in a cell that failed, or in a call: they must not match later receives.
    open_requests : int
        How many have been given out and not been waited for.
    wait_count : int
        Counts the waits.
    failed_groups : dict
        By group (its ranks): the call in which it has failed on this rank in this cell, and the error, see `Communicator`.
    poll_hooks : list of callable
        Each looks for messages of one group.
    reset_hooks : list of callable
        Each lets go of what was started in one group and has not begun.
    deferrals : int
        How many steps are under way in which an interrupt has to wait, see `deferred_interrupts`.
    interrupt_pending : bool
        Whether one has come meanwhile.
    """

    epoch: int = 0
    in_flight: dict[Operation, None] = field(default_factory=dict)
    abandoned: list[tuple[int, object]] = field(default_factory=list)
    has_messages: bool = False
    stale: bool = False
    open_requests: int = 0
    wait_count: int = 0
    failed_groups: dict[tuple[int, ...], tuple[str, str]] = field(default_factory=dict)
    poll_hooks: list[Callable[[], bool]] = field(default_factory=list)
    reset_hooks: list[Callable[[], None]] = field(default_factory=list)
    deferrals: int = 0
    interrupt_pending: bool = False


progress_state = ProgressState()


class _DeferredInterrupts:
    """A step in which an interrupt has to wait, as what MPI has begun would be lost in between; such steps may be nested.

    The interrupt is raised at the end, or between two looks of a wait, see `engine.wait`.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        progress_state.deferrals += 1

    def __exit__(self, *_: object) -> None:
        progress_state.deferrals -= 1
        if progress_state.interrupt_pending and not progress_state.deferrals:
            raise_interrupt()


deferred_interrupts = _DeferredInterrupts()


def raise_interrupt() -> None:
    """Raise the interrupt that has come meanwhile."""
    progress_state.interrupt_pending = False
    raise KeyboardInterrupt


def begin_cell(epoch: int) -> None:
    """Begin a cell. Where `epoch` is new, let go of what was begun: all groups take a fresh MPI communicator at their next call."""
    progress_state.failed_groups.clear()
    progress_state.deferrals, progress_state.interrupt_pending = 0, False
    if epoch != progress_state.epoch:
        for operation in progress_state.in_flight:
            operation.error = CollectiveError("this was begun in a cell that failed or was interrupted, and is lost: begin it anew.")
        progress_state.abandoned += [(progress_state.epoch, operation) for operation in progress_state.in_flight]
        for reset in progress_state.reset_hooks:
            reset()
        progress_state.epoch, progress_state.in_flight, progress_state.has_messages, progress_state.stale = epoch, {}, False, False


def end_cell(stale: bool) -> None:
    """A cell or a call has ended; `stale`: its messages must not match later receives."""
    progress_state.stale |= stale and (progress_state.has_messages or bool(progress_state.in_flight))


def has_abandoned_operations() -> bool:
    """Return whether something was left behind since the last `begin_cell`, such as a collective that not all had begun."""
    alone = any(operation.collective and not operation.is_matched() for operation in progress_state.in_flight)
    return progress_state.stale or alone or any(epoch == progress_state.epoch for epoch, _ in progress_state.abandoned)


def progress() -> bool:
    """Drive on all that is open; return whether there is anything."""
    blocked = set()  # groups in which a collective waits for ranks, and so all later ones do: with hundreds, to look at each takes long
    with deferred_interrupts:
        for operation in list(progress_state.in_flight):
            waits = operation.collective and not operation.is_matched()
            if waits and operation.members in blocked:
                continue
            if operation.advance():
                progress_state.in_flight.pop(operation, None)
            elif waits and not operation.is_matched():
                blocked.add(operation.members)
    return bool(progress_state.in_flight)
