"""Collecting a class of a thousand: a zip from Canvas, and folders from Moodle inside one more folder."""

from __future__ import annotations

import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.turns import turns
from grading.collect import collect
from grading.paths import NOTEBOOKS

PART = "03_naive_forward"
NUMBER = 1000
TURNS = turns(3)


def figures() -> Iterator[tuple[str, list[float], float]]:
    notebook = (NOTEBOOKS / PART / f"{PART}.ipynb").read_text()
    for kind, name in (
        ("", "student{i}_{user}_{upload}_{part}-1"),
        ("-in-folders", "all/First Last{i}_{user}_assignsubmission_file_/{part}"),
    ):
        yield f"collect-{NUMBER}-files{kind}-seconds", _seconds(name, notebook), 10


def _seconds(name: str, notebook: str) -> list[float]:
    seconds = []
    with tempfile.TemporaryDirectory(prefix="course-bench-") as place:
        path = Path(place) / "submissions.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for i in range(NUMBER):
                called = name.format(i=i, user=i + 100, upload=i + 5000, part=PART)
                archive.writestr(f"{called}.ipynb", notebook.replace("rank", f"rank{i}", 1))
        for turn in range(TURNS):
            began = time.monotonic()
            done = collect(PART, path, Path(place) / f"home{turn}")
            seconds.append(time.monotonic() - began)
            if len(done.matched) != NUMBER:
                raise RuntimeError(f"expected {NUMBER} hand-ins; {len(done.matched)} were matched")
    return seconds
