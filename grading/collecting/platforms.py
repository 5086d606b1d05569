"""Parse the names that a learning platform gives to files in a download of all submissions.

The platform's part of a name comes first, and the student's file name after it; so a name is read from its
beginning, and nothing that a student writes can pass for the platform's part.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime

from grading.collecting import dates


@dataclass(frozen=True)
class PlatformName:
    """The fields of a platform's name.

    Attributes
    ----------
    student : str
        The person, without the numbers that a platform gives to one upload.
    platform : str
        "canvas", "moodle" or "brightspace".
    key : str
        The platform's key for the person: a column of the roster.
    number : str
        Tells apart two people of one name: the user's number, in Moodle and Brightspace the user's in this assignment.
    upload : int
        Grows with each upload of this person; 0 if unknown.
    late : bool
        Whether the platform calls it late.
    time : datetime, optional
        Arrival time, in the instructor's time zone, if the name has one.
    rest : str
        The student's own file name; empty for a folder.
    name : str
        The full name, as the platform wrote it.
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
# Moodle: "First Last_987_assignsubmission_file_", a folder, or the beginning of a file's name. The number is the user's in the assignment.
MOODLE = re.compile(r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_file_?(?P<rest>.*)", re.DOTALL)
ANONYMOUS_NAMES = ("Participant", "Teilnehmer/in", "Teilnehmer", "Participante", "Partecipante", "Deelnemer")
# Brightspace: "12345-67890 - First Last - Oct 3, 2026 1159 PM", a folder; the time has the format of the country.
DATE = r"(?:\d{4}-\d\d?-\d\d?[^-]*|[^-]*\d{4}[^-]*)(?:-\d\d)?"
BRIGHTSPACE = re.compile(rf"(?P<number>\d+)-\d+ - (?P<name>.+?) ?- (?P<time>{DATE})(?: - (?P<rest>.+))?", re.DOTALL)


def parse_name(name: str) -> PlatformName | None:
    """Parse a folder's or a file's name; None if it is not a platform's.

    Parameters
    ----------
    name : str
        Without the folders around it.
    """
    if found := CANVAS.fullmatch(name):  # first: the rest is the student's, even if it is a name like Moodle's
        student, user, upload = clean_name(found["name"]), found["user"], int(found["upload"])
        return PlatformName(student, "canvas", user, user, upload, found["late"] is not None, rest=found["rest"], name=name)
    if found := MOODLE.fullmatch(name):
        # If names are hidden, only the number tells people apart.
        who = f"{found['name']} {found['number']}" if found["name"] in ANONYMOUS_NAMES else found["name"]
        return PlatformName(clean_name(who), "moodle", who, found["number"], rest=found["rest"], name=name)
    if found := BRIGHTSPACE.fullmatch(name):
        who, time = found["name"], dates.parse_date(found["time"])
        return PlatformName(clean_name(who), "brightspace", who, found["number"], time=time, rest=found["rest"] or "", name=name)
    return None


def feedback_path(name: str, part: str) -> str | None:
    """Return the path of a feedback page in a zip that the platform takes back, from the name of the submission.

    Canvas matches by the first two numbers in a file's name, Moodle by the number in a folder's, Brightspace by the folder. The
    student's own file name is left out.

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
    """Normalize a name for nbgrader's folders: one form of each accent, no brackets, single spaces, no invisible characters."""
    name = unicodedata.normalize("NFC", name).translate({ord("["): "(", ord("]"): ")"})
    name = "".join(c for c in name if unicodedata.category(c) != "Cf")
    return re.sub(r"\s+", " ", name).strip()
