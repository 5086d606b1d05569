"""Mutants of the solutions lose points, or have a reason in their part's `mutants.toml`."""

import random
from datetime import date

import pytest

from grading.authoring import build
from grading.mutants import judge, mutation, records
from grading.paths import parts

RECORDED = [part for part in parts() if records.read(part)]
PARTS_A_DAY, MUTANTS_A_PART = 2, 8


@pytest.mark.parametrize("part", RECORDED)
def test_each_survivor_has_a_reason_and_belongs_to_the_solution_as_it_is(part):
    record, every = records.read(part), mutation.mutants(part)
    assert record.is_of(part, every), f"it has changed since: make mutants PART={part}"
    there = {(mutant.function, mutant.change) for mutant in every}
    for function, reasons in record.survivors.items():
        for change, reason in reasons.items():
            assert reason, f"{part} {function}: {change}: a hole, or without its reason"
            assert (function, change) in there


@pytest.mark.slow
def test_mutants_drawn_by_the_day_lose_points():
    """A mutant that survives here, without a reason, has lost its test since all were run."""
    day = date.today().isoformat()
    for part in random.Random(day).sample(RECORDED, min(PARTS_A_DAY, len(RECORDED))):
        command = f"python -m grading.mutants {part} --sample {MUTANTS_A_PART} --seed {day}"
        print(command)
        record = records.read(part)
        alive = judge.survivors(part, mutation.draw(mutation.mutants(part), MUTANTS_A_PART, day))
        assert [str(mutant) for mutant in alive if not record.reason(mutant)] == [], command


@pytest.mark.slow
def test_mutants_that_hang_die_or_spoil_the_ranks_are_judged_as_on_fresh_ones():
    """The last answer is right, and would lose points with what the one before it leaves behind."""
    part = "07_weight_grad"
    exercise = next(c for c in build.build(part).cells if build.kind_of(c) == "exercise")
    first_lines = {
        "hangs": "while True: pass",
        "dies": "import os; os._exit(1)",
        "spoils": "np.empty_like = None",
        "is right": "pass",
    }
    answers = []
    for name, line in first_lines.items():
        source = exercise.source.replace("    means = []", f"    {line}\n    means = []")
        answers.append(mutation.Mutant(exercise.id, "collect_weight_grad", name, source))
    assert [answer.change for answer in judge.survivors(part, answers)] == ["is right"]
