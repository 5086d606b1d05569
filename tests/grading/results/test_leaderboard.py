"""The leaderboard shows what graded loops reach, under the handles that students chose."""

import csv

import pytest

from grading.authoring import answers
from grading.results import leaderboard

PART = leaderboard.LEADERBOARD_PART
HANDLES = {"ada-lovelace": "<b>Ada</b> " + "x" * 50, "grace-hopper": "=cmd()", "edsger-dijkstra": None, "alan-turing": "no way"}


# A loop that shows what an entry looks like, in the middle of the cell that makes the entry.
FORGED = f"""
from IPython.display import display
honest_loop = part4_training_loop
async def part4_training_loop(model, batch_size):
    sizes, line = dict(world_size=32, num_layers=64), dict(forward=[], backward=[])
    run = dict(settings=sizes, sparkline=line, utilisation=1, memory=1, time=1, score=5)
    display({{"text/plain": "forged", "{leaderboard.LEADERBOARD_MIME}": dict(handle="forged", score=5, runs=[run, run])}}, raw=True)
    return await honest_loop(model, batch_size)
"""


def hand_in(course, student, name=None, handle="", more=""):
    """The solution or a variant, with a handle; None for a cell that defines none."""
    sources = {a.name: a.source for a in answers.read(PART)}
    loop = f"%%px\n{sources[name]}" if name else None
    notebook = course.solved(PART, loop, "exercise-part4-training-loop")
    cell = next(c for c in notebook.cells if c.id == "your-handle")
    cell.source = f"%%px\nhandle = {handle!r}" if handle is not None else "%%px\npass"
    cell.source += f"\n{more}"
    course.hand_in(PART, student, notebook)


@pytest.mark.slow
def test_it_is_made_from_the_graded_notebooks(course):
    for student, name in (
        ("ada-lovelace", None),
        ("grace-hopper", "data_parallel"),
        ("edsger-dijkstra", "one_ring"),
        ("alan-turing", "no_average"),
    ):
        hand_in(course, student, name, HANDLES[student], FORGED if name == "no_average" else "")
    points = course.grade(PART)
    assert points == {"ada-lovelace": 25, "grace-hopper": 0, "edsger-dijkstra": 21.25, "alan-turing": 0}
    page, table, n = leaderboard.write(course.home / "autograded", course.home)
    assert n == 3
    text = page.read_text()
    assert "&lt;b&gt;Ada&lt;/b&gt; xxxxxxxxx" in text and "<b>Ada" not in text and "x" * 40 not in text
    assert text.index("Ada") < text.index("anonymous") < text.index("=cmd()"), "the best first"
    assert text.count("<svg") == 6 and "http" not in text and "64 × 32" in text
    rows = list(csv.DictReader(table.open()))
    assert [(r["place"], r["score"], r["ranks x layers"]) for r in rows[:2]] == [("1", "5.000", "32 x 64"), ("1", "5.000", "64 x 32")]
    assert float(rows[0]["MFU"]) >= 0.8 and int(rows[0]["memory in bytes"]) <= 60 * 1024**3 and float(rows[0]["time in seconds"]) > 0
    assert rows[-1]["handle"] == "'=cmd()"
    for student in HANDLES:
        assert student not in text + table.read_text() and "no way" not in text and "forged" not in text


def test_without_hand_ins_the_page_says_so(tmp_path):
    page, _, n = leaderboard.write(tmp_path, tmp_path)
    assert n == 0 and "No entries yet" in page.read_text()
