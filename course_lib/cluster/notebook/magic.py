"""The ``%%px`` magic: run a cell on all ranks, wait, and show their output and errors grouped (see `replies`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from IPython import get_ipython
from IPython.core.magic import no_var_expand

from course_lib import students
from course_lib.cluster import time_limits
from course_lib.cluster.ranks import Ranks
from course_lib.cluster.replies import Interrupted, LiveOutput, raise_errors, show_outputs
from course_lib.cluster.source import cell as cells
from course_lib.cluster.source import misplaced_names
from course_lib.utils import wording


def run_cell(ranks: Ranks, text: str, live: LiveOutput | None = None) -> None:
    """Run a ``%%px`` cell on the ranks.

    Parameters
    ----------
    ranks : Ranks
    text : str
        The cell, with ``%%px`` on top.
    live : LiveOutput, optional
        Shows the output while the cell runs.

    Raises
    ------
    RanksError
        The cell raised on some rank.
    Interrupted
        The user interrupted it.
    """
    cell = cells.read(text)
    if cell.problem:
        cells.refuse(cell.problem)
    targets = cells.targets(cell.targets, ranks.n)
    title = cell.title
    shell = get_ipython()
    label = f"cell [{len(shell.user_ns['In']) - 1 if shell else '-'}]"
    if title and time_limits.limit():  # when grading, cells have no numbers that anyone sees
        label = f'cell "{title}"'
    # The first line keeps the line numbers as JupyterLab shows them.
    source = cell.source if cell.source.startswith("%%") else f"# %%px\n{cell.source}"
    defined = students.forget_passed(source)
    students.unfinished_definitions |= defined
    traced = cell.trace is not None
    with ranks.trace(title or label, file=cell.trace) if traced else nullcontext():
        try:
            replies = ranks.run(source, targets=targets, label=label, show=live and live.show)
        except Interrupted as stopped:
            if live:
                live.end()
            show_outputs(stopped.replies, ranks.n)  # what was printed before the interrupt
            raise
        if live:
            live.end()
        show_outputs(replies, ranks.n)
    raise_errors(replies)
    students.unfinished_definitions -= defined
    misplaced_names.forget(source)
    if beside := misplaced_names.files_beside(source):
        print(beside)
    # A folded cell without output would not show that it has run.
    if title and not traced and not time_limits.limit() and not any(reply["outputs"] for _, reply in replies):
        print(f"{title}: done on {wording.ranks([r for r, _ in replies]) if len(replies) < ranks.n else 'all ranks'}.")


def _explain_names(ranks: Ranks) -> Callable:
    """Return a handler for NameErrors in the kernel, which adds a hint if the ranks have the name."""

    def on_ranks(name: str) -> bool:
        try:
            return any(ranks.call(misplaced_names.known, dict(name=name)))
        except Exception:  # the ranks are stopped, or have died: no hint then
            return False

    def handler(shell, kind, error, trace, tb_offset=None) -> None:
        if added := misplaced_names.kernel_hint(str(error), on_ranks):
            error.args = (f"{error}{added}",)
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)

    return handler


def register(ranks: Ranks) -> None:
    """Make ``%%px`` and ``%px`` of this notebook run on these ranks."""
    shell = get_ipython()
    if shell is None:
        return
    if cells.px_first not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(cells.px_first)

    # What stands in a cell is not for the kernel to fill in: `%px d = {1: 2}` would become `d = 2`.
    @no_var_expand
    def px(line: str, cell: str | None = None) -> None:
        text = f"%%px\n{line}" if cell is None else f"%%px {line}\n{cell}"
        run_cell(ranks, text, None if cell is None else LiveOutput(ranks.n))

    shell.register_magic_function(px, "line_cell", "px")
    shell.set_custom_exc((NameError,), _explain_names(ranks))
