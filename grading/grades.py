"""`make grades`: the points of all students in grading/grades.csv, and in files that Canvas, Moodle and Brightspace import.

    grades.csv                a line for each student, also for those who handed nothing in, with the maxima and what is not graded yet
    grades-canvas.csv         Grades, Import: matched by ID, else by SIS User ID or SIS Login ID, else by name
    grades-moodle.csv         Grades, Import, CSV file: map "Email address", "ID number" or "Username", and each part to its grade item
    grades-brightspace.csv    Grades, Enter Grades, Import: matched by OrgDefinedId or Username

The roster's columns identify students: `canvas` is Canvas's ID (else it is taken from what was collected), `number` the student's number
(SIS User ID, ID number, OrgDefinedId), `login` the login name (SIS Login ID, Username).
"""

from __future__ import annotations

import sys
from pathlib import Path

from grading import tables
from grading.collecting import platforms, records
from grading.config import GradingConfigError
from grading.formatting import printable
from grading.paths import GRADING, NOTEBOOKS
from grading.paths import parts as all_parts
from grading.people import roster
from grading.results import course_grades, ungraded
from grading.results.course_grades import CourseGrades, PartGrade

EXCUSED = "EX"  # in Canvas, for a part that does not count at all
POSSIBLE = "Points Possible"  # Canvas recognizes the line of maxima by these words, even inside a name


def grades(home: Path = GRADING, notebooks: Path = NOTEBOOKS) -> tuple[CourseGrades, list[str]]:
    """Write grades.csv and the files for platforms; nothing if no part is released.

    Returns
    -------
    course_grades.CourseGrades, list of str
        The grades, and notes for the instructor.

    Raises
    ------
    roster.RosterError
        The roster cannot be used.
    """
    course = course_grades.read(home, notebooks)
    if not course.tests:
        return course, []
    found = {student: {part: course.mark(student, part) for part in course.tests} for student in course.students}
    tables.write(home / "grades.csv", table(course, found), for_spreadsheets=True)
    begun = [part for part in course.tests if any(mark[part].points is not None for mark in found.values())]
    numbers = {student: course.row(student).get("canvas", "").strip() or _collected(home, student) for student in found}
    tables.write(home / "grades-canvas.csv", canvas(course, found, begun, numbers))
    tables.write(home / "grades-moodle.csv", moodle(course, found, begun))
    tables.write(home / "grades-brightspace.csv", brightspace(course, found, begun))
    return course, notes(course, found, numbers)


def table(course: CourseGrades, found: dict[str, dict[str, PartGrade]]) -> list[list[object]]:
    """Build a line for each student, with all that is known."""
    head = ["id", "name", "email"]
    for part in course.tests:
        head += [f"{part} points", f"{part} maximum", f"{part} late penalty", f"{part} not graded"]
    lines: list[list[object]] = [[*head, "total", "total maximum"]]
    for student, of in found.items():
        row = course.row(student)
        line: list[object] = [student, row.get("name", "").strip(), row.get("email", "").strip()]
        for mark in of.values():
            line += ["" if mark.points is None else mark.points, mark.maximum, mark.penalty, mark.missing]
        lines.append([*line, float(sum(mark.points or 0 for mark in of.values())), float(sum(mark.maximum for mark in of.values()))])
    return lines


def canvas(course: CourseGrades, found: dict[str, dict[str, PartGrade]], parts: list[str], numbers: dict[str, str]) -> list[list[object]]:
    """Build the columns of Canvas's gradebook. Canvas ignores the name if there is a number or a login."""
    lines: list[list[object]] = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *parts]]
    lines.append([f"    {POSSIBLE}", "", "", "", "", *(_possible(course, part) for part in parts)])
    for student, of in found.items():
        row = course.row(student)
        name = row.get("name", "").strip()
        name = student if not name or POSSIBLE in name else name
        who = [name, numbers[student], row.get("number", "").strip(), row.get("login", "").strip(), ""]
        lines.append([*who, *(_scaled(course, part, of[part], EXCUSED) for part in parts)])
    return lines


def moodle(course: CourseGrades, found: dict[str, dict[str, PartGrade]], parts: list[str]) -> list[list[object]]:
    """Build columns that Moodle's CSV import can map."""
    lines: list[list[object]] = [["Email address", "ID number", "Username", *parts]]
    for student, of in found.items():
        row = course.row(student)
        who = [row.get(column, "").strip() for column in ("email", "number", "login")]
        lines.append([*who, *(_scaled(course, part, of[part]) for part in parts)])
    return lines


