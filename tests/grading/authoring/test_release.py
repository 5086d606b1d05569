"""The released notebooks: built from solutions/, the same bytes each time, and without any answer."""

import ast
import os
import re
import subprocess
import zipfile

import nbformat
import pytest

from course_lib import students
from grading.authoring import answers, archive, build, survey
from grading.paths import NOTEBOOKS, ROOT, parts
from grading.release import in_table, release

HEADER = "# ---\n# jupyter:\n#   course:\n#     ranks: 4\n# ---\n\n"


@pytest.mark.parametrize("part", parts())
def test_the_committed_notebook_is_what_the_source_gives(part, course):
    fresh = release(part, course.home, course.notebooks)
    assert fresh.read_bytes() == (NOTEBOOKS / part / f"{part}.ipynb").read_bytes(), f"run: make release PART={part}"


@pytest.mark.parametrize("part", parts())
def test_the_points_that_a_text_names_are_those_of_its_tests(part):
    cells = build.build(part).cells
    points = sum(cell.metadata.nbgrader["points"] for cell in cells if build.kind_of(cell) in ("test", build.WRITTEN_ANSWER))
    said = re.search(r"^\*(Nothing to grade|(\d+) points)[.,]", cells[0].source, re.MULTILINE)
    assert int(said[2] or 0) == points
    readme = (ROOT / "README.md").read_text()
    row = next(line for line in readme.splitlines() if f"(notebooks/{part}/" in line)
    assert int(row.split("|")[-2]) == points, f"run: make release PART={part}"
    (other,) = set(in_table(readme, part, points + 7).splitlines()) - set(readme.splitlines())
    assert int(other.split("|")[-2]) == points + 7 and other.split("|")[:-2] == row.split("|")[:-2]


@pytest.mark.parametrize("part", parts())
def test_no_solution_no_hidden_test_and_no_output_is_released(part):
    notebook = nbformat.read(NOTEBOOKS / part / f"{part}.ipynb", as_version=4)
    source = {c.id: c for c in build.build(part).cells}
    text = (NOTEBOOKS / part / f"{part}.ipynb").read_text()
    assert "BEGIN SOLUTION" not in text and "HIDDEN TESTS" not in text
    for cell in notebook.cells:
        kind = build.kind_of(source[cell.id])
        if kind == build.WRITTEN_ANSWER:
            assert cell.source == build.YOUR_ANSWER
        if cell.cell_type != "code":
            continue
        assert cell.outputs == [] and cell.execution_count is None
        if kind == "test":
            assert cell.source == build.HIDDEN_NOTE
        if kind == "exercise":
            solution = source[cell.id].source.split("### BEGIN SOLUTION")[1].split("### END SOLUTION")[0]
            assert not [line for line in solution.splitlines() if len(line.strip()) > 12 and line in cell.source]
            assert "raise NotImplementedError" in cell.source
        if kind in ("given", "test"):
            assert cell.metadata.nbgrader.locked and cell.metadata.editable is False


def test_every_notebook_is_short_and_every_released_folder_has_a_source():
    assert sorted(p.name for p in NOTEBOOKS.iterdir()) == parts()
    for part in parts():
        assert [p.name for p in (NOTEBOOKS / part).iterdir()] == [f"{part}.ipynb"]
        assert len((ROOT / "solutions" / part / f"{part}.py").read_text().splitlines()) <= 350


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ("# %%\nx = 1\n", "needs a unique title"),
        ("# %% A\nx = 1\n\n# %% A\nx = 2\n", "a unique title"),
        ('# %% E tags=["exercise"]\n# %%px\ndef f(): pass\n', "BEGIN SOLUTION"),
        ('# %% T tags=["test"]\n### BEGIN HIDDEN TESTS\nx\n### END HIDDEN TESTS\n', "points="),
        ('# %% T tags=["test"] points=3\nsecret = 1\n### BEGIN HIDDEN TESTS\nx\n### END HIDDEN TESTS\n', "round all of it"),
    ],
)
def test_a_source_that_would_leak_or_break_is_refused(cells, words):
    with pytest.raises(build.SourceError, match=words):
        build.from_text(HEADER + cells, "99_test")


