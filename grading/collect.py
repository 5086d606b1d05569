"""`make collect PART=... FROM=folder`: sort downloaded submissions into grading/submitted/.

A file belongs to the student whom the platform names (see `platforms`), else to the one whose folder it is in, else to the one with whom
its name begins: ada/01_data_split.ipynb, ada_01_data_split.ipynb, also inside a zip. Each student's newest submission counts. With
`grading/roster.csv`, missing students are listed, too.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from grading.collecting import platforms, records
from grading.collecting.choosing import ambiguous_submissions, choose, disambiguation_hint
from grading.collecting.collected import CollectResult, format_table
from grading.collecting.contents import inspect_notebook, is_notebook, mismatch_reason
from grading.collecting.owners import CandidateSubmission, attribute_files
from grading.collecting.submitted import NotStored, Submitted, make_record
from grading.collecting.unpack import HIDDEN, Download, DownloadedFile, unpack
from grading.config import GradingConfigError
from grading.formatting import is_utf8, printable
from grading.paths import GRADING, required_part
from grading.people import allowances, ids, roster
from grading.people.roster import Roster


def collect(part: str, folder: Path, home: Path = GRADING) -> CollectResult:
    """Copy each student's newest submission to submitted/STUDENT/PART/, with a timestamp.txt if the time is known.

    Raises
    ------
    roster.RosterError
        The roster is invalid.
    """
    people, last = roster.read(home / "roster.csv"), due_date(part, home)
    done = CollectResult(due=last)
    with tempfile.TemporaryDirectory(prefix="course-collect-") as work:
        found = unpack(folder, Path(work))
        done.refused += found.refused
        keep_index(part, found.files, home)
        students = sort_by_student(part, found, people, done)
        used = {_upload_folder(hand_in.file) for hand_ins in students.values() for hand_in in hand_ins}
        done.refused += [(str(file), "hidden, like files left by editors") for file in found.hidden if _upload_folder(file) not in used]
        owners: dict[str, set[str]] = {}
        for student, hand_ins in students.items():
            for hand_in in hand_ins:
                owners.setdefault(hand_in.file.container, set()).add(student)
        classes = {container for container, names in owners.items() if len(names) > 1}
        there = Submitted(home, part, people)
        for student, hand_ins in sorted(students.items()):
            choice = choose(student, hand_ins, classes)
            done.refused += choice.refused
            if not choice.newest:
                done.refuse(student, hand_ins[-1], choice.refused[-1][1])
            done.replaced += [(student, str(choice.newest.file), str(older.file)) for older in choice.older]
            if newest := choice.newest:
                more = allowances.extension(people.row(student), part) if people else timedelta()
                try:
                    replaced = there.put(newest, student, submission_time(newest, last))
                except NotStored as why:
                    done.refused.append((str(newest.file), str(why)))
                    done.refuse(student, newest, str(why))
                    continue
                done.replaced += [(student, str(newest.file), replaced)] if replaced else []
                done.matched[student] = newest
                if is_late(newest, last, more):
                    done.late.append(student)
                    done.granted |= {student: more} if more and newest.late else {}
    keep_refused(part, done, home)
    if people:
        done.missing = [student for student in people.rows if not (home / "submitted" / student / part / f"{part}.ipynb").exists()]
    return done


def keep_refused(part: str, done: CollectResult, home: Path) -> None:
    """Record why nothing of a student counts, for grades, report and feedback, and where it came from, for the feedback zips."""
    for student in {**done.matched, **done.without}:
        with contextlib.suppress(OSError):  # such as a full disk: the table says it all anyway
            if student in done.matched:
                records.refuse(home, student, part, "")
                continue
            for_student = student not in done.private
            records.refuse(home, student, part, done.reason(student), for_student=for_student)
            if for_student and not (home / "submitted" / student / part).exists():
                records.write(home, student, part, make_record(done.for_students[student]))


def _upload_folder(file: DownloadedFile) -> tuple[str, ...]:
    """Return the folder of an upload: as a platform names it, else the file's folder."""
    folders = tuple(itertools.takewhile(lambda name: not HIDDEN.fullmatch(name), file.path_parts[:-1]))
    level = next((i for i, name in enumerate(file.path_parts) if platforms.parse_name(name)), None)
    if level is None:
        return folders
    said = platforms.parse_name(file.path_parts[level])
    return (*file.path_parts[:level], said.student, said.number)


def keep_index(part: str, files: list[DownloadedFile], home: Path) -> None:
    """Keep Brightspace's table of a download, found beside the students' folders: it goes back with the feedback."""
    for file in files:
        *folders, name = file.inside
        if name == "index.html" and file.path != Path(os.devnull):
            beside = {f.inside[len(folders)] for f in files if f.container == file.container and [*f.inside[: len(folders)]] == folders}
            if any(said.platform == "brightspace" for other in beside if (said := platforms.parse_name(other))):
                (home / "submitted").mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.path, home / "submitted" / f"{part}-index.html")


