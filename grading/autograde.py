"""`make autograde PART=...`: grade all submissions in grading/submitted/; an interrupted run resumes."""

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

MAX_SLOWEST_LISTED = 3  # submissions that the summary names
STRICT_VARIABLE = "STRICT"  # 1: exit with an error if a submission was not graded
MAX_FAILURES_LISTED = 50  # ungraded submissions that the summary names


class NoSubmission(Exception):
    """The student has no submission to regrade; the message says so."""


def autograde(
    part: str, home: Path = GRADING, notebooks: Path = NOTEBOOKS, engine: str = "", jobs: str = "", student: str = ""
) -> list[str]:
    """Grade all pending submissions of a part.

    Parameters
    ----------
    part : str
    home, notebooks : Path
        nbgrader's course folder, and the folder of released notebooks.
    student : str
        Regrade this student's submission as if it were new. Manual grades in the gradebook are kept.
    engine, jobs : str
        See `backends.open_backend`.

    Returns
    -------
    list of str
        The students whose grading failed.

    Raises
    ------
    NoSubmission
        The student has submitted nothing.
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
            graded = f"{part}: nothing to grade; {len(todo.done)} hand-ins are already graded."
            print(graded if todo.done else f"{part}: no hand-ins in {home / 'submitted'}/*/{part}/.")
            return []
        if todo.changed:
            print(f"{part}: {describe_changes(todo, source)}: {len(todo.changed)} hand-in{'s' * (len(todo.changed) > 1)} to regrade.")
        isolation = "" if engine else f" {sandbox.isolation_notice()}"  # on a cluster, the workers do this
        print(f"{part}: {len(todo.students)} to grade, {len(todo.done)} graded before.{isolation}")
        with backends.open_backend(engine, jobs, source.metadata.course.get("ranks", 4)) as found:
            print(f"Grading {found.description}.")
            run = GradingRun(part, home, source, settings, book).grade_all(todo.students, found)
        book.update_penalties(part, _times(part, [*todo.done, *run.graded], home))
    print(summary(part, run, home))
    return sorted(run.failed)


def _forget(part: str, student: str, home: Path) -> None:
    """Mark a submission as pending again."""
    if student not in {path.parents[1].name for path in (home / "submitted").glob(f"*/{part}/*")}:
        raise NoSubmission(f"{student} has not handed in {part}: there is no {home / 'submitted' / student / part}/.")
    shutil.rmtree(home / "autograded" / student / part, ignore_errors=True)


def _up_to_date(part: str, path: Path, home: Path) -> None:
    """Bring nbgrader's source and gradebook up to date with `solutions/`."""
    before, source = path.read_text(encoding="utf-8") if path.exists() else None, build.build(part)
    now, settings = nbformat.writes(source, version=4), config.load(home)
    with config.gradebook(settings) as gradebook:
        known = GradebookWriter(gradebook, settings).has_part(part, source)
    if before != now or not known:
        release.register(part, home)
    if before not in (now, None):
        print(f"Note: graded with the current solutions/{part}. To update the students' notebook, too: make release PART={part}")


def _times(part: str, students: list[str], home: Path) -> dict[str, datetime | None]:
    """Return the submission times of these students."""
    found = {}
    for student in students:
        with contextlib.suppress(UnreadableSubmission):  # reported when such a submission is graded
            found[student] = read_timestamp(home / "submitted" / student / part)
    return found


def _extensions(people: roster.Roster | None, part: str, home: Path) -> Extension:
    """Return a function for a student's extension: as the roster grants it, else as granted in nbgrader.

    The roster's extensions are kept in extensions.json, so that they end once the roster no longer grants them.
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
    """Summarize a run for the instructor."""
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
        lines.append(f"    {flagged} with flagged lines to look at. The flagged lines of all parts: {table}")
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # whatever a folder's name contains
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
        sys.exit(f"Writing to the gradebook failed: {one_line(error)}. All grades so far are kept; `make autograde` continues from here.")
    except KeyboardInterrupt:
        sys.exit(f"\nInterrupted. All grades so far are kept; `make autograde PART={part}` continues from here.")
    if failed:
        print("Some hand-ins could not be graded; they will be tried again next time.")
        sys.exit(os.environ.get(STRICT_VARIABLE) == "1")


if __name__ == "__main__":
    main()
