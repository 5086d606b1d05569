"""Badges and a first cell for notebooks that people open without the course, as on Google Colab.

They are in released notebooks if pyproject.toml has the repository's address: ``[tool.course] repository = "https://github.com/..."``.
"""

from __future__ import annotations

import re
import tomllib

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from grading.paths import ROOT

CELL_ID = "install-the-course"
GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?")
PLACES = {
    "Open in Colab": "https://colab.research.google.com/github/{name}/blob/HEAD/notebooks/{part}/{part}.ipynb",
    "Open on Binder": "https://mybinder.org/v2/gh/{name}/HEAD?labpath=my_work%2F{part}.ipynb",
    "Open in Codespaces": "https://codespaces.new/{name}",
}
INSTALL = """# Install the course, where it is not installed yet (Google Colab): a minute, once
import importlib.util

if importlib.util.find_spec("course_lib") is None:
    import re
    import subprocess
    import sys
    import tomllib
    from pathlib import Path

    if not Path("course").exists():
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", "{repository}", "course"], check=True)
    project = tomllib.loads(Path("course/pyproject.toml").read_text())["project"]
    modules = {{"scikit-learn": "sklearn"}}
    missing = []
    for requirement in project["dependencies"]:
        package = re.match(r"[\\w-]+", requirement)[0]
        if importlib.util.find_spec(modules.get(package, package)) is None or package == "mpich":
            missing.append(requirement)
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *missing], check=True)
    subprocess.run([*pip, "--no-deps", "./course"], check=True)
    importlib.invalidate_caches()"""


def repository() -> str:
    """Return the address of the course's repository; empty if it has none."""
    file = ROOT / "pyproject.toml"
    project = tomllib.loads(file.read_text()) if file.exists() else {}  # an autograder elsewhere has none
    return project.get("tool", {}).get("course", {}).get("repository", "")


def install_source() -> str:
    """Return the source of the first cell, as released notebooks have it."""
    return INSTALL.format(repository=repository())


def add(notebook: NotebookNode, part: str, address: str) -> None:
    """Add badges below the title, and a first cell that installs the course; nothing if there is no address."""
    if not address:
        return
    title = notebook.cells[0]
    github = GITHUB.fullmatch(address)
    if github:
        badges = " | ".join(f"[{text}]({link.format(name=github[1], part=part)})" for text, link in PLACES.items())
        heading, rest = title.source.split("\n", 1)
        title.source = f"{heading}\n\n{badges}\n{rest}"
    source = INSTALL.format(repository=address)
    metadata = {"jupyter": {"source_hidden": True}, "slideshow": {"slide_type": "skip"}}
    notebook.cells.insert(1, new_code_cell(source, id=CELL_ID, metadata=metadata))
