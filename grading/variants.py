"""`make variants`: run wrong and right answers against the hidden tests, on one warm cluster a part."""

from __future__ import annotations

import os
import re
import sys
import tempfile

from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from course_lib.cluster import unattended
from grading import answers, build
from grading.execute import on_ranks, settle
from grading.paths import chosen

CELL_SECONDS = "15"
_STUB = re.compile("### BEGIN SOLUTION.*?### END SOLUTION", re.DOTALL)  # as nbgrader does it for the students' notebook


class Part:
    """A part's notebook in a running kernel, with all exercises solved.

    Use as a context manager; its ranks and its kernel end with it.
    """

    def __init__(self, part: str):
        self.notebook = build.build(part)
        self.cells = {kind: [c for c in self.notebook.cells if build.kind_of(c) == kind] for kind in (*build.KINDS, "example")}
        self._folder = tempfile.TemporaryDirectory(prefix="course-variants-")
        self._client = NotebookClient(
            self.notebook, timeout=600, allow_errors=True, resources={"metadata": {"path": self._folder.name}}, kernel_name="python3"
        )

    def __enter__(self) -> Part:
        self._before = os.environ.get(unattended.UNATTENDED)
        os.environ[unattended.UNATTENDED] = CELL_SECONDS
        self._context = self._client.setup_kernel()
        self._context.__enter__()
        for cell in self.notebook.cells:
            kind = build.kind_of(cell)
            if kind == "exercise":
                self.answer(cell.source)
            elif kind == "given" and not cell.id.startswith(("draw", "stop", "count", "check", "forget")):
                self._run(cell.source)
        return self

    def __exit__(self, *error) -> None:
        if self._before is None:
            os.environ.pop(unattended.UNATTENDED)
        else:
            os.environ[unattended.UNATTENDED] = self._before
        self._context.__exit__(*error)
        self._folder.cleanup()

    def exercise(self, function: str) -> NotebookNode:
        """The cell in which an exercise's function or class is defined."""
        for cell in self.cells["exercise"]:
            if re.search(rf"^(def|async def|class) {function}\b", cell.source, re.MULTILINE):
                return cell
        raise KeyError(f"variants.py has answers to {function}, and no exercise defines it")

    def answer(self, source: str) -> None:
        """Define an answer on the ranks."""
        self._run(on_ranks(source))

    def points(self) -> tuple[float, list[str]]:
        """Run all hidden tests: the points, and what the failed ones say."""
        total, said = 0.0, []
        for cell in self.cells["test"]:
            ran = self._run(cell.source, cell.metadata)
            settle(ran)
            errors = [o for o in ran.outputs if o.output_type == "error"]
            if errors:
                said.append(f"{errors[0].ename}: {errors[0].evalue}")
            else:
                result = [float(o.data["text/plain"]) for o in ran.outputs]
                total += result[0] if result else cell.metadata.nbgrader.points
        return total, said

    def maximum(self) -> float:
        """The points of the part."""
        return sum(c.metadata.nbgrader.points for c in self.cells["test"])

    def _run(self, source: str, metadata: dict | None = None) -> NotebookNode:
        cell = new_code_cell(source, metadata=metadata or {})
        self.notebook.cells.append(cell)
        return self._client.execute_cell(cell, len(self.notebook.cells) - 1)


def check(part: str, say=print) -> tuple[int, int]:
    """Run all answers of a part; returns how many got the points they should, and how many did not."""
    todo = answers.read(part)
    if not todo:
        return 0, 0
    passed = failed = 0
    with Part(part) as running:
        solved, untouched = answers.Answer("all", "the solution", "", 0), answers.Answer("all", "untouched", "", running.maximum())
        for answer in [solved, untouched, *todo]:
            cells = [running.exercise(answer.function)] if answer.source else running.cells["exercise"] if answer is untouched else []
            for cell in cells:
                running.answer(answer.source or _STUB.sub("raise NotImplementedError()", cell.source))
            given, said = running.points()
            expected = running.maximum() - answer.loses
            good = given == expected
            passed, failed = passed + good, failed + (not good)
            say(f"{'ok  ' if good else 'FAIL'} {part} {answer.function} {answer.name}: expected {expected:g}, given {given:g}")
            if not good:
                say("\n".join(f"       {line}" for line in said) or "       every hidden test passed")
            for cell in cells:
                running.answer(cell.source)
    return passed, failed


def main() -> None:
    passed = failed = 0
    for part in chosen(sys.argv[1:]):
        good, bad = check(part)
        passed, failed = passed + good, failed + bad
    print(f"{passed} passed, {failed} failed")
    if not passed:
        print("No answer was run.")
    sys.exit(bool(failed or not passed))


if __name__ == "__main__":
    main()
