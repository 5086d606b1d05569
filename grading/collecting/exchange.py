"""Collect from nbgrader's exchange, where each student has created folders, and may have put anything into them.

nbgrader's own collect follows links, trusts the time in a folder's name, and stops at a name or a folder that it cannot read. Here a
folder counts only if the student owns it; its notebook is copied only if it is a regular file; and its time is no earlier than the
system says. What cannot be read costs its owner that submission, and affects nobody else.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import stat
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from nbgrader.exchange.default import ExchangeCollect, ExchangeReleaseFeedback
from nbgrader.utils import parse_utc

from grading.formatting import printable
from grading.people import ids

FOLDER_NAME = re.compile(
    r"(?P<student>.+)\+(?P<part>[^+]+)\+(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})? UTC)(\+[\w=-]+)?", re.ASCII
)
MAX_CLOCK_SKEW = timedelta(minutes=10)  # clock error allowed
SUBMIT_TOLERANCE = timedelta(minutes=1)  # time that submitting may take
MAX_NOTEBOOK_BYTES = 20 << 20  # bytes of a notebook
MAX_EARLIER_TRIED = 20  # submissions of a student, the newest first, until one can be read
SECRET_FILE = "submission_secret.txt"  # with which a student finds the feedback
TIMESTAMP_FILE = "timestamp.txt"
SECRET_PATTERN = re.compile(rb"[!-~]{16,200}")  # nbgrader's have 128 letters; it reads them as text
EMPTY_RECORD = {"username": "", "filename": "", "timestamp": datetime(1970, 1, 1)}


class VerifiedCollect(ExchangeCollect):
    """nbgrader's collect, for folders whose names have been verified."""

    check_owner = False  # `read_folder_name` does; nbgrader's own check fails the run if a folder disappears meanwhile

    def init_src(self) -> None:
        """Find the newest submission of each student."""
        self.records, self.refused = [], defaultdict(list)
        super().init_src()
        self.src_records = [record for record in self.src_records if record["username"]]
        for (_, why), names in self.refused.items():  # one line per reason, as somebody may make thousands of folders
            more = f", and {len(names) - 1} more like it" if names[1:] else ""
            self.log.warning("Not collected: %s: %s%s", printable(names[0]), why, more)

    def _path_to_record(self, path: str) -> dict:
        folder = Path(path)
        try:
            owner = owner_name(folder.lstat())
            record = read_folder_name(folder, self.coursedir.assignment_id)
        except OSError:  # it disappeared meanwhile
            return EMPTY_RECORD
        except ValueError as why:
            self.refused[owner, str(why)].append(folder.name)
            return EMPTY_RECORD
        self.records.append(record)
        return record

    def do_copy(self, src: str, dest: str, log=None) -> None:
        """Copy a submission; if it cannot be read, the student's newest earlier one that can."""
        chosen = next(r for r in self.src_records if r["filename"] == Path(src).name)
        student = chosen["username"]
        earlier = [r for r in self.records if r["username"] == student and r["timestamp"] <= chosen["timestamp"]]
        for record in sorted(earlier, key=lambda r: (r is chosen, r["timestamp"]), reverse=True)[:MAX_EARLIER_TRIED]:
            try:
                self._copy(record, Path(dest))
            except (OSError, ValueError) as error:
                why = f"it cannot be copied: {error.strerror}" if isinstance(error, OSError) else error
                self.log.warning("Not collected: %s: %s", record["filename"], why)
                shutil.rmtree(dest, ignore_errors=True)
                continue
            if record is not chosen:
                self.log.warning("Collected instead of %s's newest: %s", student, record["filename"])
            return
        with contextlib.suppress(OSError):
            Path(dest).parent.rmdir()  # there is nothing from this student

    def _copy(self, record: dict, target: Path) -> None:
        student, said = record["username"], FOLDER_NAME.fullmatch(record["filename"])["time"]
        notebook, secret, changed = read_folder(Path(self.inbound_path) / record["filename"], self.coursedir.assignment_id, student)
        if changed > record["timestamp"].replace(tzinfo=UTC) + SUBMIT_TOLERANCE:
            self.log.warning("The hand-in of %s says that it is from %s, but was changed at %s, which counts.", student, said, changed)
            said = changed.strftime("%Y-%m-%d %H:%M:%S.%f UTC")
        target.mkdir()
        (target / f"{self.coursedir.assignment_id}.ipynb").write_bytes(notebook)
        (target / TIMESTAMP_FILE).write_text(said)
        if secret:
            (target / SECRET_FILE).write_bytes(secret)
        else:
            self.log.warning(
                "%s's %s is not one that nbgrader writes: no feedback can be returned through the exchange.", student, SECRET_FILE
            )


