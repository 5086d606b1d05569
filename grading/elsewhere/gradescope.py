"""Gradescope: what it reads, written after each test.

The format is that of https://gradescope-autograders.readthedocs.io/en/latest/specs/.
"""

from __future__ import annotations

import json
from pathlib import Path

from grading.authoring import build
from grading.elsewhere.handin import Outcome, Part, Results, run
from grading.elsewhere.scoreboard import columns

PLACE = Path(__file__).resolve().parents[4]  # /autograder, of /autograder/source/course/grading/elsewhere/gradescope.py


def main(part: Part) -> None:
    """Grade what lies in /autograder/submission."""
    results = run(part, PLACE / "submission", lambda results: put(as_json(results), PLACE / "results" / "results.json"))
    print("\n".join(filter(None, [results.how, *results.said])))


def as_json(results: Results) -> dict:
    """The results as Gradescope wants them. All are shown to the student, but not what the run itself prints."""
    told = {
        "execution_time": round(results.seconds),
        "output": "\n".join(results.said),
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [_test(test) for test in results.tests.values()],
    }
    told |= {f"{what}_format": "text" for what in ("output", "test_output", "test_name")}
    if not results.tests:
        told["score"] = 0
    if results.entry:
        told["leaderboard"] = [{"name": name, "value": value, "order": order} for name, value, order in columns(results.entry)]
    return told


def _test(test: Outcome) -> dict:
    passed = test.ran and test.points >= test.most
    return {
        "name": test.name,
        "score": test.points,
        "max_score": test.most,
        "status": "passed" if passed else "failed",
        "output": test.said,
        "visibility": "visible",
    }


def put(told: dict, path: Path) -> None:
    """Write the file, whole or not at all."""
    build.put(json.dumps(told, indent=1), path)
