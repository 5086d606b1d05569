"""Whose a file is, by the name that a learning platform gives it in a download of all hand-ins.

A platform's part of a name comes first, and what the student called the file comes behind it; so a name is read from its
beginning, and nothing that a student writes can take a platform's place.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Named:
    """What a name says.

    Attributes
    ----------
    student : str
        The person, without the numbers that a platform gives to one upload.
    platform : str
        "canvas", "moodle" or "brightspace".
    key : str
        What the platform calls the person: a column of the roster.
    upload : int
        Grows with each upload of this person, 0 if it is not known.
    late : bool
        Whether the platform says that it came late.
    time : datetime, optional
        When it came, in the instructor's time, where the name says so.
    rest : str
        What the student called the file; empty for a folder.
    """

    student: str
    platform: str
    key: str
    upload: int = 0
    late: bool = False
    time: datetime | None = None
    rest: str = ""


# Canvas: lastfirst_LATE_1234_56789_03_naive_forward-1.ipynb, of user 1234 and upload 56789.
CANVAS = re.compile(r"(?P<name>[^_]+(?:_[^_\d][^_]*)*?)(?P<late>_LATE)?_(?P<user>\d+)_(?P<upload>\d+)_(?P<rest>.+)", re.DOTALL)
# Moodle: "First Last_987_assignsubmission_file_", a folder, or the beginning of a file's name. The number is of this upload.
MOODLE = re.compile(r"(?P<name>.+?)_(?P<upload>\d+)_assignsubmission_file_?(?P<rest>.*)", re.DOTALL)
BLIND = ("Participant", "Teilnehmer/in", "Teilnehmer", "Participante", "Partecipante", "Deelnemer")
# Brightspace: "12345-67890 - First Last - Oct 3, 2026 1159 PM", a folder; the time is written as the country writes it.
BRIGHTSPACE = re.compile(r"\d+-\d+ - (?P<name>.+?) - (?P<time>[^-]*\d{4}[^-]*(?:-\d\d)?)(?: - (?P<rest>.+))?", re.DOTALL)


def read(name: str) -> Named | None:
    """What a folder's or a file's name says, or None if it is not a platform's.

    Parameters
    ----------
    name : str
        Without the folders that it lies in.
    """
    if found := MOODLE.fullmatch(name):
        # Where names are hidden, the number is all that tells people apart.
        who = f"{found['name']} {found['upload']}" if found["name"] in BLIND else found["name"]
        return Named(person(who), "moodle", who, rest=found["rest"])
    if found := BRIGHTSPACE.fullmatch(name):
        return Named(person(found["name"]), "brightspace", found["name"], time=_time(found["time"]), rest=found["rest"] or "")
    if found := CANVAS.fullmatch(name):
        student, late = person(found["name"]), found["late"] is not None
        return Named(student, "canvas", found["user"], upload=int(found["upload"]), late=late, rest=found["rest"])
    return None


def person(name: str) -> str:
    """A name as a folder of nbgrader's may have it: one way to write an accent, no brackets, one blank where there are several."""
    name = unicodedata.normalize("NFC", name).translate({ord("["): "(", ord("]"): ")"})
    return re.sub(r"\s+", " ", name).strip()


def _time(text: str) -> datetime | None:
    """Brightspace's time: no colon between hours and minutes."""
    date, _, clock = text.rpartition(" ")[0].rpartition(" ")
    try:
        return datetime.strptime(f"{date} {clock:0>4} {text[-2:]}", "%b %d, %Y %I%M %p")
    except ValueError:
        return None
