"""The slides of each part, and what `make solved` and `make lecture` write for a lecturer."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_lib.students import NOTEBOOKS
from grading.authoring import archive, build
from grading.paths import parts, selected_parts
from lectures import show, talk

HEAD = "# ---\n# jupyter:\n#   course:\n#     ranks: 2\n# ---\n\n"


@pytest.mark.parametrize("part", parts())
def test_each_part_is_a_talk_with_three_questions_and_two_cuts(part):
    whole, fifty, fifteen = (talk.slides(talk.talk(part, minutes)) for minutes in (None, 50, 15))
    assert 6 <= len(fifteen) <= 12 and len(fifteen) < len(fifty) <= len(whole) <= 25
    assert not [cell for slide in fifteen for cell in slide if cell.metadata.get("course", {}).get("kind") == "exercise"]
    text = "\n".join(cell.source for slide in whole for cell in slide)
    assert "About " not in whole[0][0].source and "The last cell" not in text, "that is for students"
    questions = [slide for slide in whole if slide[0].source.startswith("## A question for the room")]
    assert len(questions) == 3
    for _, *answer in questions:
        assert answer and answer[0].metadata.slideshow.slide_type == "fragment"
    assert sum(slide in fifteen for slide in questions) >= 1
    assert not (silent := without_notes(part)), f"{part}, talk.py: these slides have no note for the speaker: {silent}"


def without_notes(part):
    """The first lines of a talk's slides, questions aside, that have no note for the speaker."""
    found = []
    for cell in talk.talk(part).cells:
        kind = cell.metadata.get("slideshow", {}).get("slide_type")
        if kind == "notes":
            found[-1][1] = True
        elif kind == "slide" or not found:
            found.append([cell.source.partition("\n")[0], False])
    return [title for title, noted in found if not noted and not title.startswith("## A question for the room")]


@pytest.mark.parametrize("part", parts())
def test_what_a_slide_shows_of_code_fits_it(part):
    for slide in talk.slides(talk.talk(part)):
        for cell in slide:
            if cell.cell_type == "code" and not cell.metadata.get("jupyter", {}).get("source_hidden"):
                wide = [line for line in cell.source.split("\n") if len(line) > build.MAX_CODE_COLUMNS]
                assert not wide, f"{part}, cell {cell.id}: wider than the {build.MAX_CODE_COLUMNS} columns of a slide: {wide}"


@pytest.mark.parametrize("part", parts())
def test_a_solved_notebook_has_the_answers_and_no_hidden_test(part):
    notebook = talk.solved(part)
    nbformat.validate(notebook)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert "### BEGIN" not in text and "### END" not in text and "raise NotImplementedError" not in text
    assert not any("nbgrader" in cell.metadata for cell in notebook.cells)
    exercises = [cell for cell in build.build(part).cells if build.kind_of(cell) == "exercise"]
    assert sum(cell.metadata.get("course", {}).get("kind") == "exercise" for cell in notebook.cells) == len(exercises)


def source(*tags):
    return HEAD + "".join(
        f'# %% [markdown] tags=["{tag}"]\n# text {i}\n\n' if tag else f"# %% [markdown]\n# text {i}\n\n" for i, tag in enumerate(tags)
    )


def test_a_cut_leaves_out_whole_slides(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "SOLUTIONS", tmp_path)
    monkeypatch.setattr(talk, "SOLUTIONS", tmp_path)
    (tmp_path / "01_a").mkdir()
    (tmp_path / "01_a" / "01_a.py").write_text(source("slide", "", "slide-50", "", "fragment", "slide-all", "skip", "slide", ""))

    def texts(minutes):
        return [[int(cell.source[-1]) for cell in slide] for slide in talk.slides(talk.talk("01_a", minutes))]

    assert texts(None) == [[0, 1], [2, 3, 4], [5], [7, 8]]
    assert texts(50) == [[0, 1], [2, 3, 4], [7, 8]] and texts(15) == [[0, 1], [7, 8]]
    skipped = [cell.metadata.slideshow.slide_type for cell in talk.talk("01_a", 15).cells if "skip" in str(cell.metadata)]
    assert skipped == ["skip"] * 5


def test_a_talks_own_cells_come_behind_the_slide_that_they_name():
    marks = {"slideshow": {"slide_type": "slide"}}
    cells = [new_markdown_cell("# One", metadata=marks), new_code_cell("1", id="run-it"), new_markdown_cell("# Two", metadata=marks)]
    own = [new_markdown_cell("first", metadata={"after": "# One", "tags": ["slide"]}), new_markdown_cell("second")]
    notebook = new_notebook(cells=list(cells))
    talk.insert(notebook, own, "x")
    assert [cell.source for cell in notebook.cells] == ["# One", "1", "first", "second", "# Two"]
    own = [new_markdown_cell(text, metadata={"after": "# One", "tags": ["slide"]}) for text in ("first", "second")]
    notebook = new_notebook(cells=list(cells))
    talk.insert(notebook, own, "x")
    assert [cell.source for cell in notebook.cells] == ["# One", "1", "first", "second", "# Two"]
    for wrong, said in (({"after": "Nowhere"}, "names 0 cells"), ({}, "must say with after=")):
        with pytest.raises(build.SourceError, match=said):
            talk.insert(new_notebook(cells=list(cells)), [new_markdown_cell("x", metadata=wrong)], "x")


