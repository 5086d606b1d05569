"""`make collect PART=... FROM=folder`: sort downloaded hand-ins into grading/submitted/.

A file belongs to the student whom the platform names (see `platforms`), or whose folder it lies in, or whose name it begins with:
ada/01_data_split.ipynb, ada_01_data_split.ipynb, also within a zip. The newest of a student counts. With `grading/roster.csv`, it is
said who is missing, too.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import unicodedata
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from grading.collecting import platforms, records
from grading.collecting.owners import HandIn, is_of, whose, without_number
from grading.collecting.unpack import File, unpack
from grading.config import ConfigError
from grading.paths import GRADING, one
from grading.people import allowances, roster
from grading.people.roster import Roster
from grading.plain import printable

MOST_LINES = 2000  # of a group, in the table


@dataclass
class Collected:
    """What became of each file.

    Attributes
    ----------
    matched : dict of str to HandIn
        By student.
    refused : list of (str, str)
        A file, and why it is nobody's.
    replaced : list of (str, str, str)
        A student, the file that counts, and an older one.
    late : list of str
        Whose hand-in came after the part was due for them, or is called late by the platform.
    granted : dict of str to timedelta
        How much later those may hand in whom the platform calls late, and of whom nobody knows when it came.
    missing : list of str
        Who is in the roster and has nothing in submitted/.
    """

    matched: dict[str, HandIn] = field(default_factory=dict)
    refused: list[tuple[str, str]] = field(default_factory=list)
    replaced: list[tuple[str, str, str]] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    granted: dict[str, timedelta] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def collect(part: str, folder: Path, home: Path = GRADING) -> Collected:
    """Copy the newest hand-in of each student to submitted/STUDENT/PART/, with a timestamp.txt where the time is known.

    Raises
    ------
    roster.RosterError
        The roster cannot be used.
    """
    people, done, last = roster.read(home / "roster.csv"), Collected(), due(part, home)
    with tempfile.TemporaryDirectory(prefix="course-collect-") as work:
        found = unpack(folder, Path(work))
        done.refused += found.refused
        keep_index(part, found.files, home)
        students = sort(part, found.files, people, done)
        owners: dict[str, set[str]] = {}
        for student, hand_ins in students.items():
            for hand_in in hand_ins:
                owners.setdefault(hand_in.file.container, set()).add(student)
        classes = {container for container, names in owners.items() if len(names) > 1}
        for student, hand_ins in sorted(students.items()):
            newest = choose(student, hand_ins, classes, done)
            if newest:
                why = put(newest, student, part, home, done)
                if why:
                    done.refused.append((str(newest.file), why))
                    continue
                done.matched[student] = newest
                more = allowances.extension(people.row(student), part) if people else timedelta()
                if is_late(newest, last, more):
                    done.late.append(student)
                    done.granted |= {student: more} if more and newest.late else {}
    if people:
        done.missing = [student for student in people.rows if not (home / "submitted" / student / part / f"{part}.ipynb").exists()]
    return done


def keep_index(part: str, files: list[File], home: Path) -> None:
    """Keep Brightspace's table of a download, which lies beside the students' folders: it goes back with the feedback."""
    for file in files:
        *folders, name = file.inside
        if name == "index.html" and file.path != Path(os.devnull):
            beside = {f.inside[len(folders)] for f in files if f.container == file.container and [*f.inside[: len(folders)]] == folders}
            if any(said.platform == "brightspace" for other in beside if (said := platforms.read(other))):
                (home / "submitted").mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.path, home / "submitted" / f"{part}-index.html")


def sort(part: str, files: list[File], people: Roster | None, done: Collected) -> dict[str, list[HandIn]]:
    """The hand-ins of each student; what is nobody's goes to `done.refused`."""
    hand_ins = []
    for file in files:
        why = is_of(part, file)
        if why:
            done.refused.append((str(file), why))
        else:
            hand_ins.append(file)
    owners = whose(part, hand_ins, people)
    found: dict[str, list[HandIn]] = {}
    for file, owner in zip(hand_ins, owners, strict=True):
        if owner is None:
            done.refused.append((str(file), f"whose is it? Expected ada_{part}.ipynb or ada/{part}.ipynb"))
            continue
        student, why = known(owner, people)
        if why:
            done.refused.append((str(file), why))
        else:
            found.setdefault(student, []).append(owner)
    for student, why in unclear(found).items():
        done.refused += [(str(hand_in.file), why) for hand_in in found.pop(student)]
    return found


