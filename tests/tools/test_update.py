"""`make update`: the course's new text and the student's cells in one notebook."""

import copy

import nbformat
import pytest
from hypothesis import given as given_
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_lib.tools import lab, update

EXERCISE = '%%px\ndef split(x):\n    """Split x."""\n    # Your code here.\n    raise NotImplementedError'


def given():
    graded = {"nbgrader": {"grade_id": "split", "solution": True, "grade": False, "locked": False, "schema_version": 3}}
    cells = [
        new_markdown_cell("# A part\n\nFirst text.", id="text-1"),
        new_code_cell("ranks = 4\nprint(ranks)", id="start"),
        new_code_cell(EXERCISE, id="exercise-split", metadata=graded),
        new_code_cell("check(split)", id="check"),
        new_markdown_cell("The end.", id="text-2"),
    ]
    return new_notebook(cells=cells)


def answered(notebook):
    """A student was here."""
    mine = copy.deepcopy(notebook)
    mine.cells[2].source = EXERCISE.replace("raise NotImplementedError", "half = len(x) // 2\n    return x[:half]")
    mine.cells[1].outputs = [new_output("stream", text="4\n")]
    mine.cells.insert(3, new_code_cell("my_own = split('abcd')", id="mine"))
    mine.cells.append(new_markdown_cell("My note.", id="note"))
    return mine


def renewed(notebook):
    """The course's next version."""
    new = copy.deepcopy(notebook)
    new.cells[0].source += "\n\nSecond text."
    new.cells[2].source = new.cells[2].source.replace("Split x.", "Split x in two.")
    new.cells.insert(4, new_markdown_cell("A new picture.", id="text-3"))
    del new.cells[3]
    return new


def put(folder, before, mine, after):
    """A student's folder, and the course's, as files."""
    work, source = folder / "my_work", folder / "notebooks" / "01_a" / "01_a.ipynb"
    source.parent.mkdir(parents=True)
    nbformat.write(before, source)
    assert [p.name for p in lab.copy_new(folder / "notebooks", work)] == ["01_a.ipynb"]
    nbformat.write(mine, work / "01_a.ipynb")
    nbformat.write(after, source)
    return work / "01_a.ipynb", source


def test_new_text_comes_in_and_the_students_cells_stay(tmp_path):
    before = given()
    mine, source = put(tmp_path, before, answered(before), renewed(before))
    said = (tmp_path / "my_work" / "01_a.ipynb").read_bytes()
    assert update.outdated(tmp_path / "notebooks", mine.parent) == [mine]
    old, both = update.update(mine, source)
    assert old.name == "01_a.old.ipynb" and old.read_bytes() == said and both == []
    merged = nbformat.read(mine, 4)
    nbformat.validate(merged)
    assert [cell.id for cell in merged.cells] == ["text-1", "start", "exercise-split", "mine", "text-3", "text-2", "note"]
    assert "Second text." in merged.cells[0].source and "Split x in two." in merged.cells[2].source
    assert "half = len(x) // 2\n    return x[:half]" in merged.cells[2].source and "NotImplementedError" not in merged.cells[2].source
    assert merged.cells[1].outputs[0].text == "4\n" and merged.cells[2].metadata.nbgrader.grade_id == "split"
    assert update.outdated(tmp_path / "notebooks", mine.parent) == []
    assert update.update(mine, source) == (None, [])


def test_where_both_have_changed_a_line_the_students_stands_and_is_named(tmp_path):
    before = given()
    hers, theirs = answered(before), renewed(before)
    hers.cells[1].source = "ranks = 2\nprint(ranks)"
    theirs.cells[1].source = "ranks = 8\nprint(ranks)"
    mine, source = put(tmp_path, before, hers, theirs)
    _, both = update.update(mine, source)
    assert both == ["ranks = 2"] and nbformat.read(mine, 4).cells[1].source == "ranks = 2\nprint(ranks)"


def test_a_second_update_keeps_both_old_files(tmp_path):
    before = given()
    mine, source = put(tmp_path, before, answered(before), renewed(before))
    update.update(mine, source)
    newer = nbformat.read(source, 4)
    newer.cells[0].source += "\n\nThird text."
    nbformat.write(newer, source)
    old, _ = update.update(mine, source)
    assert old.name == "01_a.old2.ipynb" and (mine.parent / "01_a.old.ipynb").exists()
    assert "Third text." in nbformat.read(mine, 4).cells[0].source and "half =" in nbformat.read(mine, 4).cells[2].source


