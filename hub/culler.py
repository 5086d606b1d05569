"""JupyterHub's idle culler, which ends servers that nobody uses; it reaches the Hub through its Unix socket."""

from __future__ import annotations

import os
import socket
import sys
from urllib.parse import unquote, urlsplit

from tornado.netutil import Resolver

API = "JUPYTERHUB_API_URL"


class HubSocket(Resolver):
    """Resolves every host name to the Hub's socket."""

    def initialize(self, path: str) -> None:
        self.path = path

    async def resolve(self, host: str, port: int, family: int = 0) -> list[tuple[int, str]]:
        """Return the Hub's socket."""
        return [(socket.AF_UNIX, self.path)]


if __name__ == "__main__":
    address = urlsplit(os.environ[API])
    if address.scheme == "http+unix":
        Resolver.configure(HubSocket, path=unquote(address.netloc))
        os.environ[API] = f"http://hub{address.path}"
    from jupyterhub_idle_culler import main  # reads the address when it is imported

    sys.exit(main())
