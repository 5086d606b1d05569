"""Autolab output: text for the student, and the points as JSON in the last line.

Autolab shows everything printed, and reads the points from the last line. So only `main` can print: the student's own output is
indented behind a bar.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from grading.autograders.runner import AutograderResults, PartManifest, run_autograder
from grading.autograders.scoreboard import column_names, columns

SUBMISSION_FILE = "handin.ipynb"


def main(part: PartManifest) -> None:
    """Grade handin.ipynb in the folder where `make` was called."""
    out = os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(silence, stream)
    folder, spent = Path(os.environ["HANDIN"]), int(os.environ["SPENT"])  # seconds spent on installing
    results = run_autograder(replace(part, deadline=max(1, part.deadline - spent)), folder, lambda results: None)
    with os.fdopen(out, "w", encoding="utf-8", errors="replace") as file:
        file.write(feedback(results) + "\n" + json.dumps(scores(results)) + "\n")


def scores(results: AutograderResults) -> dict:
    """Return the points by problem; for part 20, also the scoreboard columns."""
    told: dict = {"scores": {test.name: test.points for test in results.tests.values()}}
    if column_names(results.part):
        told["scoreboard"] = [value for _, value, _ in columns(results.entry)] if results.entry else [0] * len(column_names(results.part))
    return told


def feedback(results: AutograderResults) -> str:
    """Format the feedback for the student."""
    lines = [*results.messages, results.isolation]
    for test in results.tests.values():
        lines.append(f"{test.name}: {test.points:g} of {test.most:g}")
        lines += [f"    | {line}" for line in test.output.splitlines()]
    return "\n".join(filter(None, lines))
