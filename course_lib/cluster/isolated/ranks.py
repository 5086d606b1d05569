"""Isolated ranks, for grading: each in a sandbox of its own, with one socket, to the broker in this process, and no MPI between them.

Traffic is counted in this process, and memory is measured by the operating system. No rank can reach another one, other processes, or any
files but those of Python and the course's library. `IsolatedRanks` is both the client and the processes of a `ClusterConnection`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path

import psutil

from course_lib import memory
from course_lib.cluster.isolated.broker import CONNECTION_ENDED, Broker
from course_lib.cluster.isolated.launcher import RankFolders, remove_tree, start_rank
from course_lib.cluster.processes.launch import kill_group
from course_lib.collectives import shared_memory
from course_lib.sandbox import cpu_quota
from course_lib.sandbox.bubblewrap import ISOLATION_VARIABLE, SANDBOXED
from course_lib.sandbox.resource_usage import ResourceUsage

LOG_CHARACTERS = 8192  # kept of the ranks' output outside of cells


class IsolatedRanks:
    """`n` isolated ranks; the constructor starts their processes, and returns before they are ready.

    Has the interface of `client.Client` (requests) and that of `launch.Processes` (processes).

    Parameters
    ----------
    n : int

    Attributes
    ----------
    broker : Broker
    ready : set of int
        Ranks that can take requests.
    processes : list of subprocess.Popen
        The outermost process of each rank.
    """

    advice = "Run `make doctor` in the course folder for what to do."

    def __init__(self, n: int):
        shared_memory.unlink_mapped_files()  # this process has started MPI too, by importing the modules that describe calls
        memory.keep_freed()  # all messages pass through this process
        self.n, self.ready = n, set()
        self._futures: dict[tuple[int, int], Future] = {}
        self._number, self._stopped, self._sampling = 0, threading.Event(), threading.Event()
        self._folders = None if os.environ[ISOLATION_VARIABLE] == SANDBOXED else RankFolders()
        self._log: deque[str] = deque(maxlen=64)
        self.processes: list[subprocess.Popen] = []
        self._exceeded_limits: dict[int, str] = {}  # by rank that was ended: why
        self._usage: dict[int, ResourceUsage] = {}
        ours, theirs = zip(*(socket.socketpair() for _ in range(n)), strict=True)
        try:
            for r, end in enumerate(theirs):
                out, into = os.pipe()  # one for each rank: a shared pipe would let ranks communicate
                threading.Thread(target=self._listen, args=(out,), daemon=True).start()
                try:
                    self.processes.append(start_rank(r, n, end.fileno(), into, self._folders))
                finally:
                    os.close(into)
        except BaseException:
            self._kill()
            raise
        finally:
            for end in theirs:
                end.close()
        self.broker = Broker(list(ours), self._replied, self._is_ready)
        self.broker.start()
        for watch in (self._enforce_limits, self._sample_peaks):
            threading.Thread(target=watch, daemon=True).start()

    # The interface of a client.

    @property
    def ids(self) -> list[int]:
        """The ranks that are ready."""
        return sorted(self.ready)

    def request(self, rank: int, what: dict) -> Future:
        """Send a request to a rank; pass the future to `answer` for the reply."""
        self._number += 1
        future = self._futures[rank, self._number] = Future()
        turn = what.get("round", 0), what.get("targets", 1 << rank)
        rules = what.get("gates", []), what.get("keep", False), what.get("do") != "cell"
        self.broker.request(rank, self._number, pickle.dumps({**what, "gates": [], "keep": False}), *turn, *rules)
        return future

    @staticmethod
    def answer(future: Future) -> dict | None:
        """Return the rank's reply, or None if there is none."""
        return future.result(0) if future.done() else None

    def interrupt(self, ranks: list[int]) -> list[Future]:
        """Interrupt the ranks, as Ctrl-C would; a future is done once its rank has the interrupt, which is at once."""
        told = [Future() for _ in ranks]
        for future in told:
            future.set_result(None)
        for r in ranks:
            with contextlib.suppress(psutil.Error, KeyError):
                self._usage[r].process.send_signal(signal.SIGINT)
                self._usage[r].pause.release("quota")  # for a moment, so that it can react
        return told

    def wait_for_interrupts(self, timeout: float) -> None:
        """Do nothing: a signal is delivered when it is sent."""

    def held(self) -> list[int]:
        """Return the bytes that each rank holds beyond its baseline: in memory, in its folders, and in its connection to the broker."""
        return [account.used() + self.broker.unread_bytes(r) - account.baseline for r, account in sorted(self._usage.items())]

    def reset_baseline(self) -> None:
        """Set the baseline of `held` to the present usage, before another answer is tried: the allocator keeps some memory."""
        for account in self._usage.values():
            account.baseline = account.used()

    def reset_peak(self, spare: float) -> None:
        """Start to measure peak memory; bytes that a rank already holds beyond its baseline count, apart from `spare` of them."""
        for account in self._usage.values():
            account.reset_peak(spare)
        self._sampling.set()

    def peaks(self) -> list[int | None]:
        """Return each rank's peak memory since `reset_peak`, in bytes beyond what it held then, with messages in flight to itself."""
        held = [(account.peak(), self.broker.coordinator.buffered(r)) for r, account in sorted(self._usage.items())]
        return [None if peak is None else peak + buffered for peak, buffered in held]

    def stop_sampling(self) -> None:
        """Stop measuring peak memory."""
        self._sampling.clear()

    def _enforce_limits(self) -> None:
        """End ranks that exceed a limit on threads or files, which the system itself cannot enforce everywhere; runs in a thread."""
        spent: dict[int, float] = {}  # processor time by rank
        while not self._stopped.wait(0.2):
            self._enforce_cpu_quota(spent)
            for r, account in list(self._usage.items()):
                with contextlib.suppress(OSError, psutil.Error):
                    if why := account.exceeded_limit():
                        self._exceeded_limits.setdefault(r, why)
                        os.killpg(self.processes[r].pid, signal.SIGKILL)

    def _enforce_cpu_quota(self, spent: dict[int, float]) -> None:
        """Pause all ranks while the submission has overdrawn its processor time."""
        before = sum(spent.values())
        accounts = list(self._usage.items())
        spent |= {rank: account.cpu_seconds() for rank, account in accounts}
        cpu_quota.QUOTA.spend(sum(spent.values()) - before, time.monotonic())
        for _, account in accounts:
            if cpu_quota.QUOTA.left < 0:
                account.pause.hold("quota")
            else:
                account.pause.release("quota")

    def _sample_peaks(self) -> None:
        """Look at what ranks hold, between `reset_peak` and `stop_sampling`."""
        while not self._stopped.is_set():
            if self._sampling.wait(0.2) and not self._stopped.wait(0.002):
                for account in list(self._usage.values()):
                    with contextlib.suppress(OSError, psutil.Error):
                        account.sample()

    def new_output(self) -> list:
        """Return nothing: output is not shown live while grading."""
        return []

    def flush_replies(self) -> None:
        """Do nothing: no reply can be left unread."""

    @property
    def stalls(self) -> dict[int, str]:
        """Always empty: to MPI, each rank is a world of its own."""
        return {}

    def close(self, linger: int = 0) -> None:
        """Do nothing: `stop` ends everything."""

    # The interface of processes.

    def rank_process(self, rank: int) -> psutil.Process:
        """Return a rank's Python process: the innermost of those that make up its sandbox."""
        process = psutil.Process(self.processes[rank].pid)
        while children := process.children():
            process = children[-1]
        return process

    def folder(self, rank: int) -> str:
        """Return the path of a rank's temporary folder, as seen from this process."""
        return str(self._folders.folders[rank]) if self._folders else f"/proc/{self._usage[rank].process.pid}/root/tmp"

    def process(self, rank: int) -> psutil.Process:
        """Return the Python process of a rank that is ready."""
        return self._usage[rank].process

    def ended(self) -> str | None:
        """Return None while all ranks run, else which one ended, with the log."""
        for r, process in enumerate(self.processes):
            if process.poll() is not None or r in self.broker.violations:
                return f"the process of rank {r} ended.\n{self.log()}".strip()
        return None

    def exit_reason(self) -> str:
        """Describe in a sentence or two which rank's process ended first, and how."""
        for r, process in enumerate(self.processes):
            code = process.poll()
            if (why := self._exceeded_limits.get(r) or self.broker.violations.get(r, CONNECTION_ENDED)) != CONNECTION_ENDED:
                return f"rank {r} was ended: {why}."
            if code is not None:
                code = code if code >= 0 else 128 - code  # bubblewrap reports signals as 128 + number
                how = f"by signal {signal.Signals(code - 128).name}" if 128 < code < 160 else f"with exit code {code}"
                return f"the process of rank {r} ended, {how}. Usual causes: os._exit or sys.exit in a function, or memory that ran out."
        return "a rank closed its connection."

    def missing(self) -> str:
        """Return an empty text: which ranks have not started is not known."""
        return ""

    def log(self) -> str:
        """Return the end of the ranks' output outside of cells."""
        return "".join(self._log)[-LOG_CHARACTERS:]

    def stop(self) -> None:
        """End all processes; safe to call again."""
        self._stopped.set()
        self._kill()
        self.broker.end()
        for account in self._usage.values():
            account.pause.close()
        for future in self._futures.values():
            future.cancel()

    def _kill(self) -> None:
        for process in self.processes:
            kill_group(process)
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        if self._folders:
            remove_tree(self._folders.folder)

    def _replied(self, rank: int, number: object, reply: dict) -> None:
        future = self._futures.pop((rank, number), None) if type(number) is int else None
        if future and future.set_running_or_notify_cancel():
            future.set_result(reply)

    def _is_ready(self, rank: int) -> None:
        process = self.rank_process(rank)
        with contextlib.suppress(OSError):  # if memory runs out, the system kills a rank, not the grader
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
        account = ResourceUsage(process, self._folders.folders[rank] if self._folders else None)
        self._usage[rank] = account
        self.broker.pauses[rank] = account.pause
        self.ready.add(rank)

    def _listen(self, pipe: int) -> None:
        with os.fdopen(pipe, "rb", buffering=0) as file:
            while data := file.read(4096):
                self._log.append(data.decode(errors="replace"))