@pytest.mark.parametrize("part", parts())
def test_each_exercise_has_enough_answers(part):
    exercises = [c for c in build.build(part).cells if build.kind_of(c) == "exercise"]
    known = answers.read(part)
    assert bool(exercises) == bool(known)
    for function in {a.function for a in known}:
        assert len([a for a in known if a.function == function and a.loses > 0]) >= 6
        assert len([a for a in known if a.function == function and a.loses == 0]) >= 2


STAFF_WORDS = ("make autograde", "make lecture", "make release", "python -m grading", "make bench", "structors", "ecturers")


def test_the_students_archive_has_all_they_need_and_no_answer(tmp_path):
    path = archive.write(tmp_path / "course.zip")
    assert path.read_bytes() == archive.write(tmp_path / "again.zip").read_bytes()
    with zipfile.ZipFile(path) as content:
        content.extractall(tmp_path)
    course = tmp_path / archive.ARCHIVE_NAME
    for needed in ("Makefile", "README.md", "pyproject.toml", "constraints.txt", "course_lib/cluster/__init__.py", "tests/conftest.py"):
        assert (course / needed).is_file(), needed
    assert sorted(p.name for p in (course / "notebooks").iterdir()) == parts()
    text, commands = (course / "README.md").read_text(), (course / "Makefile").read_text()
    assert "## Start" in text and "## Parts" in text and "(docs/students.md)" in text
    pages = sorted(p.relative_to(course).as_posix() for p in course.rglob("*.md"))
    assert pages == ["CHANGELOG.md", "README.md", "course_lib/tools/ai_tutor.md", *sorted(archive.STUDENT_DOCS)]
    for page in ("README.md", *archive.STUDENT_DOCS):
        text = (course / page).read_text()
        assert not [word for word in STAFF_WORDS if word in text], page
        for link in re.findall(r"\]\(([\w/.-]+)\)", text) + re.findall(r'<img src="([^"]+)"', text):
            assert (course / page).parent.joinpath(link).exists(), (page, link)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # a make that runs these tests speaks, too
    shown = subprocess.run(["make", "help"], cwd=course, env=outside, capture_output=True, text=True, check=True).stdout
    assert (
        sorted(line.split()[0] for line in shown.splitlines()) == sorted(archive.STUDENT_MAKE_TARGETS) and "grading" not in commands.lower()
    )
    assert not (course / "solutions").exists() and not (course / "grading").exists() and not (course / "tests" / "grading").exists()
    assert not [p for p in course.rglob("*.py") if re.search(r"^from grading|^import grading", p.read_text(), re.MULTILINE)]
    secrets = []
    for part in parts():
        for cell in build.build(part).cells:
            if build.kind_of(cell) == "exercise":
                secrets.append(cell.source.split("### BEGIN SOLUTION")[1].split("### END SOLUTION")[0].strip())
            if build.kind_of(cell) == "test":
                secrets.append(cell.source.split("### BEGIN HIDDEN TESTS")[1].split("### END HIDDEN TESTS")[0].strip())
    texts = [p.read_text(errors="replace") for p in course.rglob("*") if p.is_file()]
    long = [s for s in secrets if len(s) > 40]  # "return x" is a solution, too
    assert long and not [s for s in long for text in texts if s in text]


def test_the_library_knows_the_names_of_all_exercises():
    names = [
        re.findall(r"^(?:async def|def|class) +(\w+)", c.source, re.M) for part in parts() for c in build.build(part).cells if exercise(c)
    ]
    known = {name for found in names for name in found} - {"train"}
    say = f"course_lib/students.py, EXERCISES: add {sorted(known - students.EXERCISES)}, take out {sorted(students.EXERCISES - known)}"
    assert known == students.EXERCISES, say


