"""Show the ranks' replies in groups: ranks that print the same, or raise the same, are shown once.

An error shows the student's own lines and no library frames, with the ranks' numbers; the odd one out
stands by itself.
"""

from __future__ import annotations

import json
import os
import sys

from IPython.display import clear_output, display

from course_lib import wording
from course_lib.cluster.source import misplaced_names
from course_lib.sandbox import bubblewrap

BOLD, RED, DIM, PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[2m", "\x1b[0m"
MAX_LIVE_CHARACTERS = 20_000  # characters of what is shown while a cell runs
_SECONDARY = {"DeadlockError"}  # these follow from what another rank did

Replies = list[tuple[int, dict]]

wrong_group = ""  # what the last call did on another group than the one that it was given, see `collectives.wrong_group_hint`


class RanksError(RuntimeError):
    """The ranks' errors, grouped; the message is that of the first group."""

    def __init__(self, groups: list[tuple[list[int], dict]], n: int):
        self.groups, self.n = groups, n
        who, error = groups[0]
        self.short = f"{error['name']}: {error['message']}"
        super().__init__(f"{wording.ranks(who)}: {self.short}")

    def _render_traceback_(self) -> list[str]:
        lines = []
        places: dict[tuple[str, ...], list[tuple[list[int], dict]]] = {}
        for who, error in self.groups:
            places.setdefault((error["name"], *error["lines"]), []).append((who, error))
        for (name, *own), said in places.items():  # ranks that say the same with other numbers share the lines above
            if self.n > 1:
                lines.append(head(sorted(r for who, _ in said for r in who), self.n))
            lines += [f"{DIM}{line}{PLAIN}" if not line.startswith("    ") else line for line in own]
            for who, error in said:
                on = f" on {wording.ranks(who)}" if len(said) > 1 else ""
                lines.append(f"{RED}{name}{PLAIN}{on}: {error['message']}")
        return lines


class Interrupted(KeyboardInterrupt):
    """The user stopped a cell; `replies` are what the ranks answered then, None for a rank that could not."""

    def __init__(self, replies: dict[int, dict | None]):
        self.replies = [(r, reply) for r, reply in replies.items() if reply]
        super().__init__("the cell was stopped")

    def _render_traceback_(self) -> list[str]:
        places: dict[tuple[str, ...], list[int]] = {}
        for r, reply in self.replies:
            error = reply["error"]
            # Where a rank was: the innermost of the student's own lines.
            place = tuple(error["lines"][-2:]) or ("a place outside of your lines",) if error else ()
            places.setdefault(place, []).append(r)
        lines = [f"{RED}KeyboardInterrupt{PLAIN}: {self}."]
        for place, who in places.items():
            was = "was" if len(who) == 1 else "were"
            lines += [f"{wording.ranks(who)} {was} at {place[0]}", *place[1:]] if place else [f"{wording.ranks(who)} had finished"]
        return lines


def head(who: list[int], n: int) -> str:
    """The line above what some of n ranks show."""
    return f"{BOLD}{'all ranks' if len(who) == n > 2 else wording.ranks(who)}{PLAIN}"


def stall_message(waits: dict[int, str]) -> str:
    """Say which ranks stay in a call of bare MPI, in a sentence."""
    places: dict[str, list[int]] = {}
    for rank, place in sorted(waits.items()):
        places.setdefault(place, []).append(rank)
    return "; ".join(f"{wording.ranks(who)} wait{'s' if len(who) == 1 else ''} in {place}" for place, who in places.items())


class LiveOutput:
    """Shows what the ranks print while they run, as it comes; at the end, what is shown in groups takes its place.

    Of much, only the latest stays: a page that grows with a flood stands still.
    """

    def __init__(self, n: int):
        self.n, self.shown = n, 0

    def show(self, printed: list[tuple[int, str]]) -> None:
        """Show what came."""
        if self.shown > MAX_LIVE_CHARACTERS:
            clear_output(wait=True)
            printed = [(rank, text[-MAX_LIVE_CHARACTERS // 8 // self.n :].partition("\n")[2] or text[-80:]) for rank, text in printed]
        for rank, text in printed:
            print(f"{head([rank], self.n)}\n{text}", end="" if text.endswith("\n") else "\n", flush=True)
        self.shown += sum(len(text) for _, text in printed)

    def end(self) -> None:
        """Have it go when the next thing is shown."""
        if self.shown:
            clear_output(wait=True)


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
            print(head(who, n), flush=True)  # or what goes to stderr would come before it
        for output in outputs:
            if "stream" in output:
                stream = sys.stderr if output["stream"] == "stderr" else sys.stdout
                text = output["text"]
                print(text, end="" if text.endswith("\n") else "\n", file=stream, flush=True)
            else:
                display(output["data"], metadata=output["metadata"], raw=True)


def raise_errors(replies: Replies) -> None:
    """Raise what the ranks raised, the errors that others follow from first."""
    global wrong_group
    said = (
        []
        if bubblewrap.ISOLATION_VARIABLE in os.environ
        else [(r, reply["wrong_group"][0]) for r, reply in replies if reply.get("wrong_group")]
    )
    wrong_group = "On rank {}, {}.".format(*said[0]) if said else ""
    groups = group(replies, "error")
    if groups:
        groups.sort(key=lambda g: (bool(_SECONDARY & set(g[1]["kind"])), g[0]))
        for who, error in groups if bubblewrap.ISOLATION_VARIABLE not in os.environ else []:
            if "NameError" in error["kind"]:
                error["message"] += misplaced_names.hint(error["message"], who, len(replies), error.get("near", []))
        if wrong_group:
            groups[0][1]["message"] += f" {wrong_group}"
        raise RanksError(groups, len(replies))
