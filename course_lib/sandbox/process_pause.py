"""Pauses of a process: between requests, while it is measured, or if it has used too much time."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import psutil


class ProcessPause:
    """Stops a process, with all of its threads, as long as there is a reason; thread-safe.

    A stopped process cannot continue by itself, and can be killed like any other.

    Parameters
    ----------
    process : psutil.Process
    """

    def __init__(self, process: psutil.Process):
        self._process = process
        self._reasons: set[str] = set()
        self._lock = threading.Lock()
        # On Linux, signals go through a descriptor: psutil would read from /proc before each.
        self._descriptor = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None

    @property
    def reasons(self) -> frozenset[str]:
        """The present reasons; empty while the process may run."""
        return frozenset(self._reasons)

    def hold(self, reason: str) -> None:
        """Add a reason: the process stops, unless it is stopped already."""
        with self._lock:
            if not self._reasons:
                self._send(signal.SIGSTOP)
            self._reasons.add(reason)

    def release(self, reason: str) -> None:
        """Drop a reason: the process continues, unless there is another one."""
        with self._lock:
            was_stopped = bool(self._reasons)
            self._reasons.discard(reason)
            if was_stopped and not self._reasons:
                self._send(signal.SIGCONT)

    def close(self) -> None:
        """Close the descriptor; from now on, nothing has an effect."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = self._process = None

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError, psutil.Error):  # it has ended
            if self._descriptor is not None:
                signal.pidfd_send_signal(self._descriptor, number)
            elif self._process is not None:
                self._process.send_signal(number)
