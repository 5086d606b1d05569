"""The hub's settings, read from the environment and checked when `make hub` starts."""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import re
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from hub.isolation import EXCHANGE_FOLDER_MODES, account

COURSE_FOLDER = Path(__file__).resolve().parent.parent
COURSE_ID = "distributed-training"  # nbgrader's course id, as in grading.config


class HubSettingsError(SystemExit):
    """Invalid setting; the message says which, and what is expected."""


@dataclass(frozen=True)
class HubSettings:
    """The settings, and the folders that follow from them."""

    home: Path
    port: int
    instructors: tuple[str, ...]
    group: str
    domain: str
    ranks: int
    rank_idle_seconds: int
    memory: str
    instructor_memory: str
    servers: int
    cores: float
    idle: int
    session: int
    data: str

    @property
    def exchange(self) -> Path:
        """nbgrader's exchange folder of this course."""
        return self.home / "exchange" / COURSE_ID

    @property
    def sockets(self) -> Path:
        """Folder of the sockets; only root has access."""
        return self.home / "run"


def read() -> HubSettings:
    """Read the settings from the environment.

    Raises
    ------
    HubSettingsError
        One of them is missing or wrong.
    """
    if os.geteuid():
        raise HubSettingsError(
            "The hub starts servers for others, so it must run as root: sudo make hub COURSE_HUB=... COURSE_INSTRUCTORS=..."
        )
    getenv = os.environ.get
    home = Path(getenv("COURSE_HUB", "/srv/course-hub"))
    if not home.is_absolute() or str(home) != str(home).lower() or len(str(home)) > 60:
        raise HubSettingsError(
            f"COURSE_HUB={home}: expected an absolute path of at most 60 characters in lower case, since it becomes part of addresses."
        )
    instructors = tuple(name.strip() for name in getenv("COURSE_INSTRUCTORS", "").split(",") if name.strip())
    if not instructors:
        raise HubSettingsError(
            "COURSE_INSTRUCTORS is not set. Who grades? COURSE_INSTRUCTORS=ada,grace: the first one releases and collects."
        )
    domain = getenv("COURSE_HUB_DOMAIN", "")
    if domain and not re.fullmatch(r"https?://[^/]+", domain):
        raise HubSettingsError(f"COURSE_HUB_DOMAIN={domain}: expected an address such as https://hub.example.org.")
    for name in instructors:
        try:
            account(name)
        except PermissionError as why:
            raise HubSettingsError(f"COURSE_INSTRUCTORS: {why}") from None
    return HubSettings(
        home=home,
        port=_number("COURSE_HUB_PORT", 8000),
        instructors=instructors,
        group=getenv("COURSE_GROUP", "students"),
        domain=domain,
        ranks=_number("COURSE_RANKS", 8),
        rank_idle_seconds=_number("COURSE_REST", 900),
        memory=_memory("COURSE_MEMORY", "2G"),
        instructor_memory=_memory("COURSE_INSTRUCTOR_MEMORY", "16G"),
        servers=_number("COURSE_SERVERS", 250),
        cores=_number("COURSE_CORES", 0),
        idle=_number("COURSE_IDLE", 3600),
        session=_number("COURSE_SESSION", 12 * 3600),
        data=getenv("COURSE_DATA_DIR", ""),
    )


def lock(home: Path) -> None:
    """Lock a hub's folder, which is made if there is none, for as long as this process lives.

    Raises
    ------
    HubSettingsError
        Another hub has locked it.
    """
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)  # stays open: the kernel releases the lock when the process ends
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise HubSettingsError(
            f"A hub is already running in {home}: process {os.read(descriptor, 20).decode().strip()}. End it first, or give this one "
            "a folder and a port of its own: COURSE_HUB=/srv/another-hub COURSE_HUB_PORT=8001"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())


def problem(settings: HubSettings) -> str | None:
    """Return what will keep students from logging in although the hub can start; None if nothing will.

    Raises
    ------
    HubSettingsError
        The port is in use.
    """
    try:
        socket.create_server(("127.0.0.1", settings.port)).close()
    except OSError as error:
        raise HubSettingsError(f"Port {settings.port} of 127.0.0.1: {error.strerror}. Choose another one: COURSE_HUB_PORT=8001") from None
    if settings.group and settings.group not in [group.gr_name for group in grp.getgrall()]:
        return f"COURSE_GROUP: there is no group {settings.group}, so no student can log in: groupadd {settings.group}"
    return None


def make_folders(settings: HubSettings) -> None:
    """Create the hub's folders: one for the sockets, and the exchange, with the permissions that nbgrader requires.

    Students put submissions into inbound/, and cannot list, change or remove those of others.
    """
    owner = pwd.getpwnam(settings.instructors[0])
    shutil.rmtree(settings.sockets, ignore_errors=True)  # left by a hub that was killed
    settings.sockets.mkdir(mode=0o700)
    for folder, mode in ((settings.exchange, 0o755), *((settings.exchange / name, mode) for name, mode in EXCHANGE_FOLDER_MODES.items())):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
        os.fchown(descriptor, owner.pw_uid, owner.pw_gid)
        os.fchmod(descriptor, mode)
        os.close(descriptor)


def _memory(name: str, default: str) -> str:
    text = os.environ.get(name) or default
    if not re.fullmatch(r"\d+(\.\d+)?[KMGT]?", text):
        raise HubSettingsError(f"{name}={text}: expected a number of bytes, such as 2G or 512M.")
    return text


def _number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdigit():
        raise HubSettingsError(f"{name}={text}: expected a whole number.")
    return int(text)
