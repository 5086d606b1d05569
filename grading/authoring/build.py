"""Build the notebook that nbgrader takes as its source from `solutions/`.

A part's source is a text file in jupytext's percent format. Each code cell has a title and may have a tag:

    given      sets up, draws or checks: folded until clicked; students cannot change it, and grading takes it from the source
    exercise   the student writes the code between BEGIN SOLUTION and END SOLUTION
    test       hidden; `points=` says what it is worth
    (none)     a worked example, to run and change
    folded     like a worked example, but folded: it draws or counts, with the numbers to play with at its top; grading skips it

A text cell with the tag "written", ``# %% A title [markdown] tags=["written"] points=2``, is answered by the student; a person gives its
points in the formgrader. Its text in the source is a model answer, which students do not get.

A cell of any kind may have a second tag for showing the part as slides (see `lectures`):

    slide      starts a slide that is in every version of the talk, even the one of 15 minutes
    slide-50   starts a slide of talks of 50 minutes and more
    slide-all  starts a slide of the full talk only
    fragment   appears on the same slide at the next key press
    skip       is on no slide

A worked example may be tagged

    experiment   it tries out what the student has written, and students change it: grading never runs it

Worked examples after the last exercise have this tag, unless a later cell needs them: they stand before the hidden tests, and a student who
plays with their numbers must not lose points for it.

In a text, {points} stands for the total points of hidden tests and written answers. A line that is only a name in braces is replaced by the
result of the function of that name in the part's `figures.py`: figures are computed when the notebook is built, never typed. All this
becomes nbgrader metadata. The same text always gives the same bytes.
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
from nbformat.v4 import new_markdown_cell

from grading.authoring import survey
from grading.paths import SOLUTIONS

FOLDED_TAG = "folded"  # tag of an unlocked cell that draws or counts
CODE_CELL_KINDS = ("given", "exercise", "test", FOLDED_TAG)
WRITTEN_ANSWER = "written"
YOUR_ANSWER = "*Your answer, in words: double-click here, write it in place of this line, then press Shift-Enter.*"
SLIDES = {  # nbconvert's slide type, and the shortest talk, in minutes, that has it
    "slide": ("slide", 15),
    "slide-50": ("slide", 50),
    "slide-all": ("slide", 1000),
    "fragment": ("fragment", None),
    "notes": ("notes", None),
    "skip": ("skip", None),
}
EXPERIMENT_TAG = "experiment"  # tag of an example that grading does not run
OTHER_TAGS = (EXPERIMENT_TAG, "raises-exception")
SOURCE_MARKS = tuple(f"### {side} {what}" for what in ("SOLUTION", "HIDDEN TESTS") for side in ("BEGIN", "END"))
# First words in titles of given cells that no test depends on: they show something, or save functions.
DISPLAY_TITLE_WORDS = (
    *("draw", "count", "check", "compare", "forget", "kill", "measure", "run", "save", "time"),
    "train",
)
DISPLAY_STATEMENTS = (ast.Expr, ast.For, ast.While, ast.If, ast.With, ast.Try)  # statement types
MAX_CODE_COLUMNS = 88  # columns of a code line that fit on a student's screen
TESTS_HEADING, SURVEY_ID = "## Hidden tests", "survey"
HIDDEN_NOTE = "# A hidden test: it runs when your notebook is graded."


class SourceError(ValueError):
    """Error in a part's source; the message names the cell."""


def build(part: str) -> NotebookNode:
    """Build the notebook of a part, with solutions and hidden tests.

    Parameters
    ----------
    part : str
        Name of a folder in `solutions/`.

    Raises
    ------
    SourceError
        A cell has no title or a duplicate one, a tag or a mark is misspelled, an exercise has no solution marks, a test or a written
        answer has no points, or a test shows something outside the marks. The message names the cell and its line.
    """
    return from_text((SOLUTIONS / part / f"{part}.py").read_text(), part)


