"""Load the student's functions for a command, on all ranks."""

from __future__ import annotations

from pathlib import Path

from course_lib import students
from course_lib.gpt.broadcast_text import first_nonempty
from course_lib.gpt.settings import SettingsError

FUNCTIONS_DIR = Path("my_work")


def load_functions(folder: Path, comm: object, *names: str) -> object:
    """Load the student's functions; collective, as loading may fail on a single rank.

    Parameters
    ----------
    folder : Path
    comm : Communicator
    names : str
        Functions that must be there.

    Raises
    ------
    SettingsError
        A file cannot be imported, or the folder does not exist. All ranks raise it.
    students.MissingFunction
        One of `names` is missing.
    """
    found, wrong = None, ""
    try:
        found = students.load(folder)
        if folder != FUNCTIONS_DIR and not folder.is_dir():
            wrong = f"the folder {folder} with your functions does not exist (--functions)."
    except (ImportError, OSError) as error:
        wrong = str(error)
    if wrong := first_nonempty(comm, wrong):
        raise SettingsError(wrong)
    for name in names:
        students.get(found, name)
    return found
