"""Communication between ranks: `Communicator`, the one door to MPI, and `init`, which also opens the one to NCCL."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from course_lib.collectives import shared_memory
from course_lib.collectives.errors import CollectiveError, DeadlockError, MismatchError

if TYPE_CHECKING:
    from course_lib.collectives.communicator import Communicator

shared_memory.remove_stale_files()  # before a module of this package starts MPI

__all__ = ["CollectiveError", "Communicator", "DeadlockError", "MismatchError", "init"]


def __getattr__(name: str) -> object:
    """`Communicator`, when it is asked for: it starts MPI, which the notebook's own process does not need."""
    if name == "Communicator":
        return import_module("course_lib.collectives.communicator").Communicator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def init(backend: str = "mpi") -> Communicator:
    """A communicator of all ranks; all ranks make this call.

    Parameters
    ----------
    backend : str
        "mpi" for NumPy arrays, "nccl" for CuPy arrays on GPUs, one GPU a rank.

    Raises
    ------
    ValueError
        There is no such backend.
    RuntimeError
        There is no CuPy, no NCCL, or a machine has fewer GPUs than ranks; the message says which.
    """
    comm = import_module("course_lib.collectives.communicator").Communicator
    if backend == "nccl":
        from course_lib.collectives.transport import nccl

        return comm(transport=nccl.gpu_transport(comm().transport))
    if backend != "mpi":
        raise ValueError(f"init: backend must be 'mpi' or 'nccl'; got {backend!r}.")
    return comm()
