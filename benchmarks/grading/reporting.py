"""`make report` for a thousand graded submissions; making them does not count, nor does running the variants, which is done once."""

from __future__ import annotations

import contextlib
import io
import json
import random
import tempfile
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import nbformat
from traitlets.config import Config

from benchmarks.turns import turns
from grading.authoring import answers, build
from grading.authoring.build import kind_of
from grading.config import configure
from grading.running import pending
from grading.submission.assembly import fingerprint

PART = "12_mlp"  # three exercises of about a hundred tokens each, 29 variants
HAND_INS = 1000
PICTURE = 100_000  # characters of a figure in a graded notebook
TURNS = turns(3)


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.report.__main__ import report

    warnings.simplefilter("ignore")
    seconds = []
    with tempfile.TemporaryDirectory(prefix="course-bench-") as place, contextlib.redirect_stdout(io.StringIO()):
        make(Path(place), HAND_INS)
        for _ in range(TURNS):
            began = time.perf_counter()
            report(PART, Path(place))
            seconds.append(time.perf_counter() - began)
    yield f"report-of-{HAND_INS}/second", seconds, 20.0


def make(home: Path, students: int) -> None:
    """Make a graded class, each submission a different mixture of the part's variants and lines of its own."""
    from nbgrader.api import BaseCell, Grade, Gradebook

    from grading.report import variant_messages

    draw, source = random.Random(0), build.build(PART)
    build.write(source, home / "source" / PART / f"{PART}.ipynb")
    variants = answers.read(PART)
    tests = [cell for cell in source.cells if kind_of(cell) == "test"]
    said = {variant_messages.variant_id(variant): [sentence(draw, i)] for i, variant in enumerate(variants)}
    cache = home / "reports" / "variants" / f"{PART}.json"
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps({"fingerprint": variant_messages.variants_fingerprint(PART), "said": said}))
    names = [f"student{i:04d}" for i in range(students)]
    (home / "roster.csv").write_text("id,name\n" + "".join(f'{name},"Name, {name}"\n' for name in [*names, "missing"]))
    failed = {name: [test.id for test in tests if draw.random() < 0.3] for name in names}
    for name in names:
        path = home / "submitted" / name / PART / f"{PART}.ipynb"
        build.write(notebook(source, variants, failed[name], draw), path)
        graded = json.loads(path.read_text())
        graded["metadata"]["course"] |= {"graded": fingerprint(path.read_bytes()), "key": pending.current_key(PART, home), "flags": []}
        target = home / "autograded" / name / PART / path.name
        target.parent.mkdir(parents=True)
        target.write_text(json.dumps(graded))
    with Gradebook(configure(Config(), home).CourseDirectory.db_url) as book:
        book.update_or_create_assignment(PART, duedate=datetime(2030, 1, 1))
        book.update_or_create_notebook(PART, PART)
        for test in tests:
            book.update_or_create_grade_cell(test.id, PART, PART, max_score=test.metadata.nbgrader.points, cell_type="code")
        cells = {cell.name: cell for cell in book.db.query(BaseCell)}
        points = {test.id: test.metadata.nbgrader.points for test in tests}
        for name in names:
            book.update_or_create_student(name)
            hand_in = book.update_or_create_submission(PART, name)
            hand_in.timestamp = datetime.now(UTC).replace(tzinfo=None)
            for grade in book.db.query(Grade).filter(Grade.notebook_id == hand_in.notebooks[0].id):
                test = next(test for test, cell in cells.items() if cell.id == grade.cell_id)
                grade.auto_score = 0 if test in failed[name] else points[test]
        book.db.commit()


def notebook(
    source: nbformat.NotebookNode, variants: list[answers.Answer], failed: list[str], draw: random.Random
) -> nbformat.NotebookNode:
    """Return a submission as grading leaves it."""
    made = nbformat.from_dict(source)
    for cell in made.cells:
        if kind_of(cell) == "exercise":
            fitting = [variant.source for variant in variants if f" {variant.function}(" in cell.source] or [cell.source]
            lines = draw.choice(fitting).splitlines()
            for _ in range(draw.randrange(6)):
                lines.append(f"    {own_line(draw)}")
            cell.source = "%%px\n" + "\n".join(lines)
        elif kind_of(cell) == "test" and cell.id in failed:
            text = sentence(draw, draw.randrange(2 * len(variants)))
            cell.outputs = [nbformat.v4.new_output("error", ename="CheckFailed", evalue=text.partition(": ")[2], traceback=[text])]
    picture = "".join(draw.choices("abcdefgh", k=1000)) * (PICTURE // 1000)
    next(c for c in made.cells if kind_of(c) == "given").outputs = [nbformat.v4.new_output("display_data", {"image/png": picture})]
    return made


def own_line(draw: random.Random) -> str:
    """Return a line of code that is rarely the same as another."""
    words = [draw.choice(["np.sum", "np.mean", "len", "np.stack", "sorted", "max", "np.ravel"]) for _ in range(3)]
    return f"a = {words[0]}({words[1]}(x) {draw.choice('+-*/@')} {words[2]}(y[{draw.choice(['0', ':', '::2', '-1'])}]))"


def sentence(draw: random.Random, number: int) -> str:
    """Return a failed test's message, with other numbers each time."""
    name = "".join(chr(ord("a") + int(digit)) for digit in str(number))
    shape, rank, batch = (draw.randrange(9), draw.randrange(9)), draw.randrange(4), draw.randrange(9)
    return (
        f"CheckFailed: the array {name} on rank {rank} has shape {shape}, expected (2, 3), for a batch of {batch}. (seed {draw.random()})"
    )
