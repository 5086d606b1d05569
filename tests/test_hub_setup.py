"""Setting the hub up: its settings, who may come in, how a server ends, and what is left of a hub that is killed."""

import os
import signal
import subprocess

import pytest
from hub_here import Hub, Person, everything, missing, nothing_left, processes_of
from processes import wait_until

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=f"There is no hub here: {missing()}.")]


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Of no hub of these tests."""
    with nothing_left():
        yield


@pytest.mark.parametrize("name", ["root", "daemon", "nobody-of-that-name"])
def test_the_systems_own_accounts_get_no_server(name):
    from hub.wall import account

    with pytest.raises(PermissionError, match=r"has the number \d+: servers are for users from 1000 on|has no account on this server"):
        account(name)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "COURSE_INSTRUCTORS is not set. Who grades?"),
        ({"COURSE_INSTRUCTORS": "root"}, "COURSE_INSTRUCTORS: root has the number 0"),
        ({"COURSE_HUB": "hub"}, "COURSE_HUB=hub: expected a full path"),
        ({"COURSE_HUB": "/srv/Hub"}, "in lower case, for it is part of addresses"),
        ({"COURSE_INSTRUCTORS": "hubnobody", "COURSE_RANKS": "many"}, "hubnobody has no account"),
    ],
)
def test_a_wrong_setting_is_said_in_a_sentence(settings, said, monkeypatch):
    from hub import settings as hub_settings

    for name in [name for name in os.environ if name.startswith("COURSE_")]:
        monkeypatch.delenv(name)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(hub_settings.SettingsError, match=said):
        hub_settings.read()


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


def test_a_server_that_nobody_uses_goes():
    hub = Hub(["hubteach", "hubada"], COURSE_IDLE="4")
    try:
        Person(hub, "hubada").start()
        assert processes_of("hubada")
        assert wait_until(lambda: not processes_of("hubada"), 60), hub.log()
    finally:
        hub.close()


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
