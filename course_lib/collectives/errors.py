"""Errors of a collective that the ranks of a group make together."""

from __future__ import annotations


class CollectiveError(RuntimeError):
    """A collective could not be carried out; the message names the ranks and the usual cause."""


class DeadlockError(CollectiveError):
    """A rank waits for another one that can no longer come."""


class MismatchError(CollectiveError):
    """The ranks of a group make different calls."""
