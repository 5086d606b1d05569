"""Communication between ranks: `Communicator`, the course's only access to MPI, and `init`, which also sets up NCCL.

The layers of a call, such as ``comm.Allreduce(send, recv)``, from the top down:

1. `communicator.Communicator` checks the arguments, describes the call as a `calls.Call`, and counts its bytes.
2. `transport.Transport` carries it out: `transport.mpi` on students' ranks, `transport.relay` on isolated ranks (grading),
   `transport.nccl` for arrays on GPUs.
3. `progress` is what `transport.mpi` is built from: `rendezvous` waits until all ranks of the group have announced the same call,
   `point_to_point` and `matching` do the same for messages, and `engine` runs every wait.
4. `deadlock` decides, during a long wait, whether it can ever end: `board` shows what each rank does, `detector` decides.
5. `diagnostics` turns the finding into the message of a `DeadlockError` or a `MismatchError`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from course_lib.collectives import shared_memory
from course_lib.collectives.errors import CollectiveError, DeadlockError, MismatchError

if TYPE_CHECKING:
    from course_lib.collectives.communicator import Communicator
    from course_lib.collectives.transport.messenger import Messenger

shared_memory.remove_stale_files()  # must precede the import of mpi4py.MPI, which starts MPI

__all__ = ["CollectiveError", "Communicator", "DeadlockError", "Messenger", "MismatchError", "init"]


def __getattr__(name: str) -> object:
    """Import these classes on first access: importing them starts MPI, which the notebook's own process does not need."""
    if name in ("Communicator", "Messenger"):
        module = "communicator" if name == "Communicator" else "transport.messenger"
        return getattr(import_module(f"course_lib.collectives.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def init(backend: str = "mpi") -> Communicator:
    """Create a communicator of all ranks; collective.

    Parameters
    ----------
    backend : str
        "mpi" for NumPy arrays, "nccl" for CuPy arrays on GPUs, one GPU per rank.

    Returns
    -------
    Communicator

    Raises
    ------
    ValueError
        The backend is unknown.
    RuntimeError
        CuPy or NCCL is missing, or a machine has fewer GPUs than ranks; the message says which.
    """
    comm = import_module("course_lib.collectives.communicator").Communicator
    if backend == "nccl":
        from course_lib.collectives.transport import nccl

        return comm(transport=nccl.gpu_transport(comm().transport))
    if backend != "mpi":
        raise ValueError(f"init: backend must be 'mpi' or 'nccl'; got {backend!r}.")
    return comm()
