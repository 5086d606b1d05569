"""Edits of a solved notebook, as students make them: each leaves it right, or a person is told.

``python tests/grading/submission/edited_notebooks.py --count 200 --seed 1 03_naive_forward`` grades
hand-ins that are edited at random, and lists those that lose points without a note.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Callable

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell

from grading.authoring import build
from grading.submission import sandbox
from grading.submission.grade import Task, grade
from grading.submission.matching import DEFINITION

Random = random.Random
EDITS: dict[str, Callable[[NotebookNode, Random], bool]] = {}
FORMATS: dict[str, Callable[[NotebookNode], bytes]] = {}
TOLD = re.compile(r"defines \w+ again|is missing|did not run|ranks .* only|in an experiment")  # what a note says
PX_LINES = [
    "%%px",
    "%% px",
    "%%PX",
    "%px",
    "%%px # mine",
    "%%px# mine",
    "%%px --block",
    "%%px  ",
    "%%px\xa0",
    "%%px --targets all",
    "%%px --trace",
]
REFUSED = ["%%px --noblock", "%%px --local", "%%px it's"]


def edit(function: Callable) -> Callable:
    """Register an edit: it is given the notebook and a Random; returns whether it has changed the notebook."""
    EDITS[function.__name__] = function
    return function


def format_of(function: Callable) -> Callable:
    """Register a way to save a notebook."""
    FORMATS[function.__name__] = function
    return function


def solved(source: NotebookNode) -> NotebookNode:
    """Return the notebook of a student with right answers: without the hidden tests' code."""
    notebook = nbformat.from_dict(source)
    for cell in notebook.cells:
        if build.kind_of(cell) == "test":
            cell.source = build.HIDDEN_NOTE
    return notebook


def edited(source: NotebookNode, kinds: list[str], saved_as: str, random: Random) -> tuple[bytes, list[str]]:
    """Return a hand-in with these edits, and which of them could be made."""
    notebook = solved(source)
    done = [kind for kind in kinds if EDITS[kind](notebook, random)]
    return FORMATS[saved_as](notebook), done


# Which edit, and where


