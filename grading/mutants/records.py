"""A part's `mutants.toml`: the mutants that keep all points, each with the reason why they may.

The reason says that a mutant behaves like the solution, or does all that the docstring asks. A
mutant without a reason is a hole in the hidden tests.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from grading.authoring import build
from grading.mutants.mutation import Mutant
from grading.paths import SOLUTIONS

SOLUTION = re.compile("### BEGIN SOLUTION(.*?)### END SOLUTION", re.DOTALL)
HEADER = """# Mutants of the solution that keep all points, each with the reason: it behaves like the
# solution, or the docstring allows it. `make mutants PART={part}` writes this file.
"""


@dataclass
class Record:
    """Result of a run of all mutants of a part.

    Attributes
    ----------
    solution : str
        The fingerprint of the solutions that were changed.
    mutants : int
        The number of their mutants.
    survivors : dict
        For each function, the changes that keep all points, and why; an empty reason is a hole.
    """

    solution: str
    mutants: int
    survivors: dict[str, dict[str, str]] = field(default_factory=dict)

    def reason(self, mutant: Mutant) -> str:
        """Return why a mutant may keep all points; an empty string if nobody has said so."""
        return self.survivors.get(mutant.function, {}).get(mutant.change, "")

    def is_of(self, part: str, mutants: list[Mutant]) -> bool:
        """Return whether neither the solutions nor the operators have changed since."""
        return self.solution == fingerprint(part) and self.mutants == len(mutants)


def read(part: str) -> Record | None:
    """Read a part's record; None if its mutants have not been run as a whole."""
    path = _path(part)
    return Record(**tomllib.loads(path.read_text())) if path.exists() else None


def write(part: str, mutants: list[Mutant], survivors: list[Mutant]) -> Path:
    """Write what a run has shown; survivors that had a reason keep it."""
    before = read(part)
    lines = [HEADER.format(part=part), f'solution = "{fingerprint(part)}"']
    lines.append(f"mutants = {len(mutants)}")
    for function in dict.fromkeys(mutant.function for mutant in survivors):
        lines += ["", f"[survivors.{_toml(function)}]"]
        for mutant in survivors:
            if mutant.function == function:
                reason = before.reason(mutant) if before else ""
                lines.append(f"{_toml(mutant.change)} = {_toml(reason)}")
    build.write_atomically("\n".join(lines) + "\n", _path(part))
    return _path(part)


def fingerprint(part: str) -> str:
    """Return a fingerprint of a part's solutions; spaces and line breaks do not count."""
    digest = hashlib.sha256()
    for cell in build.build(part).cells:
        if build.kind_of(cell) == "exercise":
            for solution in SOLUTION.findall(cell.source):
                digest.update(re.sub(r"\s+", " ", solution).encode())
    return digest.hexdigest()[:12]


def _toml(text: str) -> str:
    """Return a text as a string of TOML, which is one of JSON."""
    return json.dumps(text, ensure_ascii=False)


def _path(part: str) -> Path:
    return SOLUTIONS / part / "mutants.toml"
