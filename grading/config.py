"""nbgrader's configuration: the folders, and the replacements for its own steps.

`make` and nbgrader's own commands both read `grading/nbgrader_config.py`: it calls `configure`, and an
instructor's own lines follow.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout
from traitlets.config import Config, PyFileConfigLoader

from grading.authoring.build import YOUR_ANSWER
from grading.paths import GRADING, NOTEBOOKS

if TYPE_CHECKING:
    from nbgrader.api import Gradebook


def _log_to(path: Path) -> None:
    """Make nbgrader log to a file; messages for instructors are printed elsewhere."""
    log = logging.getLogger("traitlets")
    path.parent.mkdir(parents=True, exist_ok=True)
    for handler in log.handlers:
        handler.close()
    log.handlers, log.propagate = [logging.FileHandler(path, delay=True)], False
    log.setLevel(logging.ERROR)


def last_log_error(home: Path) -> str:
    """Return the last error in nbgrader's log, in one line."""
    try:
        lines = (home / ".nbgrader.log").read_text(errors="replace").splitlines()
    except OSError:
        return "unknown"
    told = [line.strip() for line in lines if re.match(r"[\w.]*(Error|Exception|No notebooks)\b", line.strip())]
    return (told or ["unknown"])[-1]


class GradingConfigError(ValueError):
    """Invalid configuration; the message says why."""


def load(home: Path = GRADING, release: Path = NOTEBOOKS) -> Config:
    """Load the configuration of a course: `nbgrader_config.py` in its folder, or `configure` alone if there is none.

    Parameters
    ----------
    home, release : Path
        As for `configure`.

    Raises
    ------
    GradingConfigError
        The file has an error.
    """
    path = home / "nbgrader_config.py"
    try:
        config = PyFileConfigLoader(path.name, str(home)).load_config() if path.exists() else configure(Config(), home, release)
    except Exception as error:
        raise GradingConfigError(f"{path.name} cannot be used: {type(error).__name__}: {error}") from error
    if release != NOTEBOOKS:
        config.CourseDirectory.release_directory = str(release)
    return config


def gradebook_exists(config: Config) -> bool:
    """Return whether there is a gradebook; false only if it would be a file."""
    kind, _, path = config.CourseDirectory.db_url.partition(":///")
    return kind != "sqlite" or Path(path).exists()


def gradebook(config: Config) -> Gradebook:
    """Open nbgrader's gradebook, as configured; a context manager.

    Raises
    ------
    GradingConfigError
        It cannot be opened.
    """
    from nbgrader.api import Gradebook
    from sqlalchemy.exc import SQLAlchemyError

    course = config.CourseDirectory
    try:
        return Gradebook(course.db_url, course.course_id)
    except (SQLAlchemyError, ImportError) as error:
        told = str(error).splitlines()[0]
        raise GradingConfigError(
            f"The gradebook {_without_password(course.db_url)} cannot be opened: {told}. Usual causes: the server is not running, the name "
            "or the password in nbgrader_config.py is wrong, or the driver is not installed (for PostgreSQL, psycopg)."
        ) from error


@contextlib.contextmanager
def gradebook_lock(home: Path = GRADING) -> Iterator[None]:
    """Hold the lock for writing to the gradebook.

    Raises
    ------
    GradingConfigError
        Another process holds it.
    """
    try:
        with FileLock(home / ".autograde.lock", blocking=False):
            yield
    except Timeout:
        raise GradingConfigError(
            "Another `make autograde` or `make release` is running in this folder. Only one at a time can write to the gradebook."
        ) from None


def _without_password(url: str) -> str:
    return re.sub(r"(?<=://)([^:/@]+):[^@]*@", r"\1:...@", url)


def configure(config: Config, home: Path = GRADING, release: Path = NOTEBOOKS) -> Config:
    """Fill a traitlets Config with the course's settings.

    Parameters
    ----------
    config : traitlets.config.Config
        Changed in place, and returned.
    home : Path
        Folder of source/, submitted/, autograded/, feedback/ and gradebook.db.
    release : Path
        Folder of the students' notebooks.
    """
    from nbgrader.preprocessors import (
        AssignLatePenalties,
        CheckCellMetadata,
        ClearOutput,
        DeduplicateIds,
        GetGrades,
        LimitOutput,
        OverwriteCells,
        OverwriteKernelspec,
        SaveAutoGrades,
    )

    from grading.submission.preprocessors import (
        SUBMISSION_CELL_SECONDS,
        ExecuteOnRanks,
        HideTests,
        LimitPictures,
        MarkGraded,
        TakeStudentCells,
    )

    programs = str(Path(sys.executable).parent)  # nbgrader calls alembic by name
    if programs not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = programs + os.pathsep + os.environ["PATH"]
    _log_to(home / ".nbgrader.log")
    config.CourseDirectory.root = str(home)
    config.CourseDirectory.source_directory = str(home / "source")
    config.CourseDirectory.release_directory = str(release)
    config.CourseDirectory.db_url = f"sqlite:///{home / 'gradebook.db'}"
    config.CourseDirectory.course_id = "distributed-training"
    config.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__"]
    config.ClearSolutions.code_stub = {"python": "# Your code here.\nraise NotImplementedError"}
    config.ClearSolutions.text_stub = YOUR_ANSWER
    config.OverwriteCells.add_missing_cells = True
    config.Autograde.sanitize_preprocessors = [
        TakeStudentCells,
        ClearOutput,
        DeduplicateIds,
        OverwriteKernelspec,
        OverwriteCells,
        CheckCellMetadata,
    ]
    config.Autograde.autograde_preprocessors = [
        ExecuteOnRanks,
        LimitOutput,
        LimitPictures,
        SaveAutoGrades,
        AssignLatePenalties,
        CheckCellMetadata,
        MarkGraded,
    ]
    config.GenerateFeedback.preprocessors = [GetGrades, HideTests, LimitPictures, "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor"]
    config.ExecuteOnRanks.timeout = 5 * SUBMISSION_CELL_SECONDS  # a safety net; the library's own limits are far shorter
    config.ExecuteOnRanks.shutdown_kernel = "immediate"  # its ranks end with it, and then its folder is removed
    config.ExecuteOnRanks.extra_arguments = ["--HistoryManager.hist_file=:memory:", "--IPKernelApp.log_level=40"]
    return config
