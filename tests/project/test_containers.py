"""Containers and Binder: what their files name is there, and 64 MB of /dev/shm are enough for ranks that are killed again and again."""

import http.server
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from course_lib.sandbox import bubblewrap

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = (ROOT / "Containerfile").read_text()
DEVCONTAINER = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
POST_BUILD = ROOT / "binder" / "postBuild"
FROM = re.compile(r"^\s*from\s+(\S+)", re.MULTILINE | re.IGNORECASE)  # as editors read it: also a line of Python
ALL = CONTAINERFILE + json.dumps(DEVCONTAINER) + "".join(path.read_text() for path in sorted((ROOT / "binder").iterdir()))


def words(instruction):
    """The words of an instruction in JSON's form, with its lines joined."""
    return json.loads(re.search(rf"{instruction} (\[.*?\])$", CONTAINERFILE.replace("\\\n", ""), re.MULTILINE)[1])


def test_what_the_commands_name_is_there():
    assert words("^CMD")[:3] == ["python", "-m", "course_lib.tools.lab"] and importlib.util.find_spec("course_lib.tools.lab")
    called = re.findall(r"from (course_lib\.\w+) import (\w+); (\w+)\.(\w+)\(\)", ALL)
    assert len(called) == 2
    for package, module, same, function in called:
        assert module == same and callable(getattr(importlib.import_module(f"{package}.{module}"), function))
    targets = set(re.findall(r"\bmake (\w+)", ALL))
    assert "install" in targets and targets <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_no_address_but_the_usual_ones_and_no_root():
    assert "://" not in ALL and re.findall(FROM, CONTAINERFILE) == ["python:3.12-slim-bookworm"]
    assert re.findall(r"^USER (\w+)$", CONTAINERFILE, re.MULTILINE) == [DEVCONTAINER["remoteUser"]] == ["student"]


def test_into_the_container_goes_what_a_student_needs_and_no_answer():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert (ROOT / "binder" / ".dockerignore").read_text().splitlines() == lines and "*" in lines  # repo2docker looks for it there
    taken = [line[1:] for line in lines if line.startswith("!")]
    assert all((ROOT / name).exists() for name in taken) and {"binder", "course_lib", "notebooks", "Makefile"} <= set(taken)
    assert not {"solutions", "grading", "lectures", "tests"} & set(taken)


def test_an_editor_finds_the_containerfile_and_the_port():
    build = {key: (ROOT / ".devcontainer" / path).resolve() for key, path in DEVCONTAINER["build"].items()}
    assert build == {"dockerfile": ROOT / "Containerfile", "context": ROOT}
    assert [str(port) for port in DEVCONTAINER["forwardPorts"]] == re.findall(r"^EXPOSE (\d+)$", CONTAINERFILE, re.MULTILINE)


def packages(path):
    return [line.strip() for line in path.read_text().partition("dependencies:")[2].split("- pip:")[0].splitlines() if line.strip()]


def test_binder_installs_what_conda_does():
    theirs, ours = packages(ROOT / "binder" / "environment.yml"), packages(ROOT / "environment.yml")
    assert theirs[1:] == ours[1:] and theirs[0].startswith("- python=") and ours[0].startswith("- python>=")
    assert os.access(POST_BUILD, os.X_OK) and subprocess.run(["bash", "-n", POST_BUILD], check=False).returncode == 0
    assert all(re.fullmatch(r"[a-z0-9-]+", line) for line in (ROOT / "binder" / "apt.txt").read_text().splitlines())


@pytest.mark.parametrize(("status", "well"), [(200, True), (503, False), (None, False)])
def test_the_health_check_asks_jupyter(status, well):
    class Jupyter(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/api" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Jupyter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        if not status:
            server.shutdown()
            server.server_close()
        _, option, code = words("^HEALTHCHECK.* CMD")
        asked = [sys.executable, option, code.replace("8888", str(server.server_port))]
        assert (subprocess.run(asked, capture_output=True, timeout=30, check=False).returncode == 0) is well
        server.shutdown()


# Each killed job would leave 12.5 MB: six of them fill this.
KILLS = """
import contextlib, os
import psutil
from course_lib.cluster import Ranks

SUM = '''
import numpy as np
from course_lib.collectives import Communicator
total = np.zeros(1 << 18)
Communicator().Allreduce(np.ones(1 << 18), total)
assert total[-1] == 8
'''

for kill in range(13):
    ranks = Ranks(8)
    assert not any(reply["error"] for _, reply in ranks.run(SUM)), kill
    for process in psutil.Process().children(recursive=True) if kill < 12 else []:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    ranks.stop()
    assert not os.listdir("/dev/shm"), kill
room = os.statvfs("/dev/shm")
print(room.f_blocks * room.f_frsize)
"""


@pytest.mark.slow
@pytest.mark.skipif(bubblewrap.problem() is not None, reason=f"a small /dev/shm is made by bubblewrap: {bubblewrap.problem()}")
def test_64_mb_are_enough_for_8_ranks_also_after_a_dozen_kills():
    apart = "bwrap --dev-bind / / --perms 1777 --size 67108864 --tmpfs /dev/shm --unshare-pid --proc /proc --die-with-parent"
    done = subprocess.run([*apart.split(), sys.executable, "-c", KILLS], capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout == f"{64 << 20}\n", done.stdout + done.stderr
