"""Collecting from nbgrader's exchange, and feedback by it: what one student puts there costs nobody else anything."""

import getpass
import logging
import os
import shutil
import socket
import stat
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from grading.collecting import exchange

PART, SECRET = "01_data_split", "ab" * 64
ME = getpass.getuser()


class Box:
    """An exchange's drop-box, and the course's folder."""

    def __init__(self, home, gradebook, told):
        self.gradebook, self.log = gradebook, logging.Logger("exchange")  # not the one of an application that another test made
        self.log.addHandler(told)
        self.home, self.inbound, self.feedback = home, home / "exchange" / "course" / "inbound", home / "exchange" / "course" / "feedback"
        for folder in (self.inbound, self.feedback):
            folder.mkdir(parents=True, mode=0o711)

    def hand_in(self, ago=60, tail="x", notebook="{}", secret=SECRET):
        """A folder as nbgrader makes it; `notebook` is what it says, or makes it."""
        folder = self.inbound / f"{ME}+{PART}+{datetime.now(UTC) - timedelta(seconds=ago):%Y-%m-%d %H:%M:%S.%f} UTC+{tail}"
        folder.mkdir()
        (folder / exchange.SECRET_FILE).write_text(secret)
        if callable(notebook):
            notebook(folder / f"{PART}.ipynb")
        else:
            (folder / f"{PART}.ipynb").write_text(notebook)
        return folder

    def step(self, kind, **options):
        config = Config({"CourseDirectory": {"root": str(self.home), "course_id": "course", "assignment_id": PART}})
        config.Exchange.root = str(self.home / "exchange")
        config.CourseDirectory.db_url = f"sqlite:///{self.gradebook}"
        return kind(coursedir=CourseDirectory(config=config), config=config, log=self.log, **options)

    def collect(self, **options):
        self.step(exchange.VerifiedCollect, **options).start()

    @property
    def collected(self):
        """The collected files' texts, by name."""
        return {p.name: p.read_text() for p in self.home.glob(f"submitted/{ME}/{PART}/*")}


@pytest.fixture(scope="module")
def gradebook(tmp_path_factory):
    """A database that all have, as making one takes seconds."""
    return tmp_path_factory.mktemp("gradebook") / "gradebook.db"


@pytest.fixture
def box(tmp_path, gradebook, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # nbgrader calls alembic by its name
    return Box(tmp_path, gradebook, caplog.handler)


def huge(path):
    path.touch()
    os.truncate(path, 1 << 32)


def served(path):
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path.name)
    os.chdir(here)


