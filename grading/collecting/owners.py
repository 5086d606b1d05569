"""Whose a file is: by the platform's name, by the folder that it lies in, by its own name.

A student's own folders and files come last, whatever they are called: nobody hands in for somebody else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from grading.collecting import platforms
from grading.collecting.tree import Tree, bare, named
from grading.collecting.unpack import File
from grading.people import roster
from grading.people.roster import Roster

AGAIN = re.compile(r"(?P<name>.*?)(?:[ _-]?\((?P<a>\d{1,3})\)|-(?P<b>\d{1,3}))", re.DOTALL)  # of a second upload or download


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
    level : int
        Which of the folders that it lies in, or its own name after those, says whose it is.
    whole : bool
        Whether it can be read as a notebook.
    """

    file: File
    student: str
    platform: platforms.Named | None
    again: int
    odd: bool
    by_name: bool = False
    by_zip: bool = False
    level: int = 0
    whole: bool = True

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

    @property
    def upload(self) -> tuple[str, ...]:
        """Where a platform has put what this student handed in at that time: what lies there is all of one hand-in."""
        here = self.file.inside[: self.level + 1] if self.level < len(self.file.inside) - 1 else self.file.inside[: self.level]
        return (self.file.container, *here, self.platform.number if self.platform else "")

    @property
    def oddness(self) -> tuple[bool, int]:
        """How far a file's name and place are from what is expected."""
        return self.odd, len(self.file.inside) - self.level


def whose(part: str, files: list[File], people: Roster | None) -> list[HandIn | str | None]:
    """Who handed in each of these: by the platform's name, by the folder, by the file's own name; or why nobody can tell."""
    found, tree = _owners(part, files, people)
    folders = any(f and not f.file.container and not f.platform and not f.by_name for f in found)
    above = {file.container.rpartition("/")[0] for file in files if "/" in file.container}
    class_zips = [f.container for f, owner in zip(files, found, strict=True) if owner and owner.platform]
    each = len(above) > 1 and not class_zips and all(len(_in(c, files, found)) < 2 for c in {f.container for f in files})
    deep = [i for i, file in enumerate(files) if "/" in file.container and (folders or each or _known(file.container, people))]
    if deep:  # a zip in a student's folder is the student's; where no student has a folder, it is a download of a class
        files = list(files)
        for i in deep:
            files[i] = File("", (*files[i].container.split("/"), *files[i].inside), files[i].path, files[i].time)
        found, tree = _owners(part, files, people)
    found = _of_zips(part, files, found, people)
    return [_doubted(owner, tree) if isinstance(owner, HandIn) and not owner.by_zip else owner for owner in found]


def _doubted(owner: HandIn, tree: Tree) -> HandIn | str:
    """A hand-in, or why nobody can tell whose it is."""
    here = (owner.file.container, *owner.file.inside[: owner.level + 1])
    return (not owner.by_name and not owner.platform and tree.doubt(here)) or owner


def _of_zips(part: str, files: list[File], found: list[HandIn | None], people: Roster | None) -> list[HandIn | str | None]:
    """The same, where a zip that is called as a student is theirs, whatever the files in it are called."""
    inside: dict[str, set[str]] = {}
    for file, owner in zip(files, found, strict=True):
        inside.setdefault(file.container, set()).add(owner.student if owner else "")
    alone = {container: _stem(container) for container, students in inside.items() if container and len(students) == 1}
    names = {f.student for f in found if f and f.file.container not in alone}
    own = [f.container for f, owner in zip(files, found, strict=True) if f.container in alone and not (owner and owner.platform)]
    each = len(set(alone.values())) > 1 and alone.keys() == inside.keys()  # a zip for each student
    result: list[HandIn | str | None] = list(found)
    for i, (file, owner) in enumerate(zip(files, found, strict=True)):
        stem = alone.get(file.container, "")
        known = stem and (stem in names or (people and people.find(stem)))
        if not stem or not (known or (each and own)):
            continue
        stem = named(part, f"{stem}.ipynb") or stem
        if owner and owner.platform:
            if not _same(stem, owner.student, people):
                result[i] = (
                    f"the zip is called {stem!r}, and in it a platform names {owner.student!r}: rename the zip, or take its content out"
                )
        else:
            result[i] = HandIn(file, stem, None, *_ending(part, file.inside[-1]), by_zip=True)
    return result


def _same(one: str, other: str, people: Roster | None) -> bool:
    """Whether two names are of one student."""
    ids = [people.find(name) if people else [roster.letters(name)] for name in (one, other)]
    return ids[0] == ids[1] and len(ids[0]) == 1


def _in(container: str, files: list[File], found: list[HandIn | None]) -> set[str]:
    """Whose hand-ins lie in a zip, as their names say."""
    return {owner.student for file, owner in zip(files, found, strict=True) if owner and file.container == container}


def _stem(container: str) -> str:
    """What a zip is called, without the number of a second download."""
    return platforms.person(without_number(Path(container).stem)[0])


def _known(container: str, people: Roster | None) -> bool:
    return bool(people and any(people.find(platforms.person(folder)) for folder in container.split("/")[:-1]))


def _owners(part: str, files: list[File], people: Roster | None) -> tuple[list[HandIn | None], Tree]:
    tree = Tree(part, files, people)
    return [_owner(part, file, tree.level(file)) for file in files], tree


def _owner(part: str, file: File, level: int) -> HandIn | None:
    name = file.inside[level]
    if said := platforms.read(name):
        return HandIn(file, said.student, said, *_ending(part, said.rest or file.inside[-1]), level=level)
    again, odd = _ending(part, file.inside[-1])
    if level < len(file.inside) - 1:
        return HandIn(file, bare(name), None, again, False, level=level)
    student = named(part, name)
    return HandIn(file, student, None, again, odd, by_name=True, level=level) if student else None


def without_number(stem: str) -> tuple[str, int]:
    """A name without the number of a later upload or download, and that number."""
    found = AGAIN.fullmatch(stem)
    return (found["name"], int(found["a"] or found["b"])) if found else (stem, 0)


def _ending(part: str, name: str) -> tuple[int, bool]:
    """The number of a later upload, and whether something else stands behind the part's name."""
    stem, again = without_number(Path(name).stem)
    return again, part in stem and not stem.endswith(part)
