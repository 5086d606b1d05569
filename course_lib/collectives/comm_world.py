"""Replacement of `MPI.COMM_WORLD` on an isolated rank.

To MPI, each isolated rank is a world of size 1. The replacement reports the real rank and size, and passes collectives and messages to the
course's `Communicator`, so that code written for bare mpi4py works, too; any other method raises instead of silently reaching nobody.
"""

from __future__ import annotations

from functools import cache

from mpi4py import MPI

from course_lib.collectives.communicator import Communicator
from course_lib.collectives.transport import isolated

COMMUNICATOR_METHODS = {name for name in vars(Communicator) if name[0].isupper()} - {"Get_rank", "Get_size"}
LOCAL_METHODS = {"Free", "Is_inter", "Is_intra"}
LOCAL_METHODS |= {f"Get_{what}" for what in ("attr", "errhandler", "group", "info", "name", "parent", "topology")}


class IsolatedWorld(MPI.Intracomm):
    """Stand-in for the world communicator, with all isolated ranks."""

    def Get_rank(self) -> int:
        """Return this rank's number."""
        return isolated.rank

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return isolated.size

    rank, size = property(Get_rank), property(Get_size)


@cache
def _everyone() -> Communicator:
    return Communicator()


def _of_the_communicator(name: str):
    def method(self, *args, **kwargs):
        return getattr(_everyone(), name)(*args, **kwargs)

    return method


def _nobody_there(name: str):
    def method(self, *args, **kwargs):
        text = f"MPI.COMM_WORLD.{name} reaches no other rank when a notebook is graded. Use the communicator that the notebook creates."
        raise NotImplementedError(text)

    return method


for _name in dir(MPI.Intracomm):
    if _name in COMMUNICATOR_METHODS:
        setattr(IsolatedWorld, _name, _of_the_communicator(_name))
    elif _name not in vars(IsolatedWorld) and _name[0] != "_" and _name not in LOCAL_METHODS and callable(getattr(MPI.Intracomm, _name)):
        setattr(IsolatedWorld, _name, _nobody_there(_name))


def install() -> None:
    """Replace `MPI.COMM_WORLD` in this process."""
    MPI.COMM_WORLD = IsolatedWorld(MPI.COMM_WORLD)
