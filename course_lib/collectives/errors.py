"""Exceptions of the communicator's calls."""

from __future__ import annotations


class CollectiveError(RuntimeError):
    """A collective could not be carried out; the message names the ranks and the usual cause."""


class DeadlockError(CollectiveError):
    """A rank waits for one that can no longer make the matching call."""


class MismatchError(CollectiveError):
    """The ranks of a group make different calls, or a message does not fit its receive buffer."""
