"""Gradescope output: the results file, rewritten after each test.

The format is that of https://gradescope-autograders.readthedocs.io/en/latest/specs/.
"""

from __future__ import annotations

import json
from pathlib import Path

from grading.authoring import build
from grading.autograders.runner import AutograderResults, PartManifest, TestOutcome, run_autograder
from grading.autograders.scoreboard import columns

AUTOGRADER_ROOT = Path(__file__).resolve().parents[4]  # /autograder, of /autograder/source/course/grading/autograders/gradescope.py


def main(part: PartManifest) -> None:
    """Grade the files in /autograder/submission."""
    results = run_autograder(
        part, AUTOGRADER_ROOT / "submission", lambda results: write_results(as_json(results), AUTOGRADER_ROOT / "results" / "results.json")
    )
    print("\n".join(filter(None, [results.isolation, *results.messages])))


def as_json(results: AutograderResults) -> dict:
    """Convert the results to Gradescope's format. The student sees all of them, but not what the run itself prints."""
    report = {
        "execution_time": round(results.seconds),
        "output": "\n".join(results.messages),
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [_test(test) for test in results.tests.values()],
    }
    report |= {f"{what}_format": "text" for what in ("output", "test_output", "test_name")}
    if not results.tests:
        report["score"] = 0
    if results.entry:
        report["leaderboard"] = [{"name": name, "value": value, "order": order} for name, value, order in columns(results.entry)]
    return report


def _test(test: TestOutcome) -> dict:
    passed = test.ran and test.points >= test.most
    return {
        "name": test.name,
        "score": test.points,
        "max_score": test.most,
        "status": "passed" if passed else "failed",
        "output": test.output,
        "visibility": "visible",
    }


def write_results(told: dict, path: Path) -> None:
    """Write the file atomically."""
    build.write_atomically(json.dumps(told, indent=1), path)