def exercise(cell):
    return build.kind_of(cell) == "exercise"


def test_what_sets_up_draws_or_checks_is_folded_and_says_what_it_does():
    for part in parts():
        for cell in build.build(part).cells:
            folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)
            assert folded == (build.kind_of(cell) == "given" or build.FOLDED_TAG in cell.metadata.get("tags", []))
            if folded:
                assert re.match(r"(%%px( --\S+( [^#\s]+)?)?  )?# [A-Z]", cell.source)


@pytest.mark.parametrize("part", parts())
def test_a_folded_box_says_what_this_is_called_in_the_wild(part):
    (box,) = [
        c.source.splitlines() for c in build.build(part).cells if c.source.startswith("<details><summary><b>In the wild</b></summary>")
    ]
    assert (
        len(box) <= 12 and box[-1] == "</details>" and any(name in "\n".join(box) for name in ("PyTorch", "JAX", "Megatron", "DeepSpeed"))
    )


@pytest.mark.parametrize("part", parts())
def test_a_student_can_change_what_only_draws_or_counts(part):
    assert not [c.id for c in build.build(part).cells if build.kind_of(c) == "given" and c.id.startswith(("draw-", "count-", "compare-"))]


NEEDED = {"20_custom_strategy": ["your-handle"]}  # for the leaderboard's entry


@pytest.mark.parametrize("part", parts())
def test_no_example_after_the_last_exercise_can_cost_points(part):
    cells = build.build(part).cells
    last = max((i for i, cell in enumerate(cells) if exercise(cell)), default=len(cells))
    examples = [c for c in cells[last:] if build.kind_of(c) == "example" and c.source.startswith("%%px")]
    runs = [c.id for c in examples if not {build.EXPERIMENT_TAG, build.FOLDED_TAG} & {*c.metadata.get("tags", [])}]
    assert runs == NEEDED.get(part, [])


@pytest.mark.parametrize("part", parts())
def test_a_notebook_ends_with_the_hidden_tests_the_end_of_the_ranks_and_the_survey(part):
    *cells, stop, last = build.build(part).cells
    kinds = [build.kind_of(cell) for cell in cells]
    tests = kinds.count("test")
    assert last.source == survey.TEXT and not last.metadata.get("nbgrader") and stop.id.startswith("stop-the-rank")
    if tests:
        assert kinds[-tests:] == ["test"] * tests
        assert [cell.id for cell in cells if cell.source.startswith(build.TESTS_HEADING)] == [cells[-tests - 1].id]


def test_what_a_student_sees_of_the_code_fits():
    for part in parts():
        for cell in build.build(part).cells:
            if build.kind_of(cell) in ("exercise", "example") or (cell.source.count("\n") == 0 and build.kind_of(cell) == "given"):
                shown = re.sub(r"### BEGIN SOLUTION.*?### END SOLUTION", "", cell.source, flags=re.DOTALL)
                assert "jupyter" in cell.metadata or max(map(len, shown.splitlines())) <= build.MAX_CODE_COLUMNS, (part, cell.id)


def test_a_release_that_fails_leaves_the_old_one(course, monkeypatch):
    old = release("01_data_split", course.home, course.notebooks)
    source = course.home / "source" / "01_data_split" / "01_data_split.ipynb"
    before, by_it = old.read_bytes(), source.read_bytes()
    changed = build.build("01_data_split")
    changed.cells[0].source += " Changed."
    monkeypatch.setattr(build, "build", lambda part: changed)

    def fail(self):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("nbgrader.converters.GenerateAssignment.start", fail)
    with pytest.raises(RuntimeError, match="the disk is full"):
        release("01_data_split", course.home, course.notebooks)
    assert old.read_bytes() == before and [path.name for path in course.notebooks.iterdir()] == ["01_data_split"]
    assert source.read_bytes() == by_it, "the next autograde would tell of changes that were not released"