def test_a_copy_from_before_originals_were_kept_can_be_updated_when_it_was_untouched_then(tmp_path):
    before = given()
    mine, source = put(tmp_path, before, before, before)
    notebooks, kept = tmp_path / "notebooks", mine.parent / update.ORIGINALS / mine.name
    for text in (mine.read_bytes() + b"\n", source.read_bytes()):
        kept.unlink(missing_ok=True)
        mine.write_bytes(text)
        update.keep_untouched(notebooks, mine.parent)
        assert kept.exists() == (text == source.read_bytes())
    nbformat.write(renewed(before), source)
    assert update.outdated(notebooks, mine.parent) == [mine]
    assert "Second text." in nbformat.read(update.update(mine, source)[0].with_name(mine.name), 4).cells[0].source


@pytest.mark.parametrize(
    ("text", "said"), [("{", "cannot be read as a notebook"), (None, "was begun before the course kept the originals")]
)
def test_what_cannot_be_merged_is_left_as_it_is_with_a_sentence(tmp_path, text, said):
    before = given()
    mine, source = put(tmp_path, before, answered(before), renewed(before))
    if text is None:
        (mine.parent / update.ORIGINALS / mine.name).unlink()
    else:
        mine.write_text(text)
    was = mine.read_bytes()
    with pytest.raises(update.UpdateError, match=said):
        update.update(mine, source)
    assert mine.read_bytes() == was and [p.name for p in mine.parent.glob("*.ipynb")] == [mine.name]


def test_cells_that_have_lost_their_ids_are_found_all_the_same():
    before = given()
    mine = answered(before)
    for number, cell in enumerate(mine.cells):
        cell.id = f"lost-{number}"
    merged, both = update.merge(before, mine, renewed(before))
    assert [cell.id for cell in merged.cells] == ["text-1", "start", "exercise-split", "lost-3", "text-3", "text-2", "lost-6"]
    assert "half =" in merged.cells[2].source and both == []


def test_an_answer_to_an_exercise_that_the_course_has_given_up_stays():
    before = given()
    after = renewed(before)
    del after.cells[2]
    merged, _ = update.merge(before, answered(before), after)
    assert [cell.id for cell in merged.cells] == ["text-1", "start", "exercise-split", "mine", "text-3", "text-2", "note"]


@given_(st.data())
def test_nothing_that_a_student_wrote_is_ever_lost(data):
    """Whatever both sides do: every line of hers is in the new file, and what only the course has changed is there."""
    lines = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=4)
    base = new_notebook(cells=[new_code_cell("\n".join(data.draw(lines)), id=f"c{i}") for i in range(4)])

    def changed(who):
        notebook, cells = copy.deepcopy(base), []
        for cell in notebook.cells:
            what = data.draw(st.sampled_from(["keep", "keep", "change", "insert", "delete"]))
            if what == "change":
                place = data.draw(st.integers(0, len(cell.source.splitlines())))
                text = cell.source.splitlines()
                cell.source = "\n".join([*text[:place], f"{who} {cell.id}", *text[place + 1 :]])
            cells += [] if what == "delete" else [cell]
            if what == "insert":
                cells.append(new_code_cell(f"{who} new", id=f"{who}-{cell.id}"))
        notebook.cells = cells
        return notebook

    mine, theirs = changed("mine"), changed("theirs")
    merged, _ = update.merge(base, mine, theirs)
    texts = {cell.id: cell.source for cell in merged.cells}
    assert len(texts) == len(merged.cells)
    was, hers = ({cell.id: cell.source for cell in notebook.cells} for notebook in (base, mine))
    for i, text in hers.items():
        if text != was.get(i):
            assert update._added_lines(was.get(i, ""), text) <= set(texts[i].splitlines())
    for cell in theirs.cells:
        if cell.id not in was or (cell.source != was[cell.id] and hers.get(cell.id) in (was[cell.id], None)):
            assert texts[cell.id] == cell.source