def from_text(text: str, part: str) -> NotebookNode:
    """Build the notebook of a part from its source text (see `build`)."""
    import jupytext  # imported late: not installed where single submissions are graded

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
            raise SourceError(f"{part}: speaker notes belong in talk.py; here, students would read them.")
        if cell.cell_type == "markdown" and WRITTEN_ANSWER not in cell.metadata.get("tags", []) and "points" not in cell.metadata:
            texts += 1
            _known_tags(cell, f"{part}, the text that begins with {cell.source[:60]!r}: ")
            cell.id, cell.metadata = f"text-{texts}", nbformat.from_dict(slide(cell))
            continue
        title = cell.metadata.get("title", "")
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]
        if not name or name in seen:
            kind = "code cell" if cell.cell_type == "code" else "written answer"
            why = f"another cell is also called {title!r}" if title else "it has none"
            raise SourceError(f"{part}: a {kind} needs a unique title after '# %%', but {why}. It begins with {cell.source[:60]!r}.")
        seen.add(name)
        cell.id = name
        try:
            cell.metadata = nbformat.from_dict(_metadata(cell, name) | slide(cell))
        except SourceError as problem:
            line = next((n for n, line in enumerate(text.splitlines(), 1) if re.match(rf"# %+ +{re.escape(title)}\b", line)), 0)
            raise SourceError(f"{part}.py, line {line}, cell {title!r}: {problem}") from None
    _check_order(notebook, part)
    notebook.cells.append(new_markdown_cell(survey.TEXT, id=SURVEY_ID, metadata={"slideshow": {"slide_type": "skip"}}))
    whole = f"{points(notebook):g}"
    for cell in notebook.cells:
        if kind_of(cell) == "text":
            cell.source = _figures(part, cell.source.replace("{points}", whole))
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def _check_order(notebook: NotebookNode, part: str) -> None:
    """Raise SourceError if a cell that runs a student's code is below a hidden test.

    While the tests run, nothing may change what they test.
    """
    test = ""
    for cell in notebook.cells:
        kind = kind_of(cell)
        test = test or (cell.id if kind == "test" else "")
        if test and kind in ("exercise", "example"):
            order = f"the cell {cell.id!r} must be above all hidden tests, but is below {test!r}"
            raise SourceError(f"{part}: {order}. No cell of a hand-in runs once a test has begun.")


def _check_marks(text: str, part: str) -> None:
    """Raise SourceError if a mark is misspelled or its counterpart is missing."""
    began: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = line.strip()
        if began and line.startswith("# %%"):
            raise SourceError(f"{part}.py, line {began[0]}: {began[1]!r} has no {began[1].replace('BEGIN', 'END')!r} in its cell.")
        if not mark.startswith("###"):
            continue
        if mark not in SOURCE_MARKS:
            near = difflib.get_close_matches(mark, SOURCE_MARKS, 1, 0.5)
            raise SourceError(f"{part}.py, line {number}: {mark!r} is not a known mark." + (f" Did you mean {near[0]!r}?" if near else ""))
        if (mark == began[1].replace("BEGIN", "END")) if began else ("BEGIN" in mark):
            began = None if began else (number, mark)
        else:
            raise SourceError(
                f"{part}.py, line {number}: {mark!r} is out of place: " + (f"{began[1]!r} is still open." if began else "no block is open.")
            )
    if began:
        raise SourceError(f"{part}.py, line {began[0]}: {began[1]!r} has no {began[1].replace('BEGIN', 'END')!r} in its cell.")


def _figures(part: str, text: str) -> str:
    names = re.findall(r"^\{([a-z_]+)\}$", text, re.MULTILINE)
    return functools.reduce(lambda text, name: text.replace(f"{{{name}}}", _figure(part, name)), names, text)


