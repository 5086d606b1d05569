"""Run ranks under Slurm.

``python -m course_lib.engine.processes.slurm`` has three roles. "ask" runs next to the notebook's kernel: it runs srun, which requests the
allocation and starts the ranks, and cancels the job when the kernel is gone, however it ended. "rank" is a rank in the allocation, and
"controller" ipyparallel's controller, which rank 0 starts.
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

from course_lib.engine.processes import imports, watchdog
from course_lib.utils import host

JOB_CANCEL_SECONDS = 20.0  # for Slurm to end a job
HOME_VARIABLE, MAX_UNAUTHENTICATED = "COURSE_HOME", 64  # the address to which the controller connects; pending connections there
CONTROLLER_ENDED = 93  # exit code of rank 0 if the controller has ended
KILL_AFTER_SECONDS = 3  # from the end of the first rank to that of the job
KEPT_VARIABLES = ("SLURM_CONF",)  # kept from the job in which the kernel itself may run
LIVE_STATES = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED")  # not COMPLETING, which lasts long on a failed machine
COMMAND_SECONDS, RETRY_SECONDS = 5.0, 10.0  # for Slurm to answer a command; until the next attempt, if it did not
NOT_ENDED = "Slurm did not end the job"
MODULE_ARGUMENTS = ["-P", "-m", "course_lib.engine.processes.slurm"]  # -P: no user's folder precedes Python's own modules
# Behaviour that the course determines.
REPLACED_VARIABLES = ("SLURM_REMOTE_CWD", "SLURM_WORKING_DIR", "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_LABELIO")
SLURM_SETTINGS = {"enable_curve": True}  # encryption: no other user of the cluster can run cells or read messages


def environment() -> dict[str, str]:
    """Return the environment for srun, without the variables of the job in which the kernel may run, and of the kernel itself."""
    inside = "SLURM_JOB_ID" in os.environ
    strange = ("SLURM", "PMI") if inside else ("PMI_",)
    left_out = (watchdog.OWNER_VARIABLE, watchdog.FOLDER_VARIABLE, "JPY_PARENT_PID", *REPLACED_VARIABLES)
    return {k: v for k, v in os.environ.items() if k in KEPT_VARIABLES or not (k.startswith(strange) or k in left_out)}


def command(n: int, name: str, folder: str, options: list[str]) -> list[str]:
    """Return the srun command that requests an allocation and runs `n` ranks in it."""
    ours = ["--mpi=pmi2", f"--ntasks={n}", f"--job-name={name}", "--input=none", "--unbuffered", "--export=ALL"]
    ours += ["--kill-on-bad-exit=1", f"--wait={KILL_AFTER_SECONDS}"]
    return ["srun", *options, *ours, sys.executable, *MODULE_ARGUMENTS, "rank", str(n), folder]


def run_job(n: int, name: str, folder: str, options: list[str]) -> int:
    """Run srun until it exits, the kernel is gone, or SIGTERM arrives; then cancel the job, and return srun's exit code."""
    over, alone = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the kernel
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
    if alone.is_set():  # otherwise the kernel still reads the log in it
        shutil.rmtree(folder, ignore_errors=True)
    return srun.returncode


def _hold(server: socket.socket, token: bytes) -> None:
    """Accept and keep the connection of the job's controller, which knows the token; it breaks if this process or its machine is gone."""
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
    """End srun, so that it requests nothing more, and cancel the job until Slurm knows of none by this name."""
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
    """Run a Slurm command and return its output; None if it fails or takes too long, as when Slurm's controller is down."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def rank(n: int, folder: str) -> None:
    """Run as one rank in the allocation; rank 0 starts the controller, too."""
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
    (place / f"ready-{number}").touch()  # all imports are done; only MPI's initialization may still take long
    ipengine.serve(engine)


def _end_with(running: subprocess.Popen) -> None:
    """End this rank, and with it the job, when the controller ends: without it, no request reaches the ranks."""
    running.wait()
    time.sleep(3)  # if the whole job is ending, this rank is ended first, and the controller is not blamed
    os._exit(CONTROLLER_ENDED)


def controller(n: int, folder: str, network: dict) -> None:
    """Run as the controller; cancel the job when the process that requested it is gone, even if its whole machine failed."""
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
    except ConnectionRefusedError:  # that process has ended already
        _end_job()
        return
    except OSError as error:
        print(
            f"{host.name()} cannot reach {address}:{port} ({error}): if that machine fails, this job runs until its time is over.",
            flush=True,
        )
        return
    home.settimeout(None)
    home.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):  # detects a dead peer after a minute
        if hasattr(socket, name):
            home.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    with contextlib.suppress(OSError):
        home.recv(1)
    _end_job()


def _end_job() -> None:
    while run_slurm("scancel", os.environ["SLURM_JOB_ID"]) is None:
        time.sleep(RETRY_SECONDS)


if __name__ == "__main__":
    sys.modules["debugpy"] = None  # ipykernel would import it, which takes a second of each start
    what, count, *words = sys.argv[1:]
    sys.argv = ["course_lib.engine"]
    if what == "ask":
        sys.exit(run_job(int(count), words[0], words[1], words[2:]))
    elif what == "rank":
        rank(int(count), words[0])
    else:
        controller(int(count), words[0], json.loads(words[1]))