def sort_by_student(part: str, found_files: Download, people: Roster | None, done: CollectResult) -> dict[str, list[CandidateSubmission]]:
    """Sort submissions by student; files without an owner go to `done.refused`."""
    hand_ins, whole = [], {}
    others = [(DownloadedFile("", tuple(name.split("/")), Path(os.devnull), None), why) for name, why in found_files.refused]
    for file in found_files.files:
        content = inspect_notebook(file.path) if is_notebook(file) else None
        why = mismatch_reason(part, file, content)
        if why:
            done.refused.append((str(file), why))
            others.append((file, why))
        else:
            hand_ins.append(file)
            whole[file.path] = content.is_readable
    found: dict[str, list[CandidateSubmission]] = {}
    for file, owner in zip(hand_ins, attribute_files(part, hand_ins, people), strict=True):
        student, why = resolve_student(owner, people) if isinstance(owner, CandidateSubmission) else ("", owner)
        if why:
            done.refused.append((str(file), why))
        else:
            owner.is_readable = whole[file.path]
            found.setdefault(student, []).append(owner)
    for student, hand_in, why in ambiguous_submissions(found, people):
        if hand_in in found[student]:
            done.refused.append((str(hand_in.file), why))
            found[student].remove(hand_in)
            done.refuse(student, hand_in, why)
    owners = attribute_files(part, [*hand_ins, *(file for file, _ in others)], people)[len(hand_ins) :] if others else []
    for (_, why), owner in zip(others, owners, strict=True):
        if isinstance(owner, CandidateSubmission) and (people or owner.platform) and not (of := resolve_student(owner, people))[1]:
            done.refuse(of[0], owner, why, for_student=True)
    return {student: hand_ins for student, hand_ins in found.items() if hand_ins}


def resolve_student(hand_in: CandidateSubmission, people: Roster | None) -> tuple[str, str | None]:
    """Return the student's id, or why there is none."""
    said = hand_in.platform
    if not is_utf8(hand_in.student):
        return "", "its name is not valid UTF-8; rename it"
    if people is None:
        return hand_in.student, ids.id_problem(hand_in.student)
    found = people.find(hand_in.student, *((said.platform, said.key, said.number) if said else ()))
    others = {people.rows[student].get("canvas", "").strip() for student in found} - {""} if said and said.platform == "canvas" else set()
    if others and said.key not in others:
        return "", f"user {said.key} has the same name as {found[0]}, who is user {', '.join(sorted(others))} in roster.csv"
    if not found and said and said.platform == "moodle" and (group := _behind_a_group(hand_in.student, people)):
        why = f"without a group's name, {hand_in.student!r} may be {' or '.join(group)}; if so, rename the folder or file to the id"
        return "", f"nobody in roster.csv has that name; {why}"
    if len(found) == 1:
        return found[0], None
    who = f"{hand_in.student!r} may be {' or '.join(found)}" if found else f"nobody in roster.csv is called {hand_in.student!r}"
    column = f"its column {said.platform!r} can say who {said.key!r} is" if said else "its column 'id' has the names of folders"
    if len(found) > 1 and said and said.platform != "canvas":
        column = disambiguation_hint(said.platform, said.key, said.number)
    return "", f"{who}; {column}"


def _behind_a_group(name: str, people: Roster) -> list[str]:
    """Return whom a name may mean if Moodle has put a group's name before it; it looks the same as a double name."""
    words = name.split("-")
    rests = [rest for i in range(1, len(words)) if len((rest := "-".join(words[i:]).strip()).split()) > 1]
    return sorted({found for rest in rests for found in people.find(rest)})


def submission_time(hand_in: CandidateSubmission, last: datetime | None) -> datetime | None:
    """Return when a submission arrived, in UTC, as far as known.

    In a Canvas zip, files have the time of the download. So a submission that Canvas does not call late gets no time and loses no points,
    and one that it calls late gets a time one second after the due date.
    """
    if hand_in.platform and hand_in.platform.platform == "canvas":
        return last + timedelta(seconds=1) if hand_in.late and last else None
    return hand_in.time.astimezone(UTC) if hand_in.time else None


def is_late(hand_in: CandidateSubmission, last: datetime | None, more: timedelta) -> bool:
    """Return whether a submission arrived after the due date and the extension that the roster grants."""
    time = submission_time(hand_in, last)
    if hand_in.late:  # certainly in time only if downloaded before this student's deadline
        return not (more and last and hand_in.time and hand_in.time.astimezone(UTC) <= last + more)
    return bool(last and time and time > last + more)


def due_date(part: str, home: Path) -> datetime | None:
    """Return the part's due date, if nbgrader's gradebook has one."""
    from nbgrader.api import MissingEntry

    from grading import config

    settings = config.load(home)
    if not config.gradebook_exists(settings):
        return None
    with config.gradebook(settings) as gradebook:
        try:
            date = gradebook.find_assignment(part).duedate
        except MissingEntry:
            return None
    return date.replace(tzinfo=UTC) if date else None


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # whatever a file's name contains
    usage = "make collect PART=01_data_split FROM=~/Downloads/part01"
    part = required_part(sys.argv[1:], usage)
    folder = Path(sys.argv[2]).expanduser() if len(sys.argv) > 2 and sys.argv[2] else None
    if folder is None or not folder.exists():
        which = "Which folder?" if folder is None else f"There is no {printable(str(folder))}."
        sys.exit(f"{which} {usage}. It should contain a platform's download, or files such as ada_{part}.ipynb or ada/{part}.ipynb.")
    try:
        done = collect(part, folder)
    except (roster.RosterError, GradingConfigError) as error:
        sys.exit(str(error))
    if text := format_table(done):
        print(text)
    if not done.matched:
        sys.exit(f"No hand-ins of {part} were found there. Expected files such as ada_{part}.ipynb or ada/{part}.ipynb, or a zip of them.")


if __name__ == "__main__":
    main()
