"""`make collect PART=... FROM=folder`: sort downloaded hand-ins into grading/submitted/.

A file belongs to the student whose name it begins with, or whose folder it lies in:
ada_01_data_split.ipynb, or ada/01_data_split.ipynb, also within a zip.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
import zipfile
from collections.abc import Iterable
from pathlib import Path

from grading.paths import GRADING, one
from grading.submission import LARGEST, is_plain

MOST, MOST_BYTES = 10_000, 2 << 30  # notebooks, and bytes of them, in all zips together
NO_NAME = re.compile(r"[=+@.\s-]|$")  # a table takes it for a formula, or nobody sees it


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
    room, problems = [MOST, MOST_BYTES], []
    for archive in sorted(folder.glob("*.zip")):
        problem = _unpack(archive, unpacked / archive.name, room)
        problems += [problem] if problem else []
    found = students(part, folder)
    for student, paths in students(part, unpacked).items():
        found.setdefault(student, []).extend(paths)
    collected, alike = [], _alike(found)
    for student, paths in sorted(found.items()):
        if len(alike[student]) > 1:
            problems.append(f"{student}: {', '.join(alike[student])} may be one student; rename the folder or file of one of them")
            continue
        if NO_NAME.match(student):
            problems.append(
                f"{student!r}: a student's name does not begin with a space or one of = + @ . - and is not empty; rename the folder or file"
            )
            continue
        # Whoever hands in a file with another student's name, wherever it comes to lie, hands nothing in for them.
        places = {_place(part, path, folder, unpacked): path for path in paths}  # the newest in each
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


def _alike(names: Iterable[str]) -> dict[str, list[str]]:
    """For each name those that are the same on some disks, or to the eye: capital letters, and ways to write an accent."""
    same: dict[str, list[str]] = {}
    for name in sorted(names):
        same.setdefault(unicodedata.normalize("NFKC", name).casefold(), []).append(name)
    return {name: names for names in same.values() for name in names}


def _place(part: str, path: Path, folder: Path, unpacked: Path) -> str:
    """Where a file lies, in its zip or folder; without the number that a second download of the same file gets."""
    inside = path.relative_to(unpacked if path.is_relative_to(unpacked) else folder)
    return str(inside.with_name(re.sub(rf"({part})[ _-]*\(?\d{{0,3}}\)?(?=\.ipynb$)", r"\1", inside.name)))


def _unpack(archive: Path, target: Path, room: list[int]) -> str | None:
    """Unpack the notebooks of a zip, for as many of which and of their bytes there is still `room`; what is wrong with it, or None."""
    try:
        with zipfile.ZipFile(archive) as content:
            inside = [info for info in content.infolist() if info.filename.endswith(".ipynb") and not info.is_dir()]
            left = room[0] - len(inside), room[1] - sum(info.file_size for info in inside)
            if min(left) < 0 or any(info.file_size > LARGEST for info in inside):
                most = f"{MOST:,} notebooks of at most {LARGEST >> 20} MB each, and {MOST_BYTES >> 30} GB in all zips together"
                return f"{archive.name}: not unpacked; expected at most {most}"
            room[:] = left
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
