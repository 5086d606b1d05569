"""Collecting from nbgrader's exchange, where each student has made folders, and may have put anything into them.

nbgrader's own step follows links, believes the time that a folder's name says, and ends at a name or a folder that it cannot read. Here a
folder counts if it is the student's own; its notebook is copied if it is a file; and it came no earlier than the system says. Whatever
cannot be read costs its owner that hand-in, and nobody else anything.
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
MAX_CLOCK_SKEW = timedelta(minutes=10)  # that a clock may be
SUBMIT_TOLERANCE = timedelta(minutes=1)  # that handing in may take
MAX_NOTEBOOK_BYTES = 20 << 20  # bytes of a notebook
MAX_EARLIER_TRIED = 20  # of a student's hand-ins, the newest first, until one can be read
SECRET_FILE = "submission_secret.txt"  # with which a student finds the feedback
TIMESTAMP_FILE = "timestamp.txt"
SECRET_PATTERN = re.compile(rb"[!-~]{16,200}")  # nbgrader's have 128 letters; it reads them as text
EMPTY_RECORD = {"username": "", "filename": "", "timestamp": datetime(1970, 1, 1)}


class VerifiedCollect(ExchangeCollect):
    """nbgrader's collect, for folders that are what their names say."""

    check_owner = False  # `read_folder_name` does; nbgrader's own look ends the run if a folder goes meanwhile

    def init_src(self) -> None:
        """Find what is there, the newest of each student."""
        self.records, self.refused = [], defaultdict(list)
        super().init_src()
        self.src_records = [record for record in self.src_records if record["username"]]
        for (_, why), names in self.refused.items():  # a line for each reason, as somebody may make thousands of folders
            more = f", and {len(names) - 1} more like it" if names[1:] else ""
            self.log.warning("Not collected: %s: %s%s", printable(names[0]), why, more)

    def _path_to_record(self, path: str) -> dict:
        folder = Path(path)
        try:
            owner = owner_name(folder.lstat())
            record = read_folder_name(folder, self.coursedir.assignment_id)
        except OSError:  # it went meanwhile
            return EMPTY_RECORD
        except ValueError as why:
            self.refused[owner, str(why)].append(folder.name)
            return EMPTY_RECORD
        self.records.append(record)
        return record

    def do_copy(self, src: str, dest: str, log=None) -> None:
        """Copy a hand-in; where it cannot be read, the newest of the student's earlier ones that can."""
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
            Path(dest).parent.rmdir()  # there is nothing of this student

    def _copy(self, record: dict, target: Path) -> None:
        student, said = record["username"], FOLDER_NAME.fullmatch(record["filename"])["time"]
        notebook, secret, changed = read_folder(Path(self.inbound_path) / record["filename"], self.coursedir.assignment_id, student)
        if changed > record["timestamp"].replace(tzinfo=UTC) + SUBMIT_TOLERANCE:
            self.log.warning("%s says that it came %s, and was changed at %s: that counts.", student, said, changed)
            said = changed.strftime("%Y-%m-%d %H:%M:%S.%f UTC")
        target.mkdir()
        (target / f"{self.coursedir.assignment_id}.ipynb").write_bytes(notebook)
        (target / TIMESTAMP_FILE).write_text(said)
        if secret:
            (target / SECRET_FILE).write_bytes(secret)
        else:
            self.log.warning("%s's %s is none that nbgrader writes: no feedback goes back by the exchange.", student, SECRET_FILE)


class VerifiedReleaseFeedback(ExchangeReleaseFeedback):
    """nbgrader's release of feedback, for pages that `make feedback` wrote: the secret of each hand-in lies in submitted/."""

    def copy_files(self) -> None:
        """Release the pages of those who handed in by the exchange; others get theirs in the way that they came."""
        others = []
        for page in Path(self.coursedir.root).glob(f"feedback/*/{self.coursedir.assignment_id}"):
            came = Path(self.coursedir.root) / "submitted" / page.parent.name / page.name
            secret = (came / SECRET_FILE).read_bytes() if (came / SECRET_FILE).exists() else None
            if secret and SECRET_PATTERN.fullmatch(secret) and (came / TIMESTAMP_FILE).exists():
                (page / SECRET_FILE).write_bytes(secret)
                (page / TIMESTAMP_FILE).write_bytes((came / TIMESTAMP_FILE).read_bytes())
                continue
            others.append(page.parent.name)
            if secret is not None:
                self.log.warning("Not released: the feedback of %s, whose %s is none that nbgrader writes.", page.parent.name, SECRET_FILE)
        self.coursedir.student_id_exclude = ",".join(filter(None, [self.coursedir.student_id_exclude, *others]))
        super().copy_files()


def owner_name(facts: os.stat_result) -> str:
    """The name of an owner."""
    return _named(facts.st_uid)


@cache
def _named(uid: int) -> str:  # somebody may make thousands of folders
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def read_folder_name(folder: Path, part: str) -> dict:
    """What a folder of the exchange says: who, and when.

    Raises
    ------
    ValueError
        It is no hand-in of that part by its owner; the message says why.
    """
    found = FOLDER_NAME.fullmatch(folder.name)
    if not found or found["part"] != part:
        raise ValueError("its name is not student+part+time+letters, as nbgrader gives it")
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode):
        raise ValueError("it is no folder")
    owner = owner_name(facts)
    if owner != found["student"]:
        raise ValueError(f"it is {owner}'s, and says to be another's")
    if why := ids.id_problem(owner):
        raise ValueError(why)
    try:
        time = parse_utc(found["time"])
    except (ValueError, OverflowError):
        raise ValueError("its time is none") from None
    if time.replace(tzinfo=UTC) > datetime.now(UTC) + MAX_CLOCK_SKEW:
        raise ValueError("it says to come from the future")
    return {"username": owner, "filename": folder.name, "timestamp": time}


def read_folder(folder: Path, part: str, student: str) -> tuple[bytes, bytes | None, datetime]:
    """What is in a folder that somebody else owns, and may change meanwhile.

    Returns
    -------
    notebook : bytes
    secret : bytes or None
        None if there is none, or it is none that nbgrader writes.
    changed : datetime
        When the last of it was changed, as the system says: nobody can set that.

    Raises
    ------
    OSError, ValueError
        It has no notebook that can be read; the message says why.
    """
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        facts = os.fstat(place)
        if owner_name(facts) != student:
            raise ValueError(f"it was {student}'s, and now is {owner_name(facts)}'s")
        notebook, changed = _content(f"{part}.ipynb", place, facts.st_uid, MAX_NOTEBOOK_BYTES)
        try:
            secret, _ = _content(SECRET_FILE, place, facts.st_uid, 1 << 10)
        except (OSError, ValueError):
            secret = b""
        changed = max(changed, os.fstat(place).st_ctime)  # afterwards: what was put there meanwhile counts
    finally:
        os.close(place)
    return notebook, secret if SECRET_PATTERN.fullmatch(secret) else None, datetime.fromtimestamp(changed, UTC)


def _content(name: str, place: int, owner: int, most: int) -> tuple[bytes, float]:
    """A file's content, and when it was changed; neither a link nor a pipe is opened, nor is much read of what is too large."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    except OSError as error:
        raise ValueError(f"{name} cannot be opened: {error.strerror}") from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != owner or facts.st_nlink > 1:
            raise ValueError(f"{name} is no file of the student's alone")
        with open(descriptor, "rb", closefd=False) as file:
            if facts.st_size > most or len(content := file.read(most + 1)) > most:
                raise ValueError(f"{name} is larger than {most} bytes")
        return content, os.fstat(descriptor).st_ctime
    finally:
        os.close(descriptor)
