"""Watchdog: ends each helper process when the process it works for (its owner) is gone, so that none is left behind."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import threading
import time

import psutil

OWNER_VARIABLE, FOLDER_VARIABLE = "COURSE_OWNER", "COURSE_FOLDER"
POLL_SECONDS = 0.5  # polling interval without pidfds


def environment(folder: str) -> dict[str, str]:
    """Return environment variables that make a process watch this one, and remove `folder` when this one is gone."""
    process = psutil.Process()
    return {OWNER_VARIABLE: f"{process.pid} {process.create_time()}", FOLDER_VARIABLE: folder}


def alive(pid: int, created: float) -> bool:
    """Return whether this very process still runs: not a zombie, nor another process with the same id."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def owner() -> tuple[int, float] | None:
    """Return process id and creation time of this process's owner, from the environment; None if there is none."""
    words = os.environ.get(OWNER_VARIABLE, "").split()
    return (int(words[0]), float(words[1])) if words else None


def watch_from_environment() -> None:
    """Start a thread that removes the folder and kills this process group when the owner is gone."""
    watched, folder = owner(), os.environ.get(FOLDER_VARIABLE)
    if not watched:
        return

    def watch() -> None:
        wait_for(*watched)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="watchdog").start()


def wait_for(pid: int, created: float) -> None:
    """Block until this very process is gone; by a pidfd where possible (Linux), else by polling."""
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            if alive(pid, created):  # so the descriptor belongs to that process
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll()
            return
    while alive(pid, created):
        time.sleep(POLL_SECONDS)
