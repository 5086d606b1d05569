"""A limit of memory for each rank on this machine: a leak on one ends with an error there, before the machine suffers."""

from __future__ import annotations

import contextlib
import os
import re
import resource

from course_lib.collectives.transport import isolated

MEMORY_VARIABLE = (
    "COURSE_RANK_MEMORY"  # such as 2G; 0: no limit. By default, all ranks together may have most of what is free at their start
)
FREE_SHARE, MIN_RANK_BYTES = 0.8, 1 << 30  # of what is free; bytes that each rank may have in any case
MIN_SETTING_BYTES = 300 << 20  # bytes: a rank that has just started has two thirds of it
REPLY_BYTES = 64 << 20  # bytes
_limit = 0  # bytes, in a rank
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def per_rank(n: int) -> int:
    """Return the bytes that each of `n` ranks may have; 0 for no limit.

    Raises
    ------
    ValueError
        The environment's setting is no size.
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
    """Limit the memory of this process, without what it shares, to so many bytes; 0 for no limit."""
    global _limit
    if nbytes:
        with contextlib.suppress(OSError, ValueError):  # not all systems count so
            resource.setrlimit(resource.RLIMIT_DATA, (nbytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
            _limit = nbytes


def raise_for_reply() -> None:
    """Raise the limit a little, so that a rank that has used it up can still reply."""
    with contextlib.suppress(OSError, ValueError):
        most, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if most != resource.RLIM_INFINITY and not isolated.connection:
            room = most + REPLY_BYTES if hard == resource.RLIM_INFINITY else min(most + REPLY_BYTES, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (room, hard))


def hint() -> str:
    """Explain an error for want of memory."""
    most = _limit or resource.getrlimit(resource.RLIMIT_DATA)[0]
    room = "" if most == resource.RLIM_INFINITY else f"A rank may have {most / (1 << 30):.3g} GiB here. "
    more = "" if isolated.connection or not room else f" {MEMORY_VARIABLE}=4G before `make lab` sets another limit."
    return f" ({room}Does a list grow in each step, or is an array larger than meant?{more})"
