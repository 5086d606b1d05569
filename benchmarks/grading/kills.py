"""kill -9 of the grader and of its workers at random moments, for a class of a hundred: nothing may be lost or duplicated.

It takes a quarter of an hour, so it runs only when named: ``make bench ONLY=kills``.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.grading import thousand
from grading import config
from grading.release import release

NUMBER, GRADERS, WORKERS = 100, 12, 8  # submissions, and the kills of graders and of workers
RUN = """
import sys
from pathlib import Path
from grading.autograde import autograde
sys.exit(bool(autograde(sys.argv[1], *map(Path, sys.argv[2:4]), jobs="2")))
"""


def _started(home: Path) -> subprocess.Popen:
    words = [sys.executable, "-c", RUN, thousand.PART, str(home), str(home / "release")]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _workers(process: subprocess.Popen) -> list[psutil.Process]:
    """Return the processes that a run has started for grading, and those that they have forked, one per submission."""
    with contextlib.suppress(psutil.Error):
        return [p for p in psutil.Process(process.pid).children(recursive=True) if "grading.running.worker" in p.cmdline()]
    return []


def _graded(home: Path) -> int:
    return len(list(home.glob("autograded/*/*/*.ipynb")))


def figures(seed: int | None = None) -> Iterator[tuple[str, list[float], float]]:
    seed = random.SystemRandom().randrange(1 << 30) if seed is None else seed
    draw, victims = random.Random(seed), ["grader"] * GRADERS + ["worker"] * WORKERS
    draw.shuffle(victims)
    moments = sorted(draw.uniform(0, NUMBER - 5) for _ in victims)  # submissions that are graded by then
    with tempfile.TemporaryDirectory(prefix="course-bench-") as place:
        home = Path(place)
        release(thousand.PART, home, home / "release")
        bad = {name: source for name, source in thousand.BAD.items() if name != "endless"}  # it takes as long as twenty others
        wanted = thousand.hand_ins(home, NUMBER, bad)
        process = _started(home)
        for victim, moment in zip(victims, moments, strict=True):
            while process.poll() is None and _graded(home) < moment:
                time.sleep(0.05)
            time.sleep(draw.uniform(0, 3))
            if victim == "worker" and (workers := _workers(process)):
                with contextlib.suppress(psutil.Error):
                    draw.choice(workers).kill()
            elif victim == "grader":
                process.kill()
                process.wait()
                process = _started(home)
        process.wait()
        with config.gradebook(config.load(home)) as book:
            lines = [
                (s.student.id, s.score, len(s.notebooks), len(s.notebooks[0].grades)) for s in book.assignment_submissions(thousand.PART)
            ]
    tests = max(line[3] for line in lines)
    lost = len(wanted) - len({student for student, *_ in lines})
    twice = len(lines) - len({student for student, *_ in lines}) + sum(line[2:] != (1, tests) for line in lines)
    wrong = sum(wanted[student] != score for student, score, *_ in lines)
    print(f"seed {seed}: {GRADERS} kills of the grader, {WORKERS} of a worker, over {NUMBER} hand-ins")
    yield "kills-hand-ins-lost-twice-or-wrong", [float(lost + twice + wrong)], 0