def known(hand_in: HandIn, people: Roster | None) -> tuple[str, str | None]:
    """The student's id, or why there is none."""
    said = hand_in.platform
    if people is None:
        bad = roster.NO_ID.match(hand_in.student)
        return hand_in.student, "a student's name does not begin with a space or one of = + @ . - and is not empty" if bad else None
    ids = people.find(hand_in.student, said.platform if said else "", said.key if said else "")
    if len(ids) == 1:
        return ids[0], None
    who = f"{hand_in.student!r} may be {' or '.join(ids)}" if ids else f"nobody in roster.csv is called {hand_in.student!r}"
    column = f"its column {said.platform!r} can say who {said.key!r} is" if said else "its column 'id' has the names of folders"
    if len(ids) > 1 and said and said.platform != "canvas":
        column = "rename the folder or file of each to their id"
    return "", f"{who}; {column}"


def unclear(found: dict[str, list[HandIn]]) -> dict[str, str]:
    """Students who may be one, or of whom there may be two; and why."""
    why, alike = {}, {}
    for student in sorted(found):
        alike.setdefault(unicodedata.normalize("NFKC", student).casefold(), []).append(student)  # one to some disks and eyes
    for students in alike.values():
        if len(students) > 1:
            why |= {student: f"{', '.join(students)} may be one student; rename the folder or file of one of them" for student in students}
    for student, hand_ins in found.items():
        users = {h.platform.key for h in hand_ins if h.platform and h.platform.platform == "canvas"}
        if len(users) > 1:
            why[student] = (
                f"users {' and '.join(sorted(users))} are both called {student}; the column 'canvas' of roster.csv can tell them apart"
            )
    return why


def choose(student: str, hand_ins: list[HandIn], classes: set[str], done: Collected) -> HandIn | None:
    """The newest hand-in of a student; None, with a reason in `done`, where nobody can tell which, or whose it is.

    Parameters
    ----------
    classes : set of str
        The zips with files of several students.
    """
    hand_ins = sorted(hand_ins, key=lambda h: h.age)
    newest = hand_ins[-1]
    others = [h for h in hand_ins if h.file.path.read_bytes() != newest.file.path.read_bytes()]
    if others:
        # A name says whose a file is, but its student may have chosen it: in a zip of their own, or with another ending.
        own = any(h.file.container and h.file.container not in classes and not h.by_zip for h in hand_ins)
        several = len({_place(h) for h in hand_ins}) > 1
        mixed = len({h.platform and h.platform.platform for h in hand_ins if not h.by_zip}) > 1
        equal = [h for h in others if h.age == newest.age]
        if any(h.odd and h.by_name for h in hand_ins) or (several and (own or mixed)) or equal:
            names = sorted({str(h.file) for h in [*others, newest]})
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            done.refused.append((student, f"there are different hand-ins in {shown}; leave the right one there, and collect again"))
            return None
    done.replaced += [(student, str(newest.file), str(h.file)) for h in others]
    return newest


def _place(hand_in: HandIn) -> tuple[str, ...]:
    """Where it lies, without the numbers of later downloads."""
    return (without_number(Path(hand_in.file.container).stem)[0], *(() if hand_in.platform else hand_in.file.inside[:-1]))


def came(hand_in: HandIn) -> datetime | None:
    """When a hand-in came, in UTC, as well as that is known.

    In a zip of Canvas a file has the time of the download; so what it does not call late has no time, and loses no points.
    """
    told = not hand_in.platform or hand_in.platform.platform != "canvas" or hand_in.platform.late
    return hand_in.time.astimezone(UTC) if hand_in.time and told else None


