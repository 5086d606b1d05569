"""Classify the folders and zips of a download: a student's own, or containers of several students' submissions.

A folder that a platform or the roster names is a student's, the outermost first; all in it is theirs, whatever its name. Otherwise a
folder is taken for a student's and a zip for a download, unless what is inside or beside it suggests otherwise. An ambiguous one
belongs to nobody.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from grading.collecting import platforms
from grading.collecting.unpack import DownloadedFile
from grading.people.ids import case_folded
from grading.people.roster import Roster

FolderPath = tuple[str, ...]  # folders and zips, outermost first
COPY_NUMBER = re.compile(r"(?P<name>.*?)(?:[ _-]?\((?P<a>\d{1,3})\)|-(?P<b>\d{1,3}))", re.DOTALL)  # of a second upload or download
STUDENT_FOLDER, CONTAINER_FOLDER = "a student's", "around students'"


@dataclass
class FolderContents:
    """Content of a folder or a zip.

    Attributes
    ----------
    files : set of str
        Notebooks directly in it.
    called : set of str
        Students named by these, except the one that the folder itself names.
    said : set of str
        Students that a platform names further down.
    known : bool
        Whether the roster knows a folder or a zip further down.
    other : bool
        Whether there are notebooks further down that no platform names.
    folders : set of str
        Folders and zips directly in it that neither a platform nor the part names.
    """

    files: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    said: set[str] = field(default_factory=set)
    known: bool = False
    other: bool = False
    folders: set[str] = field(default_factory=set)


@dataclass
class SiblingTraits:
    """Traits of the folders, or of the zips, in one place.

    Attributes
    ----------
    like_students : set of str
        Those that look like a student's.
    classes : bool
        Whether the files in one of them are named after several students.
    of_platforms : bool
        Whether all of them hold nothing but what a platform has named.
    usual : set of str
        Names of folders that most of them have and nothing else, such as `notebooks`.
    """

    like_students: set[str] = field(default_factory=set)
    classes: bool = False
    of_platforms: bool = True
    usual: set[str] = field(default_factory=set)


class Tree:
    """The folders and zips of a download.

    Parameters
    ----------
    part : str
    files : iterable of DownloadedFile
        The notebooks.
    people : Roster, optional
    """

    def __init__(self, part: str, files: Iterable[DownloadedFile], people: Roster | None):
        self.part, self.people = part, people
        self.children: dict[FolderPath, set[str]] = {}
        self._students: set[str] = set()  # named by folders and files
        for file in files:
            for i, name in enumerate(file.path_parts):
                self.children.setdefault(file.path_parts[:i], set()).add(name)
            if len(file.path_parts) > 1 and not is_zip(file.path_parts[-2]):
                self._students.add(student_from_folder(file.path_parts[-2]))
            elif len(file.path_parts) == 1 and (student := student_from_file(part, file.path_parts[0])):
                self._students.add(student)
        self.verdict, self.inside = functools.cache(self._verdict), functools.cache(self._inside)
        self.beside = functools.cache(self._beside)

    def level(self, file: DownloadedFile) -> int | str:
        """Return which component of a file's path is the student's, or why nobody can tell."""
        for i in range(len(file.path_parts) - 1):
            here = file.path_parts[: i + 1]
            verdict = self.verdict(here)
            if verdict == STUDENT_FOLDER:
                others = {said for said in self.inside(here).said if not self._same(self.student(here), said)}
                if is_zip(here[-1]) and not platforms.parse_name(here[-1]) and others:
                    named = student_from_folder(here[-1])
                    return f"the zip is called {named!r}, but a platform names {_some(others)} inside it: rename it, or remove those files"
                return i
            if verdict != CONTAINER_FOLDER:
                return verdict
        return len(file.path_parts) - 1

    def student(self, here: FolderPath) -> str:
        """Return the student named by a folder or a zip; for a zip, without the number of a second download if the first is beside it."""
        name = student_from_folder(here[-1])
        if is_zip(here[-1]) and not (self.people and self.people.find(name)):
            first, number = split_copy_number(name)
            beside = {student_from_folder(other) for other in self.children[here[:-1]] if is_zip(other)}
            if number and (first in beside or name.endswith(")")):
                name = first
        return student_from_file(self.part, f"{name}.ipynb") or name

    def _named(self, here: FolderPath) -> bool:
        """Return whether a platform or the roster knows whose it is."""
        return bool(platforms.parse_name(here[-1]) or (self.people and self.people.find(self.student(here))))

    def _same(self, one: str, other: str) -> bool:
        if self.people:
            return self.people.find(one) == self.people.find(other) != []
        return case_folded(platforms.clean_name(one)) == case_folded(platforms.clean_name(other))

    def _verdict(self, here: FolderPath) -> str:
        """Return STUDENT_FOLDER, CONTAINER_FOLDER, or a sentence that says why nobody can tell."""
        if self._named(here):
            return STUDENT_FOLDER
        if here[-1] == self.part:
            return CONTAINER_FOLDER
        inside, beside = self.inside(here), self.beside(here[:-1], is_zip(here[-1]))
        like_students = beside.like_students - {here[-1]}
        alone = len([n for n in self.children[here[:-1]] if is_zip(here[-1]) <= is_zip(n)]) == 1
        if inside.said and not inside.other:
            around = not like_students and (is_zip(here[-1]) or len(inside.said) > 1 or alone or beside.of_platforms)
            return CONTAINER_FOLDER if around else self._doubt(here, inside.said)
        if self.people and not like_students:
            several = len(inside.called) > 1 or beside.classes
            if inside.known or inside.said or (several and any(map(self.people.find, inside.called))):
                return CONTAINER_FOLDER
        if is_zip(here[-1]):
            students = len(like_students) + self._like_a_students(here) > 1  # each zip is a student's
            return STUDENT_FOLDER if students or (inside.files and self.student(here) in self._students) else CONTAINER_FOLDER
        own = inside.folders - beside.usual
        if alone and (inside.folders or len(inside.called) > 1):
            return CONTAINER_FOLDER
        if len(inside.called) > 1 or (beside.classes and inside.called) or len(own) > 1:
            return self._doubt(here, inside.called | set(map(student_from_folder, own)))
        if own and not inside.files and not like_students and not beside.usual:
            return self._doubt(here, set(map(student_from_folder, own)))
        return STUDENT_FOLDER

    def _doubt(self, here: FolderPath, others: set[str]) -> str:
        name = student_from_folder(here[-1])
        return (
            f"{name!r} may be a student, or a folder with the hand-ins of {_some(others)}; "
            f"in the latter case, collect it separately, with FROM=.../{here[-1]}"
        )

    def _inside(self, here: FolderPath) -> FolderContents:
        found = FolderContents()
        for name in self.children[here]:
            there = (*here, name)
            said = platforms.parse_name(name)
            if said:
                found.said.add(said.student)
            elif there not in self.children:
                found.files.add(name)
                found.other = True
                found.called |= {student_from_file(self.part, name)} - {None, student_from_folder(here[-1])}
            else:
                below = self.inside(there)
                found.said |= below.said
                found.known |= below.known or self._named(there)
                found.other |= below.other
                found.folders |= {name} - {self.part}
        return found

    def _like_a_students(self, here: FolderPath) -> bool:
        """Return whether notebooks are directly in it that no platform names, and that are not named after others."""
        inside = self.inside(here)
        if not inside.files or inside.said:
            return False
        others = is_zip(here[-1]) or any(map(self.people.find, inside.called)) if self.people else is_zip(here[-1])
        return len(inside.called) < (1 if others else 2)

    def _beside(self, above: FolderPath, zips: bool) -> SiblingTraits:
        found, folders, only = SiblingTraits(), Counter(), Counter()
        for name in self.children[above]:
            here = (*above, name)
            if here not in self.children or is_zip(name) != zips:
                continue
            inside = self.inside(here)
            if platforms.parse_name(name):
                found.of_platforms = False
                continue
            if self._like_a_students(here):
                found.like_students.add(name)
            found.classes |= len(inside.called) > 1 and not self._named(here)
            found.of_platforms &= bool(inside.said) and not inside.other
            folders.update(inside.folders)
            only.update(inside.folders if len(inside.folders) == 1 else ())
        found.usual = {name for name, n in only.items() if n > 1 and 2 * n > folders[name]}
        return found


def _some(names: set[str]) -> str:
    return ", ".join(map(repr, sorted(names)[:3])) + (" and others" if len(names) > 3 else "")


def is_zip(name: str) -> bool:
    """Return whether something with content is a zip."""
    return name.lower().endswith(".zip")


def student_from_folder(folder: str) -> str:
    """Return the name of a student from that of a folder or a zip."""
    return platforms.clean_name(re.sub(r"\.zip$", "", folder, flags=re.IGNORECASE))


def student_from_file(part: str, name: str) -> str | None:
    """Return the student in ada_01_data_split.ipynb."""
    found = re.fullmatch(rf"(?P<student>.*?[^_\s-])[ _-]+{part}.*", Path(name).stem, re.DOTALL)
    return platforms.clean_name(found["student"]) if found else None


def split_copy_number(stem: str) -> tuple[str, int]:
    """Split a name from the number of a later upload or download."""
    found = COPY_NUMBER.fullmatch(stem)
    return (found["name"], int(found["a"] or found["b"])) if found else (stem, 0)
