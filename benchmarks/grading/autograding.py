"""Grading identical submissions (4 ranks): against plain nbgrader on the same notebook with a stock cluster; two workers against one."""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from traitlets.config import Config

from grading.authoring import build
from grading.autograde import autograde
from grading.config import load

HAND_INS = 10
PART = "97_bench"

TEXT = """# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% Start tags=["given"]
{start}

# %% Set up tags=["given"]
# %%px{block}
import numpy as np
{comm}

# %% Total tags=["exercise"]
# %%px{block}
def total(x):
    ### BEGIN SOLUTION
    out = np.empty_like(x)
    comm.Allreduce(x, out)
    return out
    ### END SOLUTION

# %% Test total tags=["test"] points=10
### BEGIN HIDDEN TESTS
import numpy

for n in (1, 3, 100):
    x = numpy.random.default_rng().random(n)
    for answer in {call}:
        assert numpy.allclose(answer, 4 * x)
### END HIDDEN TESTS

# %% Stop tags=["given"]
{stop}
"""
OURS = {
    "comm": "from course_lib.collectives import Communicator\n\ncomm = Communicator()",
    "start": "from course_lib import cluster\nranks = cluster.start(4)",
    "block": "",
    "call": 'ranks.call("total", {"x": x})',
    "stop": "ranks.stop()",
}
STOCK = {
    "comm": "from mpi4py import MPI\n\ncomm = MPI.COMM_WORLD",
    "start": (
        "import ipyparallel\n\ncluster = ipyparallel.Cluster(engines='mpi', n=4, log_level=50)\n"
        "client = cluster.start_and_connect_sync()\nview = client[:]\nview.activate()"
    ),
    "block": " --block",
    "call": 'view.apply_sync(ipyparallel.Reference("total"), x)',
    "stop": "cluster.stop_cluster_sync()",
}


def _submit(home: Path, words: dict, number: int = HAND_INS) -> None:
    """Write the source, and submissions that solve it."""
    notebook = build.from_text(TEXT.format(**words), PART)
    for cell in notebook.cells:  # ipyparallel's own %%px takes no title
        cell.source = cell.source.replace("  # Set up\n", "\n")
    build.write(notebook, home / "source" / PART / f"{PART}.ipynb")
    for i in range(number):
        build.write(notebook, home / "submitted" / f"student{i:02d}" / PART / f"{PART}.ipynb")


def _release(config: Config) -> None:
    from nbgrader.converters import GenerateAssignment
    from nbgrader.coursedir import CourseDirectory

    config.CourseDirectory.assignment_id = PART
    GenerateAssignment(coursedir=CourseDirectory(config=config), config=config).start()


def _seconds(home: Path, began: float) -> list[float]:
    """Return the seconds from one graded notebook to the next."""
    paths = sorted((home / "autograded").glob(f"*/{PART}/*.ipynb"))
    ends = sorted(p.stat().st_mtime for p in paths)
    return [b - a for a, b in zip([began, *ends], ends, strict=False)]


def _points(home: Path) -> list[float]:
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{home / 'gradebook.db'}") as book:
        return [s.score for s in book.assignment_submissions(PART)]


def ours(home: Path, workers: int = 1) -> list[float]:
    """Grade with what `make autograde` runs; without the first submission of each worker, whose process starts then."""
    _submit(home, OURS, workers * (HAND_INS + 1))
    _release(load(home, home / "release"))
    began = time.time()
    autograde(PART, home, home / "release", jobs=str(workers))
    return _seconds(home, began)[workers:]


def of_two(home: Path) -> list[float]:
    """Return the seconds per submission with two workers: they often end two at a time, so two are taken together."""
    seconds = ours(home, 2)
    return [(a + b) / 2 for a, b in zip(seconds[::2], seconds[1::2], strict=True)]


def stock(home: Path) -> list[float]:
    """Grade with nbgrader's own autograde, one process for all."""
    from nbgrader.converters import Autograde
    from nbgrader.coursedir import CourseDirectory

    _submit(home, STOCK)
    config = Config()
    config.CourseDirectory.root = str(home)
    config.CourseDirectory.db_url = f"sqlite:///{home / 'gradebook.db'}"
    config.Execute.timeout = 120
    _release(config)
    config.Autograde.create_student = True
    began = time.time()
    Autograde(coursedir=CourseDirectory(config=config), config=config).start()
    return _seconds(home, began)


def figures() -> Iterator[tuple[str, list[float], float]]:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="course-bench-") as place:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            taken = {name: way(Path(place) / name) for name, way in (("ours", ours), ("two", of_two), ("stock", stock))}
        for name, seconds in taken.items():
            points = _points(Path(place) / name)
            if set(points) != {10.0} or len(seconds) != HAND_INS:
                raise RuntimeError(f"{name}: expected graded hand-ins with 10 points; got {points}")
        yield "autograde-a-hand-in/stock", [s / statistics.median(taken["stock"]) for s in taken["ours"]], 0.15
        yield "autograde-with-2-workers/1", [s / statistics.median(taken["ours"]) for s in taken["two"]], 1 / 1.6
