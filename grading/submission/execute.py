"""Run a submission: the student's cells only on the ranks, the instructor's in the kernel.

So the checker never shares a process with the student's code: that code never runs in the
kernel, and what a rank sends to the kernel is never unpickled (see `course_lib.cluster.client`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from nbformat import NotebookNode
from traitlets.config import Config

from course_lib.cluster.isolated import sanitize
from course_lib.cluster.source import cell as cells

MAX_ERROR_CHARS, MAX_ERROR_LINES = 20_000, 200  # characters and lines of an error that a test shows


def on_ranks(source: str, title: str = "", whole: bool = True) -> str:
    """Return kernel code that runs a student's cell on the ranks, whatever the cell contains.

    Nothing of the cell's own line of ``%%px`` gets into the code but its targets.

    Parameters
    ----------
    source : str
        The cell.
    title : str
        Its name in messages.
    whole : bool
        Whether a cell without ``%%px`` runs on the ranks, too: a student may have forgotten it.
        If not, only what follows ``%px`` in its lines does.

    Examples
    --------
    >>> on_ranks("%%px --targets 1 # mine\\nx = 1")
    "get_ipython().run_cell_magic('px', '--targets=1', 'x = 1')"
    """
    cell = cells.read(source)
    code = cell.source if whole else cell.lines_for_ranks or cell.source
    targets = f"--targets={cell.targets}" if cell.targets and not cell.problem else ""
    line = f"{targets} # {title}" if title else targets
    return f"get_ipython().run_cell_magic('px', {line!r}, {code!r})"


def is_for_ranks(source: str) -> bool:
    """Return whether ranks got anything of a cell when the student ran it.

    >>> texts = "%%px\\nx = 1", "%%time\\n%%px\\nx = 1", "%px x = 1", "%%writefile m.py", "rank = 1"
    >>> [is_for_ranks(text) for text in texts]
    [True, True, True, True, False]
    """
    cell = cells.read(source)
    return not cell.problem and bool(cell.for_ranks or cell.lines_for_ranks or cell.file)


def reduce_to_verdict(cell: NotebookNode) -> None:
    """Reduce a test's outputs to its verdict: no output for a pass, or one error.

    nbgrader gives full marks for an output that it does not understand, and none for a warning;
    here a test passes if it ran to its end and showed at most one number as its score.
    """
    errors = [o for o in cell.outputs if o.output_type == "error"]
    results = [o for o in cell.outputs if o.output_type == "execute_result"]
    if errors:
        cell.outputs = [_cut(errors[0])]
    elif cell.execution_count is None:
        cell.outputs = [_error("the test did not run")]
    elif len(results) > 1 or any(not _is_score(r, cell) for r in results):
        cell.outputs = [_error("the test showed something other than a score from 0 to its points")]
    else:
        cell.outputs = results


def _cut(error: NotebookNode) -> NotebookNode:
    """Limit the length of an error, which may contain what an answer returned."""
    error.evalue = sanitize.strip_ansi(error.evalue[:MAX_ERROR_CHARS])
    lines = "\n".join(error.traceback)[:MAX_ERROR_CHARS].splitlines()
    error.traceback = [sanitize.strip_ansi("\n".join(lines[:MAX_ERROR_LINES]))]
    return error


def _is_score(output: NotebookNode, cell: NotebookNode) -> bool:
    try:
        return 0 <= float(output.data["text/plain"]) <= cell.metadata.nbgrader["points"]
    except (KeyError, ValueError):
        return False


def _error(message: str) -> NotebookNode:
    return NotebookNode(output_type="error", ename="NotGraded", evalue=message, traceback=[f"NotGraded: {message}"])


def ipc_kernel_config(folder: str) -> Config:
    """Return settings of a notebook's client: its kernel is reached over Unix sockets in this folder.

    Kernels that start at the same time may pick the same loopback port, and one of them then ends. The path of such a socket may
    have 107 bytes, on macOS 103; for a longer folder, ports are used.
    """
    short = len(os.fsencode(folder)) <= 90
    return Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}} if short else {})


@contextmanager
def environment_variables(settings: dict[str, str]) -> Iterator[None]:
    """Set these environment variables for the duration of a context."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
