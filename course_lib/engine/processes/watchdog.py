"""No process stays behind: each helper process ends when the process it works for is gone."""

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
POLL_SECONDS = 0.5  # seconds between two looks, where the system does not tell


def environment(folder: str, owner: int | None = None) -> dict[str, str]:
    """Environment variables that make a process watch `owner` (this process, if not given)."""
    process = psutil.Process(owner)
    return {OWNER_VARIABLE: f"{process.pid} {process.create_time()}", FOLDER_VARIABLE: folder}


def alive(pid: int, created: float) -> bool:
    """Return whether this very process still runs (a zombie does not, nor one that reuses its id)."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def owner() -> tuple[int, float] | None:
    """The process that this one works for, from the environment: id and time of creation."""
    words = os.environ.get(OWNER_VARIABLE, "").split()
    return (int(words[0]), float(words[1])) if words else None


def watch_from_environment() -> None:
    """In a background thread: when the owner is gone, remove the folder and end this group."""
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
    """Wait until this very process is gone; where the system can tell (Linux), without looking again and again."""
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            if alive(pid, created):  # and so the descriptor is that process's
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll()
            return
    while alive(pid, created):
        time.sleep(POLL_SECONDS)
