"""The transformer notebooks, solved and with their hidden tests, run from top to bottom as by Restart and Run All."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator

from nbclient import NotebookClient

from benchmarks.turns import turns
from grading.authoring import build
from grading.paths import parts

FIRST, LAST = "21", "24"

TURNS = turns(3)
LIMIT = 60.0  # seconds


def seconds(part: str) -> float:
    """Return the seconds that all cells of a part take, including the kernel's start."""
    notebook = build.build(part)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}})
        began = time.perf_counter()
        client.execute()
        return time.perf_counter() - began


def figures() -> Iterator[tuple[str, list[float], float]]:
    for part in parts():
        if FIRST <= part[:2] <= LAST:
            yield f"notebook-{part}-seconds", [seconds(part) for _ in range(TURNS)], LIMIT
