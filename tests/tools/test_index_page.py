"""The page on which `make lab` opens: what is begun, and which checks have passed."""

import copy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_lib.tools import lab, start_page

LOCKED = {"nbgrader": {"grade_id": "x", "locked": True, "solution": False, "grade": False, "schema_version": 3}}


@pytest.fixture
def work(tmp_path):
    """A student's folder with three parts, as they are given out."""
    for part, title, minutes in (("00_warmup", "00 Warm-up", 20), ("03_naive", "03 Naive", 100), ("24_experts", "24 Experts", 75)):
        text = f"# {title}\n\n**You will build** something.\n\n*15 points. About {minutes} minutes.*"
        cells = [new_markdown_cell(text), new_code_cell("%%px\nx = 1", id="example")]
        if part != "00_warmup":
            cells += [new_code_cell("# Check", id=f"check-{name}", metadata=copy.deepcopy(LOCKED)) for name in ("one", "two")]
        path = tmp_path / "notebooks" / part / f"{part}.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(new_notebook(cells=cells, metadata={"course": {"part": part}}), path)
    lab.copy_new(tmp_path / "notebooks", tmp_path / "my_work")
    return tmp_path / "my_work"


def change(path, **cells):
    """Give cells another source, or an output."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if said := cells.get(cell.id.replace("-", "_")):
            if said.startswith("source:"):
                cell.source = said.removeprefix("source:")
            else:
                cell.outputs, cell.execution_count = [new_output("stream", text=said)], 1
    nbformat.write(notebook, path)


def rows(work):
    start_page.write(work)
    lines = (work / start_page.FILE_NAME).read_text().splitlines()
    return {line.split("|")[1].strip(): line.split("|")[3].strip() for line in lines if line.startswith("| [")}


def test_it_says_what_is_begun_and_what_has_passed(work):
    warm, naive, experts = "[00 Warm-up](00_warmup.ipynb)", "[03 Naive](03_naive.ipynb)", "[24 Experts](24_experts.ipynb)"
    assert rows(work) == {warm: "", naive: "", experts: ""}
    text = (work / start_page.FILE_NAME).read_text()
    assert text.index("## Tensor parallelism and ZeRO\n\nAbout 2 hours.") < text.index("## A GPT on every axis")
    change(work / "00_warmup.ipynb", example="source:%%px\nx = 2")
    change(work / "03_naive.ipynb", check_one="collect: all ranks have what was expected.\n")
    assert rows(work) == {warm: "begun", naive: "begun, 1 of 2 checks passed", experts: ""}
    notebook = nbformat.read(work / "03_naive.ipynb", as_version=4)
    second = notebook.cells[-1]  # its first check passes, and another one in the same cell does not
    second.outputs = [new_output("stream", text="f: all ranks have what was expected.\n"), new_output("error", ename="CheckFailed")]
    second.execution_count = 2
    nbformat.write(notebook, work / "03_naive.ipynb")
    assert rows(work)[naive] == "begun, 1 of 2 checks passed"
    change(work / "03_naive.ipynb", check_two="collect: all ranks have what was expected.\n")
    assert rows(work)[naive] == "**all checks passed**"


def test_a_copy_has_what_jupyterlab_would_note_of_the_kernel(work):
    """Else a notebook that was only opened would be unsaved."""
    from ipykernel.ipkernel import IPythonKernel
    from ipykernel.kernelspec import get_kernel_dict

    found = nbformat.read(work / "03_naive.ipynb", as_version=4).metadata
    kernel = get_kernel_dict()
    assert found.kernelspec == {"display_name": kernel["display_name"], "language": kernel["language"], "name": "python3"}
    assert found.language_info == IPythonKernel.language_info and found.course == {"part": "03_naive"}


def test_what_is_no_notebook_of_the_course_is_left_out_and_a_page_of_ones_own_stays(work):
    (work / "04_mine.ipynb").write_text("{}")
    (work / "05_broken.ipynb").write_text("not json")
    nbformat.write(new_notebook(), work / "06_other.ipynb")
    assert len(rows(work)) == 3
    (work / start_page.FILE_NAME).write_text("# My notes\n")
    assert start_page.write(work) is None and (work / start_page.FILE_NAME).read_text() == "# My notes\n"


def test_a_copy_of_a_notebook_is_no_second_part(work):
    for name in ("03_naive.old.ipynb", "03_naive-Copy1.ipynb"):
        (work / name).write_bytes((work / "03_naive.ipynb").read_bytes())
    assert len(rows(work)) == 3


def test_what_cannot_be_read_stops_neither_saving_nor_make_lab(work):
    (work / ".originals" / "03_naive.ipynb").write_text("not json")
    assert len(rows(work)) == 2
    start_page.on_notebook_saved({"type": "notebook"}, os_path=str(work / "03_naive.ipynb"))
    (work / start_page.FILE_NAME).unlink()
    (work / start_page.FILE_NAME).mkdir()
    start_page.on_notebook_saved({"type": "notebook"}, os_path=str(work / "03_naive.ipynb"))
    assert "--LabApp.default_url=/lab " in " ".join(lab.command(work, []))


def test_it_is_written_anew_when_a_notebook_is_saved_and_opened_first(work):
    words = " ".join(lab.command(work, []))
    assert "--LabApp.default_url=/lab " in words
    start_page.on_notebook_saved({"type": "notebook"}, os_path=str(work / "03_naive.ipynb"))
    assert not (work / start_page.FILE_NAME).exists(), "on a hub, or where somebody has deleted it"
    start_page.write(work)
    assert f"--LabApp.default_url=/lab/tree/{start_page.FILE_NAME}" in " ".join(lab.command(work, []))
    change(work / "00_warmup.ipynb", example="done")
    start_page.on_notebook_saved({"type": "notebook"}, os_path=str(work / "00_warmup.ipynb"))
    assert "| begun |" in (work / start_page.FILE_NAME).read_text()
