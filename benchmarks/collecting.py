"""Collecting the zip of a class of a thousand, as Canvas gives it."""

from __future__ import annotations

import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from grading.collect import collect
from grading.paths import NOTEBOOKS

PART = "03_naive_forward"
NUMBER, TURNS = 1000, 3


def figures() -> Iterator[tuple[str, list[float], float]]:
    notebook = (NOTEBOOKS / PART / f"{PART}.ipynb").read_text()
    seconds = []
    with tempfile.TemporaryDirectory(prefix="course-bench-") as place:
        path = Path(place) / "submissions.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for i in range(NUMBER):
                archive.writestr(f"student{i}_{i + 100}_{i + 5000}_{PART}-1.ipynb", notebook.replace("rank", f"rank{i}", 1))
        for turn in range(TURNS):
            began = time.monotonic()
            done = collect(PART, path, Path(place) / f"home{turn}")
            seconds.append(time.monotonic() - began)
            if len(done.matched) != NUMBER:
                raise RuntimeError(f"expected {NUMBER} hand-ins; {len(done.matched)} were matched")
    yield f"collect-{NUMBER}-files-seconds", seconds, 10
