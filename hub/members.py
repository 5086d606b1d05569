"""Who may come in: users of this server, by their passwords; and no longer than they are of the group, or grade."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from jupyterhub.auth import PAMAuthenticator
from tornado.web import HTTPError

AT_A_TIME, OF_ONE = 200, 2  # passwords that are looked at, or wait for that, of all and of one name


class Members(PAMAuthenticator):
    """PAM, with a second look while somebody is logged in, and a bound on guessing."""

    _tried: ClassVar[Counter] = Counter()

    async def authenticate(self, handler, data: dict[str, str]) -> str | None:
        """The user's name if the password is right; refused at once where many are being tried, as each wrong one takes seconds."""
        name = data["username"]
        if self._tried[name] >= OF_ONE or self._tried.total() >= AT_A_TIME:
            raise HTTPError(429, "Many passwords are being tried just now. Try again in a few seconds.")
        self._tried[name] += 1
        try:
            return await super().authenticate(handler, data)
        finally:
            self._tried[name] -= 1
            if not self._tried[name]:
                del self._tried[name]

    async def refresh_user(self, user, handler=None) -> bool:
        """Whether the user may still come in; JupyterHub asks every few minutes, also for tokens and before a server starts."""
        try:
            return self.check_allowed(user.name)
        except KeyError:  # the account is gone
            return False
