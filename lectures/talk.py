"""A part as a talk: its solved notebook, with the slides marked, cut to the available time.

What only a talk has (a slider to play with, questions for the room, the speaker notes) is in
`solutions/PART/talk.py`, in the same format. There, a cell names the part's slide that it follows:
``after=`` with the title of a code cell, or the first line of a text, on that slide. Without it, the cell follows the one above it.
"""

from __future__ import annotations

import itertools
import re

import jupytext
import nbformat
from nbformat import NotebookNode

from grading.authoring import build
from grading.paths import SOLUTIONS

# Text for students only: points and time of the exercises, and where the functions are saved.
STUDENT_ONLY_TEXT = re.compile(
    r"\*[^*\n]*(?:About \d+ minutes|two hours is typical)\.\* ?|^The last cells? (?:saves?|stops?) [^\n]*(?:\n[^\n]+)*", re.MULTILINE
)


def solved(part: str) -> NotebookNode:
    """Return the notebook of a part with its solutions, and without hidden tests."""
    notebook = build.build(part)
    notebook.cells = [cell for cell in notebook.cells if build.kind_of(cell) != "test" and not build.is_about_grading(cell)]
    for cell in notebook.cells:
        kind = build.kind_of(cell)
        cell.metadata.pop("nbgrader", None)
        if kind == build.WRITTEN_ANSWER:
            cell.metadata["slideshow"] = {"slide_type": "skip"}
        if kind in ("given", "exercise"):
            cell.metadata["course"] = cell.metadata.get("course", {}) | {"kind": kind}
        cell.source = re.sub(r"^ *### (BEGIN|END) SOLUTION\n?", "", cell.source, flags=re.MULTILINE).rstrip("\n")
    return notebook


def talk(part: str, minutes: int | None = None) -> NotebookNode:
    """Return the slides of a part.

    Parameters
    ----------
    part : str
        Name of a folder in `solutions/`.
    minutes : int, optional
        Length of the talk: slides that a shorter one leaves out are marked "skip". All slides by default.

    Raises
    ------
    SourceError
        A cell of `talk.py` follows no cell of the part.
    """
    notebook = solved(part)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = STUDENT_ONLY_TEXT.sub("", cell.source).rstrip()
    source, named = SOLUTIONS / part / "talk.py", ""
    if source.exists():
        own = jupytext.reads(source.read_text(), fmt="py:percent")
        insert(notebook, own.cells, part)
        named = own.metadata.get("course", {}).get("picture", "")
    _begin_with_a_picture(notebook, named)
    left_out = False
    for cell in notebook.cells:
        kind = cell.metadata.get("slideshow", {}).get("slide_type")
        if kind == "slide":
            left_out = minutes is not None and cell.metadata.get("course", {}).get("minutes", 0) > minutes
        if left_out:
            cell.metadata["slideshow"] = {"slide_type": "skip"}
    _give_headings(notebook)
    return notebook


