"""Memory limit of each rank on this machine: a leak ends with a MemoryError on that rank, before the machine runs out."""

from __future__ import annotations

import contextlib
import os
import re
import resource

from course_lib.collectives.transport import isolated

# Such as 2G; 0 for no limit. By default, the ranks share `FREE_SHARE` of the memory that is free at their start.
MEMORY_VARIABLE = "COURSE_RANK_MEMORY"
FREE_SHARE, MIN_RANK_BYTES = 0.8, 1 << 30  # of the free memory; lower bound of the default
MIN_SETTING_BYTES = 300 << 20  # lower bound of the setting: a rank that has just started uses two thirds of it
REPLY_BYTES = 64 << 20  # added to the limit for a reply
_limit = 0  # bytes; set on a rank
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def per_rank(n: int) -> int:
    """Return the memory limit of each of `n` ranks, in bytes; 0 for none.

    Raises
    ------
    ValueError
        The setting in the environment is invalid.
    """
    if (said := os.environ.get(MEMORY_VARIABLE)) is not None:
        found = re.fullmatch(r"(\d+)([KMG]?)B?", said.strip().upper())
        size = int(found[1]) * UNITS[found[2]] if found else -1
        if size and size < MIN_SETTING_BYTES:
            raise ValueError(f"{MEMORY_VARIABLE}={said!r}: expected a size such as 2G, at least 300M, or 0 for no limit.")
        return size
    import psutil

    return max(MIN_RANK_BYTES, int(FREE_SHARE * psutil.virtual_memory().available / n))


def apply(nbytes: int) -> None:
    """Limit the private memory of this process, in bytes; 0 for no limit."""
    global _limit
    if nbytes:
        with contextlib.suppress(OSError, ValueError):  # not every system supports RLIMIT_DATA
            resource.setrlimit(resource.RLIMIT_DATA, (nbytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
            _limit = nbytes


def raise_for_reply() -> None:
    """Raise the limit by `REPLY_BYTES`, so that a rank that has exhausted it can still reply."""
    with contextlib.suppress(OSError, ValueError):
        most, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if most != resource.RLIM_INFINITY and not isolated.connection:
            room = most + REPLY_BYTES if hard == resource.RLIM_INFINITY else min(most + REPLY_BYTES, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (room, hard))


def hint() -> str:
    """Return a hint for a MemoryError: the limit, and the usual cause."""
    most = _limit or resource.getrlimit(resource.RLIMIT_DATA)[0]
    room = "" if most == resource.RLIM_INFINITY else f"A rank may use {most / (1 << 30):.3g} GiB here. "
    more = "" if isolated.connection or not room else f" {MEMORY_VARIABLE}=4G before `make lab` sets another limit."
    return f" ({room}Does a list grow in each step, or is an array larger than intended?{more})"
