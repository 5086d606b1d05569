"""Isolation of a user's server: the bubblewrap command that runs it, and everything that it sees.

Root runs bubblewrap, and what runs inside is the user: with its own namespaces for processes, network, mounts and IPC, its own
/tmp and /dev/shm, and of the files only the system, the course, the user's home and the exchange. Nothing is writable but the
home, the exchange's inbound folder, and those two.
"""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

SYSTEM_PATHS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc",
    "/sys/devices/system",
)  # the last: MPI counts the processors
NAME_SERVICE_SOCKETS = (
    "/var/lib/sss/pipes",
    "/var/lib/sss/mc",
    "/run/nslcd",
    "/run/systemd/userdb",
)  # for users who are not in /etc
HUB_SOCKET = "/run/hub.sock"  # the Hub's own interface, as seen inside
EXCHANGE = "/exchange"
EXCHANGE_FOLDER_MODES = {"outbound": 0o755, "inbound": 0o1733, "feedback": 0o711}  # of a course in it, as nbgrader requires them
PRIVATE_FOLDERS = ("/tmp", "/dev/shm")
SYSFS_NETWORK = "/sys/class/net"  # mounted empty: without it, UCX complains in every notebook
STUDENT_PATHS = ("course_lib", "notebooks", "hub/config/student", ".venv")  # in the course's folder: no solutions, no hidden tests
MIN_USER_ID = 1000  # lower ones are system accounts


@dataclass(frozen=True)
class ServerIsolation:
    """Isolation of one user's server.

    Parameters
    ----------
    user : pwd.struct_passwd
    course : Path
        The course's folder; read only.
    hub_socket : Path
        The Unix socket on which the Hub listens for servers.
    exchange : Path
        nbgrader's exchange folder of one course: outbound/, inbound/ and feedback/.
    instructor : bool
        An instructor sees the whole course, writes to the exchange, and may use bubblewrap for students' code.
    readable : tuple of str
        Other folders that are visible, read only: data sets.
    room : int
        Bytes for /tmp, and for /dev/shm.
    """

    user: pwd.struct_passwd
    course: Path
    hub_socket: Path
    exchange: Path
    instructor: bool = False
    readable: tuple[str, ...] = field(default=())
    room: int = 1 << 30

    def command(self, filter_from: int) -> list[str]:
        """Return the words before the server's own command; `filter_from` is a descriptor of a `syscall_filter` program, for students."""
        binds = [*self._shown(), *self._writable()]
        above = {str(folder) for path in (*binds[2::3], HUB_SOCKET) for folder in Path(path).parents} - {"/", "/dev", *PRIVATE_FOLDERS}
        folders = [word for path in sorted({*above, SYSFS_NETWORK}) for word in ("--dir", path)]
        own = [word for path in PRIVATE_FOLDERS for word in ("--perms", "1777", "--size", str(self.room), "--tmpfs", path)]
        return [
            *(_program("bwrap"), "--dev", "/dev", *own, *folders, "--proc", "/proc"),
            # nbgrader checks whether it may write here; nobody else sees what is written.
            *("--perms", "1777", "--size", str(1 << 20), "--tmpfs", EXCHANGE),
            *(*binds, "--remount-ro", "/", "--chdir", "/"),
            *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
            *("--die-with-parent", "--new-session", *(() if self.instructor else ("--seccomp", str(filter_from))), "--"),
            *(_program("setpriv"), f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--clear-groups"),
            *("--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"),
        ]

    def _shown(self) -> list[str]:
        words = []
        for path in SYSTEM_PATHS:
            if os.path.islink(path):
                words += ["--symlink", os.readlink(path), path]
            elif os.path.exists(path):
                words += ["--ro-bind", path, path]
        python = () if sys.base_prefix.startswith("/usr") else (sys.base_prefix,)
        course = (str(self.course),) if self.instructor else tuple(str(self.course / name) for name in STUDENT_PATHS)
        for path in (*python, *course, *self.readable, *filter(os.path.isdir, NAME_SERVICE_SOCKETS)):
            words += ["--ro-bind", path, path]
        return [*words, "--symlink", "/run", "/var/run", "--ro-bind", str(self.hub_socket), HUB_SOCKET]

    def _writable(self) -> list[str]:
        words = [
            "--ro-bind",
            str(self.exchange),
            f"{EXCHANGE}/{self.exchange.name}",
        ]  # nobody can replace one of these by another folder
        for name in EXCHANGE_FOLDER_MODES if self.instructor else ("inbound",):
            words += ["--bind", str(self.exchange / name), f"{EXCHANGE}/{self.exchange.name}/{name}"]
        return [*words, "--bind", self.user.pw_dir, self.user.pw_dir]


def account(name: str) -> pwd.struct_passwd:
    """Return a user's system account.

    Raises
    ------
    PermissionError
        There is none, or it is a system account.
    """
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise PermissionError(f"{name} has no account on this server. An administrator can create one: adduser {name}") from None
    if user.pw_uid < MIN_USER_ID or not user.pw_gid:
        raise PermissionError(f"{name} has the user id {user.pw_uid}: servers are for ids from {MIN_USER_ID} on, not for system accounts.")
    if not os.path.isdir(user.pw_dir) or os.path.islink(user.pw_dir) or os.stat(user.pw_dir).st_uid != user.pw_uid:
        raise PermissionError(f"{name} has no home at {user.pw_dir}, or does not own it. Usual cause: the account was created without one.")
    return user


def _program(name: str) -> str:
    found = shutil.which(name)
    if not found:
        raise FileNotFoundError(
            f"isolating the users' servers needs {name}, which is not installed: apt install {name.replace('bwrap', 'bubblewrap')}"
        )
    return found