def _begin_with_a_picture(notebook: NotebookNode, named: str = "") -> None:
    """Move the part's first picture to the title slide; one that needs cells shown before it stays on its own slide, too.

    A picture that would give away an exercise, a prediction or the answer to a question stays where it is. Then `talk.py` has a picture
    of its own for the title, or names a cell (`named`) in its header: ``course: {picture: the-cell}``.
    """
    if any(draws(cell) for cell in slides(notebook)[0]):
        return
    early = [cell for cell in notebook.cells if cell.id == named or (cell.id.startswith("start-") and draws(cell))]
    if early:
        early[0].metadata["course"] = nbformat.from_dict(early[0].metadata.get("course", {}) | {"picture": True})
        return
    place = next((i for i, cell in enumerate(notebook.cells) if cell.id.startswith("draw-")), 0)
    before = [cell for cell in notebook.cells[:place] if cell.cell_type == "code"]
    if not before or any(cell.id.startswith(("exercise-", "predict-")) for cell in before):
        return
    if not all(cell.id.startswith("start-") or _kind(cell) == "skip" for cell in before):
        if any(cell.source.startswith("## A question for the room") for cell in notebook.cells[:place]):
            return
        course = notebook.cells[place].metadata.get("course", {})
        notebook.cells[place].metadata["course"] = nbformat.from_dict(course | {"picture": True})
        return
    second = next((i for i, cell in enumerate(notebook.cells) if i and cell.cell_type == "markdown" and _kind(cell) != "notes"), place)
    title = [cell for i, cell in enumerate(notebook.cells[:place]) if cell in before or i < second]
    texts = [cell for cell in notebook.cells[:place] if cell not in title]
    picture, rest = notebook.cells[place], notebook.cells[place + 1 :]
    notes = list(itertools.takewhile(lambda cell: _kind(cell) == "notes", rest))  # about the picture
    rest = texts + rest[len(notes) :]
    minutes = {"course": picture.metadata.get("course", {}) | {"kind": "given"}}
    picture.metadata = nbformat.from_dict({key: value for key, value in picture.metadata.items() if key != "slideshow"} | minutes)
    if rest[0].cell_type != "code" and not _kind(rest[0]):
        rest[0].metadata["slideshow"] = {"slide_type": "slide"}
    notebook.cells = [*title, picture, *notes, *rest]


def draws(cell: NotebookNode) -> bool:
    """Return whether a cell draws a figure."""
    calls = re.search(r"\b(plots|pictures|schedules)\.\w+\(", cell.source)
    return cell.id.startswith("draw-") or (cell.cell_type == "code" and calls is not None)


def _give_headings(notebook: NotebookNode) -> None:
    """Repeat a section's heading where a text of the part continues on a new slide."""
    heading = ""
    for cell in (cell for cell in notebook.cells if cell.cell_type == "markdown" and not cell.id.startswith("talk-")):
        if found := re.match(r"#+ (?:\d\d )?(.*)", cell.source):
            heading = found[1]
        elif _kind(cell) == "slide":
            cell.source = f"## {heading}\n\n{cell.source}"


def _kind(cell: NotebookNode) -> str | None:
    return cell.metadata.get("slideshow", {}).get("slide_type")


def insert(notebook: NotebookNode, cells: list[NotebookNode], part: str) -> None:
    """Insert a talk's own cells where they say that they belong."""
    place = None
    for number, cell in enumerate(cells, 1):
        after = cell.metadata.get("after")
        if after:
            name = re.sub(r"[^a-z0-9]+", "-", after.lower()).strip("-")
            places = [i for i, c in enumerate(notebook.cells) if c.id == name or c.source.split("\n")[0].lstrip("# ") == after.lstrip("# ")]
            if len(places) != 1:
                raise build.SourceError(f"{part}, talk.py: after={after!r} names {len(places)} cells of the part; it should name one.")
            place = places[0]
            while place + 1 < len(notebook.cells) and not begins(notebook.cells[place + 1]):
                place += 1  # to the end of its slide, including cells of the talk already inserted there
        elif place is None:
            raise build.SourceError(f"{part}, talk.py: the first cell must say with after= which cell it follows.")
        place += 1
        folded = {"jupyter": {"source_hidden": True}} if "given" in cell.metadata.get("tags", []) else {}
        cell.id, cell.metadata = f"talk-{number}", nbformat.from_dict(build.slide(cell) | folded)
        notebook.cells.insert(place, cell)


def begins(cell: NotebookNode) -> bool:
    """Return whether a slide of the part, not of the talk alone, begins here."""
    return cell.metadata.get("slideshow", {}).get("slide_type") == "slide" and not cell.id.startswith("talk-")


def slides(notebook: NotebookNode) -> list[list[NotebookNode]]:
    """Return the cells of each slide, without skipped cells, and without notes."""
    found: list[list[NotebookNode]] = []
    for cell in notebook.cells:
        kind = cell.metadata.get("slideshow", {}).get("slide_type")
        if kind in ("skip", "notes"):
            continue
        if kind == "slide" or not found:
            found.append([])
        found[-1].append(cell)
    return found