class VerifiedReleaseFeedback(ExchangeReleaseFeedback):
    """nbgrader's feedback release, for pages from `make feedback`: the secret of each submission is in submitted/."""

    def copy_files(self) -> None:
        """Release the pages of those who submitted through the exchange; others get theirs the way they submitted."""
        others = []
        for page in Path(self.coursedir.root).glob(f"feedback/*/{self.coursedir.assignment_id}"):
            submission_dir = Path(self.coursedir.root) / "submitted" / page.parent.name / page.name
            secret = (submission_dir / SECRET_FILE).read_bytes() if (submission_dir / SECRET_FILE).exists() else None
            if secret and SECRET_PATTERN.fullmatch(secret) and (submission_dir / TIMESTAMP_FILE).exists():
                (page / SECRET_FILE).write_bytes(secret)
                (page / TIMESTAMP_FILE).write_bytes((submission_dir / TIMESTAMP_FILE).read_bytes())
                continue
            others.append(page.parent.name)
            if secret is not None:
                self.log.warning("Not released: feedback of %s, whose %s is not one that nbgrader writes.", page.parent.name, SECRET_FILE)
        self.coursedir.student_id_exclude = ",".join(filter(None, [self.coursedir.student_id_exclude, *others]))
        super().copy_files()


def owner_name(facts: os.stat_result) -> str:
    """Return the name of a file's owner."""
    return _named(facts.st_uid)


@cache
def _named(uid: int) -> str:  # somebody may make thousands of folders
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def read_folder_name(folder: Path, part: str) -> dict:
    """Return the student and the time that a folder's name in the exchange gives.

    Raises
    ------
    ValueError
        It is not a submission of that part by its owner; the message says why.
    """
    found = FOLDER_NAME.fullmatch(folder.name)
    if not found or found["part"] != part:
        raise ValueError("its name is not student+part+time+letters, as nbgrader writes it")
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode):
        raise ValueError("it is not a folder")
    owner = owner_name(facts)
    if owner != found["student"]:
        raise ValueError(f"it is {owner}'s, but claims to be another student's")
    if why := ids.id_problem(owner):
        raise ValueError(why)
    try:
        time = parse_utc(found["time"])
    except (ValueError, OverflowError):
        raise ValueError("its time is invalid") from None
    if time.replace(tzinfo=UTC) > datetime.now(UTC) + MAX_CLOCK_SKEW:
        raise ValueError("its time is in the future")
    return {"username": owner, "filename": folder.name, "timestamp": time}


def read_folder(folder: Path, part: str, student: str) -> tuple[bytes, bytes | None, datetime]:
    """Read a folder that somebody else owns, and may change meanwhile.

    Returns
    -------
    notebook : bytes
    secret : bytes or None
        None if there is none, or if it is not one that nbgrader writes.
    changed : datetime
        Time of the last change, as the system says: nobody can set that.

    Raises
    ------
    OSError, ValueError
        It has no notebook that can be read; the message says why.
    """
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        facts = os.fstat(place)
        if owner_name(facts) != student:
            raise ValueError(f"it was {student}'s, but now is {owner_name(facts)}'s")
        notebook, changed = _content(f"{part}.ipynb", place, facts.st_uid, MAX_NOTEBOOK_BYTES)
        try:
            secret, _ = _content(SECRET_FILE, place, facts.st_uid, 1 << 10)
        except (OSError, ValueError):
            secret = b""
        changed = max(changed, os.fstat(place).st_ctime)  # afterwards, so that files added meanwhile count
    finally:
        os.close(place)
    return notebook, secret if SECRET_PATTERN.fullmatch(secret) else None, datetime.fromtimestamp(changed, UTC)


def _content(name: str, place: int, owner: int, most: int) -> tuple[bytes, float]:
    """Return a file's content and its change time; do not open links or pipes, or read much of a file that is too large."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    except OSError as error:
        raise ValueError(f"{name} cannot be opened: {error.strerror}") from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != owner or facts.st_nlink > 1:
            raise ValueError(f"{name} is not a regular file that is the student's alone")
        with open(descriptor, "rb", closefd=False) as file:
            if facts.st_size > most or len(content := file.read(most + 1)) > most:
                raise ValueError(f"{name} is larger than {most} bytes")
        return content, os.fstat(descriptor).st_ctime
    finally:
        os.close(descriptor)
