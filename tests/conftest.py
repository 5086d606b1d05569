"""Fixtures that the tests share: ranks that stay up between tests, and a notebook kernel."""

import atexit
import os
import shutil
import signal
import tempfile

import hypothesis
import pytest
import slurm_cluster
from machine import fashion_files
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from processes import wait_until
from traitlets.config import Config
from xdist.scheduler import LoadScopeScheduling

from course_lib.cluster import Ranks
from course_lib.collectives import shared_memory
from course_lib.ddp import pytorch
from course_lib.sandbox import bubblewrap

# A temporary folder for this process of the run alone, also for the processes that it starts. Those of pytest-xdist's
# workers lie side by side: the path of a Unix socket may not be long.
beside = os.path.dirname(os.environ["TMPDIR"]) if "PYTEST_XDIST_WORKER" in os.environ else None
os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="course-tests-", dir=beside)
atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)

# In a job that a shell has put into the background SIGINT is ignored, and the tests that interrupt would wait endlessly.
signal.signal(signal.SIGINT, signal.default_int_handler)


hypothesis.settings.register_profile("course", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("course")

shared_memory.unlink_mapped_files()  # where tests are killed, nothing of them is left

# Where there is no sandbox, grading goes without one, and the last line of the report says so.
if bubblewrap.problem():
    os.environ.setdefault("SANDBOX", "none")


# Seconds that the long ones take: they begin first, each where a worker is free, so that none is left alone with them at the end.
# Of the others, those of a file stay together: they share what its fixtures start.
LONG = {
    "test_a_gpt_trains_on_every_grid": 120,
    "test_a_notebook_runs_on_two_machines[28": 120,
    "test_all_variants_get_what_they_deserve[23": 180,
    "test_all_variants_get_what_they_deserve[25": 180,
    "test_all_variants_get_what_they_deserve[26": 180,
    "test_all_variants_get_what_they_deserve[27": 180,
    "test_64_mb_are_enough": 90,
    "test_time_that_is_over": 75,
    "test_a_notebook_alone_runs_on_colab": 60,
    "test_an_answer_that_wants_to_do_harm": 60,
    "test_what_an_answer_shows": 60,
    "test_no_cheat": 60,
    "test_a_bad_exercise": 40,
    "test_a_notebook_runs_in_the_browser": 40,
    "test_a_talk_from": 40,
    "test_it_is_made_from_the_graded": 30,
    "test_on_autolab_a_hostile": 30,
    "test_resnet_learns": 30,
    "test_untouched_notebooks": 30,
    "test_all_variants": 30,
    "test_stage_3_learns": 25,
    "test_a_solved_notebook_runs": 20,
    "test_a_solved_notebook_that_trains": 20,
    "test_unified_training": 20,
    "test_a_notebook_runs_on_two_machines": 20,
    "test_no_function_of_the_archive": 20,
    "test_the_first_answers": 15,
}


# Fixtures that start much for each test: ranks under Slurm, a talk in a browser, the whole site. `make test` has one of each kind.
STARTS = {"own", "no_job", "lecture", "built"}
ONE = "test_a_talk_from_the_first_slide_to_the_last[06_megatron_backward-1280-720-15]"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if STARTS & set(item.fixturenames) and item.name != ONE:
            item.add_marker("slow")
    items.sort(key=lambda item: -seconds(item.nodeid))


def seconds(nodeid):
    """About how long a test takes, by its id; 0 where that is short."""
    return max((s for name, s in LONG.items() if f"::{name}" in nodeid), default=0)


class ByFile(LoadScopeScheduling):
    """Gives a worker all short tests of a file, or one that is long.

    pytest-xdist's own groups (3.8) are without effect, and without a word, under pytest 9.2.
    """

    def _split_scope(self, nodeid):
        return nodeid if seconds(nodeid) else nodeid.split("::")[0]


@pytest.hookimpl(optionalhook=True)  # not every run has workers
def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)


def pytest_terminal_summary(terminalreporter):
    """One line for each thing that this machine lacks, and that some tests are about."""
    if not shutil.which("chromium"):
        terminalreporter.write_line("The browser test was left out: chromium is not installed (apt install chromium).")
    if not fashion_files():
        terminalreporter.write_line("Training on Fashion-MNIST was left out: its files are not here (apt install dataset-fashion-mnist).")
    if not pytorch.available():
        terminalreporter.write_line("Agreement with PyTorch was left out: torch is not installed (pip install -e '.[torch]').")
    if without := slurm_cluster.missing():
        terminalreporter.write_line(f"Ranks under Slurm were left out: {', '.join(without)} not installed (apt install slurm-wlm munge).")
    if bubblewrap.problem():
        terminalreporter.write_line(f"Grading was tested without a sandbox: {bubblewrap.problem()}.")
        terminalreporter.write_line("What Gradescope and Autolab take was not run: its tests make a clean root with bubblewrap.")


@pytest.fixture(scope="session")
def slurm():
    """A Slurm of this process of the run, to which `cluster.start(slurm=...)` turns."""
    running, before = slurm_cluster.Slurm(), dict(os.environ)
    os.environ.update(running.environment)
    yield running
    left = not wait_until(lambda: not running.left(), 30) and running.left()
    running.stop()
    for name in running.environment:
        os.environ.pop(name)
        if name in before:
            os.environ[name] = before[name]
    assert not left, f"left behind: {left}"


@pytest.fixture(scope="session")
def warm():
    """Eight ranks for the whole run; see `eight`."""
    ranks = Ranks(8)
    yield ranks
    ranks.stop()


@pytest.fixture
def eight(warm):
    """Eight ranks with NumPy, MPI and a communicator; new ones where a test has ended them."""
    if not warm.alive():
        warm.restart()
    warm.run(
        "import time, os\nimport numpy as np\nfrom mpi4py import MPI\n"
        "from course_lib.collectives import Communicator\ncomm = Communicator()\nrank = comm.Get_rank()"
    )
    return warm


class Kernel:
    """A notebook's kernel that runs one cell after the other."""

    def __init__(self):
        self.notebook = new_notebook()
        self._folder = tempfile.TemporaryDirectory()  # Unix sockets: of ports, two workers may draw the same
        sockets = Config({"KernelManager": {"transport": "ipc", "ip": f"{self._folder.name}/kernel"}})
        self.client = NotebookClient(self.notebook, timeout=120, allow_errors=True, kernel_name="python3", config=sockets)
        self._context = self.client.setup_kernel()
        self._context.__enter__()

    def run(self, source):
        """Run a cell; returns (what it printed and showed, its error as text or None)."""
        cell = new_code_cell(source)
        self.notebook.cells.append(cell)
        self.client.execute_cell(cell, len(self.notebook.cells) - 1)
        text = "".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs if o.output_type != "error")
        errors = ["\n".join(o.traceback) for o in cell.outputs if o.output_type == "error"]
        return text, errors[0] if errors else None

    @property
    def pid(self):
        return self.client.km.provisioner.pid

    def close(self):
        self._context.__exit__(None, None, None)
        self._folder.cleanup()


@pytest.fixture
def new_kernel():
    """Makes a fresh notebook kernel, when the test wants it."""
    kernels = []

    def make():
        kernels.append(Kernel())
        return kernels[-1]

    yield make
    for kernel in kernels:
        kernel.close()


@pytest.fixture
def kernel(new_kernel):
    """A fresh notebook kernel."""
    return new_kernel()


@pytest.fixture(scope="module")
def same_kernel():
    """One notebook kernel for all tests of a module."""
    kernel = Kernel()
    yield kernel
    kernel.close()
