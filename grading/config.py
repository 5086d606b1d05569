"""How nbgrader is set up: where things lie, and what takes the place of its own steps."""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path

from traitlets.config import Config

from grading.paths import GRADING, NOTEBOOKS


def _log_to(path: Path) -> None:
    """Have nbgrader write to a file; what an instructor must know is printed elsewhere."""
    log = logging.getLogger("traitlets")
    path.parent.mkdir(parents=True, exist_ok=True)
    for handler in log.handlers:
        handler.close()
    log.handlers, log.propagate = [logging.FileHandler(path, delay=True)], False
    log.setLevel(logging.ERROR)


def reason(home: Path) -> str:
    """The last error in nbgrader's log, in one line."""
    try:
        lines = (home / ".nbgrader.log").read_text(errors="replace").splitlines()
    except OSError:
        return "unknown"
    told = [line.strip() for line in lines if re.match(r"[\w.]*(Error|Exception|No notebooks)\b", line.strip())]
    return (told or ["unknown"])[-1]


def configure(config: Config, home: Path = GRADING, release: Path = NOTEBOOKS) -> Config:
    """Fill a traitlets Config.

    Parameters
    ----------
    config : traitlets.config.Config
        Changed in place, and returned.
    home : Path
        Folder of source/, submitted/, autograded/, feedback/ and gradebook.db.
    release : Path
        Folder of what students get.
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

    from grading.preprocessors import CELL_SECONDS, ExecuteOnRanks, HideTests, MarkGraded, TakeStudentCells

    programs = str(Path(sys.executable).parent)  # nbgrader calls alembic by its name
    if programs not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = programs + os.pathsep + os.environ["PATH"]
    _log_to(home / ".nbgrader.log")
    config.CourseDirectory.root = str(home)
    config.CourseDirectory.source_directory = str(home / "source")
    config.CourseDirectory.release_directory = str(release)
    config.CourseDirectory.db_url = f"sqlite:///{home / 'gradebook.db'}"
    config.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__"]
    config.ClearSolutions.code_stub = {"python": "# Your code here.\nraise NotImplementedError"}
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
        SaveAutoGrades,
        AssignLatePenalties,
        CheckCellMetadata,
        MarkGraded,
    ]
    config.GenerateFeedback.preprocessors = [GetGrades, HideTests, "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor"]
    config.ExecuteOnRanks.timeout = 5 * CELL_SECONDS  # a net; the library's own limits are far shorter
    config.ExecuteOnRanks.extra_arguments = ["--HistoryManager.hist_file=:memory:", "--IPKernelApp.log_level=40"]
    return config
