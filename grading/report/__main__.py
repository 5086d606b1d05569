"""`make report PART=...`: write grading/reports/PART/report.html, and the data in it as tables."""

from __future__ import annotations

import sys
from pathlib import Path

from grading.config import GradingConfigError
from grading.paths import GRADING, required_part
from grading.people import roster
from grading.report import class_results, mistakes, page, similarity, tables, variant_messages

REPORT_FILE = "report.html"


class NothingToReport(Exception):
    """There are no results to report; the message says what is missing."""


def report(part: str, home: Path = GRADING) -> Path:
    """Write the page and the tables of a part.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    NothingToReport
        The part has no points, or there are neither hand-ins nor a roster.
    roster.RosterError
        The roster is invalid.
    """
    course = class_results.read(part, home)
    if not course.tests:
        raise NothingToReport(f"{part} has nothing to grade, so there is nothing to report.")
    if not course.handed_in and not course.missing:
        raise NothingToReport(f"{part}: no hand-ins in {home / 'submitted'}/*/{part}/, and no roster.csv to say who is missing.")
    found = mistakes.find_mistakes(course)
    names, without = variant_messages.name_mistakes(part, home) if found else ({}, "")
    given = similarity.given_shingles(course)
    likeness = similarity.find_similar(course, given)
    folder = home / "reports" / part
    folder.mkdir(parents=True, exist_ok=True)
    tables.points(course, folder / "points.csv")
    tables.mistakes(found, names, folder / "mistakes.csv")
    tables.similar_pairs(likeness, folder / "alike.csv")
    (folder / REPORT_FILE).write_text(page.html(course, found, names, without, likeness, given), encoding="utf-8")
    return folder / REPORT_FILE


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # whatever a student's name contains
    part = required_part(sys.argv[1:], "make report PART=01_data_split")
    try:
        path = report(part)
    except (NothingToReport, roster.RosterError, GradingConfigError) as problem:
        sys.exit(str(problem))
    except KeyboardInterrupt:
        sys.exit("\nInterrupted; nothing was written.")
    print(f"{path}, and beside it points.csv, mistakes.csv and alike.csv. They name students: keep them to yourself.")


if __name__ == "__main__":
    main()
