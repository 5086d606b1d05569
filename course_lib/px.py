"""``%%px``: run a cell on all ranks, wait, and show what they print and raise, grouped.

What several ranks print or raise alike is shown once, headed by their numbers; the odd one out
stands by itself.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import TYPE_CHECKING

from IPython import get_ipython
from IPython.display import display

from course_lib import wording

if TYPE_CHECKING:
    from course_lib.ranks import Ranks

BOLD, RED, DIM, PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[2m", "\x1b[0m"
_SECONDARY = {"DeadlockError"}  # these follow from what another rank did

Replies = list[tuple[int, dict]]


class RanksError(RuntimeError):
    """What the ranks raised, grouped; the message is that of the first group."""

    def __init__(self, groups: list[tuple[list[int], dict]], n: int):
        self.groups, self.n = groups, n
        who, error = groups[0]
        self.short = f"{error['name']}: {error['message']}"
        super().__init__(f"{wording.ranks(who)}: {self.short}")

    def _render_traceback_(self) -> list[str]:
        lines = []
        for who, error in self.groups:
            if self.n > 1:
                lines.append(head(who, self.n))
            lines += [f"{DIM}{line}{PLAIN}" if not line.startswith("    ") else line for line in error["lines"]]
            lines.append(f"{RED}{error['name']}{PLAIN}: {error['message']}")
        return lines


def head(who: list[int], n: int) -> str:
    """The line above what some of n ranks show."""
    return f"{BOLD}{'all ranks' if len(who) == n > 2 else wording.ranks(who)}{PLAIN}"


def group(replies: Replies, part: str) -> list[tuple[list[int], object]]:
    """Ranks whose replies have the same `part`, together; in the order of their first ranks."""
    groups: dict[str, tuple[list[int], object]] = {}
    for rank, reply in replies:
        if reply[part]:
            groups.setdefault(json.dumps(reply[part], sort_keys=True), ([], reply[part]))[0].append(rank)
    return list(groups.values())


def show_outputs(replies: Replies, n: int) -> None:
    """Show what the ranks printed and displayed."""
    for who, outputs in group(replies, "outputs"):
        if n > 1:
            print(head(who, n))
        for output in outputs:
            if "stream" in output:
                stream = sys.stderr if output["stream"] == "stderr" else sys.stdout
                text = output["text"]
                print(text, end="" if text.endswith("\n") else "\n", file=stream, flush=True)
            else:
                display(output["data"], metadata=output["metadata"], raw=True)


def raise_errors(replies: Replies) -> None:
    """Raise what the ranks raised, the errors that others follow from first."""
    groups = group(replies, "error")
    if groups:
        groups.sort(key=lambda g: (bool(_SECONDARY & set(g[1]["kind"])), g[0]))
        raise RanksError(groups, len(replies))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise ValueError(f"%%px: {message}. Use %%px alone, or %%px --targets 0,2 for some ranks.")


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
        if ":" in text:
            return list(range(n))[slice(*(int(p) if p else None for p in text.split(":")))]
        return [int(p) for p in text.split(",")]
    except ValueError:
        raise ValueError(f"%%px --targets: expected ranks such as 2 or 0,1 or 1:4; got {text!r}.") from None


def run_cell(ranks: Ranks, line: str, cell: str) -> None:
    """Run the text of a ``%%px`` cell on the ranks; `line` is what stands after %%px."""
    options = _arguments().parse_args(shlex.split(line))
    shell = get_ipython()
    label = f"cell [{len(shell.user_ns['In']) - 1 if shell else '-'}]"
    # The first line keeps the numbers of the lines as JupyterLab shows them.
    source = cell if cell.lstrip().startswith("%%") else f"# %%px\n{cell}"
    replies = ranks.run(source, targets=targets(options.targets, ranks.n), label=label)
    show_outputs(replies, ranks.n)
    raise_errors(replies)


def register_magics(ranks: Ranks) -> None:
    """Make ``%%px`` and ``%px`` run on these ranks, in the notebook that this runs in."""
    shell = get_ipython()
    if shell is None:
        return
    shell.register_magic_function(lambda line, cell: run_cell(ranks, line, cell), "cell", "px")
    shell.register_magic_function(lambda line: run_cell(ranks, "", line), "line", "px")
