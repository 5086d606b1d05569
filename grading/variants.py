"""`make variants` and `make cheats`: run wrong and right answers, and cheats, against the hidden tests."""

from __future__ import annotations

import ast
import math
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from itertools import combinations, zip_longest

from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from course_lib.cluster import time_limits
from course_lib.utils import host
from grading.authoring import answers, build, contracts
from grading.formatting import display_name
from grading.paths import selected_parts
from grading.submission import sandbox
from grading.submission.execute import environment_variables, ipc_kernel_config, on_ranks, reduce_to_verdict

VARIANT_CELL_SECONDS = 15  # seconds for a cell on a quiet machine
UNTOUCHED = "untouched"
# Each answer gets the full time, and accounts of its own of processor time and memory.
RESET_LIMITS = """
import time
from course_lib.cluster import time_limits
from course_lib.sandbox import cpu_quota
time_limits.reset()
cpu_quota.QUOTA.reset(time.monotonic())
ranks.held()  # gives back what is free
getattr(ranks._connection.client, "reset_baseline", lambda: None)()
"""
FORGET_KINDS = "from course_lib.check import cases\ncases.drawn.clear()"
DRAWN_KINDS = "from course_lib.check import cases\ndict(cases.drawn)"
_STUB = re.compile("### BEGIN SOLUTION.*?### END SOLUTION", re.DOTALL)  # as nbgrader does for the students' notebook


