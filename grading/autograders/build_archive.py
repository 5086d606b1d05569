"""`make gradescope PART=...` and `make autolab PART=...`: write the platform's archive to dist/."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import stat
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import nbformat

from grading import config
from grading.authoring import archive, build
from grading.autograders import autolab, scoreboard, wheels
from grading.formatting import display_name
from grading.paths import ROOT, required_part
from grading.submission import sandbox
from grading.submission.grade import FORWARDED_OPTIONS

DIST = ROOT / "dist"
HERE = Path(__file__).resolve().parent
ENTRY_MODULE = "grading.autograders.__main__"
DEFAULT_PYTHON, DEFAULT_TIMEOUT_MINUTES = "3.12", 10
SETUP_RESERVE_SECONDS = 60  # seconds of the platform's time-out left for starting the container and writing the results
DEFAULT_MEMORY_GB = 0.75  # GB of memory; most parts use half of it
MEMORY_GB_BY_PART = {"08_zero3_layer": 1.0}  # GB for parts that use more, measured with their solutions
EPOCH = (2026, 1, 1, 0, 0, 0)
_SOLUTION = re.compile(r"### BEGIN SOLUTION.*?### END SOLUTION", re.DOTALL)


class NothingToGrade(Exception):
    """The part has no hidden tests."""


def archive_contents(
    part: str, python: str = DEFAULT_PYTHON, minutes: float = DEFAULT_TIMEOUT_MINUTES, cache: Path | None = None
) -> dict[str, bytes | Path]:
    """Return the files for both platforms, by their names in the archive.

    Parameters
    ----------
    part : str
    python : str
        The platform's Python version.
    minutes : float
        The platform's time-out.
    cache : Path, optional
        Folder of wheels; without it, none are included.

    Raises
    ------
    NothingToGrade
    wheels.WheelError
    """
    source = build.build(part)
    text = nbformat.writes(source, version=4)
    tests = {c.metadata.nbgrader.grade_id: c.metadata.nbgrader.points for c in source.cells if build.kind_of(c) == "test"}
    if not tests:
        raise NothingToGrade(f"{part} has nothing to grade.")
    for cell in source.cells:
        cell.source = (
            build.YOUR_ANSWER if build.kind_of(cell) == build.WRITTEN_ANSWER else _SOLUTION.sub("raise NotImplementedError", cell.source)
        )
    settings = config.load()
    facts = {
        "name": part,
        "tests": tests,
        "options": {name: dict(settings[name]) for name in FORWARDED_OPTIONS},
        "deadline": round(60 * minutes - SETUP_RESERVE_SECONDS),
    }
    found: dict[str, bytes | Path] = {
        "course/part.json": json.dumps(facts, indent=1).encode(),
        "course/source.ipynb": nbformat.writes(source, version=4).encode(),
        "course/python-version": python.encode() + b"\n",
        "setup.sh": HERE / "setup.sh",
    }
    library = [path for path in archive.files() if path.parts[0] == "course_lib"]
    found |= {f"course/{path.as_posix()}": ROOT / path for path in [*library, *required_modules(source)]}
    if cache:
        found |= {f"wheels/{path.name}": path for path in wheels.fetched(wheels.needed(text, python), python, cache)}
    return found


def required_modules(source: nbformat.NotebookNode | None = None) -> list[Path]:
    """List the `grading` modules needed there: those that the program and a part's hidden tests import, directly or not."""
    tests = [c.source for c in source.cells if build.kind_of(c) == "test"] if source else []
    found, todo = set(), [ENTRY_MODULE, *(name for text in tests for name in _imported(text))]
    while todo:
        name = todo.pop()
        path = Path(*name.split("."))
        path = path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py")
        if not name.startswith("grading") or path in found or not (ROOT / path).exists():
            continue
        found.add(path)
        todo += [name.rpartition(".")[0], *_imported((ROOT / path).read_text())]
    return sorted(found)


def _imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def gradescope(part: str, folder: Path = DIST, **how) -> Path:
    """Write gradescope-PART.zip; see `archive_contents`."""
    files, path = archive_contents(part, **how), folder / f"gradescope-{part}.zip"
    files["run_autograder"] = HERE / "run_autograder"
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, EPOCH)
            info.external_attr = (stat.S_IFREG | _mode(name)) << 16
            info.compress_type = zipfile.ZIP_STORED if name.endswith(".whl") else zipfile.ZIP_DEFLATED
            zipped.writestr(info, data if isinstance(data, bytes) else data.read_bytes())
    os.replace(partial, path)
    return path


