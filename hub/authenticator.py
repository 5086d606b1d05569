"""Who may come in: users of this server, by their passwords; and no longer than they are of the group, or grade."""

from __future__ import annotations

from typing import ClassVar

from jupyterhub.auth import PAMAuthenticator
from tornado.web import HTTPError

from hub.login_throttle import LoginThrottle


class ThrottledPAMAuthenticator(PAMAuthenticator):
    """PAM, with a second look while somebody is logged in, and a bound on guessing."""

    guesses: ClassVar[LoginThrottle] = LoginThrottle()

    async def authenticate(self, handler, data: dict[str, str]) -> str | None:
        """The user's name if the password is right; refused at once where many are being tried, as each wrong one takes seconds."""
        tried = self.guesses.begin(data["username"], handler.request.remote_ip if handler else "")
        if not tried:
            raise HTTPError(429, "Many passwords are being tried just now. Try again in a few seconds.")
        right = None
        try:
            found = await super().authenticate(handler, data)
            right = found is not None
            return found
        finally:
            self.guesses.end(tried, right)

    async def refresh_user(self, user, handler=None) -> bool:
        """Whether the user may still come in; JupyterHub asks every few minutes, also for tokens and before a server starts."""
        try:
            return self.check_allowed(user.name)
        except KeyError:  # the account is gone
            return False
