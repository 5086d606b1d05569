"""The course's running processes, for tests that none is left behind."""

import tempfile
import time

import psutil
from machine import patient


def course_processes():
    """Processes that belong to a cluster of this test run, by id.

    All of them have the cluster's folder in their command line; conftest.py gives the run a
    temporary folder of its own, so that clusters of others do not count.
    """
    found = set()
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if f"{tempfile.gettempdir()}/course-ranks-" in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.add(process.pid)
    return found


def wait_until(condition, seconds=10.0):
    """Wait until `condition()` is true; returns whether it became true in time."""
    deadline = time.monotonic() + patient(seconds)
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False
