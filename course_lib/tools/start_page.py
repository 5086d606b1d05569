"""Start page of `make lab`: the parts by learning path, the time each takes, which are begun, and which checks have passed."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from course_lib.tools import update

FILE_NAME = "START.md"  # in the student's folder
GENERATED_MARK = "<!-- Regenerated whenever a notebook is saved; write your notes elsewhere. -->"
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
    """Status of a student's notebook.

    Attributes
    ----------
    minutes : int
        Estimated time in minutes, from its first cell.
    checks, passed : int
        Number of cells that check an exercise, and of those that had passed when the notebook was saved.
    begun : bool
        Whether any cell has been changed or run.
    """

    path: Path
    title: str
    minutes: int
    checks: int
    passed: int
    begun: bool

    @property
    def state(self) -> str:
        """Describe the progress in a few words."""
        if self.checks and self.passed == self.checks:
            return "**all checks passed**"
        checks = f", {self.passed} of {self.checks} checks passed" if self.checks > 1 or self.passed else ""
        return f"begun{checks}" if self.begun else ""


def read_status(path: Path) -> NotebookStatus | None:
    """Read the status of a course notebook in a student's folder; None for any other file, or one that cannot be read."""
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
    if path.stem != part:  # an older copy of the notebook
        return None
    return NotebookStatus(path, title, minutes, len(checks), passed, begun)


def render_page(parts: list[NotebookStatus]) -> str:
    """Render the page in Markdown."""
    lines = [GENERATED_MARK, "", "# Distributed training, from scratch", ""]
    lines += ["Begin with part 00 and take the parts in order, or follow one path. A part is done when its checks have passed.", ""]
    for first, name in LEARNING_PATHS.items():
        later = [number for number in LEARNING_PATHS if number > first]
        own = [p for p in parts if first <= int(p.path.name[:2]) < min(later, default=100)]
        if own:
            hours = max(1, round(sum(p.minutes for p in own) / 60))
            lines += [f"## {name}", "", f"About {hours} hour{'s' * (hours > 1)}.", "", "| part | minutes | |", "|---|---|---|"]
            lines += [f"| [{p.title}]({p.path.name}) | {p.minutes or ''} | {p.state} |" for p in own]
            lines += [""]
    lines += ["This page shows the notebooks as last saved; to refresh it, close it and open it again."]
    lines += ["To hand in a part, save its notebook and hand in the file."]
    return "\n".join(lines) + "\n"


def is_ours(work: Path) -> bool:
    """Tell whether this page is ours and not a file of the same name that the student wrote."""
    try:
        return (work / FILE_NAME).read_text(encoding="utf-8").startswith(GENERATED_MARK)
    except (OSError, ValueError):
        return False


def write(work: Path) -> Path | None:
    """Write the page to a student's folder; None if a file of that name is the student's own."""
    path = work / FILE_NAME
    if path.exists() and not is_ours(work):
        return None
    parts = [part for file in sorted(work.glob("[0-9][0-9]_*.ipynb")) if (part := read_status(file))]
    partial = path.with_name(f".{FILE_NAME}.part")
    partial.write_text(render_page(parts), encoding="utf-8")
    os.replace(partial, path)
    return path


def on_notebook_saved(model: dict, os_path: str, **_: object) -> None:
    """Regenerate the page after JupyterLab has saved a file; see `config/jupyter_server_config.json`."""
    folder = Path(os_path).parent
    if model.get("type") == "notebook" and (folder / FILE_NAME).exists():
        with contextlib.suppress(Exception):  # such as a full disk: the notebook is what counts
            write(folder)
