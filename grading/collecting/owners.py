"""Whose a file is: by the platform's name, by the folder that it lies in, by its own name; and of which part it is.

A student's own folders and files come last, whatever they are called: nobody hands in for somebody else.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from grading.collecting import platforms
from grading.collecting.unpack import File
from grading.paths import NOTEBOOKS, parts
from grading.people.roster import Roster

AGAIN = re.compile(r"(?P<name>.*?)(?:[ _-]?\((?P<a>\d{1,3})\)|-(?P<b>\d{1,3}))", re.DOTALL)  # of a second upload or download
LONGEST = 10 << 20  # bytes of a notebook of which the metadata are read: what is larger takes too much memory


@dataclass
class HandIn:
    """A notebook of the part, and whose it is.

    Attributes
    ----------
    file : File
    student : str
        As the name says; `collect` makes it the id in the roster.
    platform : platforms.Named, optional
        What the platform says.
    again : int
        The number that a later upload has behind its name.
    odd : bool
        Whether something else stands behind the name of the part.
    by_name : bool
        Whether only the file's own name says whose it is, which a student may have chosen.
    by_zip : bool
        Whether the name of its zip says whose it is.
    """

    file: File
    student: str
    platform: platforms.Named | None
    again: int
    odd: bool
    by_name: bool = False
    by_zip: bool = False

    @property
    def time(self) -> datetime | None:
        """When it came, as well as that is known."""
        return self.platform.time if self.platform and self.platform.time else self.file.time

    @property
    def late(self) -> bool:
        """Whether the platform says that it came late."""
        return bool(self.platform and self.platform.late)

    @property
    def age(self) -> tuple[int, float, float]:
        """What grows from one hand-in of a student to the next.

        Canvas numbers uploads. Otherwise it is the number behind the name and then the time; with a platform that gives a
        time and lets a student choose the name, the time and then the number.
        """
        seconds = self.time.timestamp() if self.time else 0.0
        if self.platform and not self.platform.upload:
            return (0, seconds, self.again)
        return (self.platform.upload if self.platform else 0, self.again, seconds)


def is_of(part: str, file: File) -> str | None:
    """Why a file is no notebook of this part, or None if it is one."""
    name = file.inside[-1]
    if not name.lower().endswith(".ipynb"):
        return "no notebook and no zip"
    mark = marked(file.path)
    if mark == part or (mark is None and part in name):
        return None
    return f"a notebook of {mark}" if mark else f"nothing in it says that it is a notebook of {part}, nor does its name"


def marked(path: Path) -> str | None:
    """The part that a notebook's own metadata name, also those of its cells; None if there is none."""
    if path.stat().st_size > LONGEST:
        return None
    try:
        notebook = json.loads(path.read_bytes().decode("utf-8-sig"))
        course = notebook["metadata"].get("course", {}).get("part")
        ids = {c["metadata"].get("nbgrader", {}).get("grade_id") for c in notebook["cells"] if course is None}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # grading says what is wrong with it
    if isinstance(course, str):
        return course if course in parts() else None
    return next((part for part, own in exercises().items() if own & ids), None)


@functools.cache
def exercises() -> dict[str, set[str]]:
    """The grade ids of each part's exercises, as students have them."""
    found = {}
    for part in parts():
        cells = json.loads((NOTEBOOKS / part / f"{part}.ipynb").read_text())["cells"]
        marks = [cell["metadata"].get("nbgrader", {}) for cell in cells]
        found[part] = {mark["grade_id"] for mark in marks if mark.get("solution")}
    return found


def whose(part: str, files: list[File], people: Roster | None) -> list[HandIn | None]:
    """Who handed in each of these: by the platform's name, by the folder, by the file's own name."""
    found = _owners(part, files, people)
    folders = any(f and not f.file.container and not f.platform and not f.by_name for f in found)
    above = {file.container.rpartition("/")[0] for file in files if "/" in file.container}
    class_zips = [f.container for f, owner in zip(files, found, strict=True) if owner and owner.platform]
    each = len(above) > 1 and not class_zips and all(len(_in(c, files, found)) < 2 for c in {f.container for f in files})
    deep = [i for i, file in enumerate(files) if "/" in file.container and (folders or each or _known(file.container, people))]
    if deep:  # a zip in a student's folder is the student's; where no student has a folder, it is a download of a class
        files = list(files)
        for i in deep:
            files[i] = File("", (*files[i].container.split("/"), *files[i].inside), files[i].path, files[i].time)
        found = _owners(part, files, people)
    inside: dict[str, set[str]] = {}
    for i, file in enumerate(files):
        inside.setdefault(file.container, set()).add(found[i].student if found[i] else "")
    alone = {container: _stem(container) for container, students in inside.items() if container and len(students) == 1}
    names = {f.student for f in found if f and f.file.container not in alone}
    each = len(set(alone.values())) > 1 and alone.keys() == inside.keys()  # a zip for each student
    for i, file in enumerate(files):  # a zip that is called as a student is theirs, whatever the files in it are called
        stem = alone.get(file.container)
        if stem and (stem in names or each or (people and people.find(stem))):
            stem = _named(part, f"{stem}.ipynb") or stem
            found[i] = HandIn(file, stem, None, *_ending(part, file.inside[-1]), by_zip=True)
    return found


