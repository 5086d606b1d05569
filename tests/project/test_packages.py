"""The lists of packages: pyproject.toml, environment.yml and constraints.txt agree."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def names(requirements):
    return {re.match(r"[A-Za-z0-9-]+", r)[0].lower() for r in requirements}


def test_conda_and_pip_install_the_same_packages_and_a_student_gets_no_more_than_needed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = names(project["dependencies"])
    lines = re.findall(r"^\s+- ([A-Za-z0-9].*?)(?:\s+#.*)?$", (ROOT / "environment.yml").read_text(), re.MULTILINE)
    assert names(lines) - {"python", "pip", "conda-forge"} == wanted
    versions = {requirement.split(";")[0].strip() for requirement in project["dependencies"]}
    assert set(lines) - versions == {"pip", "conda-forge", next(line for line in lines if line.startswith("python>"))}
    assert not wanted & {"nbgrader", "jupytext", "nbclient", "playwright", "uv", "ruff", "hypothesis", "pytest", "pytest-xdist"}


def test_versions_are_pinned_without_an_address():
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text and all("==" in line for line in text.splitlines())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = names(project["dependencies"]) | names(extras["dev"]) - {project["name"]} | names(extras["grading"])
    assert wanted <= names(text.splitlines())
