"""The files of a download: those of a folder, and of the zips in it, also of zips in zips."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import zipfile
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from grading.collecting import platforms
from grading.handin.submission import LARGEST, is_plain

MOST, MOST_BYTES = 10_000, 2 << 30  # notebooks and zips, and their bytes, in all zips together
MOST_OWN, MOST_BYTES_OWN, DEEPEST = 1000, 256 << 20, 3  # in a student's own zip; a zip in a zip in a zip
ALL_ZIPS = f"expected at most {MOST:,} notebooks, and {MOST_BYTES >> 30} GB in all zips together"
NOBODYS = re.compile(r"__MACOSX|\.ipynb_checkpoints|\.(?!ipynb$).*")  # what systems and editors leave


@dataclass
class File:
    """A file of a download.

    Attributes
    ----------
    container : str
        The zip that it came in; empty if it lies in the folder itself.
    inside : tuple of str
        The folders that it lies in, and its name. A zip in a zip is a folder.
    path : Path
        Where it lies now.
    time : datetime, optional
        When it was last changed, if that is known.
    """

    container: str
    inside: tuple[str, ...]
    path: Path
    time: datetime | None

    def __str__(self) -> str:
        return "/".join(part for part in (self.container, *self.inside) if part)


@dataclass
class Download:
    """The files of a download, and what was left out.

    Attributes
    ----------
    files : list of File
    refused : list of (str, str)
        A file, and why it was left out.
    """

    files: list[File] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)


def unpack(folder: Path, work: Path) -> Download:
    """All files of a folder and of its zips.

    Parameters
    ----------
    folder : Path
        A folder, a zip, or one notebook.
    work : Path
        An empty folder, for what comes out of zips. No file there has a name from outside.
    """
    found, room = Download(), [MOST, MOST_BYTES]
    if folder.suffix.lower() == ".ipynb" and is_plain(folder, LARGEST):
        found.files.append(File("", (folder.name,), folder, _mtime(folder)))
        return found
    if folder.is_file():
        _zip(folder, folder.name, (), found, work, room)
        return found
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        folders[:] = sorted(name for name in folders if not NOBODYS.fullmatch(name))
        for name in sorted(name for name in [*names, *links] if not NOBODYS.fullmatch(name)):
            path = Path(place) / name
            inside = path.relative_to(folder).parts
            if not is_plain(path):
                found.refused.append(("/".join(inside), "a link or something else that is no file"))
            elif name.lower().endswith(".zip"):
                if not platforms.read(name) and not any(platforms.read(part) for part in inside):
                    _zip(path, "/".join(inside), (), found, work, room)  # of a class, or of one student: its content says which
                else:
                    _own(path, "", inside, _mtime(path), found, work, room, 1)
            elif path.stat().st_size > LARGEST:
                found.refused.append(("/".join(inside), f"more than {LARGEST >> 20} MB"))
            else:
                found.files.append(File("", inside, path, _mtime(path)))
    return found


def _mtime(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime)


def _own(
    path: Path, container: str, inside: tuple[str, ...], time: datetime | None, found: Download, work: Path, room: list[int], depth: int
) -> None:
    """The files of a student's own zip, which have its time and less room than those of a class."""
    mine = [MOST_OWN, min(MOST_BYTES_OWN, room[1])]
    before = mine[1]
    _zip(path, container, inside, found, work, mine, time, depth)
    room[1] -= max(0, before - mine[1])


def _zip(
    path: Path,
    container: str,
    inside: tuple[str, ...],
    found: Download,
    work: Path,
    room: list[int],
    time: datetime | None = None,
    depth: int = 0,
) -> None:
    """The files of a zip; one that cannot be read is refused, and stops no other."""
    here, mine = "/".join(part for part in (container, *inside) if part), Download()
    try:
        with zipfile.ZipFile(path) as archive:
            if depth and len(archive.infolist()) > MOST_OWN:
                raise _Full(f"not unpacked; expected at most {MOST_OWN} files in a student's zip")
            for info in archive.infolist():
                _entry(archive, info, container, inside, mine, work, room, time, depth)
    except _Full as full:
        found.refused.append((here, str(full)))
        return
    except Exception as error:  # a file of a stranger: each way of packing has errors of its own
        found.refused.append((here, f"not unpacked; is it a zip, whole and without a password? ({str(error)[:200]})"))
        return  # the half of a zip is none
    if not mine.files and not mine.refused:
        found.refused.append((here, "nothing in it"))
    found.files += mine.files
    found.refused += mine.refused


class _Full(Exception):
    """There is no room for what is in a zip."""


def _entry(
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    container: str,
    inside: tuple[str, ...],
    found: Download,
    work: Path,
    room: list[int],
    time: datetime | None,
    depth: int,
) -> None:
    name = _name(info)
    parts = tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))
    if info.is_dir() or not parts or any(NOBODYS.fullmatch(part) for part in parts[:20] if part != ".."):
        return
    shown = "/".join(part for part in (container, *inside, name) if part)
    if len(name) > 1000 or len(parts) > 20 or max(map(len, parts)) > 255:
        found.refused.append((shown[:100] + "...", "its name is too long"))
    elif ".." in parts or name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name):
        found.refused.append((shown, "it leads out of its zip"))
    elif stat.S_ISLNK(info.external_attr >> 16):
        found.refused.append((shown, "a link"))
    elif not name.lower().endswith((".ipynb", ".zip")) and (depth or parts[-1] != "index.html"):
        found.files.append(File(container, (*inside, *parts), Path(os.devnull), None))  # its name says enough
    elif info.file_size > LARGEST:
        found.refused.append((shown, f"more than {LARGEST >> 20} MB"))
    else:
        room[0], room[1] = room[0] - 1, room[1] - info.file_size
        if min(room) < 0:
            raise _Full("not unpacked; " + (f"a student's zip may have {MOST_BYTES_OWN >> 20} MB" if depth else ALL_ZIPS))
        handle, target = tempfile.mkstemp(dir=work)
        with archive.open(info) as source, os.fdopen(handle, "wb") as copy:
            _copy(source, copy, info)
        changed = time if depth else _time(info)  # what a student has packed has the time of the upload
        if not name.lower().endswith(".zip"):
            found.files.append(File(container, (*inside, *parts), Path(target), changed))
        elif depth == DEEPEST:
            found.refused.append((shown, "a zip in a zip in a zip, too deep"))
        else:
            _own(Path(target), container, (*inside, *parts), changed, found, work, room, depth + 1)


def _copy(source, copy, info: zipfile.ZipInfo) -> None:
    """Unpack what the zip says that there is, and no more."""
    left = info.file_size
    while block := source.read(1 << 20):
        left -= len(block)
        if left < 0:
            raise zlib.error("more in it than it says")
        copy.write(block)


def _name(info: zipfile.ZipInfo) -> str:
    """An entry's name; many programs write UTF-8 without the flag that says so."""
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
