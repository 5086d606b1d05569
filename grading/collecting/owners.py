"""Whose a file is: by the platform's name, by the folder that it lies in, by its own name.

A student's own folders and files come last, whatever they are called: nobody hands in for somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from grading.collecting import platforms
from grading.collecting.tree import Tree, is_zip, named, without_number
from grading.collecting.unpack import File
from grading.people.roster import Roster


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
        Which part of the file's way says whose it is.
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
        if self.by_zip and self.file.packed:
            return self.file.packed  # the times in it are the student's
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
        way = self.file.way
        return (*way[: self.level + (self.level < len(way) - 1)], self.platform.number if self.platform else "")

    @property
    def oddness(self) -> tuple[bool, int]:
        """How far a file's name and place are from what is expected."""
        return self.odd, len(self.file.way) - self.level


def whose(part: str, files: list[File], people: Roster | None) -> list[HandIn | str]:
    """Who handed in each of these: by the platform's name, by the folder or the zip, by the file's own name; or why nobody can tell."""
    tree = Tree(part, files, people)
    return [_owner(part, file, tree) for file in files]


def _owner(part: str, file: File, tree: Tree) -> HandIn | str:
    level = tree.level(file)
    if isinstance(level, str):
        return level
    name, own = file.way[level], file.way[-1]
    if said := platforms.read(name):
        return HandIn(file, said.student, said, *_ending(part, said.rest or own), level=level)
    again, odd = _ending(part, own)
    if level < len(file.way) - 1:
        return HandIn(file, tree.student(file.way[: level + 1]), None, again, False, by_zip=is_zip(name), level=level)
    student = named(part, name)
    if student is None:
        zipped = f"; or call the zip as the student, {file.way[-2]!r} is nobody" if len(file.way) > 1 and is_zip(file.way[-2]) else ""
        return f"whose is it? Expected ada_{part}.ipynb or ada/{part}.ipynb{zipped}"
    return HandIn(file, student, None, again, odd, by_name=True, level=level)


def _ending(part: str, name: str) -> tuple[int, bool]:
    """The number of a later upload, and whether something else stands behind the part's name."""
    stem, again = without_number(Path(name).stem)
    return again, part in stem and not stem.endswith(part)
