"""A hub of its own for the tests: users made for it, on a free port of loopback; nothing of it is left afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from uuid import uuid4

import psutil
from machine import patient
from processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
START = [sys.executable, "-m", "jupyterhub", "--config=hub/jupyterhub_config.py"]
OWN = """c = get_config()
c.JupyterHub.authenticator_class = "shared-password"  # for tests alone
c.SharedPasswordAuthenticator.user_password = "{password}"
c.SharedPasswordAuthenticator.allowed_users = {users!r}
c.JupyterHub.log_level = "{level}"
"""


def missing() -> str | None:
    """The reason why there can be no hub here, or None."""
    if os.geteuid():
        return "a hub needs the rights of root"
    try:
        import jupyterhub  # noqa: F401
    except ImportError:
        return "JupyterHub is not installed (pip install -e '.[hub]')"
    if not (ROOT / ".venv/node_modules/.bin/configurable-http-proxy").exists() and not shutil.which("configurable-http-proxy"):
        return "configurable-http-proxy is not installed (npm install --prefix .venv configurable-http-proxy)"
    return next((f"{name} is not installed" for name in ("bwrap", "setpriv", "useradd") if not shutil.which(name)), None)


def free_port() -> int:
    """A port of loopback that nobody has."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Hub:
    """A hub with accounts for `names`; the first is the instructor's. With `group`, that group may come in, with the system's passwords.

    `own` are lines for own.py, `settings` the environment's.
    """

    def __init__(self, names: list[str], port: int = 0, group: str = "", own: str = "", **settings: str):
        self.folder = Path(tempfile.mkdtemp(prefix="hub-", dir="/tmp"))  # a short path, for sockets
        self.folder.chmod(0o755)
        self.port, self.password, self.names = port or free_port(), uuid4().hex, names
        self.url = f"http://127.0.0.1:{self.port}"
        self.process, self.group = None, group
        self.settings = {
            "COURSE_HUB": str(self.folder / "hub"),
            "COURSE_HUB_PORT": str(self.port),
            "COURSE_INSTRUCTORS": names[0],
            "COURSE_GROUP": group,
            **settings,
        }
        try:
            for name in names:
                home = self.folder / "home" / name
                home.parent.mkdir(exist_ok=True)
                subprocess.run(
                    ["useradd", "--home-dir", home, "--create-home", "--shell", "/bin/bash", name], check=True, capture_output=True
                )
                home.chmod(0o700)
            if group:
                subprocess.run(["groupadd", group], check=True)
                subprocess.run(["chpasswd"], input="".join(f"{name}:{self.password}\n" for name in names), text=True, check=True)
            (self.folder / "hub").mkdir(mode=0o700)
            text = OWN.format(password=self.password, users=set(names), level=os.environ.get("COURSE_HUB_LOG", "ERROR"))
            (self.folder / "hub" / "own.py").write_text(f"c = get_config()\n{own}" if group else text + own)
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the hub, and wait until it answers."""
        with (self.folder / "log.txt").open("ab") as log:
            environment = {**os.environ, **self.settings}
            self.process = subprocess.Popen(START, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
        for _ in range(300):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/hub/health", timeout=5).close()
                return
            assert self.process.poll() is None, f"the hub ended\n{self.log()}"
            time.sleep(0.2)
        raise AssertionError(f"the hub does not answer\n{self.log()}")

    def log(self) -> str:
        """The end of the hub's log."""
        with contextlib.suppress(OSError):
            return (self.folder / "log.txt").read_text(errors="replace")[-6000:]
        return ""

    def home(self, name: str) -> Path:
        """A user's home."""
        return Path(pwd.getpwnam(name).pw_dir)

    def end(self) -> None:
        """End the hub, as Ctrl-C does."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)

    def close(self) -> None:
        """End the hub and remove its users and files."""
        self.end()
        for name in self.names:
            with contextlib.suppress(KeyError):  # no such user: this has gone before
                wait_until(lambda name=name: not processes_of(name), 20)  # their servers end after the hub
            subprocess.run(["userdel", name], capture_output=True)
        if self.group:
            subprocess.run(["groupdel", self.group], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)


class Person:
    """One who is logged in, as a browser is, and may run code in their server."""

    def __init__(self, hub: Hub, name: str):
        self.hub, self.name = hub, name
        self.cookies = CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))
        self.token = ""

    def open(self, path: str, data: bytes | None = None, timeout: float = 60, method: str | None = None, **headers: str) -> str:
        """The text of a page, or the body of an error."""
        request = urllib.request.Request(self.hub.url + path, data=data, headers=headers, method=method)
        try:
            with self.opener.open(request, timeout=timeout) as page:
                return page.read().decode()
        except urllib.error.HTTPError as error:
            return f"{error.code}: {error.read().decode(errors='replace')}"

    @property
    def xsrf(self) -> str:
        """The cookie against forged requests."""
        return next((c.value for c in self.cookies if c.name == "_xsrf"), "")

    def log_in(self) -> str:
        """Log in; returns the page that comes. Where the proxy has lost the Hub for a moment, as under load, it is tried again."""
        for _ in range(3):
            self.open("/hub/login")
            words = {"username": self.name, "password": self.hub.password, "_xsrf": self.xsrf}
            said = self.open("/hub/login?next=/hub/home", urllib.parse.urlencode(words).encode())
            if not said.startswith("503"):
                break
            time.sleep(1)
        return said

    def start(self, timeout: float = 180) -> None:
        """Log in, start the server, and wait until it is ready."""
        self.log_in()
        said = self.ask("/tokens", "POST", note="test")
        assert '"token"' in said, f"no token for {self.name}: {said[:500]}\n{self.hub.log()}"
        self.token = json.loads(said)["token"]
        said = self.ask("/server", "POST")
        deadline = time.monotonic() + patient(timeout)
        while time.monotonic() < deadline:
            facts = json.loads(self.ask(""))
            if (server := facts["servers"].get("")) and server["ready"]:
                return
            assert server or time.monotonic() < deadline - timeout + 5, (
                f"the server of {self.name} did not start: {said[:300]}\n{self.hub.log()}"
            )
            time.sleep(0.5)
        raise AssertionError(f"the server of {self.name} did not come up\n{self.hub.log()}")

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the Hub wants of a page that asks."""
        return {"X-XSRFToken": self.xsrf, "Content-Type": "application/json"}

    def ask(self, path: str, method: str = "GET", **body: str) -> str:
        """Ask the Hub about this user; returns its answer."""
        data = json.dumps(body).encode() if method == "POST" else None
        return self.open(f"/hub/api/users/{self.name}{path}", data, method=method, **self.headers)

    def api(self, path: str, method: str = "GET", body: object = None) -> str:
        """Ask the interface of the user's server; returns its answer."""
        data = None if body is None else json.dumps(body).encode()
        return self.open(f"/user/{self.name}/{path}", data, method=method, Authorization=f"token {self.token}")

    def kernel(self, path: str = "") -> Kernel:
        """A new kernel in the server."""
        started = self.api("api/kernels", "POST", {"name": "python3", "path": path})
        assert started.startswith("{"), f"no kernel for {self.name}: {started[:500]}"
        return Kernel(self, json.loads(started)["id"])


