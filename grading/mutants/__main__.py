"""`make mutants`: change each solution in one place, and see whether the hidden tests notice.

A mutant that keeps all points either may do so, for which the part's `mutants.toml` has the reason,
or shows a hole in the hidden tests.
"""

from __future__ import annotations

import argparse
import sys

from grading.mutants import judge, mutation, records
from grading.paths import selected_parts

MIN_SCORE = 98  # per cent


def check(part: str, arguments: argparse.Namespace) -> tuple[int, int]:
    """Run a part's mutants, or some of them, and print which survive.

    Returns
    -------
    tuple of int
        The mutants that lost points, and those that should have.
    """
    every = mutation.mutants(part)
    chosen = [mutant for mutant in every if arguments.only in str(mutant)]
    if arguments.sample:
        chosen = mutation.draw(chosen, arguments.sample, arguments.seed)
    if not chosen:
        return 0, 0
    alive = judge.survivors(part, chosen)
    if len(chosen) == len(every):
        records.write(part, every, alive)
    record = records.read(part)
    holes = [mutant for mutant in alive if not (record and record.reason(mutant))]
    killed, due = len(chosen) - len(alive), len(chosen) - len(alive) + len(holes)
    score, excused = _score(killed, due), len(alive) - len(holes)
    print(f"{part}: {killed} of {len(chosen)} lost points, {excused} need not: {score:.1f} %")
    for mutant in holes:
        print(f"  {mutant}")
    return killed, due


def _score(killed: int, due: int) -> float:
    return 100 * killed / due if due else 100.0


def main() -> None:
    """``python -m grading.mutants [PART ...] [--sample N] [--seed S] [--only TEXT] [--list]``."""
    parser = argparse.ArgumentParser(prog="python -m grading.mutants", description=__doc__)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help="names or numbers; all by default")
    add("--sample", type=int, default=0, metavar="N", help="run N mutants of each part")
    add("--seed", default="0", metavar="S", help="draw others with another seed")
    add("--only", default="", metavar="TEXT", help="run those with this in their line")
    add("--list", action="store_true", help="only list the mutants")
    arguments = parser.parse_args()
    killed, due = 0, 0
    for part in selected_parts(arguments.parts):
        if arguments.list:
            print(*(f"{part} {mutant}" for mutant in mutation.mutants(part)), sep="\n")
            continue
        part_killed, part_due = check(part, arguments)
        killed, due = killed + part_killed, due + part_due
    if arguments.list:
        return
    print(f"{killed} of {due} mutants that should lose points did: {_score(killed, due):.1f} %")
    sys.exit(_score(killed, due) < MIN_SCORE)


if __name__ == "__main__":
    main()
