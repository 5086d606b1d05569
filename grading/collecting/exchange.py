"""Collecting from nbgrader's exchange, where each student has made a folder, and may have put anything into it.

nbgrader's own step follows links, believes the time that a folder's name says, and ends at a name that it cannot read. Here a folder counts
if it is the student's own; its notebooks are copied if they are files; and it came no earlier than the system says.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nbgrader.exchange.default import ExchangeCollect, ExchangeReleaseFeedback
from nbgrader.utils import parse_utc

from grading.plain import printable

FORM = re.compile(r"(?P<student>.+)\+(?P<part>[^+]+)\+(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? [A-Z]+)(\+[\w=-]+)?")
SLACK = timedelta(minutes=10)  # that handing in may take, and that clocks may differ
MOST = 20 << 20  # bytes of a file
FILES = 10  # of a hand-in
SECRET = "submission_secret.txt"  # with which a student finds the feedback


class CollectOwn(ExchangeCollect):
    """nbgrader's collect, for folders that are what their names say."""

    def init_src(self) -> None:
        """Find what is there, the newest of each student."""
        super().init_src()
        self.src_records = [record for record in self.src_records if record["username"]]

    def _path_to_record(self, path: str) -> dict:
        try:
            return read(Path(path), self.coursedir.assignment_id)
        except ValueError as why:
            self.log.warning("Not collected: %s: %s", printable(Path(path).name), why)
            return {"username": "", "filename": "", "timestamp": parse_utc("1970-01-01 00:00:00 UTC")}

    def do_copy(self, src: str, dest: str, log=None) -> None:
        """Copy the notebooks of a hand-in; links and what else is no file stay behind."""
        record = next(r for r in self.src_records if r["filename"] == Path(src).name)
        refused, newest = copied(Path(src), Path(dest))
        for name, why in refused:
            self.log.warning("Not collected: %s of %s: %s", printable(name), record["username"], why)
        said = FORM.fullmatch(record["filename"])["time"]
        if newest > parse_utc(said).replace(tzinfo=UTC) + SLACK:
            self.log.warning("%s says that it came %s, and was changed at %s: that counts.", record["username"], said, newest)
            said = newest.strftime("%Y-%m-%d %H:%M:%S.%f UTC")
        (Path(dest) / "timestamp.txt").write_text(said)


class ReleaseToOwner(ExchangeReleaseFeedback):
    """nbgrader's release of feedback, for pages that `make feedback` wrote: the secret of each hand-in lies in submitted/."""

    def copy_files(self) -> None:
        """Release the pages of those who handed in by the exchange; others get theirs in the way that they came."""
        others = []
        for page in Path(self.coursedir.root).glob(f"feedback/*/{self.coursedir.assignment_id}"):
            came = Path(self.coursedir.root) / "submitted" / page.parent.name / page.name
            if not (came / SECRET).exists():
                others.append(page.parent.name)
                continue
            for name in (SECRET, "timestamp.txt"):
                (page / name).write_bytes((came / name).read_bytes())
        self.coursedir.student_id_exclude = ",".join(filter(None, [self.coursedir.student_id_exclude, *others]))
        super().copy_files()


def read(folder: Path, part: str) -> dict:
    """What a folder of the exchange says: who, and when.

    Raises
    ------
    ValueError
        It is no hand-in of that part by its owner; the message says why.
    """
    found = FORM.fullmatch(folder.name)
    if not found or found["part"] != part:
        raise ValueError("its name is not student+part+time+letters, as nbgrader gives it")
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode):
        raise ValueError("it is no folder")
    try:
        owner = pwd.getpwuid(facts.st_uid).pw_name
    except KeyError:
        owner = f"user {facts.st_uid}"
    if owner != found["student"]:
        raise ValueError(f"it is {owner}'s, and says to be {printable(found['student'])}'s")
    try:
        time = parse_utc(found["time"])
    except (ValueError, OverflowError):
        raise ValueError("its time is none") from None
    if time.replace(tzinfo=UTC) > datetime.now(UTC) + SLACK:
        raise ValueError("it says to come from the future")
    return {"username": owner, "filename": folder.name, "timestamp": time}


def copied(source: Path, target: Path) -> tuple[list[tuple[str, str]], datetime]:
    """Copy the notebooks of a folder that somebody else owns, and may change meanwhile.

    Returns
    -------
    refused : list of (str, str)
        Names, and why they were not copied.
    newest : datetime
        When the last of it was changed, as the system says: nobody can set that.
    """
    target.mkdir()
    refused, place = [], os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        owner = os.fstat(place).st_uid
        times = [os.fstat(place).st_ctime]
        for name in sorted(n for n in os.listdir(place) if n.endswith(".ipynb") or n == SECRET)[:FILES]:
            try:
                content, changed = _content(name, place, owner)
            except (OSError, ValueError) as why:
                refused.append((name, str(why)))
                continue
            (target / name).write_bytes(content)
            times.append(changed)
    finally:
        os.close(place)
    return refused, datetime.fromtimestamp(max(times), UTC)


def _content(name: str, place: int, owner: int) -> tuple[bytes, float]:
    """A file's content, and when it was changed; neither a link nor a pipe is opened."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != owner or facts.st_nlink > 1:
            raise ValueError("it is no file of the student's alone")
        content = file.read(MOST + 1)
    if len(content) > MOST:
        raise ValueError(f"it is larger than {MOST >> 20} MiB")
    return content, facts.st_ctime