def _in(container: str, files: list[File], found: list[HandIn | None]) -> set[str]:
    """Whose hand-ins lie in a zip, as their names say."""
    return {owner.student for file, owner in zip(files, found, strict=True) if owner and file.container == container}


def _stem(container: str) -> str:
    """What a zip is called, without the number of a second download."""
    return platforms.person(without_number(Path(container).stem)[0])


def _known(container: str, people: Roster | None) -> bool:
    return bool(people and any(people.find(platforms.person(folder)) for folder in container.split("/")[:-1]))


def _owners(part: str, files: list[File], people: Roster | None) -> list[HandIn | None]:
    children: dict[tuple[str, ...], set[str]] = {}
    for file in files:
        way = (file.container, *file.inside)
        for i in range(1, len(way)):
            children.setdefault(way[:i], set()).add(way[i])
    return [_owner(part, file, _level(part, file, children, people)) for file in files]


def _level(part: str, file: File, children: dict[tuple[str, ...], set[str]], people: Roster | None) -> int:
    """Which of a file's folders, or its own name, is the student's: those before it are nobody's, `submissions` say."""
    for i, folder in enumerate(file.inside[:-1]):
        if platforms.read(folder) or (people and people.find(_bare(folder))):
            return i
        here = (file.container, *file.inside[: i + 1])
        inside, alone = children[here] - {part}, children[here[:-1]] == {folder}
        of_platform = 0 if _beside(part, here, children) else sum(platforms.read(name) is not None for name in inside)
        of_students = {_named(part, name) or name for name in inside if _named(part, name) or (*here, name) in children}
        deeper = len(of_students) > 1 or any((*here, name) in children for name in inside)
        if folder != part and of_platform < 2 and not (alone and (of_platform or deeper)):
            return i
    return len(file.inside) - 1


def _beside(part: str, here: tuple[str, ...], children: dict[tuple[str, ...], set[str]]) -> bool:
    """Whether a folder lies beside one in which notebooks lie that no platform has named: then each is a student's."""
    for name in children[here[:-1]] - {here[-1]}:
        below = children.get((*here[:-1], name), set()) - {part}
        students = {_named(part, file) for file in below} - {None}
        if below and len(students) < 2 and not platforms.read(name) and not any(platforms.read(file) for file in below):
            return True
    return False


def _owner(part: str, file: File, level: int) -> HandIn | None:
    name = file.inside[level]
    if said := platforms.read(name):
        return HandIn(file, said.student, said, *_ending(part, said.rest or file.inside[-1]))
    again, odd = _ending(part, file.inside[-1])
    if level < len(file.inside) - 1:
        return HandIn(file, _bare(name), None, again, False)
    student = _named(part, name)
    return HandIn(file, student, None, again, odd, by_name=True) if student else None


def _bare(folder: str) -> str:
    """A folder's name as a student's; a zip in a zip is a folder."""
    return platforms.person(re.sub(r"\.zip$", "", folder, flags=re.IGNORECASE))


def _named(part: str, name: str) -> str | None:
    """The student in ada_01_data_split.ipynb."""
    found = re.fullmatch(rf"(?P<student>.*?[^_\s-])[ _-]+{part}.*", Path(name).stem, re.DOTALL)
    return platforms.person(found["student"]) if found else None


def without_number(stem: str) -> tuple[str, int]:
    """A name without the number of a later upload or download, and that number."""
    found = AGAIN.fullmatch(stem)
    return (found["name"], int(found["a"] or found["b"])) if found else (stem, 0)


def _ending(part: str, name: str) -> tuple[int, bool]:
    """The number of a later upload, and whether something else stands behind the part's name."""
    stem, again = without_number(Path(name).stem)
    return again, part in stem and not stem.endswith(part)