class RunningPart:
    """A part's notebook in a running kernel, with all exercises solved.

    Use as a context manager; its ranks and its kernel end with it.
    """

    def __init__(self, part: str):
        self.part, self.notebook = part, build.build(part)
        self.cells = {kind: [c for c in self.notebook.cells if build.kind_of(c) == kind] for kind in (*build.CODE_CELL_KINDS, "example")}
        self._needs: dict[str, list[str]] = {}
        self._failed: list[str] = []  # hidden tests whose messages `points` returned last
        self._seconds: Counter[str] = Counter()  # the longest time that each hidden test has taken
        self._folder = tempfile.TemporaryDirectory(prefix="course-variants-")
        self._client = NotebookClient(
            self.notebook,
            timeout=600,
            allow_errors=True,
            resources={"metadata": {"path": self._folder.name}},
            kernel_name="python3",
            config=ipc_kernel_config(self._folder.name),
            extra_arguments=["--IPKernelApp.log_level=40"],  # it warns about missing encryption, even on one machine
        )

    def __enter__(self) -> RunningPart:
        with ExitStack() as stack:
            stack.callback(self._folder.cleanup)
            stack.enter_context(
                environment_variables(
                    {time_limits.UNATTENDED: f"{VARIANT_CELL_SECONDS * host.processes_per_core():.0f}", **sandbox.sandbox_variables()}
                )
            )
            stack.enter_context(self._client.setup_kernel())
            self.begin()
            self._close = stack.pop_all().close  # whatever fails before this line, nothing is left behind
        return self

    def begin(self, changed: dict[str, str] | None = None) -> None:
        """Start the ranks, and solve all exercises on them; `changed` has other sources of exercises' cells, by their ids."""
        for cell in build.build(self.part).cells:
            kind = build.kind_of(cell)
            if kind == "exercise":
                self.answer((changed or {}).get(cell.id, cell.source))
            elif kind == "given" and not build.only_shows(cell) and not cell.id.startswith("stop"):
                ran = self._run(cell.source)
                failed = [o.evalue for o in ran.outputs if o.output_type == "error"]
                if failed and "cluster.start(" in cell.source:
                    raise RuntimeError(f"{self.part}: the ranks did not start: {failed[0]}")

    def restart(self, changed: dict[str, str] | None = None) -> None:
        """Begin again on fresh ranks, without what earlier answers left behind."""
        self._run("ranks.stop()")
        self.begin(changed)

    def limit_cells(self, seconds: float) -> None:
        """Set the time that a cell may take from now on, in seconds on a quiet machine."""
        limit = seconds * host.processes_per_core()
        self._run(f"import os\nos.environ[{time_limits.UNATTENDED!r}] = '{limit:.0f}'")

    def __exit__(self, *error) -> None:
        self._close()

    def exercise(self, function: str) -> NotebookNode:
        """Return the cell that defines an exercise's function or class."""
        for cell in self.cells["exercise"]:
            if re.search(rf"^(def|async def|class) {function}\b", cell.source, re.MULTILINE):
                return cell
        raise KeyError(f"variants.py has answers to {function}, but no exercise defines it")

    def answer(self, source: str) -> None:
        """Define an answer on the ranks."""
        self._run(on_ranks(source))

    def tests_decided_by(self, exercise: NotebookNode) -> list[str]:
        """Return the hidden tests that depend on an exercise, in the notebook's order: those that lose points without it."""
        if exercise.id not in self._needs:
            self.answer(_stub(exercise))
            self._needs[exercise.id] = [c.id for c in self.cells["test"] if self._earned(c)[0] < c.metadata.nbgrader.points]
            self.answer(exercise.source)
        return self._needs[exercise.id]

    def tests_naming(self, exercise: NotebookNode) -> list[str]:
        """Return the hidden tests that name a function of this exercise (these first), of one that uses it, or of none."""
        first = own = defined_names(exercise)
        names = {name for cell in self.cells["exercise"] for name in defined_names(cell)}
        for cell in self.cells["exercise"]:
            own = own | defined_names(cell) if own & _words("".join(_STUB.findall(cell.source))) else own
        named = {cell.id: names & _words(cell.source) for cell in self.cells["test"]}
        found = (test for test, names in named.items() if names & own or not names)
        return sorted(found, key=lambda test: not named[test] & first)

    def points(self, only: Iterable[str] | None = None, enough: float = math.inf) -> tuple[float, list[str]]:
        """Run the hidden tests; return the points, and the messages of the failed ones.

        With `only`, the others count as passed; so do those that remain once `enough` points are lost. Those whose points add up to
        `enough` run first.
        """
        lost, messages, self._failed = 0.0, [], []
        tests = {cell.id: cell for cell in self.cells["test"]}
        left = list(tests if only is None else only)
        while left and lost < enough:
            test = self._likely(left, enough - lost)
            left.remove(test)
            earned, said = self._earned(tests[test])
            lost += tests[test].metadata.nbgrader.points - earned
            messages += [said] if said else []
            self._failed += [display_name(test)] if said else []
        return self.maximum() - lost, messages

    def first_failure(self, tests: Iterable[str]) -> str | None:
        """Return the first of these hidden tests that does not give all its points; None if all do."""
        self._run(RESET_LIMITS)
        cells = {cell.id: cell for cell in self.cells["test"]}
        for test in tests:
            if self._earned(cells[test])[0] < cells[test].metadata.nbgrader.points:
                return test
        return None

    def slowest(self) -> float:
        """Return the seconds that the slowest hidden test has taken."""
        return max(self._seconds.values(), default=0.0)

    def _likely(self, left: list[str], to_lose: float) -> str:
        """Choose the next test: the first of the fewest and fastest tests whose points are still to be lost; else the first one left."""
        worth = {cell.id: cell.metadata.nbgrader.points for cell in self.cells["test"]}
        for count in range(1, len(left) + 1):
            exact = [tests for tests in combinations(left, count) if sum(map(worth.get, tests)) == to_lose]
            if exact:
                return min(exact, key=lambda tests: sum(map(self._seconds.__getitem__, tests)))[0]
        return left[0]

    def _earned(self, cell: NotebookNode) -> tuple[float, str]:
        """Run a hidden test; return its points, and its message if it fails."""
        began = time.monotonic()
        ran = self._run(cell.source, cell.metadata)
        self._seconds[cell.id] = max(self._seconds[cell.id], time.monotonic() - began)
        reduce_to_verdict(ran)
        errors = [o for o in ran.outputs if o.output_type == "error"]
        if errors and errors[0].ename == "NameError":  # an answer's own arrives as a RanksError
            problem = f"{self.part}: the hidden test {display_name(cell)} needs what another test defines: {errors[0].evalue}"
            raise RuntimeError(problem)
        if errors:
            return 0.0, f"{errors[0].ename}: {errors[0].evalue}"
        result = [float(o.data["text/plain"]) for o in ran.outputs]
        return result[0] if result else cell.metadata.nbgrader.points, ""

    def judge(self, answer: answers.Answer, say: Callable, *, once: bool = False, only: list[str] | None = None) -> bool:
        """Check that an answer gets the points that it should; with `only`, from these tests."""
        given, said = self.run_answer(answer, once=once, only=only)
        expected = self.maximum() - answer.loses
        good = given == expected
        say(f"{'ok  ' if good else 'FAIL'} {self.part} {answer.function} {answer.name}: expected {expected:g}, given {given:g}")
        if not good:
            failed = [f"       {test}: {line}" for test, line in zip(self._failed, said, strict=True)]
            say("\n".join(failed) or "       every hidden test passed")
        return good

    def run_answer(self, answer: answers.Answer, *, once: bool = False, only: list[str] | None = None) -> tuple[float, list[str]]:
        """Return the points of an answer, and the messages of failed tests; the solution is restored afterwards.

        With `once`, the hidden tests about the exercise (see `tests_naming`) run until the answer has lost what it should, without first
        finding out which of them depend on it.
        """
        everything = self.cells["exercise"]
        cells = [] if answer.source or answer.name != UNTOUCHED else everything
        if answer.source:
            cells = everything if answer.function == answers.CELL_ANSWER else [self.exercise(answer.function)]
            if len(cells) == 1 < len(everything):
                only = self.tests_naming(*cells) if once else self.tests_decided_by(*cells)
        for cell in cells:
            alone = answer.source and answer.function != answers.CELL_ANSWER
            self.answer(answer.source if alone else _stub(cell))
        if answer.function == answers.CELL_ANSWER:
            self.answer(answer.source)
        self._run(RESET_LIMITS)
        result = self.points(only, answer.loses if once and answer.loses else math.inf)
        for cell in cells:
            self.answer(cell.source)
        return result

    def judge_together(self, right: list[answers.Answer], say: Callable) -> list[bool]:
        """Judge right answers to different exercises at once, by the tests about these; one by one if they lose points."""
        about: list[str] = []
        for answer in right:
            self.answer(answer.source)
            about += [test for test in self.tests_naming(self.exercise(answer.function)) if test not in about]
        all_good = self.judge(
            answers.Answer("all", " and ".join(answer.name for answer in right), "", 0), say, only=about if right else None
        )
        for answer in right:
            self.answer(self.exercise(answer.function).source)
        return [all_good] * max(1, len(right)) if all_good or not right else [self.judge(answer, say) for answer in right]

    def judge_kinds(self, say: Callable) -> bool:
        """Check that each exercise was checked with all kinds of cases that its contract does not exclude.

        It looks at the hidden tests that have run since `FORGET_KINDS`.
        """
        ran = self._run(DRAWN_KINDS)
        drawn = ast.literal_eval(ran.outputs[0].data["text/plain"])
        good = True
        for exercise in self.cells["exercise"]:
            for name in sorted(defined_names(exercise)):
                if missing := contracts.undrawn(name, drawn.get(name, set())):
                    good = False
                    say(f"FAIL {self.part} {name}: no cases of the kinds {', '.join(missing)}")
        return good

    def maximum(self) -> float:
        """Return the points of the part."""
        return sum(c.metadata.nbgrader.points for c in self.cells["test"])

    def _run(self, source: str, metadata: dict | None = None) -> NotebookNode:
        cell = new_code_cell(source, metadata=metadata or {})
        self.notebook.cells.append(cell)
        return self._client.execute_cell(cell, len(self.notebook.cells) - 1)


