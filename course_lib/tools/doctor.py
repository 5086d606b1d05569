"""`make doctor`: report what works on this machine, one line per check, with advice for what does not."""

from __future__ import annotations

import contextlib
import getpass
import importlib.metadata
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

import course_lib
from course_lib.engine.processes import mpiexec
from course_lib.sandbox import bubblewrap, landlock, seccomp
from course_lib.utils import wording

REPORT = "doctor.txt"
CheckResult = tuple[bool | None, str, str]  # result (None: irrelevant for most users), description, advice


def python() -> CheckResult:
    """Check the version of Python."""
    good = sys.version_info >= (3, 11)
    return good, f"Python {sys.version.split()[0]} in {sys.prefix}", "install Python 3.11 or newer, then: rm -r .venv; make lab"


def packages() -> CheckResult:
    """Report the system, and the versions of the packages that the course depends on most."""
    names = ("distributed-training-course", "numpy", "mpi4py", "ipyparallel", "ipykernel", "jupyterlab")
    versions = ", ".join(f"{name} {_version(name)}" for name in names)
    return True, f"{platform.system()} {platform.release()}, {platform.machine()}: {versions}", ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def mpi() -> CheckResult:
    """Check the MPI library and its launcher."""
    try:
        where = mpiexec.find_mpiexec()
    except mpiexec.StartError as error:
        return False, str(error), "make lab installs it; on Windows use WSL2"
    import mpi4py

    mpi4py.rc.initialize = False  # only query: ranks are started by mpiexec
    from mpi4py import MPI

    library = " ".join(MPI.Get_library_version().split("\n")[0].split())
    advice = "the course is made for MPICH: other MPI libraries may abort when ranks make different calls"
    return MPI.get_vendor()[0] == "MPICH", f"MPI: {library}, mpi4py {mpi4py.__version__}, {where}", advice


def ranks() -> CheckResult:
    """Check that ranks start and communicate."""
    from course_lib import cluster

    try:
        four = cluster.Ranks(4)
    except Exception as error:
        return (
            False,
            f"ranks do not start: {error}",
            "read the lines above; a firewall or a virus scanner may stop local programs from communicating",
        )
    try:
        four.run("import numpy as np; from course_lib.collectives import Communicator; total = np.zeros(1)")
        four.run("Communicator().Allreduce(np.ones(1), total)")
        good = all(t[0] == 4 for t in four.pull("total"))
        return (
            good,
            f"4 ranks start in {four.seconds:.1f} s and communicate",
            "run it again; if the problem persists, report it with this output",
        )
    finally:
        four.stop()


def cores() -> CheckResult:
    """Count the processor cores."""
    count = os.cpu_count() or 1
    return count >= 2, f"{count} cores", "the course works with one core, but more slowly"


def memory() -> CheckResult:
    """Check the free memory."""
    free = psutil.virtual_memory().available
    return free > 2 * 1024**3, f"memory: {wording.memory(free)} free", "8 ranks need about 1.5 GB: close other programs"


def threads() -> CheckResult:
    """Report the number of NumPy threads per rank."""
    thread_settings = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") if os.environ.get(name)}
    here = ", ".join(f"{k}={v}" for k, v in thread_settings.items()) or "not limited in this shell"
    return True, f"threads: ranks use one each (set by cluster.start); {here}", ""


def shared_memory() -> CheckResult:
    """Check the space in /dev/shm, through which ranks of a machine exchange arrays."""
    if not os.path.isdir("/dev/shm"):
        return None, "no /dev/shm (macOS has none and does not need it)", ""
    free = shutil.disk_usage("/dev/shm").free
    return free >= 32 * 1024**2, f"/dev/shm: {wording.memory(free)} free", "8 ranks need 32 MiB: run the container with --shm-size=64m"


def browser() -> CheckResult:
    """Look for a browser to open JupyterLab in."""
    names = ("xdg-open", "open", "chromium", "google-chrome", "firefox")
    found = next((n for n in names if shutil.which(n)), None)
    return None if found is None else True, f"browser: {found or 'none found here'}", "make lab prints an address; open it in any browser"


def chromium() -> CheckResult:
    """Look for Chromium, for the project's own browser test."""
    found = shutil.which("chromium")
    return (
        None if not found else True,
        f"browser test: {found or 'no chromium, so make test skips it'}",
        "only for developers: apt install chromium",
    )


def grading_sandbox() -> CheckResult:
    """Check the grading sandbox."""
    problem = bubblewrap.problem()
    hidden = "Landlock still hides files from them" if landlock.abi_version() else "they can read what you can"
    what = f"no sandbox for ranks: {problem}; graded with SANDBOX=none, {hidden}" if problem else "ranks run in a sandbox (bubblewrap)"
    what += f"; their system calls are not limited: {unlimited}" if (unlimited := seccomp.problem()) else ""
    return None if problem or unlimited else True, f"grading: {what}", "only for instructors, see docs/instructors.md"


def network() -> CheckResult:
    """Check the network, for larger data sets."""
    try:
        with contextlib.closing(socket.create_connection(("ossci-datasets.s3.amazonaws.com", 443), timeout=3)):
            return True, "network: the MNIST server is reachable", ""
    except OSError:
        return None, "network: not reachable", "not needed once installed: the digits are included; for other data see docs/students.md"


CHECKS: tuple[Callable[[], CheckResult], ...] = (
    *(python, packages, mpi, ranks, cores, memory, threads, shared_memory),
    *(browser, chromium, grading_sandbox, network),
)


def report() -> Iterator[tuple[bool, str]]:
    """Yield each check's line, and whether it succeeded."""
    for check in CHECKS:
        try:
            good, what, advice = check()
        except Exception as error:
            good, what, advice = False, f"{check.__name__}: {type(error).__name__}: {error}", "report this line"
        mark = {True: "ok     ", False: "PROBLEM", None: "note   "}[good]
        yield good is not False, f"{mark} {what}" + (f" -> {advice}" if advice and good is not True else "")


def anonymous(text: str) -> str:
    """Replace folders and names of this machine and its user."""
    places = {str(Path(course_lib.__file__).parents[1]): "COURSE", sys.prefix: "PYTHON", str(Path.home()): "HOME"}
    for place in sorted(places, key=len, reverse=True):
        if len(place) > 1:
            text = text.replace(place, places[place])
    for name, other in ((getpass.getuser(), "USER"), (socket.gethostname(), "HOST")):
        text = re.sub(rf"\b{re.escape(name)}\b", other, text)
    return text


def main() -> None:
    well = True
    lines = []
    for good, line in report():
        print(line, flush=True)
        lines.append(anonymous(line))
        well = well and good
    try:
        Path(REPORT).write_text("\n".join(lines) + "\n")
        print(f"\n{REPORT} has these lines without names and folders, to paste when you report a problem.")
    except OSError as error:
        print(f"\n{REPORT} cannot be written here: {error.strerror}.")
    sys.exit(not well)


if __name__ == "__main__":
    main()