def exercises(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the code cells that define what an exercise asks for."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and "%%px" in cell.source.lower()]
    return [cell for cell in cells if _is_exercise(cell)]


def _is_exercise(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def _number(notebook: NotebookNode, cell: NotebookNode) -> int:
    return next(i for i, other in enumerate(notebook.cells) if other is cell)


def _insert(notebook: NotebookNode, number: int, *cells: NotebookNode) -> None:
    notebook.cells[number:number] = cells


def _body(cell: NotebookNode) -> tuple[str, str]:
    """Return an exercise's first line and the rest, if it is as released; else empty texts."""
    first, _, rest = cell.source.partition("\n")
    return (first, rest) if first == "%%px" else ("", "")


def _any(notebook: NotebookNode, random: Random) -> NotebookNode | None:
    """Choose an exercise that is as released."""
    plain = [cell for cell in exercises(notebook) if _body(cell)[0]]
    return random.choice(plain) if plain else None


def on_an_exercise(change: Callable[[NotebookNode, NotebookNode, str, Random], None]) -> Callable:
    """Register an edit of an exercise that is as released; it is given the cell and its code."""

    def function(notebook: NotebookNode, random: Random) -> bool:
        cell = _any(notebook, random)
        if cell is None:
            return False
        return change(notebook, cell, _body(cell)[1], random) is not False

    function.__name__ = change.__name__
    return edit(function)


# The top of a cell


@on_an_exercise
def comment_above(notebook, cell, code, random):
    above = random.choice(["# my answer\n", "\n\n", "# one\n\n   # two\n\t\n", "#\n", "\ufeff", "# %%px\n"])
    cell.source = f"{above}%%px\n{code}"


@on_an_exercise
def timed(notebook, cell, code, random):
    magics = random.sample(["%%time", "%%capture", "%%capture out", "%%timeit -n1 -r1", "%%prun -q"], 2)
    top = "\n".join(random.choice([magics[:1], magics, ["# mine", magics[0], "", "# mine"]]))
    cell.source = f"{top}\n%%px\n{code}"


@on_an_exercise
def measured_on_the_ranks(notebook, cell, code, random):
    cell.source = f"%%px\n{random.choice(['', '# mine' + chr(10)])}{random.choice(['%%time', '%%capture'])}\n{code}"


@on_an_exercise
def px_in_another_way(notebook, cell, code, random):
    cell.source = f"{random.choice(PX_LINES)}\n{code}"


@on_an_exercise
def px_that_is_refused(notebook, cell, code, random):
    """In a notebook the cell does not run; graded it does: the student may have meant %%px."""
    cell.source = f"{random.choice(REFUSED)}\n{code}"


@on_an_exercise
def px_forgotten(notebook, cell, code, random):
    cell.source = code


@on_an_exercise
def px_on_the_second_line(notebook, cell, code, random):
    cell.source = f"import math\n%%px\n{code}"


@on_an_exercise
def indented(notebook, cell, code, random):
    if "'''" in code or '"""' in code.replace('"""', "", 2):
        return False
    cell.source = "\n".join(f"    {line}" if line else line for line in cell.source.split("\n"))


@on_an_exercise
def magics_and_commands(notebook, cell, code, random):
    lines = ["%matplotlib inline", "!pip list", "files = !ls", "%load_ext autoreload", "%load_ext line_profiler", "%time 1 + 1"]
    cell.source = "\n".join(["%%px", *random.sample(lines, 2), code])


@on_an_exercise
def spaces_at_the_ends_of_lines(notebook, cell, code, random):
    lines = cell.source.split("\n")
    cell.source = "\n".join(line if line.endswith("\\") else f"{line}  " for line in lines) + "\n\n \n"


# Cells split, merged, moved, copied


@on_an_exercise
def split(notebook, cell, code, random):
    """Cut the cell before one of its definitions, or after the imports at its top."""
    places = [m.start() for m in re.finditer(r"^(?:@|def |class |async def |[A-Z_]+ =)", code, re.MULTILINE)]
    place = random.choice([0, *places[1:]])
    lower = nbformat.from_dict(cell)
    lower.id = f"lower-{_number(notebook, cell)}"
    lower.source = f"%%px\n{code[place:]}"
    cell.source = f"%%px\nimport math\n{code[:place]}"
    if random.random() < 0.5:
        lower.metadata = nbformat.from_dict({})
    _insert(notebook, _number(notebook, cell) + 1, lower)


@on_an_exercise
def merged(notebook, cell, code, random):
    """Merge the exercise with the next cell that is for the ranks, as JupyterLab does."""
    number = _number(notebook, cell)
    below = [c for c in notebook.cells[number + 1 :] if c.cell_type == "code" and c.source.startswith("%%px\n") and not _locked(c)]
    if not below:
        return False
    other = below[0]
    top = "" if random.random() < 0.5 else "%%px\n"
    cell.source = f"%%px\n{code}\n{top}{other.source.partition(chr(10))[2]}"
    if random.random() < 0.3 and not _is_exercise(other):
        cell.metadata, cell.id = other.metadata, other.id  # the lower one stays
    notebook.cells.remove(other)


def _locked(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("locked"))


@edit
def moved(notebook, random):
    found = exercises(notebook)
    if not found:
        return False
    cell = random.choice(found)
    notebook.cells.pop(_number(notebook, cell))
    _insert(notebook, random.randrange(len(notebook.cells) + 1), cell)
    return True


@edit
def tests_moved(notebook, random):
    tests = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade") and cell.cell_type == "code"]
    for cell in tests[:1]:
        notebook.cells.pop(_number(notebook, cell))
        _insert(notebook, random.randrange(len(notebook.cells) + 1), cell)
    return bool(tests)


def _older(cell: NotebookNode, random: Random) -> NotebookNode:
    """Return a copy of an exercise, with or without its metadata, that was wrong."""
    copy = nbformat.from_dict(cell)
    copy.id = f"older-{random.randrange(1000)}"
    names = DEFINITION.findall(cell.source)
    copy.source = "%%px\n" + "\n".join(f"def {name}(*arguments, **named):\n    return None" for name in names)
    if random.random() < 0.5:
        copy.metadata = nbformat.from_dict({})
    return copy


@on_an_exercise
def older_version_above(notebook, cell, code, random):
    _insert(notebook, _number(notebook, cell), _older(cell, random))


@on_an_exercise
def older_version_below(notebook, cell, code, random):
    _insert(notebook, _number(notebook, cell) + 1, _older(cell, random))


@on_an_exercise
def answer_above_the_empty_exercise(notebook, cell, code, random):
    answer = new_code_cell(cell.source, id=f"answer-{random.randrange(1000)}")
    names = DEFINITION.findall(code)
    cell.source = "%%px\n" + "\n".join(f"def {name}():\n    raise NotImplementedError()" for name in names)
    _insert(notebook, _number(notebook, cell) - random.choice([0, 1]), answer)


@on_an_exercise
def answer_in_another_cell(notebook, cell, code, random):
    others = [c for c in notebook.cells if c.cell_type == "code" and not _is_exercise(c) and c.source.startswith("%%px") and not _locked(c)]
    if not others:
        return False
    other = random.choice(others)
    other.source = cell.source
    notebook.cells.pop(_number(notebook, cell))


# Helpers, and cells of the student's own


def _delegated(cell: NotebookNode, code: str) -> str | None:
    """Have an exercise's function call one with the answer; return that one's code, or None if the exercise is no single function."""
    names = DEFINITION.findall(code)
    if len(names) != 1 or not re.search(rf"^def {names[0]}\(", code, re.MULTILINE):
        return None
    cell.source = f"%%px\ndef {names[0]}(*arguments, **named):\n    return my_{names[0]}(*arguments, **named)"
    return re.sub(rf"\b{names[0]}\b", f"my_{names[0]}", code)


@on_an_exercise
def helper_in_a_cell(notebook, cell, code, random):
    helper = _delegated(cell, code)
    if helper is None:
        return False
    _insert(notebook, random.randrange(len(notebook.cells) + 1), new_code_cell(f"%%px\n{helper}"))


@on_an_exercise
def helper_in_a_file(notebook, cell, code, random):
    helper = _delegated(cell, code)
    if helper is None:
        return False
    name = re.search(r"my_\w+", cell.source)[0]
    names = "import numpy as np\nfrom mpi4py import MPI\n"
    top = random.choice(["", "%%px\n"])
    cell.source = cell.source.replace("%%px\n", f"%%px\nfrom file_{name} import {name}\n")
    _insert(notebook, _number(notebook, cell), new_code_cell(f"{top}%%writefile file_{name}.py\n{names}{helper}"))


@on_an_exercise
def helper_in_an_experiment(notebook, cell, code, random):
    experiments = [c for c in notebook.cells if {"experiment", "folded"} & set(c.metadata.get("tags", [])) and c.source.startswith("%%px")]
    helper = _delegated(cell, code) if experiments else None
    if helper is None:
        return False
    random.choice(experiments).source += f"\n{helper}"


@on_an_exercise
def helper_in_a_line(notebook, cell, code, random):
    _insert(notebook, _number(notebook, cell), new_code_cell("%px import math as my_math\nx = 1\n%px my_number = my_math.floor(1.5)"))
    cell.source = f"%%px\nassert my_number == 1\n{code}"


DOODLES = [
    "%%px\nprint(comm.Get_rank())",
    "print('in the kernel')",
    "rank = comm = np = None",
    "%%px --targets 0\nmy_doodle = 1",
    "%px my_doodle = 2",
    "%%px\n1 / 0",
    "%%time\n# mine\n%%px\nmy_doodle = {1: 2}",
    "!ls",
    "%%px --targets 9\nmy_doodle = 3",
    "def helper():\n    pass",
    "%%html\n<b>x</b>",
]


@edit
def doodles(notebook, random):
    for _ in range(3):
        _insert(notebook, random.randrange(len(notebook.cells) + 1), new_code_cell(random.choice(DOODLES)))
    return True


@edit
def tidied_below_the_tests(notebook, random):
    names = [name for cell in exercises(notebook) for name in DEFINITION.findall(cell.source)]
    tests = [i for i, cell in enumerate(notebook.cells) if cell.source == build.HIDDEN_NOTE]
    if not names or not tests:
        return False
    tidy = random.choice([f"%%px\ndel {names[0]}", "%%px\n%reset -f", "%%px\ncomm.Barrier()\ncomm = None"])
    notebook.cells.append(new_code_cell(tidy))
    return True


@edit
def texts_between(notebook, random):
    for new_cell in (new_markdown_cell, new_raw_cell):
        text = random.choice(["my notes", "```python\ndef helper(x):\n    pass\n```", ""])
        _insert(notebook, random.randrange(len(notebook.cells) + 1), new_cell(text))
    return True


# What grading cannot do: a person must be told


def _is_alone(notebook: NotebookNode, cell: NotebookNode) -> bool:
    """Return whether the cell is the only one that defines its exercise, and not the only exercise."""
    names = set(DEFINITION.findall(cell.source))
    others = [c for c in notebook.cells if c is not cell and names & set(DEFINITION.findall(c.source))]
    return len(exercises(notebook)) > 1 and not others


@on_an_exercise
def made_a_text(notebook, cell, code, random):
    if len(exercises(notebook)) < 2:
        return False
    new_cell = random.choice([new_markdown_cell, new_raw_cell])
    notebook.cells[_number(notebook, cell)] = new_cell(cell.source, id=cell.id, metadata=cell.metadata)


@on_an_exercise
def on_one_rank(notebook, cell, code, random):
    cell.source = f"%%px {random.choice(['--targets 0', '-t 0:1'])}\n{code}"


@on_an_exercise
def deleted(notebook, cell, code, random):
    if not _is_alone(notebook, cell):
        return False
    notebook.cells.pop(_number(notebook, cell))


# Ids, and formats


@edit
def some_ids_dropped(notebook, random):
    for cell in notebook.cells:
        if random.random() < 0.5:
            cell.metadata, cell.id = nbformat.from_dict({}), f"new-{random.randrange(10**6)}"
    return True


@format_of
def as_it_is(notebook):
    return json.dumps(notebook).encode()


@format_of
def without_ids(notebook):
    notebook.nbformat_minor = 4
    for cell in notebook.cells:
        del cell["id"]
    return json.dumps(notebook).encode()


@format_of
def without_ids_and_metadata(notebook):
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
    notebook.metadata = nbformat.from_dict({})
    return without_ids(notebook)


@format_of
def version_3(notebook):
    kinds = {"code": ("input", {"language": "python", "outputs": []}), "markdown": ("source", {}), "raw": ("source", {})}
    cells = []
    for cell in notebook.cells:
        text, more = kinds[cell.cell_type]
        cells.append({"cell_type": cell.cell_type, text: cell.source.splitlines(True), "metadata": {}, **more})
    return json.dumps({"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": cells}]}).encode()