@functools.cache
def _figure(part: str, name: str) -> str:
    """Return the result of a function in a part's `figures.py`."""
    path = SOLUTIONS / part / "figures.py"
    spec = importlib.util.spec_from_file_location(f"figures_{part}", path)
    if not path.exists():
        raise SourceError(f"{part}: a text has {{{name}}}, but there is no figures.py.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise SourceError(f"{part}: a text has {{{name}}}, but figures.py has no such function.")
    return getattr(module, name)()


def points(notebook: NotebookNode) -> float:
    """Return the points of a part: its hidden tests and written answers."""
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
            raise SourceError(f"the tag {WRITTEN_ANSWER!r} is for texts, with [markdown] after the title, and texts take no other kind.")
        if kind == "exercise":
            if "### BEGIN SOLUTION" not in cell.source or not cell.source.startswith("%%px"):
                raise SourceError("an exercise needs %%px on its first line, and BEGIN SOLUTION and END SOLUTION.")
        elif kind == "test":
            if not re.fullmatch(r"### BEGIN HIDDEN TESTS\n.*\n### END HIDDEN TESTS", cell.source, re.DOTALL):
                raise SourceError("a test needs one pair of BEGIN and END HIDDEN TESTS around all of its code.")
            cell.source = f"{HIDDEN_NOTE}\n{cell.source}"
        if kind in ("given", FOLDED_TAG):
            cell.source = _titled(_with_confirmation(cell.source), cell.metadata["title"])
            metadata["jupyter"] = {"source_hidden": True}
        if kind == FOLDED_TAG:
            return metadata | {"tags": [*others, FOLDED_TAG]}
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
    return metadata


def _known_tags(cell: NotebookNode, where: str = "") -> list[str]:
    """Return the tags of a cell; raise SourceError if one is misspelled."""
    tags = cell.metadata.get("tags", [])
    for tag in tags if isinstance(tags, list) else [tags]:
        if tag not in (*CODE_CELL_KINDS, WRITTEN_ANSWER, *SLIDES, *OTHER_TAGS):
            near = difflib.get_close_matches(str(tag), (*CODE_CELL_KINDS, WRITTEN_ANSWER, *SLIDES, *OTHER_TAGS), 1)
            raise SourceError(f"{where}there is no tag {tag!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
    return tags


def slide(cell: NotebookNode) -> dict:
    """Return a cell's slide settings as metadata."""
    kind, minutes = next((SLIDES[tag] for tag in cell.metadata.get("tags", []) if tag in SLIDES), (None, None))
    return ({"slideshow": {"slide_type": kind}} if kind else {}) | ({"course": {"minutes": minutes}} if minutes else {})


def _titled(source: str, title: str) -> str:
    """Put a cell's title on its first line, the only one visible while it is folded."""
    magic, _, rest = source.partition("\n")
    return f"{magic}  # {title}\n{rest}" if magic.startswith("%%") else f"# {title}\n{source}"


def _with_confirmation(source: str) -> str:
    """Make a folded cell without output print that it has run. (``%%px`` does so itself, see `cluster.notebook.magic`.)

    >>> _with_confirmation("def f():\\n    pass")
    "def f():\\n    pass\\n\\n\\nprint('Defined: f.')"
    """
    if source.startswith("%%"):
        return source
    try:
        body = ast.parse(source).body
    except SyntaxError:  # an IPython line
        return source
    if not body or any(isinstance(statement, DISPLAY_STATEMENTS) for statement in body):
        return source
    names = [s.name for s in body if isinstance(s, (ast.FunctionDef, ast.ClassDef))]
    sign = "ranks" if "cluster.start(" in source else f"print({'Defined: ' + ', '.join(names) + '.' if names else 'Done.'!r})"
    return f"{source}\n\n\n{sign}" if isinstance(body[-1], (ast.FunctionDef, ast.ClassDef)) else f"{source}\n{sign}"


def kind_of(cell: NotebookNode) -> str:
    """Return the kind of a cell from `build`: "given", "exercise", "test", "example", "written" or "text"."""
    marks = cell.metadata.get("nbgrader")
    if cell.cell_type != "code":
        return WRITTEN_ANSWER if marks and marks["solution"] else "text"
    if not marks:
        return "example"
    return "exercise" if marks["solution"] else "test" if marks["grade"] else "given"


def is_about_grading(cell: NotebookNode) -> bool:
    """Return whether a text is only for those who hand in the notebook: the hidden tests' heading, and the survey."""
    return cell.cell_type == "markdown" and (cell.id == SURVEY_ID or cell.source.startswith(TESTS_HEADING))


def only_shows(cell: NotebookNode) -> bool:
    """Return whether a given cell only displays or saves something."""
    return kind_of(cell) == "given" and cell.id.partition("-")[0] in DISPLAY_TITLE_WORDS


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook; the same notebook always gives the same bytes."""
    write_atomically(nbformat.writes(notebook, version=4), path)


def write_atomically(text: str, path: Path) -> None:
    """Write a file atomically, even if this process is killed meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