def brightspace(course: CourseGrades, found: dict[str, dict[str, PartGrade]], parts: list[str]) -> list[list[object]]:
    """Build the columns of Brightspace's import; each line ends with the mark that it requires."""
    lines: list[list[object]] = [["OrgDefinedId", "Username", *(f"{part} Points Grade" for part in parts), "End-of-Line Indicator"]]
    for student, of in found.items():
        row = course.row(student)
        lines.append(
            [row.get("number", "").strip(), row.get("login", "").strip(), *(_scaled(course, part, of[part]) for part in parts), "#"]
        )
    return lines


def _possible(course: CourseGrades, part: str) -> float:
    """Return a part's maximum on a platform, the same for all students: without the tests that count for nobody."""
    return float(course.maximum(part, course.dropped("", part)))


def _scaled(course: CourseGrades, part: str, mark: PartGrade, excused: str = "") -> object:
    """Scale points to the platform's maximum: a student with dropped tests gets the same share of it."""
    if not mark.maximum:
        return excused
    return "" if mark.points is None or mark.old else mark.points * _possible(course, part) / mark.maximum


def _collected(home: Path, student: str) -> str:
    """Return a student's Canvas user number, from the name of a collected file."""
    found = [records.read(home, student, part) for part in all_parts()]
    return next((str(r["key"]) for r in found if r.get("platform") == "canvas" and str(r.get("key")).isdecimal()), "")


def _who_now(course: CourseGrades, student: str) -> str:
    """Describe a student who is not in the roster, with their id there if the submission reveals it."""
    for part in course.tests:
        record = records.read(course.home, student, part)
        named = platforms.parse_name(record.get("name") or "")
        found = course.people.find(named.student, named.platform, named.key, named.number) if named else []
        if len(found) == 1:
            rule = "ids must not change after hand-ins have been collected; change it back"
            return f"{student} (whom roster.csv calls {found[0]} now: {rule})"
    return student


def notes(course: CourseGrades, found: dict[str, dict[str, PartGrade]], numbers: dict[str, str]) -> list[str]:
    """Return notes on the files for the instructor."""
    rows = {student: course.row(student) for student in found}
    strangers = [student for student in found if course.people and student not in course.people.rows]
    said = {
        "not in roster.csv, but with points": [_who_now(course, student) for student in strangers],
        "not fully graded (see the columns 'not graded')": [
            student
            for student, of in found.items()
            if any(m.missing not in ("", ungraded.NOTHING_SUBMITTED) and not m.by_hand for m in of.values())
        ],
        "points still to be given by hand (see the columns 'not graded')": [
            student for student, of in found.items() if any(mark.by_hand for mark in of.values())
        ],
        "Canvas can match them by name only; the roster's columns 'canvas', 'number' or 'login' can identify them": [
            student
            for student, row in rows.items()
            if not (numbers[student] or row.get("number", "").strip() or row.get("login", "").strip())
        ],
        "Moodle cannot match them; the roster's columns 'email', 'number' or 'login' can identify them": [
            student for student, row in rows.items() if not any(row.get(column, "").strip() for column in ("email", "number", "login"))
        ],
        "Brightspace cannot match them; the roster's columns 'number' or 'login' can identify them": [
            student for student, row in rows.items() if not any(row.get(column, "").strip() for column in ("number", "login"))
        ],
        "starts like a formula, so a quotation mark was put in front; a platform that matches students by it needs it without the mark": [
            f"{student}'s {column}"
            for student, row in rows.items()
            for column in ("email", "number", "login")
            if tables.is_formula(row.get(column, ""))
        ],
    }
    return [f"{what}: {_some(who)}" for what, who in said.items() if who]


def _some(names: list[str], most: int = 10) -> str:
    return printable(", ".join(names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # whatever a student's name contains
    try:
        course, said = grades(GRADING)
    except (roster.RosterError, GradingConfigError) as error:
        sys.exit(str(error))
    if not course.tests:
        sys.exit("Nothing is released yet, so there are no grades. First: make release, make collect, make autograde.")
    graded = len({student for (student, part), found in course.submissions.items() if found.points and part in course.tests})
    parts = f"{len(course.tests)} part{'s' * (len(course.tests) != 1)}"
    print(f"{len(course.students)} students, {graded} of them with points, {parts}: grading/grades.csv")
    print("To import: grading/grades-canvas.csv, grading/grades-moodle.csv, grading/grades-brightspace.csv")
    for line in said:
        print(line)


if __name__ == "__main__":
    main()
