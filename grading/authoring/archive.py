"""`make student-archive`: the zip that students get, without answers and grading."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

from grading.paths import ROOT

NAME = "distributed-training-course"
# Tests that need solutions/ or grading/ stay here, too: they tell what the answers are.
LEFT_OUT = (
    "solutions/",
    "grading/",
    "lectures/",
    "tests/grading/",
    "tests/lectures/",
    "tests/solved/",
    "benchmarks/",
    ".ci/",
    ".git",
    "hub/",
    "tests/hub_here.py",
    "tests/test_hub",
)
PAGES = ("docs/slurm.md", "docs/containers.md")  # to which README leads
NOT_FOR_STUDENTS = ("For lecturers", "For instructors", "For developers")  # sections of README
FOR_STUDENTS = ("help", "install", "lab", "update", "test", "test-all", "doctor", "validate")  # commands


def files() -> list[Path]:
    """What goes into the archive: what git tracks, or would track, less what gives answers away."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = sorted(set(filter(None, listed.stdout.split("\0"))))
    pages = [n for n in names if n.startswith("docs/") and not n.endswith(".png") and n not in PAGES]  # README shows the pictures
    return [Path(n) for n in names if n not in pages and not n.startswith(LEFT_OUT) and (ROOT / n).is_file()]


def write(path: Path) -> Path:
    """Write the archive; the same files give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in files():
            info = zipfile.ZipInfo(f"{NAME}/{name.as_posix()}", (2026, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            data = (ROOT / name).read_bytes()
            archive.writestr(info, CHANGED[name.as_posix()](data.decode()) if name.as_posix() in CHANGED else data)
    return path


def readme(text: str) -> str:
    """Cut from README what only lecturers, instructors and developers need."""
    first, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return first + "".join(s for s in sections if not s.startswith(tuple(f"## {title}\n" for title in NOT_FOR_STUDENTS)))


def makefile(text: str) -> str:
    """Cut from the Makefile the commands for which a student's copy has no modules."""
    rules = re.compile(r"^(?P<name>[a-z-]+):.*\n(?:\t.*\n|  .*\n)*\n?", re.MULTILINE)
    text = re.sub(r"^# JupyterHub's proxy.*?\n\n", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\$\((?:GRADING|HUB)\):.*\n(?:\t.*\n)*|^(?:GRADING|HUB) :=.*\n", "", text, flags=re.MULTILINE)
    text = text.replace(" $(GRADING)", "")
    text = rules.sub(lambda rule: rule[0] if rule["name"] in FOR_STUDENTS else "", text)
    return re.sub(r"^\.PHONY:.*$", f".PHONY: {' '.join(FOR_STUDENTS)}", text, flags=re.MULTILINE)


CHANGED = {"README.md": readme, "Makefile": makefile}


def main() -> None:
    path = write(ROOT / "dist" / f"{NAME}.zip")
    print(f"{path.relative_to(ROOT)}: {len(files())} files, {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
