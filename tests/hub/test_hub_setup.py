"""Setting the hub up: its settings, who may come in, how a server ends, and what is left of a hub that is killed."""

import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_server import ROOT, START, Hub, Person, everything, missing, nothing_left, processes_of
from machine import patient
from processes import wait_until

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=f"There is no hub here: {missing()}.")]


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Check that no hub of these tests leaves anything."""
    with nothing_left():
        yield


@pytest.mark.parametrize("name", ["root", "daemon", "nobody-of-that-name"])
def test_the_systems_own_accounts_get_no_server(name):
    from hub.isolation import account

    with pytest.raises(PermissionError, match=r"has the user id \d+: servers are for ids from 1000 on|has no account on this server"):
        account(name)


def test_name_services_for_users_that_are_not_in_etc_are_reached_from_the_sandbox(monkeypatch, tmp_path):
    from hub import isolation

    monkeypatch.setattr(isolation, "NAME_SERVICE_SOCKETS", ("/run/course-hub-test", "/run/course-hub-none"))
    home, names = tmp_path / "home", Path("/run/course-hub-test")
    home.mkdir()
    names.mkdir()
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(f"{names}/socket")
            (names / "socket").chmod(0o666)
            s.listen()
            user = pwd.struct_passwd(("hubada", "x", 12345, 12345, "", str(home), "/bin/sh"))
            words = isolation.ServerIsolation(user, ROOT, names / "socket", tmp_path, instructor=True).command(0)
            for folder in isolation.EXCHANGE_FOLDER_MODES:
                (tmp_path / folder).mkdir()
            connect = "import os, socket; socket.socket(socket.AF_UNIX).connect('/var/run/course-hub-test/socket'); os.mkdir('{}/mine')"
            done = subprocess.run([*words, "/usr/bin/python3", "-c", connect.format(names)], capture_output=True, text=True)
            assert "OSError: [Errno 30] Read-only file system" in done.stderr, done.stderr
    finally:
        shutil.rmtree(names)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "COURSE_INSTRUCTORS is not set. Who grades?"),
        ({"COURSE_INSTRUCTORS": "root"}, "COURSE_INSTRUCTORS: root has the user id 0"),
        ({"COURSE_HUB": "hub"}, "COURSE_HUB=hub: expected an absolute path"),
        ({"COURSE_HUB": "/srv/Hub"}, "in lower case, since it becomes part of addresses"),
        ({"COURSE_INSTRUCTORS": "hubnobody", "COURSE_RANKS": "many"}, "hubnobody has no account"),
        ({"COURSE_INSTRUCTORS": "daemon", "COURSE_HUB_DOMAIN": "hub.example.org"}, "expected an address such as https://hub.example.org"),
    ],
)
def test_a_wrong_setting_is_said_in_a_sentence(settings, said, monkeypatch):
    from hub import settings as hub_settings

    for name in [name for name in os.environ if name.startswith("COURSE_")]:
        monkeypatch.delenv(name)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(hub_settings.HubSettingsError, match=said):
        hub_settings.read()


def test_settings_that_would_keep_people_out_are_said_at_the_start(monkeypatch):
    from hub import settings as hub_settings

    monkeypatch.setenv("COURSE_MEMORY", "lots")
    with pytest.raises(hub_settings.HubSettingsError, match="COURSE_MEMORY=lots: expected a number of bytes, such as 2G"):
        hub_settings._memory("COURSE_MEMORY", "2G")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(hub_settings.HubSettingsError, match=f"Port {port} of 127.0.0.1: Address already in use"):
            hub_settings.problem(SimpleNamespace(port=port, group=""))
    said = hub_settings.problem(SimpleNamespace(port=0, group="hubnogroup"))
    assert said == "COURSE_GROUP: there is no group hubnogroup, so no student can log in: groupadd hubnogroup"


def test_a_server_that_ends_as_it_starts_is_said_at_once():
    hub = Hub(["hubteach", "hubada"], own="", COURSE_HUB_LOG="ERROR")
    try:
        (hub.folder / "hub" / "own.py").open("a").write("c.BubblewrapSpawner.cmd = ['/bin/false']\n")
        hub.end()
        hub.start()
        ada, began = Person(hub, "hubada"), time.monotonic()
        ada.log_in()
        assert "Your server ended before it was ready" in ada.ask("/server", "POST") + ada.open("/hub/spawn") + ada.open(
            "/hub/spawn-pending/hubada"
        )
        assert time.monotonic() - began < patient(60)
    finally:
        hub.close()


def test_users_of_the_group_come_in_with_their_passwords_and_no_others():
    hub = Hub(["hubteach", "hubada", "hubeve"], group="hubclass")
    try:
        subprocess.run(["gpasswd", "--add", "hubada", "hubclass"], check=True, capture_output=True)
        ada, eve, teach = (Person(hub, name) for name in ("hubada", "hubeve", "hubteach"))
        ada.start()
        assert ada.kernel().run("import getpass; print(getpass.getuser())") == "hubada\n"
        assert "Logout" in teach.log_in(), "the instructor may come in without the group"
        assert "403" in eve.log_in()[:5], "who is not of the group may not"
        wrong = Person(hub, "hubada")
        right, hub.password = hub.password, "wrong"
        assert "Invalid username or password" in wrong.log_in()
        hub.password = right
    finally:
        hub.close()


def test_names_with_capitals_are_names_of_their_own():
    """A student and the instructor have names that differ in capitals only."""
    hub = Hub(["hubteach", "Hubteach"], group="hubclass")
    try:
        subprocess.run(["gpasswd", "--add", "Hubteach", "hubclass"], check=True, capture_output=True)
        student = Person(hub, "Hubteach")
        student.start()
        assert student.kernel().run("import getpass; print(getpass.getuser())") == "Hubteach\n"
        assert "Logout" in Person(hub, "hubteach").log_in()
    finally:
        hub.close()


def test_a_home_in_which_there_is_no_room_or_a_file_in_the_way_does_not_keep_its_owner_out():
    hub = Hub(["hubteach", "hubada", "hubeve"])
    full = hub.home("hubada")
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k,mode=700", "tmpfs", full], check=True)
        shutil.chown(full, "hubada", "hubada")
        (hub.home("hubeve") / "distributed-training").write_text("a file")
        for name, words in (("hubada", "No space left"), ("hubeve", "File exists")):
            person = Person(hub, name)
            person.start(timeout=60)
            notebook = person.kernel()
            assert notebook.run("print(6 * 7)") == "42\n"
            logs = "[p for p in (os.path.expanduser('~/.jupyterhub.log'), '/tmp/.jupyterhub.log') if os.path.exists(p)]"
            said = notebook.run(f"import os\nfor path in {logs}: print(open(path).read())")
            assert f"New notebooks cannot be copied to {hub.home(name)}/distributed-training: {words}" in said, said
    finally:
        hub.end()
        subprocess.run(["umount", "--lazy", full])
        hub.close()


def test_who_has_no_home_is_told():
    hub = Hub(["hubteach", "hubada"])
    try:
        shutil.rmtree(hub.home("hubada"))
        ada = Person(hub, "hubada")
        ada.log_in()
        assert "hubada has no home at" in ada.open("/hub/spawn") + ada.ask("/server", "POST") + ada.open("/hub/spawn")
    finally:
        hub.close()


def test_who_is_taken_out_of_the_group_is_let_in_no_longer():
    def group(change, name):
        subprocess.run(["gpasswd", change, name, "hubclass"], check=True, capture_output=True)

    names = ["hubteach", "hubada", "hubgrace"]
    hub = Hub(names, group="hubclass", own="c.Authenticator.auth_refresh_age = 1", COURSE_INSTRUCTORS="hubteach,hubgrace")
    try:
        group("--add", "hubada")
        ada = Person(hub, "hubada")
        ada.start()
        assert "Logout" in Person(hub, "hubgrace").log_in()
        group("--delete", "hubada")
        time.sleep(1.1)
        assert ada.open("/hub/api/user", Authorization=f"token {ada.token}").startswith("403"), "a token lets in who is out"
        assert "username_input" in ada.open("/hub/home"), "a cookie lets in who is out"
        assert "403" in Person(hub, "hubada").log_in()[:5]
        hub.end()
        hub.settings["COURSE_INSTRUCTORS"] = "hubteach"
        hub.start()
        assert "403" in Person(hub, "hubada").log_in()[:5], "after a new start, who was once in is let in"
        assert "403" in Person(hub, "hubgrace").log_in()[:5], "who no longer grades is let in"
        group("--add", "hubada")
        assert "Logout" in Person(hub, "hubada").log_in()
    finally:
        hub.close()


def test_a_second_start_is_refused_and_the_first_hub_goes_on():
    hub = other = Hub(["hubteach", "hubada"])
    try:
        ada = Person(hub, "hubada")
        ada.start()
        notebook = ada.kernel()
        for words in (START, [*START[:3], "token", "hubada", START[3]]):
            done = subprocess.run(words, cwd=ROOT, env={**os.environ, **hub.settings}, capture_output=True, text=True, timeout=60)
            assert done.returncode == 1
            assert f"A hub is already running in {hub.folder}/hub: process {hub.process.pid}. End it first" in done.stderr, done.stderr
        other = Hub(["hubgrace"])  # in a folder of its own
        assert notebook.run("print(6 * 7)") == "42\n"
        assert '"name": "hubada"' in ada.ask("")
        assert "Logout" in Person(hub, "hubteach").log_in()
    finally:
        other.close()
        hub.close()


def test_a_server_that_nobody_uses_goes():
    hub = Hub(["hubteach", "hubada"], COURSE_IDLE="4")
    try:
        Person(hub, "hubada").start()
        assert processes_of("hubada")
        assert wait_until(lambda: not processes_of("hubada"), 60), hub.log()
    finally:
        hub.close()


def test_what_a_server_leaves_is_removed_to_the_end_even_if_the_hub_ends_meanwhile(monkeypatch, tmp_path):
    from hub import bubblewrap_spawner, limits

    end = bubblewrap_spawner.cgroup.end
    monkeypatch.setattr(bubblewrap_spawner.cgroup, "end", lambda group: (time.sleep(0.2), end(group)))  # as if processes were slow to go
    spawner = bubblewrap_spawner.BubblewrapSpawner()
    spawner.place = tmp_path / "place"
    spawner.place.mkdir()
    spawner.groups = groups = limits.made(tmp_path, 0, 1 << 30, 1, 100)
    assert groups

    async def ended_by_its_hub():
        first, second = asyncio.create_task(spawner.clean()), asyncio.create_task(spawner.clean())
        await asyncio.sleep(0.1)
        assert not first.done() and not second.done(), "a start would not wait until the server before it has gone"
        first.cancel()

    asyncio.run(ended_by_its_hub())
    assert not [group for group in groups if group.exists()] and not (tmp_path / "place").exists()


def test_a_hub_that_is_killed_takes_its_servers_along_and_comes_again():
    before, hub = everything(), Hub(["hubteach", "hubada"])
    try:
        ada = Person(hub, "hubada")
        ada.start()
        ada.kernel().run("from course_lib import cluster\nranks = cluster.start(2)")
        assert len(processes_of("hubada")) > 5
        hub.process.send_signal(signal.SIGKILL)
        hub.process.wait(10)
        assert wait_until(lambda: not processes_of("hubada"), 20), "servers stay without a hub"
        assert wait_until(lambda: everything()["processes"] == before["processes"], 20), everything()["processes"]
        hub.start()
        again = Person(hub, "hubada")
        again.start()
        assert again.kernel().run("print(6 * 7)") == "42\n"
    finally:
        hub.close()
