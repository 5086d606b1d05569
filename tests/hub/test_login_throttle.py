"""The hub slows down those who guess passwords, and keeps nobody else out."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("jupyterhub")


def test_who_guesses_passwords_does_not_make_the_others_wait(monkeypatch):
    from hub import authenticator, login_throttle

    async def slow(self, handler, data):
        await asyncio.sleep(0.2)
        return data["username"] if data["password"] == "right" else None

    async def tried(name, address="192.0.2.1", password="wrong"):
        handler = SimpleNamespace(request=SimpleNamespace(remote_ip=address))
        try:
            return await authenticator.ThrottledPAMAuthenticator().authenticate(handler, {"username": name, "password": password})
        except authenticator.HTTPError as error:
            return error.status_code

    async def together(*tries):
        return await asyncio.gather(*(tried(*one) for one in tries))

    def at_once(*tries):
        return asyncio.run(together(*tries))

    elsewhere, right = ("grace", "192.0.2.2", "right"), [("grace", f"198.51.100.{i}", "right") for i in range(3)]
    monkeypatch.setattr(authenticator.PAMAuthenticator, "authenticate", slow)
    monkeypatch.setattr(authenticator.ThrottledPAMAuthenticator, "guesses", login_throttle.LoginThrottle())
    assert at_once(*[("grace",)] * 5, ("ada", "192.0.2.1", "right"), elsewhere) == [None, None, 429, 429, 429, "ada", "grace"]
    for _ in range(3):
        at_once(*[("Grace ", f"203.0.113.{i}") for i in range(20) for _ in range(2)])
    tries = [("grace", f"203.0.113.{i}") for i in range(20)]
    assert at_once(*tries, elsewhere, *right) == [None, None, *[429] * 18, "grace", *["grace"] * 3], "who guesses from many addresses"
    at_once(("grace", "192.0.2.2"))
    assert at_once(*tries, elsewhere)[-1] == "grace", "who has mistyped her own password once"
    assert at_once(*[(f"user{i}", "192.0.2.9") for i in range(300)], elsewhere)[-1] == "grace", "who guesses for many names"
    monkeypatch.setattr(login_throttle, "FAILURE_WINDOW_SECONDS", 0.0)
    assert at_once(*tries) == [None] * 20, "it is forgotten after a while"


def test_addresses_of_one_person_are_one():
    from hub.login_throttle import LoginThrottle

    guesses = LoginThrottle()
    assert all(guesses.begin("ada", f"2001:db8::{i}") for i in range(2)) and not guesses.begin("ada", "2001:db8::5:0:0:3")
    assert guesses.begin("ada", "2001:db8:0:1::1") and guesses.begin("ada" * 10**6, "x" * 10**6)
    assert max(len(part) for key in guesses._pending for part in key) <= 64, "what is remembered is short"
