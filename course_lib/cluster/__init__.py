"""Start ranks, one MPI process each, on this machine or on a cluster, and run notebook cells on them.

After ``ranks = cluster.start(8)``, a cell that begins with ``%%px`` runs on all ranks, and blocks
until all are done.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.cluster import idle_shutdown
from course_lib.cluster.connection import RanksGone
from course_lib.cluster.notebook import completion, magic
from course_lib.cluster.processes import rank_quota
from course_lib.cluster.ranks import Ranks
from course_lib.cluster.startup import START_SECONDS
from course_lib.engine.processes.mpiexec import StartError

if TYPE_CHECKING:
    from course_lib.cluster.client import Client

__all__ = ["Ranks", "RanksGone", "StartError", "start"]

_current: Ranks | None = None


def start(n: int = 4, *, slurm: str | None = None, attach: str | None = None) -> Ranks:
    """Start `n` ranks and make ``%%px`` run on them.

    Called again with the same arguments, it keeps the running ranks, or starts new ones if they were stopped for being idle; with other
    arguments, it replaces them.

    Parameters
    ----------
    n : int
        Number of MPI processes.
    slurm : str, optional
        Run the ranks in a Slurm allocation: options of srun, such as ``"--nodes=2 --time=1:00:00"``. The allocation is released when the
        ranks are stopped, or when this kernel ends. By default the ranks run on this machine.
    attach : str, optional
        Use running engines that were started with ``--engines=mpi``, for instance by Slurm: the
        name of an ipyparallel profile, or the path of a cluster file or connection file. `n` is
        then the number of engines to wait for.

    Returns
    -------
    Ranks

    Raises
    ------
    ValueError
        `n` is not a whole number from 1 to 64, or exceeds this user's quota; or an option of srun is reserved for the course.
    StartError
        The ranks did not start; the message has the last lines of their log.
    """
    global _current
    rank_quota.check_count(n)
    same = _current is not None and _current.n == n and (_current.attached, _current.slurm) == (attach, slurm)
    if same and (_current.alive() or _current.idle_stop_seconds):
        if not _current.alive():
            idle_shutdown.bring_back(_current)
    else:
        if slurm is not None and attach:
            raise ValueError("cluster.start: slurm= starts ranks, attach= uses running ones; pass only one of them.")
        if attach is None and slurm is None:
            rank_quota.check_quota(n)
        if _current is not None:
            _current.stop()
        _current = Ranks(n, attach_client(attach) if attach else None, slurm)
        _current.attached = attach
    magic.register(_current)
    completion.register(_current)
    idle_shutdown.stop_when_idle(_current)
    return _current


def attach_client(what: str) -> Client:
    """Connect to running engines, given a profile, cluster file or connection file; StartError if there is none."""
    from IPython.core.profiledir import ProfileDir, ProfileDirError
    from IPython.paths import get_ipython_dir

    from course_lib.cluster.client import connect

    file, cluster_id = Path(what), ""
    if file.name.endswith("client.json"):
        return connect(what, START_SECONDS)
    try:
        if file.suffix == ".json":
            facts = json.loads(file.read_text())["cluster"]
            profile, cluster_id = Path(facts["profile_dir"]), facts.get("cluster_id", "")
        else:
            profile = Path(ProfileDir.find_profile_dir_by_name(get_ipython_dir(), what).location)
        name = f"ipcontroller-{cluster_id}-client.json" if cluster_id else "ipcontroller-client.json"
        found = sorted(profile.glob(f"security/{name}")) or sorted(profile.glob("security/ipcontroller-*client.json"))
        return connect(str(found[0]), START_SECONDS)
    except (OSError, ProfileDirError, KeyError, IndexError, ValueError):
        raise StartError(
            f"attach={what!r}: expected the name of an ipyparallel profile with a running cluster, or the path of its cluster "
            "file or client connection file. Start one with `ipcluster start --engines=mpi --n=4`."
        ) from None
