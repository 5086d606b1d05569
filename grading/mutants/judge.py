"""Run mutants against a part's hidden tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from nbformat import NotebookNode
from tqdm import tqdm

from grading.mutants import mutation
from grading.mutants.mutation import Mutant
from grading.variants import RunningPart

BATCH = 20  # mutants after which the ranks start anew
MIN_CELL_SECONDS = 4
CELL_FACTOR = 4  # a cell may take four times as long as the slowest test of the solution


@dataclass
class Judge:
    """The hidden tests of a running part, which decide about mutants.

    Parameters
    ----------
    running : RunningPart
    """

    running: RunningPart
    _tests: dict[str, list[str]] = field(default_factory=dict)  # of each exercise's cell

    def survivors(self, mutants: list[Mutant]) -> list[Mutant]:
        """Return the mutants that keep all points, on the ranks of the others and on fresh ones."""
        survivors = []
        progress = tqdm(total=len(mutants), unit="mutant", disable=None, leave=False)
        for start in range(0, len(mutants), BATCH):
            batch = mutants[start : start + BATCH]
            alive = [mutant for mutant in batch if self._keeps_all(mutant)]
            if self._is_spoilt(batch):
                alive = [mutant for mutant in batch if self._keeps_all_alone(mutant)]
            else:
                alive = [mutant for mutant in alive if self._keeps_all_alone(mutant)]
            survivors += alive
            self.running.restart()
            progress.update(len(batch))
        progress.close()
        return survivors

    def _keeps_all(self, mutant: Mutant) -> bool:
        """Judge a mutant on the ranks as they are; the solution is restored."""
        self.running.answer(mutant.source)
        lost = self._lost(mutant)
        self.running.answer(self._exercise(mutant).source)
        return not lost

    def _keeps_all_alone(self, mutant: Mutant) -> bool:
        """Judge a mutant on fresh ranks, where later cells have seen nothing but the mutant."""
        self.running.restart({mutant.cell: mutant.source})
        return not self._lost(mutant)

    def _lost(self, mutant: Mutant) -> bool:
        """Run the tests until one takes points; this one runs first for the next mutant."""
        tests = self._tests_of(mutant)
        failed = self.running.first_failure(tests)
        if failed:
            tests.remove(failed)
            tests.insert(0, failed)
        return failed is not None

    def _is_spoilt(self, batch: list[Mutant]) -> bool:
        """Return whether the solution itself now loses points, as a mutant has left something."""
        tests = dict.fromkeys(self._tests_of(mutant)[0] for mutant in batch)
        return self.running.first_failure(tests) is not None

    def _tests_of(self, mutant: Mutant) -> list[str]:
        if mutant.cell not in self._tests:
            self._tests[mutant.cell] = self.running.tests_naming(self._exercise(mutant))
        return self._tests[mutant.cell]

    def _exercise(self, mutant: Mutant) -> NotebookNode:
        return next(c for c in self.running.cells["exercise"] if c.id == mutant.cell)


def survivors(part: str, mutants: list[Mutant]) -> list[Mutant]:
    """Run mutants of a part against its hidden tests; return those that keep all points.

    Raises
    ------
    RuntimeError
        The solution itself loses points.
    """
    with RunningPart(part) as running:
        exercises = running.cells["exercise"]
        running.restart({cell.id: mutation.rewritten(cell.source) for cell in exercises})
        failed = running.first_failure([cell.id for cell in running.cells["test"]])
        if failed:
            raise RuntimeError(f"{part}: the solution loses points in {failed}.")
        running.restart()
        running.limit_cells(max(MIN_CELL_SECONDS, CELL_FACTOR * running.slowest()))
        return Judge(running).survivors(mutants)