def defined_names(exercise: NotebookNode) -> set[str]:
    """Return the functions and classes that an exercise defines."""
    return set(re.findall(r"^(?:def|async def|class) (\w+)", exercise.source, re.MULTILINE))


def _words(source: str) -> set[str]:
    return set(re.findall(r"\w+", source))


def _stub(exercise: NotebookNode) -> str:
    """Return an exercise's cell as students get it."""
    return _STUB.sub("raise NotImplementedError()", exercise.source)


def check(part: str, say: Callable = print, *, once: bool = False) -> tuple[int, int]:
    """Run a part's variants on the same ranks; with `once`, right answers to different exercises run together.

    The solution itself is then left to the tests that grade whole notebooks.

    Returns
    -------
    tuple of int
        The number of answers that got the points that they should, and of failures: those that did not, and kinds of cases
        that were not drawn.
    """
    todo = answers.read(part)
    if not todo:
        return 0, 0
    right, wrong = ([answer for answer in todo if bool(answer.loses) == bad] for bad in (False, True))
    with RunningPart(part) as running:
        running._run(FORGET_KINDS)
        solved, untouched = answers.Answer("all", "the solution", "", 0), answers.Answer("all", UNTOUCHED, "", running.maximum())
        good = [running.judge(answer, say) for answer in ([untouched] if once else [solved, untouched])]
        # Right answers first: a wrong one may leave something in the ranks' memory.
        if once:
            for several in _one_of_each(right):
                good += running.judge_together(several, say)
        else:
            good += [running.judge(answer, say) for answer in right]
        kinds_complete = running.judge_kinds(say)
        good += [running.judge(answer, say, once=once) for answer in wrong]
    return sum(good), len(good) - sum(good) + (not kinds_complete)


