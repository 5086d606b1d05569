"""``python -m grading.reference FOLDER``: the solved exercises as the original hand-in files.

For demos, benchmarks and the project's own tests. The files need nothing but NumPy and mpi4py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from course_lib import saving
from course_lib.functions import NOTEBOOKS
from grading import build
from grading.paths import parts


def write(folder: str | Path) -> list[Path]:
    """Write the hand-in files; what is in them already and has another name is kept.

    Parameters
    ----------
    folder : str or Path
        Made if it does not exist.

    Returns
    -------
    list of Path
        The files.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    cells: list[str] = []
    for part in parts():
        sources = [c.source for c in build.build(part).cells if c.cell_type == "code" and c.source.startswith("%%px")]
        cells += [re.sub(r"^ *### (BEGIN|END) SOLUTION\n?", "", source, flags=re.MULTILINE) for source in sources]
    files = sorted({file for _, file in NOTEBOOKS.values()})
    for file in files:
        saving.write(folder / file, [name for name, (_, home) in NOTEBOOKS.items() if home == file], cells)
    return [folder / file for file in files]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("Usage: python -m grading.reference FOLDER")
    for path in write(sys.argv[1]):
        print(path)


if __name__ == "__main__":
    main()
