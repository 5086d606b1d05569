"""From `solutions/` to the notebook that nbgrader takes as its source.

A part's source is text in jupytext's percent format. Each code cell has a title and may have a tag:

    given      set up, draw, check: folded until a click opens it; the student cannot change it, and grading takes it from here
    exercise   the student writes what stands between BEGIN SOLUTION and END SOLUTION
    test       hidden; `points=` says what it is worth
    (none)     a worked example, to run and change

and so has a text, ``# %% A title [markdown] tags=["written"] points=2``, that the student writes: a person gives its points in the
formgrader. What stands there in the source is a model answer, which students do not get.

A cell of any kind may have a second tag, for those who show the part as slides (see `lectures`):

    slide      a slide begins here; it is in every cut of the talk, also in that of 15 minutes
    slide-50   a slide of talks of 50 minutes and more
    slide-all  a slide of the whole talk only
    fragment   comes at the next key, on the same slide
    skip       is on no slide

A worked example may be called

    long       grading does not run it, unless the student has changed it: it takes long, and nothing is graded by it

In a text, {points} stands for the points of all hidden tests and written answers; and a line with nothing but a name in braces for what the
function of that name in the part's `figures.py` gives: figures are computed when the notebook is built, and never typed. This turns it all
into nbgrader's metadata. The same text gives the same bytes.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
import os
import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from grading.paths import SOLUTIONS

CODE_CELL_KINDS = ("given", "exercise", "test")
WRITTEN_ANSWER = "written"
YOUR_ANSWER = "*Your answer, in words: double-click here, write it in place of this line, then press Shift-Enter.*"
SLIDES = {  # what nbconvert and other programs call it, and from how many minutes on
    "slide": ("slide", 15),
    "slide-50": ("slide", 50),
    "slide-all": ("slide", 1000),
    "fragment": ("fragment", None),
    "notes": ("notes", None),
    "skip": ("skip", None),
}
OTHER_TAGS = ("long", "raises-exception")
SOURCE_MARKS = tuple(f"### {side} {what}" for what in ("SOLUTION", "HIDDEN TESTS") for side in ("BEGIN", "END"))
# The first word in the title of a given cell that only shows something.
DISPLAY_TITLE_WORDS = ("draw", "count", "check", "compare", "forget", "kill", "measure", "run", "time", "train")
DISPLAY_STATEMENTS = (ast.Expr, ast.For, ast.While, ast.If, ast.With, ast.Try)  # statements
MAX_CODE_COLUMNS = 88  # columns of a line of code that fit where a student sees it
HIDDEN_NOTE = "# A hidden test: it runs when your notebook is graded."


class SourceError(ValueError):
    """A part's source is not as it should be; the message says which cell."""


def build(part: str) -> NotebookNode:
    """The notebook of a part, with solutions and hidden tests.

    Parameters
    ----------
    part : str
        Name of a folder of `solutions/`.

    Raises
    ------
    SourceError
        A cell has no title, two have the same one, a tag or a mark is misspelt, an exercise has no solution marks, a test or a written
        answer has no points, or a test shows something outside the marks. The message names the cell and its line.
    """
    return from_text((SOLUTIONS / part / f"{part}.py").read_text(), part)


