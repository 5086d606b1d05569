"""Run a submission: the student's cells on the ranks only, the instructor's in the kernel.

So the checker never shares a process with the student's code: that code never runs in the
kernel, and what a rank sends to the kernel is never unpickled (see `course_lib.cluster.client`).
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from nbformat import NotebookNode


def on_ranks(source: str) -> str:
    """Kernel code that runs a student's cell on the ranks, whatever the cell contains.

    >>> on_ranks("%%px --targets 1\\nx = 1")
    "get_ipython().run_cell_magic('px', '--targets 1', 'x = 1')"
    """
    first, _, rest = source.lstrip().partition("\n")
    if not first.startswith("%%px"):
        return f"get_ipython().run_cell_magic('px', '', {source!r})"
    targets = re.search(r"(?:--targets|-t)[ =]([\d,:]+)", first)
    return f"get_ipython().run_cell_magic('px', {'--targets ' + targets[1] if targets else ''!r}, {rest!r})"


def settle(cell: NotebookNode) -> None:
    """Leave in a test's outputs nothing but its verdict: no output for a pass, or one error.

    nbgrader gives full marks for an output that it does not understand, and none for a warning;
    here a test passes when it ran to its end, showing at most one number as its score.
    """
    errors = [o for o in cell.outputs if o.output_type == "error"]
    results = [o for o in cell.outputs if o.output_type == "execute_result"]
    if errors:
        cell.outputs = errors[:1]
    elif cell.execution_count is None:
        cell.outputs = [_error("the test did not run")]
    elif len(results) > 1 or any(not _is_score(r, cell) for r in results):
        cell.outputs = [_error("the test showed something that is no score from 0 to its points")]
    else:
        cell.outputs = results


def _is_score(output: NotebookNode, cell: NotebookNode) -> bool:
    try:
        return 0 <= float(output.data["text/plain"]) <= cell.metadata.nbgrader["points"]
    except (KeyError, ValueError):
        return False


def _error(message: str) -> NotebookNode:
    return NotebookNode(output_type="error", ename="NotGraded", evalue=message, traceback=[f"NotGraded: {message}"])


def fingerprint(path: Path) -> str:
    """What tells one hand-in from the next."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
