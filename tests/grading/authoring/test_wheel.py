"""The wheel has all that git has of the packages, and each of its modules can be imported from it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("course_lib", "grading")
IMPORT_ALL = """
import importlib, pkgutil, sys
from pathlib import Path
place = Path(sys.argv[1])
for package in sys.argv[2:]:
    for module in pkgutil.walk_packages([str(place / package)], f"{package}."):
        if module.name.endswith("__main__") or module.name == "grading.nbgrader_config":
            continue  # they run
        imported = importlib.import_module(module.name)
        assert Path(imported.__file__).is_relative_to(place), imported.__file__
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Build the wheel from what git knows, and unpack it."""
    place = tmp_path_factory.mktemp("wheel")
    listing = ["git", "ls-files", "-z", *PACKAGES, "pyproject.toml", "README.md", "LICENSE"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, files.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (place / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (place / "source" / name).write_bytes((ROOT / name).read_bytes())
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", place, place / "source"], check=True)
    (wheel,) = place.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(place / "unpacked")
    return place


@pytest.mark.slow
def test_a_wheel_has_all_files_of_the_packages(unpacked):
    for package in PACKAGES:
        source = {path.relative_to(unpacked / "source") for path in (unpacked / "source" / package).rglob("*") if path.is_file()}
        wheel = {path.relative_to(unpacked / "unpacked") for path in (unpacked / "unpacked" / package).rglob("*") if path.is_file()}
        assert source == wheel


@pytest.mark.slow
def test_each_module_can_be_imported_from_a_wheel(unpacked, tmp_path):
    place = unpacked / "unpacked"
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, place, *PACKAGES],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
