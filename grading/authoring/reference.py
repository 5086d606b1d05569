"""``python -m grading.authoring.reference FOLDER``: write the solved exercises as the original hand-in files.

For demos, benchmarks and the project's own tests. The files need nothing but NumPy and mpi4py.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from course_lib import saving
from course_lib.students import NOTEBOOKS
from grading.authoring import build
from grading.paths import parts


def write(folder: str | Path) -> list[Path]:
    """Write the hand-in files; functions of other names that are already in them are kept.

    Parameters
    ----------
    folder : str or Path
        Created if missing.

    Returns
    -------
    list of Path
        The files.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for part in dict.fromkeys(part for part, _ in NOTEBOOKS.values()):
        sources = [c.source for c in build.build(part).cells if c.cell_type == "code" and c.source.startswith("%%px")]
        cells = [re.sub(r"^ *### (BEGIN|END) SOLUTION\n?", "", source, flags=re.MULTILINE) for source in sources]
        names = [name for name, (home, _) in NOTEBOOKS.items() if home == part]
        for file in sorted({NOTEBOOKS[name][1] for name in names}):
            saving.write(folder / file, [name for name in names if NOTEBOOKS[name][1] == file], cells)
    return [folder / file for file in sorted({file for _, file in NOTEBOOKS.values()})]


def loops(only: Sequence[str] | None = None) -> dict[str, Callable]:
    """Return the solved training loops of the simulator parts by name, or just those in `only`."""
    namespace: dict = {"__name__": "reference"}
    for part in parts() if only is None else only:
        cells = [c.source for c in build.build(part).cells if c.cell_type == "code" and c.source.startswith("%%px")]
        for source in cells:
            tree = ast.parse(re.sub(r"^%%px.*", "", source))
            keep = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom, ast.AsyncFunctionDef))]
            if any(isinstance(n, ast.AsyncFunctionDef) for n in tree.body) or "course_lib.sim" in source:
                exec(compile(ast.Module(keep, []), part, "exec"), namespace)
    return {name: value for name, value in namespace.items() if inspect.iscoroutinefunction(value)}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("Usage: python -m grading.authoring.reference FOLDER")
    for path in write(sys.argv[1]):
        print(path)


if __name__ == "__main__":
    main()
