"""`MPI.COMM_WORLD` of an isolated rank: it says which rank this is, of how many, and its collectives are the communicator's.

To MPI, each isolated rank is alone; whoever asks mpi4py instead of the course's communicator is to notice nothing, or to be told.
"""

from __future__ import annotations

from functools import cache

from mpi4py import MPI

from course_lib.collectives.communicator import Communicator
from course_lib.collectives.transport import isolated

COMMUNICATOR_METHODS = {name for name in vars(Communicator) if name[0].isupper()} - {"Get_rank", "Get_size"}
LOCAL_METHODS = {
    "Free",
    "Get_attr",
    "Get_errhandler",
    "Get_group",
    "Get_info",
    "Get_name",
    "Get_parent",
    "Get_topology",
    "Is_inter",
    "Is_intra",
}


class IsolatedWorld(MPI.Intracomm):
    """All ranks, as mpi4py has them."""

    def Get_rank(self) -> int:
        """This rank."""
        return isolated.rank

    def Get_size(self) -> int:
        """The number of ranks."""
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
        text = f"MPI.COMM_WORLD.{name} reaches no other rank when a notebook is graded. Use the communicator that the notebook makes."
        raise NotImplementedError(text)

    return method


for _name in dir(MPI.Intracomm):
    if _name in COMMUNICATOR_METHODS:
        setattr(IsolatedWorld, _name, _of_the_communicator(_name))
    elif _name not in vars(IsolatedWorld) and _name[0] != "_" and _name not in LOCAL_METHODS and callable(getattr(MPI.Intracomm, _name)):
        setattr(IsolatedWorld, _name, _nobody_there(_name))


def install() -> None:
    """Make it `MPI.COMM_WORLD` of this process."""
    MPI.COMM_WORLD = IsolatedWorld(MPI.COMM_WORLD)
