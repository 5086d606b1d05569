"""Whose a folder is, where no platform and no roster names it: a student's, or one that lies around several students' hand-ins.

A student's own folders and files come last, whatever they are called. So where a folder may be either, it is nobody's.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from grading.collecting import platforms
from grading.collecting.unpack import File
from grading.people.roster import Roster

Place = tuple[str, ...]  # the zip, then the folders


@dataclass
class Below:
    """What lies in a place.

    Attributes
    ----------
    like_students : set of str
        Folders in which notebooks lie that no platform has named: each is a student's.
    of_platforms, classes : bool
        Whether some folder has several files in it that a platform has named; or that are called as several students.
    folders : Counter
        How many of the folders have a folder of this name.
    """

    like_students: set[str] = field(default_factory=set)
    of_platforms: bool = False
    classes: bool = False
    folders: Counter[str] = field(default_factory=Counter)


class Tree:
    """The folders of a download.

    Parameters
    ----------
    part : str
    files : iterable of File
        The notebooks.
    people : Roster, optional
    """

    def __init__(self, part: str, files: Iterable[File], people: Roster | None):
        self.part, self.people = part, people
        self.children: dict[Place, set[str]] = {}
        for file in files:
            way = (file.container, *file.inside)
            for i in range(1, len(way)):
                self.children.setdefault(way[:i], set()).add(way[i])
        self.is_students, self.doubt = functools.cache(self._is_students), functools.cache(self._doubt)
        self._below = functools.cache(self._look_below)

    def level(self, file: File) -> int:
        """Which of a file's folders, or its own name, is the student's: those before it are nobody's, `submissions` say."""
        folders = len(file.inside) - 1
        return next((i for i in range(folders) if self.is_students((file.container, *file.inside[: i + 1]))), folders)

    def named(self, here: Place) -> bool:
        """Whether a platform or the roster says whose a folder is."""
        return bool(platforms.read(here[-1]) or (self.people and self.people.find(bare(here[-1]))))

    def _is_students(self, here: Place) -> bool:
        if self.named(here) or here[-1] == self.part:
            return self.named(here)
        inside, below = self.children[here] - {self.part}, self._below(here[:-1])
        alone = self.children[here[:-1]] == {here[-1]}
        said = {name for name in inside if platforms.read(name)}
        if (len(said) > 1 or (said and (alone or below.of_platforms))) and not below.like_students - {here[-1]}:
            return False  # a folder round what a platform has named
        deeper = len(self._others(here)) > 1 or any((*here, name) in self.children for name in inside)
        return not (alone and deeper)

    def _look_below(self, above: Place) -> Below:
        found = Below()
        for name in self.children[above]:
            here = (*above, name)
            inside = self.children.get(here, set())
            files = inside - {self.part}
            said = sum(platforms.read(file) is not None for file in files)
            found.of_platforms |= said > 1
            found.classes |= here in self.children and not self.named(here) and len(self._called(here)) > 1
            found.folders.update(other for other in inside if (*here, other) in self.children)
            if files and not said and not platforms.read(name) and len({named(self.part, file) for file in files} - {None}) < 2:
                found.like_students.add(name)
        return found

    def _others(self, here: Place) -> set[str]:
        """Whose hand-ins may lie in a folder, as the names there say; a name of folders that several have is nobody's, `notebooks` say."""
        folders = {name for name in self.children[here] - {self.part} if (*here, name) in self.children and not platforms.read(name)}
        own = {bare(name) for name in folders if self._below(here[:-1]).folders[name] == 1}
        return (self._called(here) | own) - {bare(here[-1])}

    def _called(self, here: Place) -> set[str]:
        """Whom the names of the files in a folder name, and of its folders that are a platform's."""
        found = {said.student if (said := platforms.read(name)) else named(self.part, name) for name in self.children[here]}
        return found - {None, bare(here[-1])}

    def _doubt(self, here: Place) -> str | None:
        """Why nobody can tell whose a folder is that looks like a student's; None where that is clear."""
        if self.named(here):
            return None
        others = self._others(here)
        if len(others) < 2 and not (self._below(here[:-1]).classes and self._called(here)):
            return None
        shown = ", ".join(sorted(others)[:3]) + (" and others" if len(others) > 3 else "")
        return f"{here[-1]!r} may be a student, or a folder around what {shown} handed in; then collect it by itself, FROM=.../{here[-1]}"


def bare(folder: str) -> str:
    """A folder's name as a student's; a zip in a zip is a folder."""
    return platforms.person(re.sub(r"\.zip$", "", folder, flags=re.IGNORECASE))


def named(part: str, name: str) -> str | None:
    """The student in ada_01_data_split.ipynb."""
    found = re.fullmatch(rf"(?P<student>.*?[^_\s-])[ _-]+{part}.*", Path(name).stem, re.DOTALL)
    return platforms.person(found["student"]) if found else None
