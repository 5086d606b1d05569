"""Show the ranks' replies, grouped: output or an error that several ranks share is shown once.

An error shows the ranks, and the student's own lines without library frames; a rank that differs is
shown separately.
"""

from __future__ import annotations

import json
import os
import sys

from IPython.display import clear_output, display

from course_lib.cluster.source import misplaced_names
from course_lib.sandbox import bubblewrap
from course_lib.utils import wording

BOLD, RED, DIM, PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[2m", "\x1b[0m"
MAX_LIVE_CHARACTERS = 20_000  # of output shown while a cell runs
_SECONDARY = {"DeadlockError"}  # errors that are consequences of what another rank did

Replies = list[tuple[int, dict]]

wrong_group = ""  # the hint from the last call, if it used another group than it was given; see `instrumentation.wrong_group_hint`


class RanksError(RuntimeError):
    """The ranks' errors, grouped; the message is that of the first group."""

    def __init__(self, groups: list[tuple[list[int], dict]], n: int):
        self.groups, self.n = groups, n
        who, error = groups[0]
        self.short = f"{error['name']}: {error['message']}"
        super().__init__(f"{wording.ranks(who)}: {self.short}")

    def _render_traceback_(self) -> list[str]:
        lines = []
        places = wording.grouped(((error["name"], *error["lines"]), (who, error)) for who, error in self.groups)
        for (name, *own), said in places.items():  # errors that differ only in the message share the lines above it
            if self.n > 1:
                lines.append(head(sorted(r for who, _ in said for r in who), self.n))
            lines += [f"{DIM}{line}{PLAIN}" if not line.startswith("    ") else line for line in own]
            for who, error in said:
                on = f" on {wording.ranks(who)}" if len(said) > 1 else ""
                lines.append(f"{RED}{name}{PLAIN}{on}: {error['message']}")
        return [*lines, *getattr(self, "__notes__", [])]


class Interrupted(KeyboardInterrupt):
    """The user has interrupted a cell; `replies`: the ranks' replies, None for a rank that could not reply."""

    def __init__(self, replies: dict[int, dict | None]):
        self.replies = [(r, reply) for r, reply in replies.items() if reply]
        super().__init__("the cell was stopped")

    def _render_traceback_(self) -> list[str]:
        places = wording.grouped((_innermost(reply["error"]), r) for r, reply in self.replies)
        lines = [f"{RED}KeyboardInterrupt{PLAIN}: {self}."]
        for place, who in places.items():
            was = "was" if len(who) == 1 else "were"
            lines += [f"{wording.ranks(who)} {was} at {place[0]}", *place[1:]] if place else [f"{wording.ranks(who)} had finished"]
        return lines


def _innermost(error: dict | None) -> tuple[str, ...]:
    """Return the innermost of the student's own lines that led to an error, with its place; empty if there was none."""
    return tuple(error["lines"][-2:]) or ("a place outside your code",) if error else ()


def head(who: list[int], n: int) -> str:
    """Return the heading above the output of some of n ranks."""
    return f"{BOLD}{'all ranks' if len(who) == n > 2 else wording.ranks(who)}{PLAIN}"


def stall_message(waits: dict[int, str]) -> str:
    """Describe the ranks that have stalled in a plain MPI call; `waits`: by rank, the call and its place."""
    places = wording.grouped((place, rank) for rank, place in sorted(waits.items()))
    return "; ".join(f"{wording.ranks(who)} wait{'s' if len(who) == 1 else ''} in {place}" for place, who in places.items())


class LiveOutput:
    """Shows the ranks' output while they run; at the end, the grouped output replaces it.

    Of a flood of output only the latest is kept, as a page that grows without bound stops responding.
    """

    def __init__(self, n: int):
        self.n, self.shown = n, 0

    def show(self, printed: list[tuple[int, str]]) -> None:
        """Show new output, as (rank, text)."""
        if self.shown > MAX_LIVE_CHARACTERS:
            clear_output(wait=True)
            printed = [(rank, text[-MAX_LIVE_CHARACTERS // 8 // self.n :].partition("\n")[2] or text[-80:]) for rank, text in printed]
        for rank, text in printed:
            print(f"{head([rank], self.n)}\n{text}", end="" if text.endswith("\n") else "\n", flush=True)
        self.shown += sum(len(text) for _, text in printed)

    def end(self) -> None:
        """Have the output replaced by whatever is shown next."""
        if self.shown:
            clear_output(wait=True)


def group(replies: Replies, part: str) -> list[tuple[list[int], object]]:
    """Group ranks whose replies have the same nonempty `part`; groups are ordered by their first rank."""
    groups: dict[str, tuple[list[int], object]] = {}
    for rank, reply in replies:
        if reply[part]:
            groups.setdefault(json.dumps(reply[part], sort_keys=True), ([], reply[part]))[0].append(rank)
    return list(groups.values())


def show_outputs(replies: Replies, n: int) -> None:
    """Show the ranks' printed and displayed output."""
    for who, outputs in group(replies, "outputs"):
        if n > 1:
            print(head(who, n), flush=True)  # flushed, or stderr would appear before it
        for output in outputs:
            if "stream" in output:
                stream = sys.stderr if output["stream"] == "stderr" else sys.stdout
                text = output["text"]
                print(text, end="" if text.endswith("\n") else "\n", file=stream, flush=True)
            else:
                display(output["data"], metadata=output["metadata"], raw=True)


def raise_errors(replies: Replies) -> None:
    """Raise RanksError if any rank raised; errors that caused others come first."""
    global wrong_group
    graded = bubblewrap.ISOLATION_VARIABLE in os.environ
    said = [] if graded else [(r, reply["wrong_group"][0]) for r, reply in replies if reply.get("wrong_group")]
    wrong_group = "On rank {}, {}.".format(*said[0]) if said else ""
    groups = group(replies, "error")
    if groups:
        groups.sort(key=lambda g: (bool(_SECONDARY & set(g[1]["kind"])), g[0]))
        for who, error in [] if graded else groups:
            if "NameError" in error["kind"]:
                error["message"] += misplaced_names.hint(error["message"], who, len(replies), error.get("near", []))
        if wrong_group:
            groups[0][1]["message"] += f" {wrong_group}"
        raise RanksError(groups, len(replies))
