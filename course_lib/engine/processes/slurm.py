"""Run ranks under Slurm.

``python -m course_lib.engine.processes.slurm`` asks for an allocation, and gives it back whatever happens; `rank` is what runs in it.
srun does both, asking and running. It is watched from here, beside the notebook's kernel: when that is gone, however it ended, srun is
ended and the job cancelled.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

from course_lib import host
from course_lib.engine.processes import imports, watchdog

JOB_CANCEL_SECONDS = 20.0  # seconds for Slurm to end a job
HOME_VARIABLE, MAX_UNAUTHENTICATED = "COURSE_HOME", 64  # where the controller connects to; others that connect there
CONTROLLER_ENDED = 93  # the exit code of rank 0 then
KILL_AFTER_SECONDS = 3  # seconds from the end of the first rank to that of the job
KEPT_VARIABLES = ("SLURM_CONF",)  # of the job in which the kernel itself may run
LIVE_STATES = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED")  # a machine that failed completes late
COMMAND_SECONDS, RETRY_SECONDS = 5.0, 10.0  # seconds for Slurm to answer; until it is told again, where it did not
NOT_ENDED = "Slurm did not end the job"
MODULE_ARGUMENTS = ["-P", "-m", "course_lib.engine.processes.slurm"]  # no folder of somebody's comes before Python's own modules
REPLACED_VARIABLES = (
    "SLURM_REMOTE_CWD",
    "SLURM_WORKING_DIR",
    "SLURM_STDOUTMODE",
    "SLURM_STDERRMODE",
    "SLURM_LABELIO",
)  # ways that are ours
SLURM_SETTINGS = {"enable_curve": True}  # nobody else on the cluster can run a cell, or read what is sent


def environment() -> dict[str, str]:
    """The environment for srun: without the job in which the kernel may run, and without the kernel, which is on another machine."""
    inside = "SLURM_JOB_ID" in os.environ
    strange = ("SLURM", "PMI") if inside else ("PMI_",)
    left_out = (watchdog.OWNER_VARIABLE, watchdog.FOLDER_VARIABLE, "JPY_PARENT_PID", *REPLACED_VARIABLES)
    return {k: v for k, v in os.environ.items() if k in KEPT_VARIABLES or not (k.startswith(strange) or k in left_out)}


def command(n: int, name: str, folder: str, options: list[str]) -> list[str]:
    """The srun that asks for an allocation and runs `n` ranks in it."""
    ours = ["--mpi=pmi2", f"--ntasks={n}", f"--job-name={name}", "--input=none", "--unbuffered", "--export=ALL"]
    ours += ["--kill-on-bad-exit=1", f"--wait={KILL_AFTER_SECONDS}"]
    return ["srun", *options, *ours, sys.executable, *MODULE_ARGUMENTS, "rank", str(n), folder]


def run_job(n: int, name: str, folder: str, options: list[str]) -> int:
    """Run srun until it ends, or until the kernel is gone or asks to stop; then nothing of the job is left. Returns srun's exit code."""
    over, alone = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the kernel's
    owner = watchdog.owner()
    if owner:

        def watch() -> None:
            watchdog.wait_for(*owner)
            alone.set()
            over.set()

        threading.Thread(target=watch, daemon=True).start()
    try:
        server = socket.create_server((host.address(), 0))
    except (OSError, ValueError) as error:
        print(
            f"{host.name()} cannot listen for its job: {error}. Set COURSE_ADDRESS to a network of all machines, such as ib0.", flush=True
        )
        return 1
    token = secrets.token_hex(16)
    threading.Thread(target=_hold, args=(server, token.encode()), daemon=True).start()
    where = {HOME_VARIABLE: json.dumps([*server.getsockname(), token])}
    srun = subprocess.Popen(command(n, name, folder, options), stdin=subprocess.DEVNULL, env=environment() | where, start_new_session=True)
    while srun.poll() is None and not over.wait(0.1):
        pass
    cancel(srun, name)
    if alone.is_set():  # else the kernel reads there what happened
        shutil.rmtree(folder, ignore_errors=True)
    return srun.returncode


