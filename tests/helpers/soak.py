"""`make soak`: run the tests again and again, in random order, beside other work, to find those that fail by luck."""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

BUSY = "while True: pass"
PRESSURE = """
import os, tempfile
memory = bytearray(768 << 20)
with tempfile.TemporaryFile() as file:
    while True:
        for start in range(0, len(memory), 4096):
            memory[start] = (memory[start] + 1) % 256
        file.seek(0)
        file.write(memory[: 64 << 20])
        os.fsync(file.fileno())
"""
LOADS = {"quiet": [], "busy": [BUSY] * 4, "I/O and memory": [PRESSURE] * 2}
JOBS = (2, 4, 8)
NOT_SLOW = "not root and not slow"
ALL = "not root and not brief"


@contextmanager
def load(programs: list[str]) -> Iterator[None]:
    """Run other processes inside a ``with`` block."""
    others = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def run(marks: str, jobs: int, seed: int, rest: list[str]) -> tuple[str, list[str]]:
    """Run the tests once; return pytest's last line, and the lines of what failed."""
    options = ["-n", str(jobs), "--dist", "loadscope", "--no-loadscope-reorder", "-m", marks]
    order = ["-p", "randomly", f"--randomly-seed={seed}"]
    command = [sys.executable, "-m", "pytest", "-v", "--no-header", *options, *order, *rest]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    failed = re.findall(r"^(?:FAILED|ERROR) .*", ran.stdout, re.MULTILINE)
    summary = re.findall(r"^=+ (.*(?:passed|failed|error).*) =+$", ran.stdout, re.MULTILINE)
    last = summary[-1] if summary else f"pytest ended with {ran.returncode}: {ran.stderr[-500:]}"
    return last, failed


def main() -> None:
    """``python tests/helpers/soak.py [--runs N] [--all] [--load NAME] [-- PYTEST OPTIONS]``."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    add = parser.add_argument
    add("--runs", type=int, default=6, help="how often; loads and numbers of jobs change from run to run")
    add("--all", action="store_true", help="all tests of make test-all")
    add("--load", choices=list(LOADS), help="always this load")
    add("--seed", type=int, help="of the order of the first run; by default a drawn one")
    add("rest", nargs="*", help="for pytest, such as a folder of tests")
    arguments = parser.parse_args()
    first_seed = random.randrange(1 << 31) if arguments.seed is None else arguments.seed
    failures = 0
    for i in range(arguments.runs):
        name = arguments.load or list(LOADS)[i % len(LOADS)]
        jobs = JOBS[(i + i // len(LOADS)) % len(JOBS)]
        began = time.monotonic()
        with load(LOADS[name]):
            last, failed = run(ALL if arguments.all else NOT_SLOW, jobs, first_seed + i, arguments.rest)
        print(f"soak: run {i + 1}, {name}, JOBS={jobs}, seed {first_seed + i}, {time.monotonic() - began:.0f} s: {last}", flush=True)
        for line in failed:
            print(f"    {line}", flush=True)
        failures += len(failed) or "passed" not in last
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
