"""`make collect PART=... FROM=folder`: sort downloaded hand-ins into grading/submitted/.

A file belongs to the student whose name it begins with, or whose folder it lies in:
ada_01_data_split.ipynb, or ada/01_data_split.ipynb, also within a zip.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

from grading.paths import GRADING, one
from grading.submission import LARGEST, is_plain

MOST = 10_000  # files of a zip


def students(part: str, folder: Path) -> dict[str, list[Path]]:
    """The notebooks of each student in a folder, the newest last. Links, pipes and folders that are called so are none."""
    found: dict[str, list[Path]] = {}
    paths = [Path(place) / name for place, _, names in os.walk(folder) for name in names if name.endswith(".ipynb")]
    for path in sorted(filter(is_plain, paths), key=lambda p: (p.lstat().st_mtime, p)):
        named = re.fullmatch(rf"(?P<student>[\w@+-][\w.@+-]*?)[_-]+{part}.*", path.stem)
        if named:
            found.setdefault(named["student"], []).append(path)
        elif path.stem == part and path.parent not in (folder, folder / part):
            student = path.parent.parent.name if path.parent.name == part else path.parent.name
            found.setdefault(student, []).append(path)
    return found


def collect(part: str, folder: Path, home: Path = GRADING) -> tuple[list[str], list[str]]:
    """Copy hand-ins to submitted/STUDENT/PART/.

    Returns
    -------
    collected, problems : list of str
        The students; and, in a sentence each, what was left out and why.
    """
    unpacked = home / "downloaded" / part / "extracted"
    shutil.rmtree(unpacked, ignore_errors=True)  # what lies there is of zips that may be gone
    problems = [problem for archive in sorted(folder.glob("*.zip")) if (problem := _unpack(archive, unpacked / archive.stem))]
    found = students(part, folder)
    for student, paths in students(part, unpacked).items():
        found.setdefault(student, []).extend(paths)
    collected = []
    for student, paths in sorted(found.items()):
        # Whoever puts a file with another student's name into their own folder or zip hands nothing in for them.
        places = {_place(path, folder, unpacked): path for path in paths}
        if len({path.read_bytes() if is_plain(path, LARGEST) else path for path in places.values()}) > 1:
            problems.append(
                f"{student}: there are different hand-ins in {', '.join(sorted(places))}; leave the right one there, and collect again"
            )
            continue
        target = home / "submitted" / student / part / f"{part}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(paths[-1], target, follow_symlinks=False)
        collected.append(student)
    return collected, problems


def _place(path: Path, folder: Path, unpacked: Path) -> str:
    """The zip or the folder that a file came in."""
    if path.is_relative_to(unpacked):
        return f"{path.relative_to(unpacked).parts[0]}.zip"
    parts = path.relative_to(folder).parts
    return f"{parts[0]}/" if len(parts) > 1 else str(folder)


def _unpack(archive: Path, target: Path) -> str | None:
    """Unpack the notebooks of a zip; what is wrong with it, or None."""
    try:
        with zipfile.ZipFile(archive) as content:
            inside = [info for info in content.infolist() if info.filename.endswith(".ipynb") and not info.is_dir()]
            if len(inside) > MOST or any(info.file_size > LARGEST for info in inside):
                return f"{archive.name}: not unpacked; expected at most {MOST:,} notebooks of at most {LARGEST >> 20} MB each"
            for info in inside:
                content.extract(info, target)
    except Exception as error:  # a file of a stranger: each way of packing has errors of its own
        shutil.rmtree(target, ignore_errors=True)  # the half of a notebook is none
        return f"{archive.name}: not unpacked; is it a zip, whole and without a password? ({error})"
    return None


def main() -> None:
    usage = "make collect PART=01_data_split FROM=~/Downloads/part01"
    part = one(sys.argv[1:], usage)
    if len(sys.argv) < 3 or not Path(sys.argv[2]).expanduser().is_dir():
        sys.exit(f"Which folder? {usage}. It holds files such as ada_{part}.ipynb or ada/{part}.ipynb, or a zip of them.")
    collected, problems = collect(part, Path(sys.argv[2]).expanduser())
    if collected:
        print(f"{len(collected)} hand-ins in grading/submitted/: {', '.join(collected)}")
    if problems:
        sys.exit("\n".join(problems))
    if not collected:
        sys.exit(f"No hand-ins of {part} there. Expected files such as ada_{part}.ipynb or ada/{part}.ipynb, or a zip of them.")


if __name__ == "__main__":
    main()