def is_late(hand_in: HandIn, last: datetime | None, more: timedelta) -> bool:
    """Whether it came after the part was due, and after what the roster grants the student beyond that."""
    time = came(hand_in)
    after = bool(last and time and time > last + more)
    return after or (hand_in.late and not (more and last and time))  # Canvas knows of no other time than its own


def due(part: str, home: Path) -> datetime | None:
    """When the part is due, if nbgrader's gradebook says so."""
    from nbgrader.api import MissingEntry

    from grading import config

    settings = config.load(home)
    if not config.is_there(settings):
        return None
    with config.gradebook(settings) as gradebook:
        try:
            date = gradebook.find_assignment(part).duedate
        except MissingEntry:
            return None
    return date.replace(tzinfo=UTC) if date else None


def put(hand_in: HandIn, student: str, part: str, home: Path, done: Collected) -> str | None:
    """Copy a hand-in to where nbgrader looks for it, whole or not at all; why it was not done, or None."""
    target = home / "submitted" / student / part
    partial, stamp, time = target / f".{part}.part", target / "timestamp.txt", came(hand_in)
    there, said = target / f"{part}.ipynb", hand_in.platform
    try:
        target.mkdir(parents=True, exist_ok=True)
        before = records.read(home, student, part)
        of_platform = dict(platform=said.platform, key=said.key, name=said.name) if said else dict(platform=None)
        now = of_platform | dict(age=list(hand_in.age), file=str(hand_in.file))
        other = there.exists() and there.read_bytes() != hand_in.file.path.read_bytes()
        if other and before.get("platform", "") == now["platform"] and before["age"] > now["age"]:
            return f"older than {before['file']}, which was collected before; to have it, delete submitted/{student}/{part} first"
        shutil.copyfile(hand_in.file.path, partial)
        os.replace(partial, there)
        records.write(home, student, part, now)
        stamp.unlink(missing_ok=True)
        if other:
            (target / "not_graded.txt").unlink(missing_ok=True)  # that was of the one before
            done.replaced.append(
                (student, str(hand_in.file), f"what was collected before, {before['file']}" if before else "what lay there")
            )
        if time:
            stamp.write_text(f"{time:%Y-%m-%d %H:%M:%S} UTC\n")
    except (OSError, ValueError) as error:  # a name that is too long for a disk, say
        return f"cannot be written: {getattr(error, 'strerror', None) or error}"
    return None


def table(done: Collected) -> str:
    """What became of each file, for a person."""
    groups = {
        "matched": [f"{student}: {hand_in.file}" for student, hand_in in done.matched.items()],
        "replaced by a newer one": [f"{student}: {old}, by {new}" for student, new, old in done.replaced],
        "late": [f"{student}{_granted(done.granted.get(student))}" for student in done.late],
        "not matched": [f"{file}: {why}" for file, why in done.refused],
        "missing": done.missing,
    }
    lines = []
    for name, entries in groups.items():
        lines += [f"{name}: {len(entries)}", *(f"    {entry}" for entry in entries[:MOST_LINES])] if entries else []
        lines += [f"    and {len(entries) - MOST_LINES} more"] if len(entries) > MOST_LINES else []
    return "\n".join(map(printable, lines))


def _granted(more: timedelta | None) -> str:
    return f": Canvas says so, and not when it came; the roster grants {more}, so look there, or grant it in Canvas, too" if more else ""


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # whatever a file is called
    usage = "make collect PART=01_data_split FROM=~/Downloads/part01"
    part = one(sys.argv[1:], usage)
    folder = Path(sys.argv[2]).expanduser() if len(sys.argv) > 2 and sys.argv[2] else None
    if folder is None or not folder.exists():
        sys.exit(
            f"Which folder? {usage}. It holds what a platform lets you download, or files such as ada_{part}.ipynb or ada/{part}.ipynb."
        )
    try:
        done = collect(part, folder)
    except (roster.RosterError, ConfigError) as error:
        sys.exit(str(error))
    if text := table(done):
        print(text)
    if not done.matched:
        sys.exit(f"No hand-ins of {part} there. Expected files such as ada_{part}.ipynb or ada/{part}.ipynb, or a zip of them.")


if __name__ == "__main__":
    main()