def autolab_files(part: str, folder: Path = DIST, **how) -> Path:
    """Write autolab-PART/autograde.tar and autograde-Makefile; see `archive_contents`."""
    files, folder = archive_contents(part, **how), folder / f"autolab-{part}"
    folder.mkdir(parents=True, exist_ok=True)
    files["run_autolab"] = HERE / "run_autolab"
    partial = folder / "autograde.part"
    with tarfile.open(partial, "w") as tar:
        for name, data in sorted(files.items()):
            data = data if isinstance(data, bytes) else data.read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), _mode(name), 1_767_225_600
            tar.addfile(info, io.BytesIO(data))
    os.replace(partial, folder / "autograde.tar")
    (folder / "autograde-Makefile").write_bytes((HERE / "autograde-Makefile").read_bytes())
    return folder


def _mode(name: str) -> int:
    return 0o755 if name in ("setup.sh", "run_autograder", "run_autolab") else 0o644


def main() -> None:
    """``python -m grading.autograders.build_archive gradescope|autolab PART``."""
    platform, part = sys.argv[1], required_part(sys.argv[2:], f"make {sys.argv[1]} PART=03_naive_forward")
    python, minutes = os.environ.get("PYTHON_VERSION") or DEFAULT_PYTHON, os.environ.get("MINUTES") or str(DEFAULT_TIMEOUT_MINUTES)
    if not re.fullmatch(r"3\.(1[1-9]|[2-9]\d)", python):
        sys.exit(f"PYTHON_VERSION={python}: expected the platform's Python version, 3.11 or newer, as in PYTHON_VERSION=3.12.")
    if not minutes.isdigit() or not 3 <= int(minutes) <= 600:
        sys.exit(f"MINUTES={minutes}: expected the platform's time-out in minutes, 3 to 600.")
    write = {"gradescope": gradescope, "autolab": autolab_files}[platform]
    try:
        path = write(part, python=python, minutes=int(minutes), cache=DIST / f"wheels-{python}")
    except (NothingToGrade, wheels.WheelError, config.GradingConfigError, build.SourceError, sandbox.NoSandbox) as problem:
        sys.exit(str(problem))
    print("\n".join(instructions(platform, part, path, python, int(minutes))))


def instructions(platform: str, part: str, path: Path, python: str, minutes: int) -> Iterator[str]:
    """Yield the instructions for the instructor."""
    source = build.build(part)
    tests = {c.metadata.nbgrader.grade_id: c.metadata.nbgrader.points for c in source.cells if build.kind_of(c) == "test"}
    has = " (Ubuntu 24.04 has it)" * (python == DEFAULT_PYTHON)
    size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    yield f"{shown}: {size / 1e6:.0f} MB, {len(tests)} tests, {sum(tests.values()):g} points"
    if left := build.points(source) - sum(tests.values()):
        yield f"Written answers are not graded there: {left:g} points are for you to give."
    yield f"Memory: {MEMORY_GB_BY_PART.get(part, DEFAULT_MEMORY_GB):g} GB or more." + " The smallest container is too small." * (
        part in MEMORY_GB_BY_PART
    )
    if platform == "gradescope":
        yield f"Upload it under Configure Autograder. Base image: one with Python {python}{has}."
        yield f"Container time-out: {minutes} minutes; a run ends by itself {SETUP_RESERVE_SECONDS} s before that."
        return
    limit = f"Autograder time-out: {60 * minutes} s; a run ends by itself {SETUP_RESERVE_SECONDS} s before that."
    yield f"Name of the hand-in: {autolab.SUBMISSION_FILE}. {limit}"
    yield f"Image: one with Python {python}{has} and make; it needs bubblewrap, root, or Linux 6.2 or newer."
    yield "Problems, with their maximum points: " + ", ".join(f'"{display_name(name)}" {most:g}' for name, most in tests.items())
    if columns := scoreboard.column_names(part):
        yield "Scoreboard, with these columns: " + "; ".join(columns)


if __name__ == "__main__":
    main()
