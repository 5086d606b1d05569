"""`make autograde PART=...`: grade all that lies in grading/submitted/, and resume if interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import warnings
from datetime import datetime, timedelta
from pathlib import Path

import nbformat
from sqlalchemy.exc import SQLAlchemyError

from grading import config, release
from grading.authoring import build
from grading.formatting import one_line, printable
from grading.paths import GRADING, NOTEBOOKS, parts, required_part
from grading.people import allowances, roster
from grading.running import backends
from grading.running.gradebook_writer import Extension, GradebookWriter
from grading.running.grading_run import GradingOutcome, GradingRun, read_timestamp
from grading.running.pending import describe_changes, find_pending
from grading.submission import flags, sandbox
from grading.submission.assembly import UnreadableSubmission

MAX_SLOWEST_LISTED = 3  # hand-ins that the summary names
STRICT_VARIABLE = "STRICT"  # 1: end with an error where a hand-in was not graded
MAX_FAILURES_LISTED = 50  # that it names of those that were not graded


class NoSubmission(Exception):
    """A student has handed in nothing that could be graded anew; the message says so."""


def autograde(
    part: str, home: Path = GRADING, notebooks: Path = NOTEBOOKS, engine: str = "", jobs: str = "", student: str = ""
) -> list[str]:
    """Grade every hand-in of a part that waits.

    Parameters
    ----------
    part : str
    home, notebooks : Path
        nbgrader's folder, and that of the release.
    student : str
        Whose hand-in is graded anew, as if it had come just now. What a person wrote in the gradebook stays.
    engine, jobs : str
        See `backends.open_backend`.

    Returns
    -------
    list of str
        The students for whom it failed.

    Raises
    ------
    NoSubmission
        The student has handed in nothing.
    """
    warnings.filterwarnings("ignore", module="nbgrader")
    home.mkdir(parents=True, exist_ok=True)
    with config.gradebook_lock(home):
        if student:
            _forget(part, student, home)
        return _autograde(part, home, notebooks, engine, jobs)


def _autograde(part: str, home: Path, notebooks: Path, engine: str, jobs: str) -> list[str]:
    path = home / "source" / part / f"{part}.ipynb"
    settings = config.load(home, notebooks)
    if part in parts() or not path.exists():
        _up_to_date(part, path, home)
    source = nbformat.read(path, as_version=4)
    todo = find_pending(part, source, home)
    people = roster.read(home / "roster.csv")
    with config.gradebook(settings) as gradebook:
        book = GradebookWriter(gradebook, settings, _extensions(people, part, home))
        if not todo.students:
            book.update_penalties(part, _times(part, todo.done, home))
            graded = f"{part}: nothing to grade; {len(todo.done)} hand-ins are graded."
            print(graded if todo.done else f"{part}: no hand-ins in {home / 'submitted'}/*/{part}/.")
            return []
        if todo.changed:
            print(f"{part}: {describe_changes(todo, source)}: {len(todo.changed)} hand-in{'s' * (len(todo.changed) > 1)} to regrade.")
        isolation = "" if engine else f" {sandbox.isolation_notice()}"  # elsewhere, the workers see to that
        print(f"{part}: {len(todo.students)} to grade, {len(todo.done)} graded before.{isolation}")
        with backends.open_backend(engine, jobs, source.metadata.course.get("ranks", 4)) as found:
            print(f"Grading {found.description}.")
            run = GradingRun(part, home, source, settings, book).grade_all(todo.students, found)
        book.update_penalties(part, _times(part, [*todo.done, *run.graded], home))
    print(summary(part, run, home))
    return sorted(run.failed)


def _forget(part: str, student: str, home: Path) -> None:
    """Have a hand-in wait again."""
    if student not in {path.parents[1].name for path in (home / "submitted").glob(f"*/{part}/*")}:
        raise NoSubmission(f"{student} has handed in nothing of {part}: there is no {home / 'submitted' / student / part}/.")
    shutil.rmtree(home / "autograded" / student / part, ignore_errors=True)


def _up_to_date(part: str, path: Path, home: Path) -> None:
    """Have the source as `solutions/` has it, in the gradebook, too."""
    before, source = path.read_text(encoding="utf-8") if path.exists() else None, build.build(part)
    now, settings = nbformat.writes(source, version=4), config.load(home)
    with config.gradebook(settings) as gradebook:
        known = GradebookWriter(gradebook, settings).has_part(part, source)
    if before != now or not known:
        release.register(part, home)
    if before not in (now, None):
        print(f"Note: graded by solutions/{part} as it is now. If students should have its text, too: make release PART={part}")


def _times(part: str, students: list[str], home: Path) -> dict[str, datetime | None]:
    """When the hand-ins of these students came."""
    found = {}
    for student in students:
        with contextlib.suppress(UnreadableSubmission):  # it is said when such a one is graded
            found[student] = read_timestamp(home / "submitted" / student / part)
    return found


def _extensions(people: roster.Roster | None, part: str, home: Path) -> Extension:
    """By how much later a student's hand-in is due: as the roster says; else as somebody has granted it in nbgrader.

    What the roster said is kept in extensions.json: so it ends where the roster does not say it any more.
    """
    path = home / "extensions.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    said = {student: allowances.extension(row, part) for student, row in people.rows.items()} if people else {}
    before, seconds = known.get(part, {}), {student: more.total_seconds() for student, more in said.items() if more}
    if before != seconds:
        build.write_atomically(json.dumps(known | {part: seconds}, indent=1), path)

    def extension(student: str, now: timedelta | None) -> timedelta | None:
        if more := said.get(student) or (people and allowances.extension(people.row(student), part)):
            return more
        return None if now and now.total_seconds() == before.get(student) else now

    return extension


def summary(part: str, run: GradingOutcome, home: Path) -> str:
    """What a run came to, for a person."""
    graded, failed = run.graded, run.failed
    rate = f", {60 * len(graded) / run.seconds:.0f} a minute" if graded else ""
    lines = [f"{part}: {len(graded)} graded in {_duration(run.seconds)}{rate}; {len(failed)} not graded."]
    shown = sorted(failed.items())
    lines += [printable(f"    not graded: {student}: {why}") for student, why in shown[:MAX_FAILURES_LISTED]]
    lines += [f"    and {len(shown) - MAX_FAILURES_LISTED} more" for _ in shown[MAX_FAILURES_LISTED : MAX_FAILURES_LISTED + 1]]
    slowest = sorted(graded, key=lambda student: graded[student].seconds, reverse=True)[:MAX_SLOWEST_LISTED]
    if len(graded) > MAX_SLOWEST_LISTED:
        lines.append("    slowest: " + ", ".join(f"{student} {graded[student].seconds:.1f} s" for student in slowest))
    flagged = sum(found.flags > 0 for found in graded.values())
    if table := flags.write_table(home):
        lines.append(f"    {flagged} with lines that a person may want to look at. Those of all parts: {table}")
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # whatever a folder is called
    part = required_part(sys.argv[1:2], "make autograde PART=01_data_split")
    try:
        of = {name.lower(): os.environ.get(name, "") for name in ("ENGINE", "JOBS")}
        failed = autograde(part, **of, student="".join(sys.argv[2:3]))
    except (
        NoSubmission,
        sandbox.NoSandbox,
        backends.BackendError,
        config.GradingConfigError,
        roster.RosterError,
        build.SourceError,
    ) as problem:
        sys.exit(str(problem))
    except SQLAlchemyError as error:
        sys.exit(f"The gradebook does not take what it is told: {one_line(error)}. Every grade so far is kept; `make autograde` goes on.")
    except KeyboardInterrupt:
        sys.exit(f"\nInterrupted. Every grade so far is kept; `make autograde PART={part}` goes on from here.")
    if failed:
        print("Not all could be graded; those are tried again next time.")
        sys.exit(os.environ.get(STRICT_VARIABLE) == "1")


if __name__ == "__main__":
    main()
