"""The spawner: each user's server runs isolated by bubblewrap, and is reached through a socket that root has made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

from jupyterhub.spawner import LocalProcessSpawner
from jupyterhub.traitlets import ByteSpecification
from traitlets import Bool, Int, List, Set, Unicode

from course_lib.sandbox import cgroup
from hub import limits, syscall_filter
from hub.isolation import HUB_SOCKET, ServerIsolation, account
from hub.socket_proxy import SocketProxy


class BubblewrapSpawner(LocalProcessSpawner):
    """A server for one user, as that user, isolated (see `isolation`) and with limits (see `limits`)."""

    folder = Unicode(help="Folder of the sockets; only root has access.").tag(config=True)
    course = Unicode(help="The course's folder.").tag(config=True)
    exchange = Unicode(help="nbgrader's exchange folder of this course.").tag(config=True)
    hub_socket = Unicode(help="The socket on which the Hub listens.").tag(config=True)
    instructors = Set(help="The users who grade.").tag(config=True)
    readable = List(help="Other folders that all users may read.").tag(config=True)
    processes = Int(limits.STUDENT_PROCESSES, help="Maximum number of processes and threads of a user.").tag(config=True)
    instructor_memory = ByteSpecification("16G", help="Memory of an instructor.").tag(config=True)
    limited = Bool(True, help="True if the system provides control groups; then no server starts without them.").tag(config=True)
    room = Int(1 << 30, help="Bytes for /tmp, and for /dev/shm; they count as memory.").tag(config=True)

    def __init__(self, **options):
        super().__init__(**options)
        self.groups: list[Path] = []
        self.place: Path | None = None
        self.hub_proxy: SocketProxy | None = None
        self._cleaning = asyncio.Lock()

    @property
    def instructor(self) -> bool:
        """True for the server of an instructor."""
        return self.user.name in self.instructors

    async def start(self) -> str:
        """Start the server; return its address."""
        try:
            user = account(self.user.name)
        except PermissionError as why:
            raise with_hub_message(why, str(why)) from None
        self.user_options = {}  # nobody reads them, and they may be large
        if self.instructor:
            self.mem_limit, self.processes = self.instructor_memory, limits.INSTRUCTOR_PROCESSES
        await self.clean()
        self.place = place = Path(self.folder) / str(user.pw_uid)
        shutil.rmtree(place, ignore_errors=True)  # left by a hub that was killed
        most = (self.mem_limit, self.cpu_limit, self.processes)
        self.groups = await asyncio.to_thread(limits.made, Path(self.folder), user.pw_uid, *most)
        if self.limited and (missing := limits.missing(self.groups)):
            why = f"No limit could be set for {' and '.join(missing)}: part of your last server could not be stopped. Ask an administrator."
            raise with_hub_message(RuntimeError(why), why)
        place.mkdir(mode=0o700)
        self.hub_proxy = SocketProxy(place / "hub.sock", Path(self.hub_socket))
        wall = ServerIsolation(
            user, Path(self.course), place / "hub.sock", Path(self.exchange), self.instructor, tuple(self.readable), self.room
        )
        with bind_root_socket(place / "server:80") as listener, tempfile.TemporaryFile() as filter_:
            (place / "server").symlink_to("server:80")  # JupyterHub and its proxy read the same address in two ways
            filter_.write(syscall_filter.student_filter().program())
            filter_.seek(0)
            environment = self.server_environment(listener.fileno())
            self.proc = subprocess.Popen(
                [*wall.command(filter_.fileno()), *self.cmd, *self.get_args()],
                env=environment,
                stdin=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
                pass_fds=(listener.fileno(), filter_.fileno()),
                preexec_fn=lambda: limits.enter(self.groups, self.processes),
            )
        self.pid = self.proc.pid
        await self._ready(place / "server")
        return f"http+unix://{quote(str(place / 'server'), safe='')}"

    async def _ready(self, path: Path) -> None:
        """Wait for the server's first answer, or its end; JupyterHub would not check whether it has ended."""
        answer = asyncio.ensure_future(first_response_line(path, f"GET {self.server.base_url}api HTTP/1.0\r\n\r\n"))
        try:
            while not answer.done() and self.proc.poll() is None:
                await asyncio.wait([answer], timeout=0.2)
            ended = not answer.done() or not answer.result()
        finally:
            answer.cancel()
        if ended:
            why = "Your server ended before it was ready. Its output is in .jupyterhub.log in your home. Ask an administrator."
            raise with_hub_message(RuntimeError(why), why)

    def server_environment(self, descriptor: int) -> dict[str, str]:
        """Return the server's environment: the Hub's addresses as seen inside, and the socket that it is to serve."""
        outside, inside = quote(self.hub_socket, safe=""), quote(HUB_SOCKET, safe="")
        environment = {name: text.replace(outside, inside) for name, text in self.get_env().items()}
        return environment | {
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:8888{self.server.base_url}",  # nobody listens there
            "COURSE_LISTEN": str(descriptor),
            "XDG_RUNTIME_DIR": "/tmp",
            "TMPDIR": "/tmp",
            "JUPYTER_RUNTIME_DIR": "/tmp/jupyter",  # removed with the server, and takes no space in the home
        }

    def load_state(self, state: dict) -> None:
        """Forget what an earlier Hub has started: it ended with that Hub."""

    async def stop(self, now: bool = False) -> None:
        """End the server and all that it has started: when its sandbox ends, the kernel ends every process inside."""
        if self.pid:
            await self._signal(signal.SIGKILL)
            await self.wait_for_death(self.kill_timeout)
        await self.poll()
        await self.clean()

    async def poll(self) -> int | None:
        """Return None while the server runs; once it has ended, clean up after it."""
        ended = await super().poll()
        if ended is not None:
            await self.clean()
        return ended

    async def clean(self) -> None:
        """Remove the sockets and the control groups; processes still in these are ended.

        A second call waits for the first: a start must not create groups that an earlier call is about to end. All is done in one thread,
        which goes on to the end even if the Hub, on its way out, cancels the caller.
        """
        async with self._cleaning:
            if self.hub_proxy:
                self.hub_proxy.close()
            groups, place = self.groups, self.place
            self.groups, self.place, self.hub_proxy = [], None, None
            if groups or place:
                await asyncio.to_thread(remove, groups, place)


def remove(groups: list[Path], place: Path | None) -> None:
    """End the processes in control groups, and remove these and the folder of a server's sockets."""
    for group in groups:
        cgroup.end(group)
    if place:
        shutil.rmtree(place, ignore_errors=True)


async def first_response_line(path: Path, words: str) -> bytes:
    """Return the first line of a server's answer on a socket; empty if the server ends first."""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_unix_connection(str(path))
        try:
            writer.write(words.encode())
            return await reader.readline()
        finally:
            writer.close()
    return b""


def with_hub_message(error: Exception, why: str) -> Exception:
    """Attach a message for the user's page to an error."""
    error.jupyterhub_message = why
    return error


def bind_root_socket(path: Path) -> socket.socket:
    """Bind a socket that only root can reach; the server inherits it open, so nobody can put another in its place."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    os.chmod(path, 0o600)
    listener.listen(128)
    return listener


def secret(path: Path) -> str:
    """Return a secret from a file of root's, which is made if there is none."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    return path.read_text()
