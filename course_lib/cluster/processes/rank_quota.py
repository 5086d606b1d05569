"""Quota of ranks per user of a shared machine, set by the hub."""

from __future__ import annotations

import contextlib
import os

import psutil

MAX_RANKS = 64  # per notebook: the status board has no room for more
MPIEXEC_MODULE = "course_lib.engine.processes.mpiexec"
QUOTA_VARIABLE = "COURSE_RANKS"  # set by the hub; if unset, there is no quota


def check_count(n: object) -> int:
    """Return a number of ranks if it is valid for a notebook.

    Raises
    ------
    ValueError
        It is not a whole number from 1 to 64.
    """
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_RANKS:
        raise ValueError(f"cluster.start(n): n is the number of ranks, a whole number from 1 to {MAX_RANKS}; got {n!r}.")
    return n


def check_quota(n: int) -> int:
    """Return a number of ranks if the user's quota has room for them, in addition to those of other notebooks.

    Raises
    ------
    ValueError
        The quota would be exceeded; the message says how many are left.
    """
    most = int(os.environ.get(QUOTA_VARIABLE) or 0)
    elsewhere = sum(ranks_elsewhere().values()) if most else 0
    if not most or n + elsewhere <= most:
        return n
    if n > most:
        raise ValueError(
            f"expected at most {most} ranks, which this server allows each user; got {n}. Use cluster.start({most}), or fewer."
        )
    raise ValueError(
        f"expected at most {max(0, most - elsewhere)} ranks; got {n}. This server allows each user {most}, and {elsewhere} of yours run "
        "in another notebook. Run ranks.stop() there, or shut its kernel down."
    )


def ranks_elsewhere() -> dict[str, int]:
    """Count this user's ranks that other notebooks have started, by the folder of their cluster."""
    found, mine = {}, set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ValueError, IndexError):
            words = process.cmdline()
            # mpiexec's wrapper, or a fork of it that became a rank
            if MPIEXEC_MODULE in words and process.uids().real == os.getuid():
                _, _, n, folder = words[words.index(MPIEXEC_MODULE) :]
                found[folder] = int(n)
                mine |= {folder} if os.getpid() in [above.pid for above in process.parents()[:2]] else set()
    # A cluster removes its folder when it stops; its last processes may still be ending.
    return {folder: n for folder, n in found.items() if folder not in mine and os.path.isdir(folder)}