def from_text(text: str, part: str) -> NotebookNode:
    """The notebook of a part, from its source text (see `build`)."""
    import jupytext  # late: where one hand-in is graded alone, there is none

    _check_marks(text, part)
    notebook = jupytext.reads(text, fmt="py:percent")
    course = notebook.metadata.get("course", {})
    if not isinstance(course.get("ranks"), int):
        raise SourceError(f"{part}: the header must say how many ranks the part uses (course: ranks: 4).")
    notebook.metadata = nbformat.from_dict(
        {
            "course": {"part": part, "ranks": course["ranks"]},
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    seen: set[str] = set()
    texts = 0
    for cell in notebook.cells:
        if "notes" in cell.metadata.get("tags", []):
            raise SourceError(f"{part}: a speaker's notes stand in talk.py; here students would read them.")
        if cell.cell_type == "markdown" and WRITTEN_ANSWER not in cell.metadata.get("tags", []) and "points" not in cell.metadata:
            texts += 1
            _known_tags(cell, f"{part}, the text that begins with {cell.source[:60]!r}: ")
            cell.id, cell.metadata = f"text-{texts}", nbformat.from_dict(slide(cell))
            continue
        title = cell.metadata.get("title", "")
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]
        if not name or name in seen:
            kind = "code cell" if cell.cell_type == "code" else "written answer"
            why = f"another cell is called {title!r}, too" if title else "it has none"
            raise SourceError(f"{part}: a {kind} needs a title of its own after '# %%', and {why}. It begins with {cell.source[:60]!r}.")
        seen.add(name)
        cell.id = name
        try:
            cell.metadata = nbformat.from_dict(_metadata(cell, name) | slide(cell))
        except SourceError as problem:
            line = next((n for n, line in enumerate(text.splitlines(), 1) if re.match(rf"# %+ +{re.escape(title)}\b", line)), 0)
            raise SourceError(f"{part}.py, line {line}, cell {title!r}: {problem}") from None
    whole = f"{points(notebook):g}"
    for cell in notebook.cells:
        if kind_of(cell) == "text":
            cell.source = _figures(part, cell.source.replace("{points}", whole))
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def _check_marks(text: str, part: str) -> None:
    """Raise SourceError where a mark is misspelt, or its pair is missing."""
    began: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = line.strip()
        if began and line.startswith("# %%"):
            raise SourceError(f"{part}.py, line {began[0]}: {began[1]!r} has no {began[1].replace('BEGIN', 'END')!r} in its cell.")
        if not mark.startswith("###"):
            continue
        if mark not in SOURCE_MARKS:
            near = difflib.get_close_matches(mark, SOURCE_MARKS, 1, 0.5)
            raise SourceError(f"{part}.py, line {number}: {mark!r} is not a mark." + (f" Is {near[0]!r} meant?" if near else ""))
        if (mark == began[1].replace("BEGIN", "END")) if began else ("BEGIN" in mark):
            began = None if began else (number, mark)
        else:
            raise SourceError(
                f"{part}.py, line {number}: {mark!r} does not fit: " + (f"{began[1]!r} is open." if began else "nothing is open.")
            )
    if began:
        raise SourceError(f"{part}.py, line {began[0]}: {began[1]!r} has no {began[1].replace('BEGIN', 'END')!r} in its cell.")


def _figures(part: str, text: str) -> str:
    names = re.findall(r"^\{([a-z_]+)\}$", text, re.MULTILINE)
    return functools.reduce(lambda text, name: text.replace(f"{{{name}}}", _figure(part, name)), names, text)


@functools.cache
def _figure(part: str, name: str) -> str:
    """What a function of a part's `figures.py` gives."""
    path = SOLUTIONS / part / "figures.py"
    spec = importlib.util.spec_from_file_location(f"figures_{part}", path)
    if not path.exists():
        raise SourceError(f"{part}: a text has {{{name}}}, and there is no figures.py.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise SourceError(f"{part}: a text has {{{name}}}, and figures.py has no such function.")
    return getattr(module, name)()


def points(notebook: NotebookNode) -> float:
    """What a part is worth: its hidden tests, and its written answers."""
    return sum(cell.metadata.nbgrader["points"] for cell in notebook.cells if kind_of(cell) in ("test", WRITTEN_ANSWER))


def _metadata(cell: NotebookNode, name: str) -> dict:
    if unread := cell.metadata.get("incorrectly_encoded_metadata"):
        raise SourceError(f'{unread} is not understood; the form is tags=["test"] points=3.')
    tags = _known_tags(cell)
    kind = next((t for t in tags if t in (*CODE_CELL_KINDS, WRITTEN_ANSWER)), None)
    others = [t for t in tags if t not in (*CODE_CELL_KINDS, WRITTEN_ANSWER, *SLIDES)]
    metadata: dict = {"tags": others} if others else {}
    if cell.cell_type == "markdown" and kind is None:
        raise SourceError(f"a text with points needs tags=[{WRITTEN_ANSWER!r}].")
    if kind:
        points = cell.metadata.get("points")
        if kind in ("test", WRITTEN_ANSWER) and (isinstance(points, bool) or not isinstance(points, (int, float)) or not 0 < points < 1000):
            raise SourceError(f"a {kind if kind == 'test' else 'written answer'} needs points=, a number above 0; got {points!r}.")
        if (kind == WRITTEN_ANSWER) != (cell.cell_type == "markdown"):
            raise SourceError(f"the tag {WRITTEN_ANSWER!r}, and no other of the kinds, is for a text, with [markdown] after its title.")
        if kind == "exercise":
            if "### BEGIN SOLUTION" not in cell.source or not cell.source.startswith("%%px"):
                raise SourceError("an exercise needs %%px on top, and BEGIN SOLUTION and END SOLUTION.")
        elif kind == "test":
            if not re.fullmatch(r"### BEGIN HIDDEN TESTS\n.*\n### END HIDDEN TESTS", cell.source, re.DOTALL):
                raise SourceError("a test needs one pair of BEGIN and END HIDDEN TESTS round all of it.")
            cell.source = f"{HIDDEN_NOTE}\n{cell.source}"
        metadata["nbgrader"] = {
            "grade": kind in ("test", WRITTEN_ANSWER),
            "grade_id": name,
            "locked": kind not in ("exercise", WRITTEN_ANSWER),
            "schema_version": 3,
            "solution": kind in ("exercise", WRITTEN_ANSWER),
            "task": False,
        }
        if kind in ("test", WRITTEN_ANSWER):
            metadata["nbgrader"]["points"] = points
        if kind == "given" and ("\n" in cell.source or len(cell.source) > MAX_CODE_COLUMNS):
            cell.source = _titled(_with_confirmation(cell.source), cell.metadata["title"])
            metadata["jupyter"] = {"source_hidden": True}
    return metadata


def _known_tags(cell: NotebookNode, where: str = "") -> list[str]:
    """The tags of a cell; SourceError where one is misspelt."""
    tags = cell.metadata.get("tags", [])
    for tag in tags if isinstance(tags, list) else [tags]:
        if tag not in (*CODE_CELL_KINDS, WRITTEN_ANSWER, *SLIDES, *OTHER_TAGS):
            near = difflib.get_close_matches(str(tag), (*CODE_CELL_KINDS, WRITTEN_ANSWER, *SLIDES, *OTHER_TAGS), 1)
            raise SourceError(f"{where}there is no tag {tag!r}." + (f" Is {near[0]!r} meant?" if near else ""))
    return tags


def slide(cell: NotebookNode) -> dict:
    """Where a cell of the source stands in a talk, as metadata."""
    kind, minutes = next((SLIDES[tag] for tag in cell.metadata.get("tags", []) if tag in SLIDES), (None, None))
    return ({"slideshow": {"slide_type": kind}} if kind else {}) | ({"course": {"minutes": minutes}} if minutes else {})


def _titled(source: str, title: str) -> str:
    """A cell whose first line, the only one that shows while it is folded, says what it does."""
    magic, _, rest = source.partition("\n")
    return f"{magic}  # {title}\n{rest}" if magic.startswith("%%") else f"# {title}\n{source}"


def _with_confirmation(source: str) -> str:
    """Have a folded cell that shows nothing say that it has run. (``%%px`` does so itself, see `cluster.notebook.magic`.)

    >>> _with_confirmation("def f():\\n    pass")
    "def f():\\n    pass\\n\\n\\nprint('Defined: f.')"
    """
    if source.startswith("%%"):
        return source
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a line for IPython
        return source
    if not body or any(isinstance(statement, DISPLAY_STATEMENTS) for statement in body):
        return source
    names = [s.name for s in body if isinstance(s, (ast.FunctionDef, ast.ClassDef))]
    sign = "ranks" if "cluster.start(" in source else f"print({'Defined: ' + ', '.join(names) + '.' if names else 'Done.'!r})"
    return f"{source}\n\n\n{sign}" if isinstance(body[-1], (ast.FunctionDef, ast.ClassDef)) else f"{source}\n{sign}"


def kind_of(cell: NotebookNode) -> str:
    """ "given", "exercise", "test", "example", "written" or "text", for a cell that `build` made."""
    marks = cell.metadata.get("nbgrader")
    if cell.cell_type != "code":
        return WRITTEN_ANSWER if marks and marks["solution"] else "text"
    if not marks:
        return "example"
    return "exercise" if marks["solution"] else "test" if marks["grade"] else "given"


def only_shows(cell: NotebookNode) -> bool:
    """Whether a given cell is there for a person's eyes alone."""
    return kind_of(cell) == "given" and cell.id.partition("-")[0] in DISPLAY_TITLE_WORDS


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook, always the same bytes for the same notebook."""
    write_atomically(nbformat.writes(notebook, version=4), path)


def write_atomically(text: str, path: Path) -> None:
    """Write a file, whole or not at all, whatever ends this process meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