def test_a_picture_takes_its_own_notes_to_the_title():
    def text(source, kind):
        return new_markdown_cell(source, metadata={"slideshow": {"slide_type": kind}})

    start, draw = new_code_cell("1", id="start-the-ranks"), new_code_cell("2", id="draw-it")
    cells = [text("# One", "slide"), start, text("title", "notes"), text("text", "slide"), text("of the text", "notes"), draw]
    notebook = new_notebook(cells=[*cells, text("of the picture", "notes"), text("# Two", "slide")])
    talk._begin_with_a_picture(notebook)
    assert [cell.source for cell in notebook.cells] == ["# One", "1", "title", "2", "of the picture", "text", "of the text", "# Two"]


@pytest.mark.slow
def test_what_a_lecturer_has_changed_stays_until_it_is_asked_for_anew(tmp_path):
    work = tmp_path / "my_lectures"
    assert show.put_solved(["01_data_split"], work, False) == []
    assert {p.name for p in work.iterdir()} == {"01_data_split.ipynb", *{file for _, file in NOTEBOOKS.values()}}
    mine = work / "01_data_split.ipynb"
    fresh = mine.read_text()
    mine.write_text("mine")
    (work / "func_impl.py").write_text("mine")
    assert show.put_solved(["01_data_split"], work, False) == [mine]
    assert mine.read_text() == (work / "func_impl.py").read_text() == "mine"
    assert show.put_solved(["01_data_split"], work, True) == [] and mine.read_text() == fresh
    assert (work / "func_impl.py").read_text() == "mine", "it has functions of other parts, too"
    assert show.put_solved(parts(), work, True) == [] and (work / "func_impl.py").read_text() != "mine"


@pytest.mark.slow
def test_a_talk_is_opened_with_what_was_changed_and_without_outputs(tmp_path):
    path, stays = show.put_talk("01_data_split", 15, tmp_path, False)
    assert path.name == "01_data_split.talk-15.ipynb" and not stays
    notebook = nbformat.read(path, 4)
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    cell.source, cell.outputs, cell.execution_count = "mine", [nbformat.v4.new_output("stream", text="old")], 3
    nbformat.write(notebook, path)
    assert show.put_talk("01_data_split", 15, tmp_path, False) == (path, True)
    cell = next(cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code")
    assert (cell.source, cell.outputs, cell.execution_count) == ("mine", [], None)
    show.put_talk("01_data_split", 15, tmp_path, True)
    assert "mine" not in path.read_text().split("talk-")[0]


def test_students_get_none_of_it():
    assert not [name for name in archive.files() if name.parts[0] in ("lectures", "solutions", "my_lectures", "benchmarks")]
    assert not [
        name for name in archive.files() if (name.parts[0] == "docs" and name.suffix == ".py") or name.parts[:2] == ("tests", "lectures")
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lecture"], "Which part"),
        (["lecture", "--part=77"], "There is no part '77'"),
        (["lecture", "--part=01", "--minutes=abc"], "MINUTES=abc is not a number"),
        (["lecture", "--part=01", "--minutes=5"], "MINUTES=5 is too short"),
    ],
)
def test_a_command_that_cannot_be_followed_gets_a_sentence(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["show", *words])
    monkeypatch.setattr(show, "LECTURES_FOLDER", tmp_path)
    monkeypatch.setattr(show.first_cell, "install_config", lambda: None)
    with pytest.raises(SystemExit) as ended:
        show.main()
    assert said in capsys.readouterr().err + str(ended.value) and not list(tmp_path.glob("*.ipynb"))


def test_a_part_may_be_named_by_its_number():
    assert selected_parts(["06"]) == ["06_megatron_backward"] == selected_parts(["06_megatron_backward"])


def test_notes_stay_out_of_a_students_notebook(tmp_path):
    with pytest.raises(build.SourceError, match="speaker notes belong in"):
        build.from_text(source("slide", "notes"), "01_a")


@pytest.mark.parametrize(("minutes", "text", "said"), [(10, None, "MINUTES=10 is too short"), (15, "mine", "cannot be read as a notebook")])
def test_a_talk_that_cannot_be_opened_gets_a_sentence(tmp_path, minutes, text, said):
    if text:
        (tmp_path / "01_data_split.talk-15.ipynb").write_text(text)
    with pytest.raises(show.TalkError, match=said):
        show.put_talk("01_data_split", minutes, tmp_path, False)


@pytest.mark.parametrize("part", parts())
@pytest.mark.parametrize("minutes", [None, 15])
def test_the_title_slide_has_a_picture(part, minutes):
    """Drawn by one of its cells, or by a cell of a later slide, which `lecture.js` shows here, too; from no cell that students write."""
    notebook = talk.talk(part, minutes)
    (picture,) = [c for c in talk.slides(notebook)[0] if talk.draws(c)] or [
        c for c in notebook.cells if c.metadata.get("course", {}).get("picture")
    ]
    place = [cell.id for cell in notebook.cells].index(picture.id)
    assert not [cell.id for cell in notebook.cells[:place] if cell.id.startswith("exercise-")]
