"""A user's server on JupyterHub: new notebooks come into the user's folder, and JupyterLab is served on a socket that is open already.

The Hub starts it behind a wall, see `hub.isolation`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

from jupyter_server.serverapp import ServerApp
from jupyterhub.singleuser.extension import JupyterHubSingleUser

from course_lib.tools import first_cell, lab, update
from course_lib.tools.request_limits import RequestLimiter

LISTEN_FD_ENV = "COURSE_LISTEN"  # the descriptor of the socket
ROOT_DIR_ENV = "JUPYTERHUB_ROOT_DIR"  # the folder that JupyterLab shows
LOG_FILE = ".jupyterhub.log"


class Server(ServerApp):
    """A Jupyter server that opens no port."""

    def _find_http_port(self) -> None:
        pass

    def _bind_http_server(self) -> None:
        listener = socket.socket(fileno=int(os.environ.pop(LISTEN_FD_ENV)))
        listener.setblocking(False)
        os.set_inheritable(listener.fileno(), False)
        RequestLimiter(self.http_server)
        self.http_server.add_socket(listener)


def main() -> None:
    home, work = Path.home(), Path(os.environ[first_cell.WORK_DIR_ENV])
    said = copy_new_notebooks(work)
    for path in (home / LOG_FILE, Path("/tmp") / LOG_FILE):  # the home may be full
        with contextlib.suppress(OSError):
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            os.write(log, f"{said}\n".encode())
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            break
    if not work.is_dir():
        os.environ[ROOT_DIR_ENV] = str(home)
    os.chdir(home)
    JupyterHubSingleUser.serverapp_class = Server  # a class of our own would be looked for among the server's extensions
    JupyterHubSingleUser.launch_instance(sys.argv[1:])


def copy_new_notebooks(work: Path) -> str:
    """Bring new notebooks into the user's folder; what there is to say of it. Where that cannot be, the server comes up without them."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        new = lab.copy_new(lab.PROJECT_ROOT / "notebooks", work)
        update.keep_untouched(lab.PROJECT_ROOT / "notebooks", work)
        return f"{len(new)} new notebooks in {work}."
    except OSError as error:
        return f"New notebooks cannot be put into {work}: {error.strerror}. Is the home full, or is there a file of that name?"


if __name__ == "__main__":
    main()
