"""A gradebook in PostgreSQL: a server of the test's own, on loopback, where Debian's `postgresql` is installed."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from datetime import datetime
from pathlib import Path

import pytest

from grading import config, release

PART = "97_one"
PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if Path("/usr/lib/postgresql").exists() else []
pytestmark = pytest.mark.skipif(not PROGRAMS, reason="PostgreSQL is not installed (apt install postgresql)")
CONFIG = """
from pathlib import Path
from grading.config import configure

c = get_config()
configure(c, Path(__file__).parent)
c.CourseDirectory.course_id = "dt-2027"
c.CourseDirectory.db_url = "{}"
c.LateSubmissionPlugin.penalty_method = "zero"
"""


@pytest.fixture
def server():
    """The URL of an empty database."""
    folder = Path(tempfile.mkdtemp(prefix="course-postgres-", dir="/tmp"))  # the tests' own folder is for their user alone
    user = {}
    if not os.geteuid():  # PostgreSQL does not run as root; Debian's package has made a user for it
        try:
            user = {"user": "postgres", "group": pwd.getpwnam("postgres").pw_gid, "extra_groups": []}
        except KeyError:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
        shutil.chown(folder, "postgres")
        folder.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(*words):
        subprocess.run([str(PROGRAMS[-1] / words[0]), *words[1:]], check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)

    data = folder / "data"
    run("initdb", "--pgdata", str(data), "--username=grader", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8")
    options = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off"
    run("pg_ctl", "--pgdata", str(data), "--log", str(folder / "log"), "--wait", "--options", options, "start")
    try:
        yield f"postgresql+psycopg://grader@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "--pgdata", str(data), "--mode=immediate", "stop")
        shutil.rmtree(folder)


@pytest.mark.slow
def test_a_class_is_graded_into_postgresql(one, server, capfd):
    (one.home / "gradebook.db").unlink()
    (one.home / "nbgrader_config.py").write_text(CONFIG.format(server))
    one.hand_in(PART, "ada", one.solved(PART))
    one.hand_in(PART, "o'ben, jr", one.solved(PART, "%%px\ndef first(x):\n    return x"))
    one.hand_in(PART, "late", one.solved(PART))
    due = datetime(2026, 11, 1, 12)
    with config.gradebook(config.load(one.home)) as book:
        assert book.find_assignment(PART).course_id == "dt-2027"
        book.update_or_create_assignment(PART, duedate=due)
    (one.home / "submitted" / "late" / PART / "timestamp.txt").write_text("2026-11-02 12:00:00 UTC\n")
    assert one.grade(PART) == {"ada": 10, "o'ben, jr": 0, "late": 10}
    with config.gradebook(config.load(one.home)) as book:
        penalties = {s.student.id: s.late_submission_penalty for s in book.assignment_submissions(PART)}
        assert penalties == {"ada": 0, "o'ben, jr": 0, "late": 10}
        book.find_grade("test-first", PART, PART, "o'ben, jr").manual_score = 4
        book.db.commit()
    one.hand_in(PART, "o'ben, jr", one.solved(PART))
    release.release(PART, one.home, one.notebooks)
    assert one.grade(PART) == {"ada": 10, "o'ben, jr": 4, "late": 10}, "what a person gave stays"
    assert not (one.home / "gradebook.db").exists()
