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
    name : str
        All of it, as the platform wrote it.
    """

    student: str
    platform: str
    key: str
    upload: int = 0
    late: bool = False
    time: datetime | None = None
    rest: str = ""
    name: str = ""


PLATFORMS = ("canvas", "moodle", "brightspace")
# Canvas: lastfirst_LATE_1234_56789_03_naive_forward-1.ipynb, of user 1234 and upload 56789.
CANVAS = re.compile(r"(?P<name>[^_]+(?:_(?=\d*[^_\d])[^_]+)*?)(?P<late>_LATE)?_(?P<user>\d+)_(?P<upload>\d+)_(?P<rest>.+)", re.DOTALL)
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
        return Named(person(who), "moodle", who, rest=found["rest"], name=name)
    if found := BRIGHTSPACE.fullmatch(name):
        time = _time(found["time"])
        return Named(person(found["name"]), "brightspace", found["name"], time=time, rest=found["rest"] or "", name=name)
    if found := CANVAS.fullmatch(name):
        student, late = person(found["name"]), found["late"] is not None
        return Named(student, "canvas", found["user"], upload=int(found["upload"]), late=late, rest=found["rest"], name=name)
    return None


def page(name: str, part: str) -> str | None:
    """Where a feedback page lies in a zip that the platform takes back, by the name under which the hand-in came.

    Canvas goes by the first two numbers in a file's name, Moodle by the number in a folder's, Brightspace by the folder. What the student
    called the file is left away.

    >>> page("lovelaceada_LATE_12_345_my answer.ipynb", "07_weight_grad")
    'lovelaceada_LATE_12_345_07_weight_grad.html'
    >>> page("Ada Lovelace_987_assignsubmission_file", "07_weight_grad")
    'Ada Lovelace_987_assignsubmission_file_/07_weight_grad.html'
    """
    if found := MOODLE.fullmatch(name):
        return f"{name[: found.end('upload')]}_assignsubmission_file_/{part}.html"
    if found := BRIGHTSPACE.fullmatch(name):
        return f"{name[: found.end('time')]}/{part}.html"
    if found := CANVAS.fullmatch(name):
        return f"{name[: found.start('rest')]}{part}.html"
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
