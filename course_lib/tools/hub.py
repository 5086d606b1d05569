"""Single-user server on JupyterHub: copies new notebooks to the user's folder, and serves JupyterLab on an inherited socket.

The hub starts it in a sandbox, see `hub.isolation`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

from jupyter_server.serverapp import ServerApp
from jupyterhub.singleuser.extension import JupyterHubSingleUser

from course_lib.tools import ai_tutor, first_cell, lab, update
from course_lib.tools.request_limits import RequestLimiter

LISTEN_FD_ENV = "COURSE_LISTEN"  # file descriptor of the socket
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
    JupyterHubSingleUser.serverapp_class = Server  # a class of our own would be searched for as a server extension
    JupyterHubSingleUser.launch_instance(sys.argv[1:])


def copy_new_notebooks(work: Path) -> str:
    """Copy new notebooks to the user's folder; return a message about it. If that fails, the server starts without them."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        new = lab.copy_new(lab.PROJECT_ROOT / "notebooks", work)
        update.keep_untouched(lab.PROJECT_ROOT / "notebooks", work)
        ai_tutor.write(work)
        return f"{len(new)} new notebooks in {work}."
    except OSError as error:
        return f"New notebooks cannot be copied to {work}: {error.strerror}. Is the home full, or is there a file of that name?"


if __name__ == "__main__":
    main()
