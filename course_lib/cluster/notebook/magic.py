"""The ``%%px`` magic: run a cell on all ranks, wait, and show their output and errors grouped (see `replies`)."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Callable
from contextlib import nullcontext

from IPython import get_ipython

from course_lib import students
from course_lib.cluster import time_limits
from course_lib.cluster.ranks import Ranks
from course_lib.cluster.replies import Interrupted, LiveOutput, raise_errors, show_outputs
from course_lib.cluster.source import misplaced_names
from course_lib.utils import wording


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise misplaced_names.UsageOfPx(f"%%px: {message}. Use %%px alone, %%px --targets 0,2 for some ranks, or %%px --trace.")


def _arguments() -> _Parser:
    parser = _Parser(prog="%%px", add_help=False)
    parser.add_argument("--targets", "-t", help="ranks, such as 2 or 0,1 or 1:4 (all by default)")
    parser.add_argument(
        "--trace", nargs="?", const="", help="show what each rank did and when; with a file name, write it for Perfetto, too"
    )
    parser.add_argument("--block", action="store_true")  # for compatibility: %%px always blocks
    return parser


def targets(text: str | None, n: int) -> list[int] | None:
    """Parse the text after --targets; None means all ranks.

    >>> targets("0,2", 4), targets("1:4", 4), targets(None, 4)
    ([0, 2], [1, 2, 3], None)
    """
    if text is None or text == "all":
        return None
    try:
        found = range(n)[slice(*(int(p) if p else None for p in text.split(":")))] if ":" in text else [int(p) for p in text.split(",")]
    except ValueError:
        raise misplaced_names.UsageOfPx(f"%%px --targets: expected ranks such as 2 or 0,1 or 1:4; got {text!r}.") from None
    if not found or not set(found) <= set(range(n)):
        raise misplaced_names.UsageOfPx(f"%%px --targets: the ranks are 0 to {n - 1}; got {text!r}.")
    return list(found)


def run_cell(ranks: Ranks, line: str, cell: str, live: LiveOutput | None = None) -> None:
    """Run a ``%%px`` cell on the ranks.

    Parameters
    ----------
    ranks : Ranks
    line : str
        The rest of the line after ``%%px``: options, and a title after ``#``.
    cell : str
        The source code.
    live : LiveOutput, optional
        Shows the output while the cell runs.

    Raises
    ------
    RanksError
        The cell raised on some rank.
    Interrupted
        The user interrupted it.
    """
    options = _arguments().parse_args(shlex.split(line, comments=True))
    shell = get_ipython()
    title = line.partition("# ")[2]
    label = f"cell [{len(shell.user_ns['In']) - 1 if shell else '-'}]"
    if title and time_limits.limit():  # when grading, cells have no numbers that anyone sees
        label = f'cell "{title}"'
    # The first line keeps the line numbers as JupyterLab shows them.
    source = cell if cell.lstrip().startswith("%%") else f"# %%px\n{cell}"
    defined = students.forget_passed(source)
    students.unfinished_definitions |= defined
    if options.trace and not options.trace.endswith(".json"):
        raise misplaced_names.UsageOfPx(
            f"%%px --trace: the name of a file must end in .json; got {options.trace!r}. For some ranks: %%px --targets 0,2 --trace."
        )
    traced = options.trace is not None
    with ranks.trace(title or label, file=options.trace) if traced else nullcontext():
        try:
            replies = ranks.run(source, targets=targets(options.targets, ranks.n), label=label, show=live and live.show)
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
    # A folded cell without output would not show that it has run.
    if title and not traced and not time_limits.limit() and not any(reply["outputs"] for _, reply in replies):
        print(f"{title}: done on {wording.ranks([r for r, _ in replies]) if len(replies) < ranks.n else 'all ranks'}.")


def move_px_to_top(lines: list[str]) -> list[str]:
    """Move a cell's ``%%px`` to its first line if only comments and empty lines are above it; an input transformer.

    >>> move_px_to_top(["# mine\\n", "%%px\\n", "x = 1"])
    ['%%px\\n', '# mine\\n', 'x = 1']
    """
    place = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0)
    low = next((i for i, line in enumerate(lines) if i > place and re.match(r"%%px\b", line)), None)
    if low is not None and not lines[place].startswith("%%") and not _is_python("".join(lines)):
        return [f"__import__('course_lib.cluster.source.misplaced_names', fromlist=['here']).too_low({low + 1})\n"]
    return [lines[place].rstrip("\n") + "\n", *lines[:place], *lines[place + 1 :]] if lines and lines[place].startswith("%%px") else lines


def _is_python(text: str) -> bool:
    """Return whether a text is valid Python, as with ``%%px`` inside a string."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


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
    if move_px_to_top not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(move_px_to_top)
    shell.register_magic_function(lambda line, cell: run_cell(ranks, line, cell, LiveOutput(ranks.n)), "cell", "px")
    shell.set_custom_exc((NameError,), _explain_names(ranks))
    shell.register_magic_function(lambda line: run_cell(ranks, "", line), "line", "px")
