"""``%%px``: run a cell on all ranks, wait, and show what they print and raise, grouped (see `replies`)."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Callable

from IPython import get_ipython

from course_lib import students, wording
from course_lib.cluster import time_limits
from course_lib.cluster.ranks import Ranks
from course_lib.cluster.replies import Interrupted, LiveOutput, raise_errors, show_outputs
from course_lib.cluster.source import misplaced_names


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise misplaced_names.UsageOfPx(f"%%px: {message}. Use %%px alone, or %%px --targets 0,2 for some ranks.")


def _arguments() -> _Parser:
    parser = _Parser(prog="%%px", add_help=False)
    parser.add_argument("--targets", "-t", help="ranks, such as 2 or 0,1 or 1:4 (all by default)")
    parser.add_argument("--block", action="store_true")  # it always does
    return parser


def targets(text: str | None, n: int) -> list[int] | None:
    """Ranks from the text after --targets.

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
    """Run the text of a ``%%px`` cell on the ranks; `line` is what stands after %%px. `live` shows what is printed meanwhile."""
    options = _arguments().parse_args(shlex.split(line, comments=True))
    shell = get_ipython()
    title = line.partition("# ")[2]
    label = f"cell [{len(shell.user_ns['In']) - 1 if shell else '-'}]"
    if title and time_limits.limit():  # when grading, nobody sees the cells' numbers
        label = f'cell "{title}"'
    # The first line keeps the numbers of the lines as JupyterLab shows them.
    source = cell if cell.lstrip().startswith("%%") else f"# %%px\n{cell}"
    students.forget_passed(source)
    try:
        replies = ranks.run(source, targets=targets(options.targets, ranks.n), label=label, show=live and live.show)
    except Interrupted as stopped:
        if live:
            live.end()
        show_outputs(stopped.replies, ranks.n)  # what was printed before
        raise
    if live:
        live.end()
    show_outputs(replies, ranks.n)
    raise_errors(replies)
    misplaced_names.forget(source)
    if title and not time_limits.limit() and not any(reply["outputs"] for _, reply in replies):  # folded, it would look as before it ran
        print(f"{title}: done on {wording.ranks([r for r, _ in replies]) if len(replies) < ranks.n else 'all ranks'}.")


def move_px_to_top(lines: list[str]) -> list[str]:
    """A cell's lines with its ``%%px`` on top, where only comments and empty lines stand above it.

    >>> move_px_to_top(["# mine\\n", "%%px\\n", "x = 1"])
    ['%%px\\n', '# mine\\n', 'x = 1']
    """
    place = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0)
    low = next((i for i, line in enumerate(lines) if i > place and re.match(r"%%px\b", line)), None)
    if low is not None and not lines[place].startswith("%%") and not _is_python("".join(lines)):
        return [f"__import__('course_lib.cluster.source.misplaced_names', fromlist=['here']).too_low({low + 1})\n"]
    return [lines[place].rstrip("\n") + "\n", *lines[:place], *lines[place + 1 :]] if lines and lines[place].startswith("%%px") else lines


def _is_python(text: str) -> bool:
    """Try to parse a text as Python: ``%%px`` may stand in a string."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _explain_names(ranks: Ranks) -> Callable:
    """A handler of the kernel's NameErrors: it says which names the ranks have."""

    def on_ranks(name: str) -> bool:
        try:
            return any(ranks.call(misplaced_names.known, dict(name=name)))
        except Exception:  # they are stopped, or have died: no hint then
            return False

    def handler(shell, kind, error, trace, tb_offset=None) -> None:
        if added := misplaced_names.kernel_hint(str(error), on_ranks):
            error.args = (f"{error}{added}",)
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)

    return handler


def register(ranks: Ranks) -> None:
    """Make ``%%px`` and ``%px`` run on these ranks, in the notebook that this runs in."""
    shell = get_ipython()
    if shell is None:
        return
    if move_px_to_top not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(move_px_to_top)
    shell.register_magic_function(lambda line, cell: run_cell(ranks, line, cell, LiveOutput(ranks.n)), "cell", "px")
    shell.set_custom_exc((NameError,), _explain_names(ranks))
    shell.register_magic_function(lambda line: run_cell(ranks, "", line), "line", "px")
