"""`make student-archive`: the zip that students get, without answers and grading."""

from __future__ import annotations

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


def files() -> list[Path]:
    """What goes into the archive: what git tracks, or would track, less what gives answers away."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = sorted(set(filter(None, listed.stdout.split("\0"))))
    pages = [n for n in names if n.startswith("docs/") and not n.endswith(".png")]  # README shows the pictures
    return [Path(n) for n in names if n not in pages and not n.startswith(LEFT_OUT) and (ROOT / n).is_file()]


def write(path: Path) -> Path:
    """Write the archive; the same files give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in files():
            info = zipfile.ZipInfo(f"{NAME}/{name.as_posix()}", (2026, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, (ROOT / name).read_bytes())
    return path


def main() -> None:
    path = write(ROOT / "dist" / f"{NAME}.zip")
    print(f"{path.relative_to(ROOT)}: {len(files())} files, {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