TYPOS = [
    (
        "points=3",
        "points=five",
        '90_mine.py, line 21, cell \'Test first\': tags=["test"] points=five is not understood; the form is tags=["test"] points=3.',
    ),
    ("points=3", "points=0", "line 21, cell 'Test first': a test needs points=, a number above 0; got 0."),
    (" points=3", "", "line 21, cell 'Test first': a test needs points=, a number above 0; got None."),
    ("### END SOLUTION", "### END SOLUTON", "line 19: '### END SOLUTON' is not a known mark. Did you mean '### END SOLUTION'?"),
    ("### END SOLUTION", "", "line 17: '### BEGIN SOLUTION' has no '### END SOLUTION' in its cell."),
    ("### BEGIN SOLUTION", "", "line 19: '### END SOLUTION' is out of place: no block is open."),
    ("### END HIDDEN TESTS", "### END SOLUTION", "line 24: '### END SOLUTION' is out of place: '### BEGIN HIDDEN TESTS' is still open."),
    ("### END HIDDEN TESTS\n", "", "line 22: '### BEGIN HIDDEN TESTS' has no '### END HIDDEN TESTS' in its cell."),
    ('"exercise"', '"exercize"', "line 14, cell 'First': there is no tag 'exercize'. Did you mean 'exercise'?"),
    ("# %%px\ndef", "def", "line 14, cell 'First': an exercise needs %%px on its first line, and BEGIN SOLUTION and END SOLUTION."),
    (
        "### BEGIN HIDDEN",
        "1\n### BEGIN HIDDEN",
        "line 21, cell 'Test first': a test needs one pair of BEGIN and END HIDDEN TESTS around all of its code.",
    ),
    ("# %% First", "# %%", "a code cell needs a unique title after '# %%'"),
    ("# %% Test first", "# %% First", "a code cell needs a unique title after '# %%', but another cell is also called 'First'."),
    ("# %% First", '# %% [markdown] tags=["slide50"]\n# Why\n\n# %% First', "the text that begins with 'Why': there is no tag 'slide50'."),
]
MINE = """# ---
# jupyter:
#   course:
#     ranks: 2
# ---

# %% Start tags=["given"]
from course_lib import cluster
ranks = cluster.start(2)

# %% [markdown]
# # Mine

# %% First tags=["exercise"]
# %%px
def first():
    ### BEGIN SOLUTION
    return 1
    ### END SOLUTION

# %% Test first tags=["test"] points=3
### BEGIN HIDDEN TESTS
assert ranks.call("first") == [1, 1]
### END HIDDEN TESTS
"""


@pytest.mark.parametrize("right, typo, said", TYPOS, ids=[typo.strip() or "nothing" for _, typo, _ in TYPOS])
def test_a_typo_in_a_part_is_named_with_its_line(right, typo, said):
    assert build.points(build.from_text(MINE, "90_mine")) == 3
    with pytest.raises(build.SourceError) as raised:
        build.from_text(MINE.replace(right, typo, 1), "90_mine")
    assert said in str(raised.value)


def names_in(source: str) -> tuple[set[str], set[str]]:
    """Return the names that a cell in the kernel binds, and those that it reads."""
    bound, read = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
    return bound, read


@pytest.mark.parametrize("part", parts())
def test_no_hidden_test_needs_what_another_one_defines(part):
    """Variants and regrading run some of them alone: with a NameError, every answer would lose points."""
    given, tests = set(), {}
    for cell in build.build(part).cells:
        if build.kind_of(cell) == "test":
            tests[cell.id] = names_in(cell.source)
        elif cell.cell_type == "code" and not cell.source.startswith("%%"):
            given |= names_in(re.sub("^[%!].*", "", cell.source, flags=re.MULTILINE))[0]
    for name, (bound, read) in tests.items():
        elsewhere = set().union(*(other for test, (other, _) in tests.items() if test != name))
        assert not (read - bound - given) & elsewhere, name
