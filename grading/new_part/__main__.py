"""`make new-part PART=90_my_part`: create a small part that is complete and passes all tests, as a starting point."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from grading.paths import ROOT
from grading.release import main as release

HERE = Path(__file__).parent
EXERCISE = "mean_over_ranks"  # the part's first exercise
README, STUDENTS = "README.md", "course_lib/students.py"


class CannotBegin(ValueError):
    """A part of this name cannot be created; the message says why."""


def begin(part: str, root: Path = ROOT) -> list[Path]:
    """Write the part's files, its row in README's table, and its exercise's name in the library.

    Returns
    -------
    list of Path
        The files written or changed.

    Raises
    ------
    CannotBegin
    """
    if not re.fullmatch(r"\d\d_[a-z][a-z0-9_]*", part):
        raise CannotBegin(f"expected a name such as 90_my_part, two digits and then lowercase letters, digits and _; got {part!r}")
    number, folder = part[:2], root / "solutions" / part
    if there := sorted(path.name for path in (root / "solutions").glob(f"{number}_*")):
        raise CannotBegin(f"there is a part {number} already: {', '.join(there)}. Choose another number.")
    folder.mkdir(parents=True)
    written = []
    for name, template in ((f"{part}.py", "part"), ("variants.py", "variants"), ("talk.py", "talk")):
        written.append(folder / name)
        written[-1].write_text((HERE / f"{template}.txt").read_text().replace("NUMBER", number))
    row = f"| [{number} A part of your own](notebooks/{part}/{part}.ipynb) | `{EXERCISE}` | 4 | 10 |\n"
    _insert(root / README, r"(?:^\| \[\d\d .*\n)+", row)
    if f'"{EXERCISE}"' not in (root / STUDENTS).read_text():
        _insert(root / STUDENTS, r"^EXERCISES = (?:.|\n)*?(?=^\}$)", f'    "{EXERCISE}",\n')
    return [*written, root / README, root / STUDENTS]


def _insert(path: Path, behind: str, line: str) -> None:
    """Insert a line after the first match of a pattern."""
    text = path.read_text()
    found = re.search(behind, text, re.MULTILINE)
    path.write_text(text[: found.end()] + line + text[found.end() :])


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("Which name? make new-part PART=90_my_part")
    part = sys.argv[1]
    try:
        written = begin(part)
    except CannotBegin as problem:
        sys.exit(f"No part was created: {problem}")
    release()
    print("Written or changed:", *(f"    {path.relative_to(ROOT)}" for path in written), f"    notebooks/{part}/{part}.ipynb", sep="\n")
    print(f"Now make it yours, and run `make check PART={part}` after each change. If you rename the exercise, also do so in {STUDENTS}.")


if __name__ == "__main__":
    main()
