"""`make doctor`: what works on this machine, a line each, and what to do about what does not."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator

import psutil

from course_lib import wording
from course_lib.engine.processes import mpiexec
from course_lib.sandbox import bubblewrap, landlock, seccomp

CheckResult = tuple[bool | None, str, str]  # well (None: does not matter for most), what, advice


def python() -> CheckResult:
    """The version of Python."""
    good = sys.version_info >= (3, 11)
    return good, f"Python {sys.version.split()[0]} in {sys.prefix}", "install Python 3.11 or newer, then: rm -r .venv; make lab"


def mpi() -> CheckResult:
    """The MPI library and its launcher."""
    try:
        where = mpiexec.find_mpiexec()
    except mpiexec.StartError as error:
        return False, str(error), "make lab installs it; on Windows use WSL2"
    import mpi4py

    mpi4py.rc.initialize = False  # only ask: ranks are started by mpiexec
    from mpi4py import MPI

    library = " ".join(MPI.Get_library_version().split("\n")[0].split())
    advice = "the course is made for MPICH: others may abort when ranks make different calls"
    return MPI.get_vendor()[0] == "MPICH", f"MPI: {library}, mpi4py {mpi4py.__version__}, {where}", advice


def ranks() -> CheckResult:
    """Whether ranks start, and talk."""
    from course_lib import cluster

    try:
        four = cluster.Ranks(4)
    except Exception as error:
        return (
            False,
            f"ranks do not start: {error}",
            "read the lines above; a firewall or a virus scanner may stop local programs from talking",
        )
    try:
        four.run("import numpy as np; from course_lib.collectives import Communicator; total = np.zeros(1)")
        four.run("Communicator().Allreduce(np.ones(1), total)")
        good = all(t[0] == 4 for t in four.pull("total"))
        return (
            good,
            f"4 ranks start in {four.seconds:.1f} s and talk to each other",
            "run it again; if it stays, report it with this output",
        )
    finally:
        four.stop()


def cores() -> CheckResult:
    """Cores of the processor."""
    count = os.cpu_count() or 1
    return count >= 2, f"{count} cores", "it works with one core, only slower"


def memory() -> CheckResult:
    """Free memory."""
    free = psutil.virtual_memory().available
    return free > 2 * 1024**3, f"memory: {wording.memory(free)} free", "8 ranks want about 1.5 GB: close other programs"


def threads() -> CheckResult:
    """Threads that NumPy uses on a rank."""
    said = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") if os.environ.get(name)}
    here = ", ".join(f"{k}={v}" for k, v in said.items()) or "not limited in this shell"
    return True, f"threads: ranks use one each (set by cluster.start); {here}", ""


def shared_memory() -> CheckResult:
    """Room in /dev/shm, through which ranks of a machine exchange arrays."""
    if not os.path.isdir("/dev/shm"):
        return None, "no /dev/shm (macOS has none, and needs none)", ""
    free = shutil.disk_usage("/dev/shm").free
    return free >= 32 * 1024**2, f"/dev/shm: {wording.memory(free)} free", "8 ranks want 32 MiB: run the container with --shm-size=64m"


def browser() -> CheckResult:
    """A browser to open JupyterLab in."""
    names = ("xdg-open", "open", "chromium", "google-chrome", "firefox")
    found = next((n for n in names if shutil.which(n)), None)
    return None if found is None else True, f"browser: {found or 'none found here'}", "make lab prints an address; open it in any browser"


def chromium() -> CheckResult:
    """Chromium, for the project's own browser test."""
    found = shutil.which("chromium")
    return (
        None if not found else True,
        f"browser test: {found or 'no chromium, so make test leaves it out'}",
        "only for developers: apt install chromium",
    )


def grading_sandbox() -> CheckResult:
    """The sandbox for grading."""
    problem = bubblewrap.problem()
    hidden = "Landlock still hides files from them" if landlock.known() else "they can read what you can"
    what = f"no sandbox for ranks: {problem}; graded with SANDBOX=none, {hidden}" if problem else "ranks run in a sandbox (bubblewrap)"
    what += f"; their system calls are not limited: {unlimited}" if (unlimited := seccomp.problem()) else ""
    return None if problem or unlimited else True, f"grading: {what}", "only for instructors, see docs/instructors.md"


def network() -> CheckResult:
    """A network, for larger data sets."""
    try:
        with contextlib.closing(socket.create_connection(("ossci-datasets.s3.amazonaws.com", 443), timeout=3)):
            return True, "network: the host of MNIST is reached", ""
    except OSError:
        return None, "network: not reached", "not needed once installed: the digits come along; for other data see docs/students.md"


CHECKS: tuple[Callable[[], CheckResult], ...] = (
    *(python, mpi, ranks, cores, memory, threads, shared_memory),
    *(browser, chromium, grading_sandbox, network),
)


def report() -> Iterator[tuple[bool, str]]:
    """Each check's line, and whether it is well."""
    for check in CHECKS:
        try:
            good, what, advice = check()
        except Exception as error:
            good, what, advice = False, f"{check.__name__}: {type(error).__name__}: {error}", "report this line"
        mark = {True: "ok     ", False: "PROBLEM", None: "note   "}[good]
        yield good is not False, f"{mark} {what}" + (f" -> {advice}" if advice and good is not True else "")


def main() -> None:
    well = True
    for good, line in report():
        print(line, flush=True)
        well = well and good
    sys.exit(not well)


if __name__ == "__main__":
    main()
