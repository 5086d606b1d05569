"""`make collect PART=... FROM=folder`: sort downloaded hand-ins into grading/submitted/.

A file belongs to the student whose name it begins with, or whose folder it lies in:
ada_01_data_split.ipynb, or ada/01_data_split.ipynb, also within a zip.
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from pathlib import Path

from grading.paths import GRADING, one


def students(part: str, folder: Path) -> dict[str, Path]:
    """The newest notebook of each student in a folder, by student."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.ipynb"), key=lambda p: p.stat().st_mtime):
        named = re.fullmatch(rf"(?P<student>[\w.@+-]+?)[_-]+{part}.*", path.stem)
        if named:
            found[named["student"]] = path
        elif path.stem == part and path.parent not in (folder, folder / part):
            student = path.parent.parent.name if path.parent.name == part else path.parent.name
            found[student] = path
    return found


def collect(part: str, folder: Path, home: Path = GRADING) -> list[str]:
    """Copy hand-ins to submitted/STUDENT/PART/; returns the students."""
    unpacked = home / "downloaded" / part / "extracted"
    for archive in sorted(folder.glob("*.zip")):
        with zipfile.ZipFile(archive) as content:
            content.extractall(unpacked / archive.stem)
    found = students(part, folder) | (students(part, unpacked) if unpacked.exists() else {})
    for student, path in found.items():
        target = home / "submitted" / student / part / f"{part}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return sorted(found)


def main() -> None:
    usage = "make collect PART=01_data_split FROM=~/Downloads/part01"
    part = one(sys.argv[1:], usage)
    if len(sys.argv) < 3 or not Path(sys.argv[2]).expanduser().is_dir():
        sys.exit(f"Which folder? {usage}. It holds files such as ada_{part}.ipynb or ada/{part}.ipynb, or a zip of them.")
    found = collect(part, Path(sys.argv[2]).expanduser())
    if not found:
        sys.exit(f"No hand-ins of {part} there. Expected files such as ada_{part}.ipynb or ada/{part}.ipynb, or a zip of them.")
    print(f"{len(found)} hand-ins in grading/submitted/: {', '.join(found)}")


if __name__ == "__main__":
    main()
