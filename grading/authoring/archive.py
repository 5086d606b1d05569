"""`make student-archive`: the zip for students, without solutions and grading."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from pathlib import Path

from grading.paths import ROOT

ARCHIVE_NAME = "distributed-training-course"
# Tests that need solutions/ or grading/ are left out, too: they give answers away.
EXCLUDED_PREFIXES = (
    "solutions/",
    "grading/",
    "lectures/",
    "tests/check/test_contracts.py",
    "tests/check/test_virtual_group.py",  # with a ring
    "tests/grading/",
    "tests/hub/",
    "tests/lectures/",
    "tests/solved/",
    "benchmarks/",
    ".ci/",
    ".git",
    "hub/",
    "CONTRIBUTING.md",
)
STUDENT_DOCS = ("docs/students.md", "docs/slurm.md", "docs/containers.md", "docs/credits.md")  # README links to these
PICTURES = (".png", ".gif")  # README shows them
STUDENT_MAKE_TARGETS = ("help", "install", "lab", "update", "test", "test-all", "doctor", "validate")  # commands


def files() -> list[Path]:
    """List the archive's files: all that git tracks or would track, except what gives answers away."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = sorted(set(filter(None, listed.stdout.split("\0"))))
    pages = [n for n in names if n.startswith("docs/") and not n.endswith(PICTURES) and n not in STUDENT_DOCS]
    return [Path(n) for n in names if n not in pages and not n.startswith(EXCLUDED_PREFIXES) and (ROOT / n).is_file()]


def write(path: Path) -> Path:
    """Write the archive; the same files give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in files():
            info = zipfile.ZipInfo(f"{ARCHIVE_NAME}/{name.as_posix()}", (2026, 1, 1, 0, 0, 0))
            info.external_attr = (0o755 if os.access(ROOT / name, os.X_OK) else 0o644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            data = (ROOT / name).read_bytes()
            archive.writestr(info, REWRITTEN_FILES[name.as_posix()](data.decode()) if name.as_posix() in REWRITTEN_FILES else data)
    return path


def readme(text: str) -> str:
    """Cut from README the items of lists that lead to pages for lecturers, instructors and developers."""
    items = re.compile(r"^- \[[^\]]*\]\((?P<page>docs/[\w.-]+)\).*\n(?:  .*\n)*", re.MULTILINE)
    return items.sub(lambda item: item[0] if item["page"] in STUDENT_DOCS else "", text)


def makefile(text: str) -> str:
    """Remove the Makefile targets whose modules a student's copy lacks."""
    rules = re.compile(r"^(?P<name>[a-z-]+):.*\n(?:\t.*\n|  .*\n)*\n?", re.MULTILINE)
    text = re.sub(r"^# JupyterHub's proxy.*?\n\n", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\$\((?:GRADING|HUB)\):.*\n(?:\t.*\n)*|^(?:GRADING|HUB) :=.*\n", "", text, flags=re.MULTILINE)
    text = text.replace(" $(GRADING)", "")
    text = rules.sub(lambda rule: rule[0] if rule["name"] in STUDENT_MAKE_TARGETS else "", text)
    return re.sub(r"^\.PHONY:.*$", f".PHONY: {' '.join(STUDENT_MAKE_TARGETS)}", text, flags=re.MULTILINE)


REWRITTEN_FILES = {"README.md": readme, "Makefile": makefile}


def main() -> None:
    path = write(ROOT / "dist" / f"{ARCHIVE_NAME}.zip")
    print(f"{path.relative_to(ROOT)}: {len(files())} files, {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
