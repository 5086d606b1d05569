"""How nbgrader is set up: where things lie, and what takes the place of its own steps."""

from __future__ import annotations

import logging
from pathlib import Path

from traitlets.config import Config

from grading.paths import GRADING, NOTEBOOKS

CELL_SECONDS = 60  # what a cell of a submission may take


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

    from grading.execute import ExecuteOnRanks, MarkGraded
    from grading.feedback import HideTests
    from grading.submission import TakeStudentCells

    logging.getLogger("traitlets").setLevel(logging.CRITICAL)  # what goes wrong is in the log file, and said at the end
    config.CourseDirectory.root = str(home)
    config.CourseDirectory.source_directory = str(home / "source")
    config.CourseDirectory.release_directory = str(release)
    config.CourseDirectory.db_url = f"sqlite:///{home / 'gradebook.db'}"
    config.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__"]
    config.NbGrader.logfile = str(home / ".nbgrader.log")
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
    config.ExecuteOnRanks.timeout = 20 * CELL_SECONDS  # a net; the library's own limits are far shorter
    config.ExecuteOnRanks.extra_arguments = ["--HistoryManager.hist_file=:memory:", "--IPKernelApp.log_level=40"]
    return config
