"""On Google Colab there is a notebook file, and nothing of the course: its first cell installs what is missing.

The environment here has the versions that Colab has of what a notebook's kernel needs.
"""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient

from grading.authoring import badges, build
from grading.paths import NOTEBOOKS, ROOT

PACKAGES = ("ipython==7.34.0", "ipykernel==6.17.1", "numpy", "matplotlib", "scikit-learn", "ipywidgets", "tqdm", "psutil")


@pytest.fixture(scope="module")
def colab(tmp_path_factory):
    """Return Python of an environment like Colab's, without the course."""
    place = tmp_path_factory.mktemp("colab")
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "--quiet", "--seed", "--python", sys.executable, place / "env"], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", place / "env/bin/python", *PACKAGES], check=True)
    return place / "env/bin/python"


def solved(part):
    """The released notebook with a first cell that installs the course from this repository, and with solutions."""
    notebook = nbformat.read(NOTEBOOKS / part / f"{part}.ipynb", as_version=4)
    badges.add(notebook, part, f"file://{ROOT}")
    answers = {cell.id: cell.source for cell in build.build(part).cells if build.kind_of(cell) == "exercise"}
    for cell in notebook.cells:
        cell.source = answers.get(cell.id, cell.source)
    return notebook


@pytest.mark.slow
def test_a_notebook_alone_runs_on_colab(colab, tmp_path, monkeypatch):
    class Manager(AsyncKernelManager):
        kernel_spec = KernelSpec(argv=[str(colab), "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python")

    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PATH", f"{colab.parent}{os.pathsep}{os.environ['PATH']}")
    for part in ("00_warmup", "03_naive_forward"):
        notebook = solved(part)
        folder = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=600, resources=folder, kernel_manager_class=Manager).execute()  # raises what a cell raises
    assert (tmp_path / "func_impl.py").exists(), "part 03 saves its functions"
    where = subprocess.run([colab, "-c", "import course_lib; print(course_lib.__file__)"], cwd=tmp_path, capture_output=True, text=True)
    assert where.stdout.startswith(str(colab.parents[1])), "it is not this checkout"


def test_badges_and_the_first_cell_are_there_if_the_course_has_an_address():
    plain = nbformat.read(NOTEBOOKS / "03_naive_forward" / "03_naive_forward.ipynb", as_version=4)
    notebook = nbformat.from_dict(plain)
    badges.add(notebook, "03_naive_forward", "")
    assert notebook == plain
    badges.add(notebook, "03_naive_forward", "https://github.com/a-school/course.git")
    assert "github/a-school/course/blob/HEAD/notebooks/03_naive_forward/03_naive_forward.ipynb" in notebook.cells[0].source
    assert notebook.cells[0].source.startswith(plain.cells[0].source.split("\n")[0])
    assert notebook.cells[1].id == badges.CELL_ID and [c.id for c in notebook.cells[2:]] == [c.id for c in plain.cells[1:]]
    compile(notebook.cells[1].source, "cell", "exec")
    names: dict = {}
    exec(notebook.cells[1].source, names)  # the course is here: nothing happens
    assert "project" not in names
