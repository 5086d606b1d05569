"""JupyterHub's configuration; `make hub` starts it, and docs/jupyterhub.md describes each setting.

Your own additions go into own.py in the folder COURSE_HUB, which is read last: another way to log in, TLS, other limits.
"""

import resource
import shutil
import signal
import sys
from pathlib import Path
from urllib.parse import quote

from tornado.httpserver import HTTPServer

from course_lib.tools import first_cell
from hub import authenticator, bubblewrap_spawner, limits, settings

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a class needs more connections than a shell's 1024
HTTPServer.configure(HTTPServer, max_body_size=1 << 20, body_timeout=30, idle_connection_timeout=60)  # the Hub gets only small requests
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a script, where ending would take half a minute
s = settings.read()
settings.lock(s.home)  # before anything that would end the servers of a running hub
settings.make_folders(s)
first_cell.install_config()
limits.tidy(s.sockets)
problem = limits.problem(s.sockets)
for said in filter(None, (problem, settings.problem(s))):
    print(said, flush=True)

c = get_config()  # noqa: F821  JupyterHub defines it
course = settings.COURSE_FOLDER
hub_socket = s.sockets / "hub.sock"


with_hub = ["setpriv", "--pdeathsig=TERM"]  # such a process ends with the Hub, however that ends


def unix(path):
    return f"http+unix://{quote(str(path), safe='')}"


# One port is open, on loopback: the proxy's. The Hub, the proxy's API and the servers listen on Unix sockets that only root reaches.
c.JupyterHub.bind_url = f"http://127.0.0.1:{s.port}"
c.JupyterHub.hub_bind_url = c.JupyterHub.hub_connect_url = unix(hub_socket)
c.JupyterHub.hub_socket_mode = (
    0o600  # each server has a socket proxy of its own to it, see `socket_proxy`; clients there authenticate with a token
)
c.JupyterHub.trusted_downstream_ips = ["127.0.0.1", "::1"]  # a web server with TLS, which passes on the client's address
c.ConfigurableHTTPProxy.api_url = unix(s.sockets / "proxy.sock")
c.ConfigurableHTTPProxy.auth_token = bubblewrap_spawner.secret(s.home / "proxy.secret")
c.ConfigurableHTTPProxy.pid_file = str(s.home / "proxy.pid")
proxy = course / ".venv" / "node_modules" / ".bin" / "configurable-http-proxy"
c.ConfigurableHTTPProxy.command = [*with_hub, str(proxy) if proxy.exists() else shutil.which("configurable-http-proxy") or str(proxy)]
if s.domain:
    c.JupyterHub.subdomain_host = s.domain  # each user's pages have an origin of their own
c.JupyterHub.cookie_secret_file = str(s.home / "cookie.secret")
c.JupyterHub.db_url = f"sqlite:///{s.home / 'jupyterhub.sqlite'}"

# Allowed are users of this server, with their passwords. Nobody is JupyterHub's administrator, who could enter others' servers.
c.JupyterHub.authenticator_class = authenticator.ThrottledPAMAuthenticator
c.PAMAuthenticator.allowed_groups = {s.group}
c.PAMAuthenticator.executor_threads = 64  # a wrong password blocks one for seconds
c.PAMAuthenticator.pam_normalize_username = True  # JupyterHub's own normalization is lowercase, but two accounts may differ only in case
c.Authenticator.allowed_users = set(s.instructors)
c.Authenticator.allow_existing_users = False  # having logged in once is no permission
c.ThrottledPAMAuthenticator.auth_refresh_strict = c.ThrottledPAMAuthenticator.refresh_pre_spawn = True  # the recheck is for tokens as well

# The users' servers.
c.JupyterHub.spawner_class = bubblewrap_spawner.BubblewrapSpawner
c.BubblewrapSpawner.folder, c.BubblewrapSpawner.course, c.BubblewrapSpawner.exchange = str(s.sockets), str(course), str(s.exchange)
c.BubblewrapSpawner.hub_socket, c.BubblewrapSpawner.instructors = str(hub_socket), set(s.instructors)
c.BubblewrapSpawner.readable = [s.data] if s.data else []
c.BubblewrapSpawner.mem_limit, c.BubblewrapSpawner.instructor_memory, c.BubblewrapSpawner.cpu_limit = (
    s.memory,
    s.instructor_memory,
    s.cores or None,
)
c.BubblewrapSpawner.limited = problem is None
c.JupyterHub.concurrent_spawn_limit = 0  # a whole class starts in the same minute
c.JupyterHub.active_server_limit = s.servers
c.BubblewrapSpawner.cmd = [sys.executable, "-I", "-m", "course_lib.tools.hub"]
c.BubblewrapSpawner.env_keep = ["LANG", "LC_ALL"]
c.BubblewrapSpawner.disable_user_config = True
c.BubblewrapSpawner.default_url = "/lab"
c.BubblewrapSpawner.start_timeout = c.BubblewrapSpawner.http_timeout = 180  # a whole class at once


def of(kind):
    """Return a setting that depends on whether the user is an instructor."""
    return lambda spawner: kind[spawner.instructor]


config = [str(Path(__file__).parent / "config" / who) for who in ("student", "instructor")]
c.BubblewrapSpawner.environment = {
    "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
    "COURSE_RANKS": str(s.ranks),
    "COURSE_REST": str(s.rank_idle_seconds),
    "COURSE_DATA_DIR": s.data,
    "COURSE_WORK": lambda spawner: f"{bubblewrap_spawner.account(spawner.user.name).pw_dir}/distributed-training",
    "COURSE_GRADING": lambda spawner: f"{bubblewrap_spawner.account(spawner.user.name).pw_dir}/grading" if spawner.instructor else "",
    "JUPYTERHUB_ROOT_DIR": lambda spawner: (
        bubblewrap_spawner.account(spawner.user.name).pw_dir + ("" if spawner.instructor else "/distributed-training")
    ),
    "JUPYTER_CONFIG_PATH": of([f"{folder}:{course / 'course_lib' / 'tools' / 'config'}" for folder in config]),
}

# Servers that nobody uses are ended, and every server after some time.
c.JupyterHub.services = [
    {
        "name": "culler",
        "command": [
            *with_hub,
            sys.executable,
            "-m",
            "hub.culler",
            f"--timeout={s.idle or 10**9}",
            f"--max-age={s.session}",
            f"--cull-every={max(1, min(300, (s.idle or 600) // 2))}",
        ],
        "cwd": str(course),
    }
]
c.JupyterHub.load_roles = [
    {"name": "culler", "services": ["culler"], "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"]}
]

own = s.home / "own.py"
if own.exists():
    load_subconfig(str(own))  # noqa: F821  JupyterHub defines it
