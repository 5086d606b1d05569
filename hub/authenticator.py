"""Authentication: users of this server, by their passwords, as long as they are in the group or are instructors."""

from __future__ import annotations

from typing import ClassVar

from jupyterhub.auth import PAMAuthenticator
from tornado.web import HTTPError

from hub.login_throttle import LoginThrottle


class ThrottledPAMAuthenticator(PAMAuthenticator):
    """PAM authentication that rechecks users who are logged in, and limits the guessing of passwords."""

    guesses: ClassVar[LoginThrottle] = LoginThrottle()

    async def authenticate(self, handler, data: dict[str, str]) -> str | None:
        """Return the user's name if the password is right; refuse at once if many are being tried, as each wrong one takes seconds."""
        tried = self.guesses.begin(data["username"], handler.request.remote_ip if handler else "")
        if not tried:
            raise HTTPError(429, "Many passwords are being tried at the moment. Try again in a few seconds.")
        right = None
        try:
            found = await super().authenticate(handler, data)
            right = found is not None
            return found
        finally:
            self.guesses.end(tried, right)

    async def refresh_user(self, user, handler=None) -> bool:
        """Return whether the user is still allowed; JupyterHub asks every few minutes, also for tokens and before a server starts."""
        try:
            return self.check_allowed(user.name)
        except KeyError:  # the account is gone
            return False