@format_of
def windows_lines(notebook):
    return json.dumps(notebook).replace("\\n", "\\r\\n").encode()


@format_of
def byte_order_mark(notebook):
    return b"\xef\xbb\xbf" + json.dumps(notebook).encode()


@format_of
def utf_16(notebook):
    return json.dumps(notebook).encode("utf-16")


def hand_ins(source: NotebookNode, count: int, seed: int, several: int = 3):
    """Yield hand-ins with several edits each: (name, file, edits that were made). Each kind comes up as often as any other."""
    kinds: list[str] = []
    formats: list[str] = []
    for number in range(count):
        drawn = Random(f"{seed} {number} {source.metadata.course.part}")
        for names, all_of_them in ((kinds, EDITS), (formats, FORMATS)):
            while len(names) < several:
                names += drawn.sample(sorted(all_of_them), len(all_of_them))
        saved_as = formats.pop(0)
        file, done = edited(source, [kinds.pop(0) for _ in range(several)], saved_as, drawn)
        yield f"{number}: {', '.join(done)}; {saved_as}", file, done


def notes(flags: list) -> list[str]:
    """Return the flags that say where grading differs from the notebook."""
    return [why for _, _, _, why in flags if TOLD.search(why)]


def main() -> None:
    """Grade edited hand-ins of some parts; print those that lose points, and what a person is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    variables = {"COURSE_UNATTENDED": "120", **sandbox.sandbox_variables()}
    lost = told = total = 0
    for i, part in enumerate(options.parts):
        source = build.build(part)
        text = nbformat.writes(source)
        whole = build.points(source)
        count = options.count // len(options.parts) + (i < options.count % len(options.parts))
        for name, file, _ in hand_ins(source, count, options.seed):
            began = time.monotonic()
            result = grade(Task(text, file, variables=variables))
            points = sum(result.points.values())
            flags = json.loads(result.notebook)["metadata"]["course"]["flags"] if result.notebook else [("", 0, "", result.problem)]
            said = notes(flags) or ([result.problem] if result.problem else [])
            total += 1
            told += points != whole and bool(said)
            lost += points != whole and not said
            how = "ok" if points == whole else "told" if said else "LOST"
            print(f"{how:5}{part} {points:g}/{whole:g} {time.monotonic() - began:.0f}s {name} {said}", flush=True)
    print(
        f"{total} hand-ins, seed {options.seed}: {total - told - lost} with all points, {told} with a note, {lost} lost points without one"
    )
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
