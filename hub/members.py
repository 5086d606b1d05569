"""Who may come in: users of this server, by their passwords; and no longer than they are of the group, or grade."""

from __future__ import annotations

from jupyterhub.auth import PAMAuthenticator


class Members(PAMAuthenticator):
    """PAM, with a second look while somebody is logged in."""

    async def refresh_user(self, user, handler=None) -> bool:
        """Whether the user may still come in; JupyterHub asks every few minutes, also for tokens and before a server starts."""
        try:
            return self.check_allowed(user.name)
        except KeyError:  # the account is gone
            return False