class Kernel:
    """A kernel in somebody's server, over the web socket that JupyterLab uses."""

    def __init__(self, person: Person, name: str):
        from websocket import create_connection

        self.person = person
        where = person.hub.url.replace("http", "ws", 1)
        self.socket = create_connection(
            f"{where}/user/{person.name}/api/kernels/{name}/channels", header=[f"Authorization: token {person.token}"], timeout=180
        )

    def run(self, source: str) -> str:
        """Run a cell; what it printed, and its error."""
        message = uuid4().hex
        header = {"msg_id": message, "msg_type": "execute_request", "username": "", "session": "test", "version": "5.3"}
        content = {"code": source, "silent": False, "store_history": True, "allow_stdin": False}
        self.socket.send(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}))
        said = []
        while True:
            text = self.socket.recv()
            got = {} if isinstance(text, bytes) else json.loads(text)  # bytes are a widget's
            if not got or got["parent_header"].get("msg_id") != message:
                continue
            kind, content = got["header"]["msg_type"], got["content"]
            if kind == "stream":
                said.append(content["text"])
            elif kind in ("execute_result", "display_data"):
                said.append(content["data"].get("text/plain", ""))
            elif kind == "error":
                said.append(re.sub(r"\x1b\[[\d;]*m", "", "\n".join(content["traceback"])))
            elif kind == "status" and content["execution_state"] == "idle":
                return "".join(said)


def processes_of(name: str) -> list[int]:
    """The processes of a user, by id."""
    uid = pwd.getpwnam(name).pw_uid
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == uid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def megabytes(pids: list[int]) -> float:
    """Memory of processes, where what several share counts once (PSS)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += sum(
                int(line.split()[1]) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:")
            )
    return total * 1024 / 1e6


@contextlib.contextmanager
def nothing_left():
    """See to it that a hub leaves nothing; those of other runs of the tests on this machine have the same users, and wait."""
    turn = os.open(shutil.which("bwrap"), os.O_RDONLY)  # a file that is there anyway
    fcntl.flock(turn, fcntl.LOCK_EX)
    try:
        before = everything()

        def left() -> dict[str, set]:
            return {kind: more for kind, found in everything().items() if (more := found - before[kind])}

        yield
        assert wait_until(lambda: not left(), 20), f"something stays behind: {left()}"  # the hub does not wait for its proxy's end
    finally:
        os.close(turn)


def everything() -> dict[str, set]:
    """Everything that a hub makes: its processes and their sockets, folders, control groups, users."""
    words = ("jupyterhub", "configurable-http-proxy", "hub.culler", "course_lib.tools.hub", "--seccomp")
    processes = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if any(word in line for word in words) and process.status() != psutil.STATUS_ZOMBIE:
                processes.add((process.pid, line[:100]))
    return {
        "processes": processes,
        "folders": set(Path("/tmp").glob("hub-*")),
        "groups": set(Path("/sys/fs/cgroup").glob("**/course-hub-*")),
        "users": {user.pw_name for user in pwd.getpwall()},
        "sockets": {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "/tmp/hub-" in line},
    }
