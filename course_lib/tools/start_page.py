"""The page on which `make lab` opens: the parts by path, how long each takes, what is begun, and which checks have passed."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from course_lib.tools import update

FILE_NAME = "START.md"  # in the student's folder
GENERATED_MARK = "<!-- Written anew whenever a notebook is saved; write your notes elsewhere. -->"
LEARNING_PATHS = {  # by the number of the first part
    0: "Tensor parallelism and ZeRO",
    11: "Data parallelism",
    16: "Schedules, in a simulator",
    21: "A GPT on every axis",
    29: "A plan for a large run",
    30: "More",
}


@dataclass(frozen=True)
class NotebookStatus:
    """A student's notebook.

    Attributes
    ----------
    minutes : int
        How long it takes, as its first text says.
    checks, passed : int
        Cells that check an exercise, and those that had passed when the notebook was saved.
    begun : bool
        Whether anything in it has changed or has run.
    """

    path: Path
    title: str
    minutes: int
    checks: int
    passed: int
    begun: bool

    @property
    def state(self) -> str:
        """What is done, in a word or two."""
        if self.checks and self.passed == self.checks:
            return "**all checks passed**"
        checks = f", {self.passed} of {self.checks} checks passed" if self.checks > 1 or self.passed else ""
        return f"begun{checks}" if self.begun else ""


def read_status(path: Path) -> NotebookStatus | None:
    """A notebook of the course in a student's folder; None for another file, or one that cannot be read."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells, part = notebook["cells"], notebook["metadata"]["course"]["part"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        checks = [c for c in code if c["id"].startswith("check") and c["metadata"].get("nbgrader", {}).get("locked")]
        passed = sum(bool(c["execution_count"]) and all(o["output_type"] != "error" for o in c["outputs"]) for c in checks)
        title = re.search(r"^# +(.+)", texts[0], re.MULTILINE)[1]
        begun = any(cell.get("execution_count") for cell in code) or not update.is_unchanged(path)
        minutes = int(found[1]) if (found := re.search(r"About (\d+) minutes", texts[0])) else 0
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    if path.stem != part:  # a copy of it, as it was before
        return None
    return NotebookStatus(path, title, minutes, len(checks), passed, begun)


def render_page(parts: list[NotebookStatus]) -> str:
    """The page, in Markdown."""
    lines = [GENERATED_MARK, "", "# Distributed training, from scratch", ""]
    lines += ["Begin with part 00, and take the parts in order, or follow one path. A part is done when its checks have passed.", ""]
    for first, name in LEARNING_PATHS.items():
        later = [number for number in LEARNING_PATHS if number > first]
        own = [p for p in parts if first <= int(p.path.name[:2]) < min(later, default=100)]
        if own:
            hours = max(1, round(sum(p.minutes for p in own) / 60))
            lines += [f"## {name}", "", f"About {hours} hour{'s' * (hours > 1)}.", "", "| part | minutes | |", "|---|---|---|"]
            lines += [f"| [{p.title}]({p.path.name}) | {p.minutes or ''} | {p.state} |" for p in own]
            lines += [""]
    lines += ["As of when the notebooks were saved; to see this page anew, close it and open it again."]
    lines += ["To hand in a part, save its notebook and hand in the file."]
    return "\n".join(lines) + "\n"


def is_ours(work: Path) -> bool:
    """Tell this page from a file of the same name that is the student's own."""
    try:
        return (work / FILE_NAME).read_text(encoding="utf-8").startswith(GENERATED_MARK)
    except (OSError, ValueError):
        return False


def write(work: Path) -> Path | None:
    """Write the page into a student's folder; None where a file of that name is the student's own."""
    path = work / FILE_NAME
    if path.exists() and not is_ours(work):
        return None
    parts = [part for file in sorted(work.glob("[0-9][0-9]_*.ipynb")) if (part := read_status(file))]
    partial = path.with_name(f".{FILE_NAME}.part")
    partial.write_text(render_page(parts), encoding="utf-8")
    os.replace(partial, path)
    return path


def on_notebook_saved(model: dict, os_path: str, **_: object) -> None:
    """Write the page anew: JupyterLab has saved a file, see `config/jupyter_server_config.json`."""
    folder = Path(os_path).parent
    if model.get("type") == "notebook" and (folder / FILE_NAME).exists():
        with contextlib.suppress(Exception):  # a full disk, say: the notebook is what counts
            write(folder)
