"""`make feedback PART=...`: write HTML pages without hidden test sources or expected values, and zips of them for platforms."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import shutil
import signal
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil

from grading.authoring import build
from grading.config import GradingConfigError, last_log_error, load
from grading.formatting import printable
from grading.paths import GRADING, NOTEBOOKS, required_part
from grading.people import ids, roster
from grading.results import course_grades, packing, ungraded
from grading.results.course_grades import CourseGrades
from grading.running import limited_process, pending

PAGE_DEADLINE_SECONDS, PAGE_MEMORY_BYTES = 60, 2 << 30  # seconds and bytes for one student's page
MAX_PARALLEL_PAGES = 8


def feedback(part: str, home: Path = GRADING, notebooks: Path = NOTEBOOKS) -> dict[str, str]:
    """Write feedback/STUDENT/PART/PART.html for all graded submissions.

    Returns
    -------
    dict of str to str
        Students whose page could not be written, and why.

    Raises
    ------
    grading.people.roster.RosterError
        The roster is invalid.
    """
    from tqdm import tqdm

    course = course_grades.read(home, notebooks)
    students = graded_students(part, home)
    jobs = [(part, home, notebooks, student, _page_context(course, part, student)) for student in students]
    importlib.import_module("grading.results.pages")  # once, not in each process
    forks = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(
        min(MAX_PARALLEL_PAGES, len(psutil.Process().cpu_affinity()) if sys.platform == "linux" else 2), forks, _no_interrupt
    )
    try:
        problems = list(tqdm(pool.map(_render_in_own_process, jobs), total=len(jobs), unit="page", disable=None))
    finally:
        pool.shutdown(cancel_futures=True)
    return {student: problem for student, problem in zip(students, problems, strict=True) if problem}


def graded_students(part: str, home: Path) -> list[str]:
    """Return the students whose current submission of a part is graded."""
    students = sorted(path.parents[1].name for path in (home / "autograded").glob(f"*/{part}/{part}.ipynb"))
    now = pending.current_key(part, home)
    return [student for student in students if pending.submission_state(part, student, home, now) in (pending.DONE, pending.GONE)]


def ungradable(part: str, course: CourseGrades) -> dict[str, str]:
    """Return the students who must be told why nothing of theirs was graded, and the reason."""
    done = set(graded_students(part, course.home))
    without = [s for s in course.students if s not in done and not getattr(course.submissions.get((s, part)), "points", None)]
    found = {student: ungraded.reason_for_student(part, student, course.home) for student in without}
    return {student: why for student, why in found.items() if why and not ids.folder_problem(student)}


def write_reasons(part: str, course: CourseGrades) -> list[str]:
    """Write feedback/STUDENT/PART/PART.html with the reason, for students of whom nothing could be graded; return them."""
    from grading.results import pages

    found = ungradable(part, course)
    for student, why in found.items():
        page = pages.without_points(part, course.row(student).get("name", "").strip() or student, why)
        build.write_atomically(page, course.home / "feedback" / student / part / f"{part}.html")
    return list(found)


def _page_context(course: CourseGrades, part: str, student: str) -> dict:
    """Return what a page shows beyond nbgrader's data."""
    told = dict(part=part, name=course.row(student).get("name", "").strip() or student)
    found = course.submissions.get((student, part))
    if found and found.points and part in course.tests:
        mark = course.mark(student, part)
        told |= dict(points=mark.points, maximum=mark.maximum, penalty=mark.penalty, tests=list(course.tests[part]))
        told |= dict(dropped=course.dropped(student, part), by_hand=set(found.by_hand), extra=found.extra)
    return told


def _no_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command handles it, and ends this process


def _render_in_own_process(job: tuple) -> str | None:
    return limited_process.run_or_explain(_page, job, PAGE_DEADLINE_SECONDS, PAGE_MEMORY_BYTES)


def _page(part: str, home: Path, notebooks: Path, student: str, told: dict) -> str | None:
    from nbgrader.coursedir import CourseDirectory

    from grading.results import pages

    if why := ids.folder_problem(student):
        return why
    config = pages.configured(load(home, notebooks))
    config.CourseDirectory.assignment_id = part
    config.GenerateFeedback.force = True
    with tempfile.TemporaryDirectory(prefix="course-grade-") as folder:  # of one student: nbgrader takes a name for a pattern
        shutil.copytree(home / "autograded" / student / part, Path(folder) / student / part)
        config.CourseDirectory.autograded_directory = folder
        logging.getLogger("traitlets").addHandler(logging.FileHandler(Path(folder) / ".nbgrader.log", delay=True))  # of this page only
        page = pages.FeedbackConverter(coursedir=CourseDirectory(config=config), config=config)
        page.context = pages.PageContext(**told)
        try:
            page.start()
        except (Exception, SystemExit):
            return last_log_error(Path(folder))
    return None


def students_without_page(course: CourseGrades, part: str, problems: dict[str, str]) -> dict[str, str]:
    """Return the students without a page, and why."""
    done, why = set(graded_students(part, course.home)), dict(problems)
    for student in course.students:
        if student not in done:
            said = ungraded.missing_grade_reason(part, student, course.home)
            why[student] = f"{said}; make autograde PART={part} says why" if said == ungraded.NOT_GRADED_YET else said
    return why


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # whatever a student's name contains
    part = required_part(sys.argv[1:], "make feedback PART=01_data_split")
    try:
        course = course_grades.read(GRADING)
        if not graded_students(part, GRADING) and not ungradable(part, course):
            sys.exit(f"{part}: nothing is graded yet. First: make autograde PART={part}.")
        problems = feedback(part, GRADING)
        told = write_reasons(part, course)
    except (roster.RosterError, GradingConfigError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. The pages written so far are kept; no zips were packed.")
    written = [student for student in graded_students(part, GRADING) if student not in problems]
    print(f"{_pages(len(written))} in grading/feedback/*/{part}/")
    if told:
        print(f"{_pages(len(told))} there to say why nothing was graded")
    packed = packing.pack(part, GRADING, [*written, *told])
    for archive, number in packed.archives.items():
        print(f"{_pages(number)} packed in grading/feedback/{archive}")
    if not packed.archives:
        print("No zips for platforms: none of these hand-ins came from a platform.")
    without_page = {student: why for student, why in students_without_page(course, part, problems).items() if student not in told}
    for title, why in (("without a page", without_page), ("in no zip", packed.left if packed.archives else {})):
        if why:
            print(f"{title}: {len(why)}", *(printable(f"    {student}: {said}") for student, said in sorted(why.items())), sep="\n")
    if problems:
        sys.exit(f"{_pages(len(problems))} could not be written; the log is grading/.nbgrader.log.")


def _pages(number: int) -> str:
    return f"{number} page{'s' * (number != 1)}"


if __name__ == "__main__":
    main()
