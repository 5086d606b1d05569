"""Cells that the contract's tests run on each transport, and the comparison of its ranks' messages."""

import re
from pathlib import Path
from types import FunctionType

from course_lib.check.cases.virtual_group import VirtualGroup
from course_lib.engine.requests import tracebacks
from course_lib.utils import wording

TRANSPORTS = ["mpi", "mpi between machines", "relay", "nccl"]
VIRTUAL = "virtual"  # ranks that share a process, and live as long as a cell
GRADED = ("relay", VIRTUAL)
SETUP = "import os, time\nimport numpy as np\nfrom mpi4py import MPI\nfrom course_lib.collectives import Communicator\n"
HOST = SETUP + "comm = Communicator()\nrank = comm.Get_rank()"
GPUS = (
    SETUP
    + f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
import fake_cupy
from course_lib.collectives import init
if "cupy" not in sys.modules:
    fake_cupy.install(gpus=8)
    on_gpus = init("nccl")
comm, np = on_gpus, fake_cupy.OnGpu()
rank = comm.Get_rank()
"""
)
# Stands for mpiexec: half of the ranks are told that they are on another machine.
TWO_MACHINES = """#!{python}
import os, sys
words = sys.argv[1:]
place = words.index("-n") + 2
name = 'export SLURMD_NODENAME=n$((PMI_RANK * 2 / PMI_SIZE + 1)); exec "$@"'
os.execv({mpiexec!r}, [{mpiexec!r}, *words[:place], "sh", "-c", name, "sh", *words[place:]])
"""


def is_nccl(request):
    """Tell whether a test's arrays lie on GPUs."""
    return _transport(request) == "nccl"


def is_graded(request):
    """Tell whether a test's ranks have a coordinator, as when a notebook is graded."""
    return _transport(request) in GRADED


def _transport(request):
    fixtures = ("ranks", "hosted", "processes", "hosted_processes")
    return next(name for key, name in request.node.callspec.params.items() if key in fixtures)


class VirtualRanks:
    """Eight virtual ranks, with what these tests use of `Ranks`."""

    def __init__(self):
        self._names, self.traffic, self._silences = [{} for _ in range(8)], [], []

    def silence(self, rank, seconds, after=0):
        self._silences.append((rank, seconds, after))

    def pull(self, name):
        return [names[name] for names in self._names]

    def run(self, source, label="cell [1]"):
        code = compile(source, label, "exec")
        outcomes = self._outcomes(lambda rank: exec(code, self._names[rank]))
        errors = [outcome.error and tracebacks.describe(outcome.error) for outcome in outcomes]
        return [(rank, {"error": error}) for rank, error in enumerate(errors)]

    def call(self, function, arguments=None):
        each = arguments if isinstance(arguments, list) else [arguments or {}] * 8

        def called(rank):
            names = function.__globals__ | self._names[rank]
            return FunctionType(function.__code__, names)(**each[rank])

        outcomes = self._outcomes(called)
        assert [outcome.error for outcome in outcomes] == [None] * 8
        return [outcome.result for outcome in outcomes]

    def _outcomes(self, function):
        def called(comm, rank):
            self._names[rank]["comm"] = comm
            return function(rank)

        silences, self._silences = self._silences, []
        outcomes = VirtualGroup(8, called, plan=lambda network: [network.plan_silence(*silence) for silence in silences]).run()
        self.traffic = [outcome.traffic for outcome in outcomes]
        return outcomes


def without_machines(text):
    """A sentence as it is where all ranks are on one machine."""

    def merged(found):
        numbers = set()
        for first, last in re.findall(r"(\d+)(?:–(\d+))?(?=[^()]*\(n\d\))", found[0]):
            numbers |= set(range(int(first), int(last or first) + 1))
        return wording.ranks(sorted(numbers))

    some = r"ranks? \d[\d–, ]* \(n\d\)"
    found = re.sub(rf"{some}(?: and {some})*", merged, text)
    return re.sub(r"(ranks [\d–, ]+) waits in", r"\1 wait in", found)


def run(ranks, source, after=True):
    """Run a cell; the error of each rank as text, None for one that has none. The next cell must work."""
    replies = ranks.run(source, label="cell [1]")
    if after:
        check = "got = np.empty(1)\ncomm.Sendrecv(np.full(1, float(rank)), (rank + 1) % 8, 0, got, (rank - 1) % 8, 0)\n"
        check += "assert got[0] == (rank - 1) % 8, got\nout = np.empty(1)\ncomm.Allreduce(np.ones(1), out)\nassert out[0] == 8"
        errors = [reply["error"] for _, reply in ranks.run(check)]
        assert errors == [None] * 8, f"the next cell does not work: {errors}"
    errors = [reply["error"] for _, reply in replies]
    return [error and f"{error['name']}: {without_machines(error['message'])}" for error in errors]
