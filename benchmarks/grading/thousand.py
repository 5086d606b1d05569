"""A class of a thousand: the variants of part 03, with endless and crashing answers among them, through `make autograde`.

It takes most of an hour, so it runs only when named: ``make bench ONLY=thousand``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil

from grading import config
from grading.authoring import answers, build
from grading.autograde import autograde
from grading.release import release

PART = "03_naive_forward"
NUMBER = 1000
MINUTES, MEGABYTES = 45.0, 500.0
_HEAD = "def naive_collect_forward_input(x, mp_comm, mp_size):\n    "
# Answers that lose the points of their own test and of the one for both functions.
BAD = {
    "endless": f"{_HEAD}while True:\n        pass",
    "dies": f"import os\n\n\n{_HEAD}os._exit(1)",
    "killed": f"import os, signal\n\n\n{_HEAD}os.kill(os.getpid(), signal.SIGKILL)",
    "recursion": f"{_HEAD}return naive_collect_forward_input(x, mp_comm, mp_size)",
    "floods": f"{_HEAD}for _ in range(10**5):\n        print('x' * 100)",
}
LOST = 9.0


def hand_ins(home: Path, number: int, bad: dict[str, str] = BAD) -> dict[str, float]:
    """Write submissions of all kinds in turn; return the points that each must get, by student."""
    notebook = build.build(PART)
    most = build.points(notebook)
    known = [(a.function, f"{a.function}-{a.name}", a.source, most - a.loses) for a in answers.read(PART)]
    known += [("naive_collect_forward_input", name, source, most - LOST) for name, source in bad.items()]
    known += [("", "solved", "", most)]
    wanted = {}
    for i, (function, name, source, points) in zip(range(number), itertools.cycle(known), strict=False):
        student = f"s{i:04d}-{name}"
        made = nbformat.from_dict(notebook)
        for cell in made.cells:
            if build.kind_of(cell) == "exercise" and f"def {function}(" in cell.source:
                cell.source = f"%%px\n{source}"
            elif build.kind_of(cell) == "test":
                cell.source = build.HIDDEN_NOTE
        build.write(made, home / "submitted" / student / PART / f"{PART}.ipynb")
        wanted[student] = points
    return wanted


class Memory:
    """Peak memory of this process, in bytes, while it is watched."""

    def __init__(self):
        self.most, self._done = 0, threading.Event()

    def __enter__(self) -> Memory:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self._done.set()

    def _watch(self) -> None:
        process = psutil.Process()
        while not self._done.wait(1):
            self.most = max(self.most, process.memory_info().rss)


def figures(number: int = NUMBER) -> Iterator[tuple[str, list[float], float]]:
    with tempfile.TemporaryDirectory(prefix="course-bench-") as place:
        home = Path(place)
        release(PART, home, home / "release")
        wanted = hand_ins(home, number)
        began = time.monotonic()
        with Memory() as memory, open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            failed = autograde(PART, home, home / "release")
        minutes = (time.monotonic() - began) / 60
        with config.gradebook(config.load(home)) as book:
            found = {s.student.id: s.score for s in book.assignment_submissions(PART)}
        wrong = {student: (found.get(student), points) for student, points in wanted.items() if found.get(student) != points}
        if failed or wrong:
            why = [path.read_text() for path in home.glob("submitted/*/*/not_graded.txt")]
            other = f"{len(wrong)} have other points, {dict(list(wrong.items())[:5])}"
            raise RuntimeError(f"{len(failed)} were not graded, {failed[:3]}, {why[:3]}; {other}")
        yield f"autograde-{number}-hand-ins-minutes", [minutes], MINUTES
        yield f"autograde-{number}-hand-ins-coordinator-MB", [memory.most / 1e6], MEGABYTES
