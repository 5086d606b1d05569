"""Attribute a file to a student: by the platform's name, by the folder it is in, or by its own name.

A student's own folders and files come last, whatever their names: nobody submits for somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from grading.collecting import platforms
from grading.collecting.tree import Tree, is_zip, split_copy_number, student_from_file
from grading.collecting.unpack import DownloadedFile
from grading.people.roster import Roster


@dataclass
class CandidateSubmission:
    """A notebook of the part, and its owner.

    Attributes
    ----------
    file : DownloadedFile
    student : str
        As in the name; `collect` turns it into the roster's id.
    platform : platforms.PlatformName, optional
        The platform's name, parsed.
    copy_number : int
        The number that a later upload has at the end of its name.
    odd : bool
        Whether something else follows the part's name.
    by_name : bool
        Whether the owner is known only from the file's own name, which a student may have chosen.
    by_zip : bool
        Whether the owner is known from the name of the zip.
    level : int
        Index of the component of the file's path that names the owner.
    is_readable : bool
        Whether it can be read as a notebook.
    """

    file: DownloadedFile
    student: str
    platform: platforms.PlatformName | None
    copy_number: int
    odd: bool
    by_name: bool = False
    by_zip: bool = False
    level: int = 0
    is_readable: bool = True

    @property
    def time(self) -> datetime | None:
        """Arrival time, as far as known."""
        if self.by_zip and self.file.packed:
            return self.file.packed  # the times inside are the student's
        return self.platform.time if self.platform and self.platform.time else self.file.time

    @property
    def late(self) -> bool:
        """True if the platform calls it late."""
        return bool(self.platform and self.platform.late)

    @property
    def age(self) -> tuple[int, float, float]:
        """Sort key that grows from one submission of a student to the next.

        Canvas numbers uploads. Otherwise it is the copy number and then the time; with a platform that gives a
        time and lets a student choose the name, the time and then the copy number.
        """
        seconds = self.time.timestamp() if self.time else 0.0
        if self.platform and not self.platform.upload:
            return (0, seconds, self.copy_number)
        return (self.platform.upload if self.platform else 0, self.copy_number, seconds)

    @property
    def upload(self) -> tuple[str, ...]:
        """Folder in which a platform has put the student's upload of that time: all in it is one submission."""
        way = self.file.path_parts
        return (*way[: self.level + (self.level < len(way) - 1)], self.platform.number if self.platform else "")

    @property
    def oddness(self) -> tuple[bool, int]:
        """Distance of a file's name and place from the expected ones."""
        return self.odd, len(self.file.path_parts) - self.level


def attribute_files(part: str, files: list[DownloadedFile], people: Roster | None) -> list[CandidateSubmission | str]:
    """Attribute each of these files by the platform's name, by folder or zip, or by its own name; or say why nobody can tell."""
    tree = Tree(part, files, people)
    return [_owner(part, file, tree) for file in files]


def _owner(part: str, file: DownloadedFile, tree: Tree) -> CandidateSubmission | str:
    level = tree.level(file)
    if isinstance(level, str):
        return level
    name, own = file.path_parts[level], file.path_parts[-1]
    if said := platforms.parse_name(name):
        return CandidateSubmission(file, said.student, said, *_ending(part, said.rest or own), level=level)
    copy_number, odd = _ending(part, own)
    if level < len(file.path_parts) - 1:
        return CandidateSubmission(
            file, tree.student(file.path_parts[: level + 1]), None, copy_number, False, by_zip=is_zip(name), level=level
        )
    student = student_from_file(part, name)
    if student is None:
        zipped = (
            f"; or name the zip after the student: {file.path_parts[-2]!r} is nobody's name"
            if len(file.path_parts) > 1 and is_zip(file.path_parts[-2])
            else ""
        )
        return f"whose is it? Expected ada_{part}.ipynb or ada/{part}.ipynb{zipped}"
    return CandidateSubmission(file, student, None, copy_number, odd, by_name=True, level=level)


def _ending(part: str, name: str) -> tuple[int, bool]:
    """Return the number of a later upload, and whether something else follows the part's name."""
    stem, copy_number = split_copy_number(Path(name).stem)
    return copy_number, part in stem and not stem.endswith(part)
