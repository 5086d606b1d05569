"""Wheels for grading one submission with the platform's Python: resolved here, downloaded once, kept in a folder."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from grading.paths import ROOT

# For running: the grader and a kernel (nbgrader's own dependencies include JupyterLab), the ranks, the figures; and pip, to install them.
ROOTS = (
    *("nbclient", "nbconvert", "ipykernel", "sqlalchemy", "python-dateutil", "pyyaml", "requests", "setuptools", "tornado"),
    *("numpy", "mpi4py", "mpich", "matplotlib", "psutil", "greenlet", "threadpoolctl", "filelock", "tqdm", "pip"),
)
WITHOUT_DEPENDENCIES = ("nbgrader",)  # installed without their dependencies
DATA = {
    "from safetensors": ("safetensors",),
    "datasets.load(": ("scikit-learn",),
    "datasets.classification(": ("scikit-learn", "scipy", "joblib", "narwhals"),
}
EXCLUDED_PACKAGES = {"debugpy", "jedi", "parso", "fonttools"}  # debugger, completion, fonts in PDFs: unused in unattended grading
GLIBC = range(5, 36)  # glibc 2.5 to 2.35: Ubuntu 22.04 and newer


class WheelError(Exception):
    """A wheel is not available; the message says why, and what to do."""


def needed(text: str, python: str) -> list[str]:
    """Return the requirements, as name==version, of a part whose source is `text`.

    Parameters
    ----------
    python : str
        The platform's Python version, such as "3.12".

    Raises
    ------
    WheelError
        The required version is unknown.
    """
    target = _target(python)
    pins = dict(_pins(target))
    bare = {*WITHOUT_DEPENDENCIES, *(name for word, names in DATA.items() if word in text for name in names)}
    todo, seen, found = [(name, "") for name in [*ROOTS, *bare]], set(), {}
    while todo:
        name, extra = wanted = todo.pop()
        if wanted in seen or name in EXCLUDED_PACKAGES:
            continue
        seen.add(wanted)
        try:
            here = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            here = None
        if not here and name not in pins:
            raise WheelError(f"{name} is neither installed here nor in constraints.txt. Reinstall what grading needs: rm -r .venv.")
        found[name] = pins.get(name) or here.version
        for line in (here.requires if here and name not in bare else None) or []:
            want = Requirement(line)
            if want.marker is None or want.marker.evaluate({**target, "extra": extra}):
                todo += [(canonicalize_name(want.name), extra) for extra in ("", *want.extras)]
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def fetched(requirements: list[str], python: str, cache: Path) -> list[Path]:
    """Return the wheels of these requirements; download those that are not in the folder yet.

    Raises
    ------
    WheelError
        The download failed.
    """
    cache.mkdir(parents=True, exist_ok=True)
    there = _there(cache)
    missing = [line for line in requirements if line not in there]
    if missing:
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
        platforms = [f"--platform=manylinux_2_{n}_x86_64" for n in reversed(GLIBC)]
        platforms += [f"--platform={name}_x86_64" for name in ("manylinux2014", "manylinux2010", "manylinux1")]
        how = ["--implementation=cp", f"--python-version={python}", f"--abi=cp{python.replace('.', '')}", "--abi=abi3", "--abi=none"]
        done = subprocess.run([*words, *platforms, *how, "--dest", str(cache), *missing], capture_output=True, text=True, check=False)
        there = _there(cache)
        if done.returncode or (missing := [line for line in requirements if line not in there]):
            said = [line for line in done.stderr.splitlines() if "ERROR" in line or "No module named" in line][:2]
            raise WheelError(
                f"The wheels for Python {python} could not be downloaded: {' '.join(said) or ', '.join(missing)}. Usual causes: no "
                f"network, or a version in constraints.txt has no wheel for this Python. What was downloaded is kept in {_short(cache)}."
            )
    return [there[line] for line in requirements]


def _there(cache: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(cache.glob("*.whl")):
        name, version, *_ = parse_wheel_filename(path.name)
        found[f"{name}=={version}"] = path
    return found


def _pins(target: dict[str, str]) -> Iterator[tuple[str, str]]:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        pin = Requirement(re.sub(r"#.*", "", line))
        if pin.marker is None or pin.marker.evaluate(target):
            yield canonicalize_name(pin.name), next(iter(pin.specifier)).version


def _target(python: str) -> dict[str, str]:
    """Return the platform's environment for evaluating markers."""
    there = {"python_version": python, "python_full_version": f"{python}.0", "implementation_version": f"{python}.0", "extra": ""}
    system = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    return {**default_environment(), **there, **system}


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
