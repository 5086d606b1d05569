"""Feedback pages as zips, under the names by which Canvas, Moodle and Brightspace know whose a file is.

Each takes back what it gave: the page of a hand-in has the name of the hand-in (`platforms.feedback_path`), which collect.py noted in
collected/PART/STUDENT.json.
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from grading.collecting import platforms, records


@dataclass
class Packed:
    """What was packed.

    Attributes
    ----------
    archives : dict of str to int
        The zips in feedback/, and how many pages are in each.
    left : dict of str to str
        Whose page is in none, and why.
    """

    archives: dict[str, int] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def pack(part: str, home: Path, students: list[str]) -> Packed:
    """Write feedback/PART-canvas.zip, -moodle.zip and -brightspace.zip, of those platforms from which something came.

    Parameters
    ----------
    part : str
    home : Path
    students : list of str
        Whose pages are there, in feedback/STUDENT/PART/.
    """
    done, places = Packed(), {}
    for student in students:
        said = records.read(home, student, part)
        platform, place = said.get("platform"), platforms.feedback_path(said.get("name") or "", part)
        if platform not in platforms.PLATFORMS:
            done.left[student] = f"it came from no platform; the page is feedback/{student}/{part}/{part}.html"
        elif place is None:
            done.left[student] = "the name under which it came is not known; make collect again, with the same download"
        elif place in places.setdefault(platform, {}):
            done.left[student] = f"it came under the same name as that of {places[platform][place]}"
        else:
            places[platform][place] = student
    for platform in platforms.PLATFORMS:
        target = home / "feedback" / f"{part}-{platform}.zip"
        target.unlink(missing_ok=True)
        if found := places.get(platform):
            pages = {place: home / "feedback" / student / part / f"{part}.html" for place, student in found.items()}
            _zip(target, pages | _index(part, platform, home))
            done.archives[target.name] = len(found)
    return done


def _index(part: str, platform: str, home: Path) -> dict[str, Path]:
    """Brightspace's own table of a download, which it has in what it takes back, too."""
    path = home / "submitted" / f"{part}-index.html"
    return {"index.html": path} if platform == "brightspace" and path.exists() else {}


def _zip(target: Path, files: dict[str, Path]) -> None:
    """A zip, whole or not at all."""
    partial = target.with_suffix(".part")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, path in files.items():
            archive.write(path, place)
    os.replace(partial, target)
