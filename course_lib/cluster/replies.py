"""What comes back from the ranks, shown in groups: ranks that print the same, or raise the same, are shown once.

An error shows the student's own lines and no library frames, with the ranks' numbers; the odd one out
stands by itself.
"""

from __future__ import annotations

import json
import sys

from IPython.display import display

from course_lib import wording

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
