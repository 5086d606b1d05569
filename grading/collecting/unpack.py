"""Unpack a download: the files of a folder and of the zips in it, including zips in zips."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from grading.collecting import platforms
from grading.submission.assembly import MAX_NOTEBOOK_BYTES, is_regular_file

MAX_FILES, MAX_BYTES = 100_000, 20 << 30  # notebooks and zips, and their bytes, in all zips together
MAX_FILES_PER_STUDENT, MAX_BYTES_PER_STUDENT, MAX_ZIP_DEPTH = 1000, 256 << 20, 3  # per student, in all zips; zips in zips
SYSTEMS = re.compile(r"__MACOSX|\._.*")  # written by systems, not by students
HIDDEN = re.compile(r"\.(?!ipynb$).*")  # left by editors, such as .ipynb_checkpoints
NOTEBOOK = re.compile(r"\.ipynb(?:\.(?:txt|json))?$", re.IGNORECASE)  # as some browsers and mail programs rename one


@dataclass
class DownloadedFile:
    """A file of a download.

    Attributes
    ----------
    container : str
        Its zip; empty if it is in the folder itself.
    inside : tuple of str
        The folders around it, and its name. A zip in a zip counts as a folder.
    path : Path
        Where it is now.
    time : datetime, optional
        Time of its last change, if known.
    packed : datetime, optional
        Time of the last change of its zip.
    """

    container: str
    inside: tuple[str, ...]
    path: Path
    time: datetime | None
    packed: datetime | None = None

    @property
    def path_parts(self) -> tuple[str, ...]:
        """The folders and zips around it, outermost first, and its name."""
        return (*filter(None, self.container.split("/")), *self.inside)

    def __str__(self) -> str:
        return "/".join(part for part in (self.container, *self.inside) if part)


@dataclass
class Download:
    """The files of a download, and those left out.

    Attributes
    ----------
    files : list of DownloadedFile
    hidden : list of DownloadedFile
        Notebooks and zips that were not inspected, since editors and systems hide such files.
    refused : list of (str, str)
        A file, and why it was left out.
    """

    files: list[DownloadedFile] = field(default_factory=list)
    hidden: list[DownloadedFile] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)


class UnpackQuota:
    """Limits for all zips together, and for one student's files in them.

    Parameters
    ----------
    work : Path
        Target folder; at most half of its free space is used.
    """

    def __init__(self, work: Path):
        self.left = [MAX_FILES, min(MAX_BYTES, shutil.disk_usage(work).free // 2)]
        self._own: dict[str, list[int]] = {}

    def take(self, student: str, size: int) -> str | None:
        """Reserve room for one file of a student; return why there is none, or None."""
        own = self._own.setdefault(student, [MAX_FILES_PER_STUDENT, MAX_BYTES_PER_STUDENT])
        if not own[0] or size > own[1]:
            most = f"{MAX_FILES_PER_STUDENT:,} notebooks and {MAX_BYTES_PER_STUDENT >> 20} MB"
            return f"not unpacked; the limit for one student's files in zips is {most}"
        if not self.left[0] or size > self.left[1]:
            most = f"{MAX_FILES:,} notebooks and {MAX_BYTES >> 30} GB or half of the disk"
            return f"not unpacked; the limit for all zips together is {most}"
        for account in (own, self.left):
            account[0] -= 1
            account[1] -= size
        return None


def unpack(folder: Path, work: Path) -> Download:
    """Unpack a folder and its zips.

    Parameters
    ----------
    folder : Path
        A folder, a zip, or one notebook.
    work : Path
        An empty folder for files from zips, none of which keeps its name there.
    """
    found, room = Download(), UnpackQuota(work)
    if NOTEBOOK.search(folder.name) and is_regular_file(folder, MAX_NOTEBOOK_BYTES):
        found.files.append(DownloadedFile("", (folder.name,), folder, _mtime(folder)))
        return found
    if folder.is_file():
        _zip(folder, folder.name, (), found, work, room)
        return found
    for place, folders, names in os.walk(folder, onerror=lambda error: found.refused.append(_unreadable(error, folder))):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        folders[:] = sorted(name for name in folders if not SYSTEMS.fullmatch(name))
        for name in sorted(name for name in [*names, *links] if not SYSTEMS.fullmatch(name)):
            path = Path(place) / name
            inside = path.relative_to(folder).parts
            if any(map(HIDDEN.fullmatch, inside)):
                _hide("", inside, found)
            elif is_regular_file(path) and not os.access(path, os.R_OK):
                found.refused.append(("/".join(inside), "it cannot be read: Permission denied"))
            elif not is_regular_file(path):
                found.refused.append(("/".join(inside), "a link or something else that is not a regular file"))
            elif name.lower().endswith(".zip"):
                if not platforms.parse_name(name) and not any(platforms.parse_name(part) for part in inside):
                    _zip(path, "/".join(inside), (), found, work, room)  # a class's or one student's: its content decides
                else:
                    _zip(path, "", inside, found, work, room, _mtime(path), 1)
            elif path.stat().st_size > MAX_NOTEBOOK_BYTES:
                found.refused.append(("/".join(inside), f"more than {MAX_NOTEBOOK_BYTES >> 20} MB"))
            else:
                found.files.append(DownloadedFile("", inside, path, _mtime(path)))
    return found


def _unreadable(error: OSError, folder: Path) -> tuple[str, str]:
    """Return a folder that cannot be read, and why."""
    return os.path.relpath(error.filename, folder), f"it cannot be read: {error.strerror}"


def _hide(container: str, inside: tuple[str, ...], found: Download) -> None:
    if NOTEBOOK.search(inside[-1]) or inside[-1].lower().endswith(".zip"):
        found.hidden.append(DownloadedFile(container, inside, Path(os.devnull), None))


def _students(container: str, inside: tuple[str, ...]) -> str:
    """Return the likely owner of a file, for the quota: as a platform names it, else the first folder or the zip."""
    said = next(filter(None, map(platforms.parse_name, inside)), None)
    return f"{said.student} {said.number}" if said else "/".join((container, *inside[:1] * (len(inside) > 1)))


def _mtime(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime)


def _zip(
    path: Path,
    container: str,
    inside: tuple[str, ...],
    found: Download,
    work: Path,
    room: UnpackQuota,
    time: datetime | None = None,
    depth: int = 0,
) -> None:
    """Unpack a zip; one that cannot be read is refused, without affecting others.

    At depth 0 it is a class's or one student's, below that a student's own: files that students have packed get the time of the upload.
    """
    here, mine = "/".join(part for part in (container, *inside) if part), Download()
    try:
        with zipfile.ZipFile(path) as archive:
            names = (
                platforms.parse_name(name) for info in archive.infolist()[: 2 * MAX_FILES_PER_STUDENT] for name in _name(info).split("/")
            )
            own = depth > 0 and (any(map(platforms.parse_name, inside)) or not any(names))  # otherwise it is a download in a download
            if own and len(archive.infolist()) > MAX_FILES_PER_STUDENT:
                found.refused.append((here, f"not unpacked; expected at most {MAX_FILES_PER_STUDENT:,} files in a student's zip"))
                return
            for info in archive.infolist():
                _entry(archive, info, container, inside, mine, work, room, time if own else None, depth)
            for file in mine.files:
                file.packed = file.packed or (_mtime(path) if not depth else None)
    except Exception as error:  # an untrusted file: each compression method has errors of its own
        found.refused.append((here, f"not unpacked; is it a complete zip, without a password? ({str(error)[:200]})"))
        return  # half a zip does not count
    if not mine.files and not mine.refused and not mine.hidden:
        found.refused.append((here, "it is empty"))
    found.files += mine.files
    found.hidden += mine.hidden
    found.refused += mine.refused


def _entry(
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    container: str,
    inside: tuple[str, ...],
    found: Download,
    work: Path,
    room: UnpackQuota,
    time: datetime | None,
    depth: int,
) -> None:
    name = _name(info)
    parts = tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))
    if info.is_dir() or not parts or any(map(SYSTEMS.fullmatch, parts[:20])):
        return
    shown = "/".join(part for part in (container, *inside, name) if part)
    if len(name) > 1000 or len(parts) > 20 or max(map(len, parts)) > 255:
        found.refused.append((shown[:100] + "...", "its name is too long"))
    elif ".." in parts or name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name):
        found.refused.append((shown, "its path leads out of the zip"))
    elif stat.S_ISLNK(info.external_attr >> 16):
        found.refused.append((shown, "a link"))
    elif any(HIDDEN.fullmatch(part) for part in parts):
        _hide(container, (*inside, *parts), found)
    elif not NOTEBOOK.search(name) and not name.lower().endswith(".zip") and (time or parts[-1] != "index.html"):
        found.files.append(DownloadedFile(container, (*inside, *parts), Path(os.devnull), None))  # its name is enough
    elif info.file_size > MAX_NOTEBOOK_BYTES:
        found.refused.append((shown, f"more than {MAX_NOTEBOOK_BYTES >> 20} MB"))
    elif why := room.take(_students(container, (*inside, *parts)), info.file_size):
        found.refused.append((shown, why))
    else:
        handle, target = tempfile.mkstemp(dir=work)
        with archive.open(info) as source, os.fdopen(handle, "wb") as copy:
            _copy(source, copy, info)
        changed = time or _time(info)  # files that students have packed get the time of the upload
        if not name.lower().endswith(".zip"):
            found.files.append(DownloadedFile(container, (*inside, *parts), Path(target), changed))
        elif depth == MAX_ZIP_DEPTH:
            found.refused.append((shown, "a zip in a zip in a zip, which is too deep"))
        else:
            _zip(Path(target), container, (*inside, *parts), found, work, room, changed, depth + 1)


def _copy(source, copy, info: zipfile.ZipInfo) -> None:
    """Unpack as much as the zip declares, and no more."""
    left = info.file_size
    while block := source.read(1 << 20):
        left -= len(block)
        if left < 0:
            raise zlib.error("it holds more than it declares")
        copy.write(block)


def _name(info: zipfile.ZipInfo) -> str:
    """Return an entry's name; many programs write UTF-8 without setting its flag."""
    if info.flag_bits & 0x800:
        return info.filename
    try:
        return info.orig_filename.encode("cp437").decode("utf-8").split("\0")[0]
    except (UnicodeEncodeError, UnicodeDecodeError):
        return info.filename


def _time(info: zipfile.ZipInfo) -> datetime | None:
    try:
        return datetime(*info.date_time) if info.date_time[0] > 1980 else None
    except ValueError:
        return None
