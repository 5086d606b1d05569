"""Pack feedback pages as zips, under the names by which Canvas, Moodle and Brightspace match them to students.

Each platform takes back the names that it gave: a page is named after its submission (`platforms.feedback_path`), as recorded by
collect.py in collected/PART/STUDENT.json.
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from grading.collecting import platforms, records


@dataclass
class Packed:
    """The packed pages.

    Attributes
    ----------
    archives : dict of str to int
        The zips in feedback/, and the number of pages in each.
    left : dict of str to str
        Students whose page is in none, and why.
    """

    archives: dict[str, int] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def pack(part: str, home: Path, students: list[str]) -> Packed:
    """Write feedback/PART-canvas.zip, -moodle.zip and -brightspace.zip, for those platforms from which something was collected.

    Parameters
    ----------
    part : str
    home : Path
    students : list of str
        Students whose pages are in feedback/STUDENT/PART/.
    """
    done, places = Packed(), {}
    for student in students:
        said = records.read(home, student, part)
        platform, place = said.get("platform"), platforms.feedback_path(said.get("name") or "", part)
        if platform not in platforms.PLATFORMS:
            done.left[student] = f"it did not come from a platform; the page is feedback/{student}/{part}/{part}.html"
        elif place is None:
            done.left[student] = "its name on the platform is not known; run make collect again, with the same download"
        elif place in places.setdefault(platform, {}):
            done.left[student] = f"on the platform, it has the same name as the hand-in of {places[platform][place]}"
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
    """Return Brightspace's own table of a download, which is also in what it takes back."""
    path = home / "submitted" / f"{part}-index.html"
    return {"index.html": path} if platform == "brightspace" and path.exists() else {}


def _zip(target: Path, files: dict[str, Path]) -> None:
    """Write a zip atomically."""
    partial = target.with_suffix(".part")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, path in files.items():
            archive.write(path, place)
    os.replace(partial, target)