BAD = {
    "none": lambda path: None,
    "a link": lambda path: path.symlink_to("/etc/hostname"),
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "a socket": served,
    "a huge file": huge,
    "a file with two names": lambda path: (path.write_text("{}"), os.link(path, path.with_name("other"))),
    "a folder that is gone": lambda path: shutil.rmtree(path.parent),
    "a link instead of the folder": lambda path: (shutil.rmtree(path.parent), path.parent.symlink_to("/etc")),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_read_does_not_hide_what_came_before(box, what, monkeypatch, caplog):
    box.hand_in(ago=120, tail="good", notebook='{"good": 1}')
    bad, looked = box.hand_in(ago=60, tail="bad", notebook="{}"), exchange.read_folder_name

    def meanwhile(folder, part):
        """Put it there when its name was read."""
        record = looked(folder, part)
        if folder == bad:
            (bad / f"{PART}.ipynb").unlink()
            BAD[what](bad / f"{PART}.ipynb")
        return record

    monkeypatch.setattr(exchange, "read_folder_name", meanwhile)
    box.collect()
    assert box.collected[f"{PART}.ipynb"] == '{"good": 1}'
    assert f"Not collected: {bad.name}: " in caplog.text
    assert "Collected instead of" in caplog.text


def test_of_nothing_that_can_be_read_nothing_stays(box, caplog):
    bad = box.hand_in(notebook=huge)
    box.collect()
    assert f"Not collected: {bad.name}: {PART}.ipynb is larger than 20971520 bytes" in caplog.text
    assert list((box.home / "submitted").iterdir()) == []
    box.hand_in(ago=0, notebook='{"good": 1}')
    box.collect()
    assert box.collected[f"{PART}.ipynb"] == '{"good": 1}'


def test_an_update_keeps_what_can_be_read(box):
    box.hand_in(ago=120, notebook='{"good": 1}')
    box.collect()
    box.hand_in(notebook=os.mkfifo)
    box.collect(update=True)
    assert box.collected[f"{PART}.ipynb"] == '{"good": 1}'
    assert box.collected[exchange.SECRET_FILE] == SECRET


@pytest.mark.parametrize(
    "name",
    [
        f"{ME}+{PART}+2099-01-01 00:00:00.000000 UTC+x",
        f"{ME}+{PART}+0000-01-01 00:00:00.000000 UTC+x",
        f"{ME}+{PART}+2020-13-41 99:00:00.000000 UTC+x",
        f"{ME}+{PART}+2020-01-01 00:00:00.000000 ZZZ+x",
        f"{ME}+{PART}+٢٠٢٠-01-01 00:00:00.000000 UTC+x",
        f"{ME}+{PART}+2020-01-01 00:00:00.{'9' * 150} UTC+x",
        f"{ME}+{PART}+2020-01-01 00:00:00 UTC+\udcff",
        f"somebody+{PART}+2020-01-01 00:00:00 UTC+x",
        f"+{PART}+",
        f"{ME}+{PART}+\x1b[2J\n",
    ],
    ids=range(10),
)
def test_a_name_that_says_what_cannot_be(box, name, caplog):
    (box.inbound / name).mkdir()
    box.hand_in(notebook='{"good": 1}')
    box.collect()
    assert box.collected[f"{PART}.ipynb"] == '{"good": 1}'
    assert caplog.text.count("Not collected: ") == 1
    assert "\x1b" not in caplog.text


def test_a_user_whose_name_is_no_folders_is_named(box, caplog, monkeypatch):
    monkeypatch.setattr(exchange, "owner_name", lambda facts: "HOUSE\\ada")
    (box.inbound / f"HOUSE\\ada+{PART}+2020-01-01 00:00:00 UTC+x").mkdir()
    box.collect()
    assert "not a valid name for a student's folder: expected none of [ ]" in caplog.text
    assert not (box.home / "submitted").exists() or not list((box.home / "submitted").iterdir())


def test_thousands_of_folders_are_one_line(box, caplog):
    for i in range(3000):
        (box.inbound / f"somebody{i}+{PART}+2020-01-01 00:00:00 UTC+x").mkdir()
    box.collect()
    assert caplog.text.count("Not collected: ") == 1
    assert f"it is {ME}'s, but claims to be another student's, and 2999 more like it" in caplog.text


def test_what_is_changed_while_it_is_copied_counts_from_then(box, monkeypatch):
    folder, looked = box.hand_in(ago=3600), os.fstat
    monkeypatch.setattr(exchange, "SUBMIT_TOLERANCE", timedelta(0))

    def changing(descriptor):
        """Write to the notebook after each look at it."""
        facts = looked(descriptor)
        if stat.S_ISREG(facts.st_mode):
            time.sleep(0.05)
            (folder / f"{PART}.ipynb").write_text('{"late": 1}')
            late.append((folder / f"{PART}.ipynb").stat().st_ctime)
        return facts

    late = []
    monkeypatch.setattr(exchange.os, "fstat", changing)
    box.collect()
    assert box.collected[f"{PART}.ipynb"] == '{"late": 1}'
    said = datetime.fromisoformat(box.collected["timestamp.txt"].removesuffix(" UTC")).replace(tzinfo=UTC)
    assert said.timestamp() >= late[0] - 1e-5


@pytest.mark.parametrize("secret", [b"\xff" * 64, b"", b"short", b"a" * 5000, b"two words that are a secret\n", None], ids=range(6))
def test_an_invalid_secret_stops_nobody_elses_feedback(box, secret, caplog):
    for student, text in (("ada", secret), ("eve", SECRET.encode()), ("grace", secret)):
        page, came = (box.home / kind / student / PART for kind in ("feedback", "submitted"))
        for folder in (page, came):
            folder.mkdir(parents=True)
        (page / f"{PART}.html").write_text(f"for {student}")
        (came / "timestamp.txt").write_text("2020-01-01 00:00:00 UTC")
        if text is not None:
            (came / exchange.SECRET_FILE).write_bytes(text)
    box.step(exchange.VerifiedReleaseFeedback).start()
    assert [p.read_text() for p in box.feedback.iterdir()] == ["for eve"]
    assert ("Not released: feedback of ada" in caplog.text) == (secret is not None)


def test_an_invalid_secret_is_not_collected(box, caplog):
    box.hand_in(secret="short")
    box.collect()
    assert sorted(box.collected) == [f"{PART}.ipynb", "timestamp.txt"]
    assert "is not one that nbgrader writes: no feedback can be returned" in caplog.text