def _hold(server: socket.socket, token: bytes) -> None:
    """Keep the connection of the job's controller, which knows the token: it breaks when this process is gone, or its machine."""
    known, unauthenticated = [], deque()
    while True:
        with contextlib.suppress(OSError):
            readable = select.select([server, *unauthenticated], [], [])[0]
            if server in readable:
                unauthenticated.append(server.accept()[0])
            for one in [s for s in unauthenticated if s in readable]:
                unauthenticated.remove(one)
                if hmac.compare_digest(one.recv(len(token)), token):
                    known.append(one)
                else:
                    one.close()
            if len(unauthenticated) > MAX_UNAUTHENTICATED:
                unauthenticated.popleft().close()


def cancel(srun: subprocess.Popen, name: str) -> None:
    """End srun, so that it asks for nothing more, and the job, until Slurm knows of none by this name."""
    with contextlib.suppress(ProcessLookupError):
        srun.kill()
    srun.wait()
    job = [f"--user={os.geteuid()}", f"--name={name}"]
    deadline = time.monotonic() + JOB_CANCEL_SECONDS
    while time.monotonic() < deadline:
        if run_slurm("squeue", "--noheader", "--format=%i", f"--states={','.join(LIVE_STATES)}", *job) == "":
            return
        run_slurm("scancel", *job)
        time.sleep(0.2)
    print(
        f"{NOT_ENDED} {name} within {JOB_CANCEL_SECONDS:g} s: `squeue --name={name}` shows it, `scancel --name={name}` ends it.", flush=True
    )


def run_slurm(*words: str) -> str | None:
    """Run a Slurm command and return its output; None if it fails or takes too long, as where Slurm's controller is away."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def rank(n: int, folder: str) -> None:
    """Be one rank in the allocation; the first one starts the controller beside it."""
    number, place = int(os.environ["SLURM_PROCID"]), Path(folder)
    (place / f"rank-{number}").write_text(host.name())
    if number == 0:
        network = SLURM_SETTINGS | {"ip": host.address(), "location": host.address()}
        beside = os.environ | watchdog.environment("")
        words = [sys.executable, *MODULE_ARGUMENTS, "controller", str(n), folder, json.dumps(network)]
        running = subprocess.Popen(words, env=beside, start_new_session=True)
        threading.Thread(target=_end_with, args=(running,), daemon=True).start()
    os.environ.pop(HOME_VARIABLE, None)
    os.environ[host.REMOTE_NOTEBOOK_ENV] = "1"
    from course_lib.engine import ipengine

    engine = ipengine.prepare(folder)
    (place / f"ready-{number}").touch()  # all it needs is loaded: what may still take long is MPI
    ipengine.serve(engine)


def _end_with(running: subprocess.Popen) -> None:
    """Without the controller nobody reaches the ranks: end this one, and so the job."""
    running.wait()
    time.sleep(3)  # where the whole job ends, so does this rank meanwhile
    os._exit(CONTROLLER_ENDED)


def controller(n: int, folder: str, network: dict) -> None:
    """Be the controller. When the process that asked for the job is gone, also with its whole machine, then so is the job."""
    from course_lib.engine.processes.controller import run_controller

    threading.Thread(target=_end_with_home, args=(os.environ.pop(HOME_VARIABLE),), daemon=True).start()
    watchdog.watch_from_environment()
    imports.leave_out("numpy")
    run_controller(n, folder, network)


def _end_with_home(where: str) -> None:
    address, port, token = json.loads(where)
    try:
        home = socket.create_connection((address, port), 30)
        home.sendall(token.encode())
    except ConnectionRefusedError:  # it has ended already
        _end_job()
        return
    except OSError as error:
        print(
            f"{host.name()} cannot reach {address}:{port} ({error}): if that machine fails, this job goes on until its time is over.",
            flush=True,
        )
        return
    home.settimeout(None)
    home.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):  # a minute without an answer
        if hasattr(socket, name):
            home.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    with contextlib.suppress(OSError):
        home.recv(1)
    _end_job()


def _end_job() -> None:
    while run_slurm("scancel", os.environ["SLURM_JOB_ID"]) is None:
        time.sleep(RETRY_SECONDS)


if __name__ == "__main__":
    sys.modules["debugpy"] = None  # ipykernel would import it, for a second of each start
    what, count, *words = sys.argv[1:]
    sys.argv = ["course_lib.engine"]
    if what == "ask":
        sys.exit(run_job(int(count), words[0], words[1], words[2:]))
    elif what == "rank":
        rank(int(count), words[0])
    else:
        controller(int(count), words[0], json.loads(words[1]))
