"""A Slurm of the tests' own: a controller and two machines, n1 and n2, all on this one, on loopback, with nothing of the system's."""

import contextlib
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "scancel", "squeue")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
NODES = ("n1", "n2")

CONFIG = """
ClusterName=course
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
FirstJobId={first}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=pmi2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,sched_min_interval=100000,batch_sched_delay=0,defer_batch
ReturnToService=2
KillWait=30
InactiveLimit=0
MinJobAge=2
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
OverTimeLimit=0
{nodes}
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """List Slurm's programs that are not installed."""
    return [name for name in PROGRAMS if not shutil.which(name, path=PATH)]


NEEDED = pytest.mark.skipif(bool(missing()), reason="Slurm is not installed (apt install slurm-wlm munge)")


class Slurm:
    """Starts with the object, and ends with `stop`; use it by its `environment`."""

    def __init__(self):
        for again in (True, True, False):
            self.folder = Path(tempfile.mkdtemp(prefix="course-slurm-"))
            self.processes, self.first = {}, 0
            os.chmod(self.folder, 0o755)
            self.environment = {"SLURM_CONF": f"{self.folder}/slurm.conf", "COURSE_ADDRESS": "127.0.0.1", "COURSE_SHARED": str(self.folder)}
            try:
                self._start()
                return
            except BaseException as error:
                self.stop()
                if not (again and isinstance(error, AssertionError)):  # else somebody else has taken a port meanwhile
                    raise

    def _start(self):
        ports = _ports(3)
        host = socket.gethostname()
        nodes = [f"NodeName={n} NodeHostname={host} NodeAddr=127.0.0.1 Port={p} CPUs=8" for n, p in zip(NODES, ports[1:], strict=True)]
        self.first = random.SystemRandom().randrange(10**4, 6 * 10**7)  # MPI names shared memory after the job's number: none of before
        words = dict(
            first=self.first,
            host=host,
            controller=ports[0],
            user=pwd.getpwuid(os.geteuid()).pw_name,
            folder=self.folder,
            nodes="\n".join(nodes),
        )
        (self.folder / "slurm.conf").write_text(CONFIG.format(**words))
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._run("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files)
        assert _until((self.folder / "munge.socket").exists), self.log("munge.log")
        self._run("slurmctld", "-D", "-i", "-f", f"{self.folder}/slurm.conf")
        for node in NODES:
            self._run_node(node)
        assert _until(lambda: self.ask("sinfo", "-h", "-o", "%T").split() == ["idle"], 30), self.log("slurmctld.log") + self.log(
            "slurmd-n1.log"
        )

    def _run_node(self, node):
        self._run("slurmd", "-D", "-N", node, "-f", f"{self.folder}/slurm.conf", name=node)

    def _run(self, program, *words, name=None):
        ends_with_us = ["setpriv", "--pdeathsig=TERM", shutil.which(program, path=PATH)]  # even if the tests are killed
        out = (self.folder / f"{name or program}.out").open("wb")
        environment = {**os.environ, **self.environment, "PATH": PATH}
        self.processes[name or program] = subprocess.Popen(
            [*ends_with_us, *words], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        out.close()

    def ask(self, *words):
        """Run a command of Slurm; returns its output."""
        done = subprocess.run(words, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout

    def jobs(self):
        """The jobs that run or wait."""
        return self.ask("squeue", "-h", "-o", "%i").split()

    def log(self, name):
        """The end of a log."""
        with contextlib.suppress(OSError):
            return (self.folder / name).read_text(errors="replace")[-3000:]
        return ""

    def of_node(self, node):
        """The processes that a node runs: its daemon, the steps, and the ranks in them."""
        mark, found = f"SLURMD_NODENAME={node}", []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                here = process.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]
                if here and (f"-N {node}" in line or mark in " ".join(f"{k}={v}" for k, v in process.environ().items())):
                    found.append(process)
        steps = {p.ppid() for p in found if p.ppid() > 1}
        more = [psutil.Process(pid) for pid in steps if psutil.pid_exists(pid) and "slurmstepd" in psutil.Process(pid).name()]
        return found + [p for p in more if p not in found]

    def left(self):
        """Processes of a job of this Slurm."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                # A step writes its job's number there, and over its environment.
                step = re.match(r"slurmstepd: +\[(\d+)", " ".join(process.cmdline()))
                ours = step and self.first <= int(step[1]) < self.first + 1000
                ours = ours or (
                    process.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"] and "SLURM_PROCID" in process.environ()
                )
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def stop(self):
        """End it, and all that runs in it."""
        if "slurmctld" in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.ask("scancel", "--me")
            _until(lambda: not self.left(), 10)
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def _ports(n):
    """Ports of loopback that are free."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
