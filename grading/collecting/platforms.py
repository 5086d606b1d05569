"""Whose a file is, by the name that a learning platform gives it in a download of all hand-ins.

A platform's part of a name comes first, and what the student called the file comes behind it; so a name is read from its
beginning, and nothing that a student writes can take a platform's place.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime

from grading.collecting import dates


@dataclass(frozen=True)
class PlatformName:
    """What a name says.

    Attributes
    ----------
    student : str
        The person, without the numbers that a platform gives to one upload.
    platform : str
        "canvas", "moodle" or "brightspace".
    key : str
        What the platform calls the person: a column of the roster.
    number : str
        What tells apart two people of one name: the number of the user, in Moodle and Brightspace of the user in this assignment.
    upload : int
        Grows with each upload of this person, 0 if it is not known.
    late : bool
        Whether the platform says that it came late.
    time : datetime, optional
        When it came, in the instructor's time, where the name says so.
    rest : str
        What the student called the file; empty for a folder.
    name : str
        All of it, as the platform wrote it.
    """

    student: str
    platform: str
    key: str
    number: str = ""
    upload: int = 0
    late: bool = False
    time: datetime | None = None
    rest: str = ""
    name: str = ""


PLATFORMS = ("canvas", "moodle", "brightspace")
# Canvas: lastfirst_LATE_1234_56789_03_naive_forward-1.ipynb, of user 1234 and upload 56789.
CANVAS = re.compile(r"(?P<name>[^_]+(?:_(?=\d*[^_\d])[^_]+)*?)(?P<late>_LATE)?_(?P<user>\d+)_(?P<upload>\d+)_(?P<rest>.+)", re.DOTALL)
# Moodle: "First Last_987_assignsubmission_file_", a folder, or the beginning of a file's name. The number is the user's there.
MOODLE = re.compile(r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_file_?(?P<rest>.*)", re.DOTALL)
ANONYMOUS_NAMES = ("Participant", "Teilnehmer/in", "Teilnehmer", "Participante", "Partecipante", "Deelnemer")
# Brightspace: "12345-67890 - First Last - Oct 3, 2026 1159 PM", a folder; the time is written as the country writes it.
DATE = r"(?:\d{4}-\d\d?-\d\d?[^-]*|[^-]*\d{4}[^-]*)(?:-\d\d)?"
BRIGHTSPACE = re.compile(rf"(?P<number>\d+)-\d+ - (?P<name>.+?) ?- (?P<time>{DATE})(?: - (?P<rest>.+))?", re.DOTALL)


def parse_name(name: str) -> PlatformName | None:
    """What a folder's or a file's name says, or None if it is not a platform's.

    Parameters
    ----------
    name : str
        Without the folders that it lies in.
    """
    if found := CANVAS.fullmatch(name):  # first: what stands behind it is the student's, a name of Moodle, too
        student, user, upload = clean_name(found["name"]), found["user"], int(found["upload"])
        return PlatformName(student, "canvas", user, user, upload, found["late"] is not None, rest=found["rest"], name=name)
    if found := MOODLE.fullmatch(name):
        # Where names are hidden, the number is all that tells people apart.
        who = f"{found['name']} {found['number']}" if found["name"] in ANONYMOUS_NAMES else found["name"]
        return PlatformName(clean_name(who), "moodle", who, found["number"], rest=found["rest"], name=name)
    if found := BRIGHTSPACE.fullmatch(name):
        who, time = found["name"], dates.parse_date(found["time"])
        return PlatformName(clean_name(who), "brightspace", who, found["number"], time=time, rest=found["rest"] or "", name=name)
    return None


def feedback_path(name: str, part: str) -> str | None:
    """Where a feedback page lies in a zip that the platform takes back, by the name under which the hand-in came.

    Canvas goes by the first two numbers in a file's name, Moodle by the number in a folder's, Brightspace by the folder. What the student
    called the file is left away.

    >>> feedback_path("lovelaceada_LATE_12_345_my answer.ipynb", "07_weight_grad")
    'lovelaceada_LATE_12_345_07_weight_grad.html'
    >>> feedback_path("Ada Lovelace_987_assignsubmission_file", "07_weight_grad")
    'Ada Lovelace_987_assignsubmission_file_/07_weight_grad.html'
    """
    if found := CANVAS.fullmatch(name):
        return f"{name[: found.start('rest')]}{part}.html"
    if found := MOODLE.fullmatch(name):
        return f"{name[: found.end('number')]}_assignsubmission_file_/{part}.html"
    if found := BRIGHTSPACE.fullmatch(name):
        return f"{name[: found.end('time')]}/{part}.html"
    return None


def clean_name(name: str) -> str:
    """A name as a folder of nbgrader's may have it: one way to write an accent, no brackets, one blank for several, no invisible signs."""
    name = unicodedata.normalize("NFC", name).translate({ord("["): "(", ord("]"): ")"})
    name = "".join(c for c in name if unicodedata.category(c) != "Cf")
    return re.sub(r"\s+", " ", name).strip()
