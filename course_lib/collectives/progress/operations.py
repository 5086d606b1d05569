"""Operations in flight on this rank, and the state that outlives a cell; independent of the transport. For waits see `engine`.

An operation is advanced repeatedly until it is complete. It passes through two phases: before it is matched, another rank must still make a
call, and `Operation.wait_condition` says which ranks (the deadlock detector's input); once matched, only the transfer is left.

Epochs: the notebook's kernel numbers them, and sends the number with each request. When a cell fails or is interrupted with operations in
flight, it begins a new epoch; then messages of earlier epochs are discarded, and each group duplicates its MPI communicator, so that
messages in flight cannot match later receives, nor abandoned collectives later ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from course_lib.collectives.errors import CollectiveError


class WaitCondition(NamedTuple):
    """The calls of other ranks for which an operation waits, as it is shown on the status board.

    Attributes
    ----------
    operation : int
        An index in `calls.OPERATIONS`; 0 if the transfer has begun.
    ranks : tuple of int
        World ranks that take part: all of a collective's, or those from which (to which) a message may come (go).
    key : int
        The key of a blocking collective, else 0.
    detail : int
        Of a nonblocking collective, its key; of a send, its message id; else 0.
    """

    operation: int
    ranks: tuple[int, ...]
    key: int = 0
    detail: int = 0


class Operation(ABC):
    """A started message or collective, or one stage of a blocking call's wait.

    Parameters
    ----------
    members : tuple of int
        World ranks that take part.

    Attributes
    ----------
    error : Exception or None
        The error with which it completed; whoever waits for it raises this.
    received : (int, int) or None
        Source (world rank) and tag of the received message.
    collective : bool
        True for nonblocking collectives: every rank of a group starts them, in the same order.
    """

    error: Exception | None = None
    received: tuple[int, int] | None = None
    collective = False

    def __init__(self, members: tuple[int, ...]):
        self.members = members

    @abstractmethod
    def advance(self) -> bool:
        """Advance as far as possible without blocking; return whether the operation is complete."""

    @abstractmethod
    def is_matched(self) -> bool:
        """Return whether only the transfer is left: every other rank has made its call."""

    def wait_condition(self) -> WaitCondition:
        """Return what the operation waits for, before it is matched; by default nothing, as for one that is matched when it is made."""
        return WaitCondition(0, self.members)

    @abstractmethod
    def describe(self) -> str:
        """Describe the call and its place in the student's code, for error messages."""

    def cancel(self) -> None:  # noqa: B027 - most have nothing to do
        """Withdraw the operation after its wait has failed: it must not match anything later."""


@dataclass
class ProgressState:
    """Progress state of this process; the only instance is `progress_state`.

    Attributes
    ----------
    epoch : int
        Current epoch, see the module's docstring; it only grows.
    in_flight : dict
        Incomplete operations as keys, in the order in which they were started.
    abandoned : list of (int, object)
        Epoch, and an operation, buffers or an MPI request that nobody waits for any more. The reference keeps the buffers alive, as MPI may
        still write to them.
    has_messages : bool
        True if this rank has sent or received a message in this epoch.
    stale : bool
        True if messages were exchanged in a cell that failed, or within a check's call: they must not match later receives.
    open_requests : int
        Number of `Request` objects that have not been completed by Wait or Test.
    wait_count : int
        Number of long waits so far; makes the negative keys on the status board unique.
    failed_groups : dict
        By group (its ranks): the call that failed there on this rank in this cell, and the name of the error; see `Communicator`.
    poll_hooks : list of callable
        One per group: receives the envelope of one arrived message, and returns whether there was one.
    reset_hooks : list of callable
        One per group: drops what was started but not matched, at a new epoch.
    deferrals : int
        Nesting depth of `deferred_interrupts`.
    interrupt_pending : bool
        True if an interrupt arrived while interrupts were deferred.
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
    """Context manager that defers interrupts, which could otherwise lose an MPI request just created; may be nested.

    A deferred interrupt is raised on exit, or between two polls of a wait, see `engine.wait`.
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
    """Raise the interrupt that was deferred."""
    progress_state.interrupt_pending = False
    raise KeyboardInterrupt


def begin_cell(epoch: int) -> None:
    """Begin a cell. At a new epoch, abandon all operations: each group duplicates its MPI communicator before its next transfer."""
    progress_state.failed_groups.clear()
    progress_state.deferrals, progress_state.interrupt_pending = 0, False
    if epoch != progress_state.epoch:
        for operation in progress_state.in_flight:
            operation.error = CollectiveError("this was started in a cell that failed or was interrupted, and is lost: start it again.")
        progress_state.abandoned += [(progress_state.epoch, operation) for operation in progress_state.in_flight]
        for reset in progress_state.reset_hooks:
            reset()
        progress_state.epoch, progress_state.in_flight, progress_state.has_messages, progress_state.stale = epoch, {}, False, False


def end_cell(stale: bool) -> None:
    """End a cell or a call; `stale`: its messages must not match later receives."""
    progress_state.stale |= stale and (progress_state.has_messages or bool(progress_state.in_flight))


def has_abandoned_operations() -> bool:
    """Return whether the cell left something behind that requires a new epoch, such as a collective that not all ranks had started."""
    alone = any(operation.collective and not operation.is_matched() for operation in progress_state.in_flight)
    return progress_state.stale or alone or any(epoch == progress_state.epoch for epoch, _ in progress_state.abandoned)


def progress() -> bool:
    """Advance all operations in flight; return whether any is left."""
    blocked = set()  # groups with an unmatched collective: the later ones of the group cannot advance either, and there may be hundreds
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