def check_first_variants(part: str, say: Callable = print) -> tuple[int, int]:
    """Run the first right answers to all exercises at once, and the first wrong answer to each; see `check`."""
    todo = [answer for answer in answers.read(part) if answer.function != answers.CELL_ANSWER]
    wrong = {answer.function: answer for answer in reversed(todo) if answer.loses}
    with RunningPart(part) as running:
        rounds = _one_of_each([answer for answer in todo if not answer.loses])
        good = [all(running.judge_together(next(rounds, []), say))]
        good += [running.judge(answer, say, once=True) for answer in wrong.values()]
    return sum(good), len(good) - sum(good)


def _one_of_each(todo: list[answers.Answer]) -> Iterator[list[answers.Answer]]:
    """Yield the first answers to each exercise, then the second ones, and so on."""
    by_exercise: dict[str, list[answers.Answer]] = {}
    for answer in todo:
        by_exercise.setdefault(answer.function, []).append(answer)
    for several in zip_longest(*by_exercise.values()):
        yield [answer for answer in several if answer]


def cheats(part: str, say: Callable = print, *, once: bool = False) -> tuple[int, int]:
    """Run a part's cheats, each on fresh ranks; see `check`."""
    good, todo = [], answers.read(part, "cheats.py")
    with RunningPart(part) if todo else nullcontext() as running:
        for answer in todo:
            if good:
                running.restart()
            good.append(running.judge(answer, say, once=once))
    return sum(good), len(good) - sum(good)


def main() -> None:
    """``python -m grading.variants [--cheats] [PART ...]``."""
    passed, failed, run = 0, 0, cheats if "--cheats" in sys.argv else check
    for part in selected_parts([word for word in sys.argv[1:] if word != "--cheats"]):
        good, bad = run(part)
        passed, failed = passed + good, failed + bad
    print(f"{passed} passed, {failed} failed")
    if not passed:
        print("No answer was run.")
    sys.exit(bool(failed or not passed))


if __name__ == "__main__":
    main()
