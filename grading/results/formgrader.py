"""`make formgrader`: open nbgrader's formgrader, to read written answers, and to give points and comments by hand."""

from __future__ import annotations

import logging
import os
import sys

from course_lib.tools.lab import command, environment
from grading.config import GradingConfigError, gradebook_exists, load
from grading.paths import GRADING


def _is_not_about_the_exchange(record: logging.LogRecord) -> bool:
    """Drop nbgrader's warning, on each page, about a missing exchange, which this course does not need."""
    return not record.getMessage().startswith("Unwritable directory")


def main() -> None:
    try:
        if not gradebook_exists(load(GRADING)):
            sys.exit("Nothing is released yet, so there is nothing to look at. First: make release, make collect, make autograde.")
    except GradingConfigError as error:
        sys.exit(str(error))
    os.environ.update(environment())
    os.chdir(GRADING)  # nbgrader reads its configuration from the current folder
    logging.getLogger("ServerApp").addFilter(_is_not_about_the_exchange)
    print("Opening the formgrader: Manual Grading shows each part's hand-ins. Press Ctrl-C twice to end it.", flush=True)
    from jupyterlab.labapp import LabApp

    LabApp.launch_instance(command(GRADING, ["--LabApp.default_url=/formgrader", *sys.argv[1:]])[3:])


if __name__ == "__main__":
    main()
