"""`make new-part`: what it lays is a part that passes what every part must pass."""

import shutil

import pytest

from course_lib.students import EXERCISES
from grading import variants
from grading.authoring import answers, build
from grading.new_part import __main__ as new_part
from grading.paths import ROOT
from lectures import talk
from tests.lectures import test_talk as talks

PART = "90_my_part"


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A copy of what a new part changes, with one."""
    for path in (new_part.README, new_part.STUDENTS):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "solutions").mkdir()
    new_part.begin(PART, tmp_path)
    for module in (build, answers, talk):
        monkeypatch.setattr(module, "SOLUTIONS", tmp_path / "solutions")
    return tmp_path


def test_it_is_a_part_with_a_talk_a_row_and_enough_answers(begun):
    for test in (talks.test_each_part_is_a_talk_with_three_questions_and_two_cuts, talks.test_what_a_slide_shows_of_code_fits_it):
        test(PART)
    rows = [line for line in (begun / "README.md").read_text().splitlines() if line.startswith("| [")]
    assert rows[-1] == f"| [90 A part of your own](notebooks/{PART}/{PART}.ipynb) | `mean_over_ranks` | 4 | 10 |"
    namespace = {}
    exec((begun / new_part.STUDENTS).read_text().replace("from __future__ import annotations", ""), namespace)
    assert namespace["EXERCISES"] == EXERCISES | {"mean_over_ranks"}
    found = answers.read(PART)
    assert sum(answer.loses > 0 for answer in found) >= 6 and sum(not answer.loses for answer in found) == 2
    assert build.points(build.build(PART)) == 10


@pytest.mark.slow
def test_its_answers_get_what_they_deserve(begun):
    lines = []
    assert variants.check(PART, lines.append) == (len(answers.read(PART)) + 2, 0), "\n".join(lines)


@pytest.mark.parametrize("name", ["my_part", "9_x", "90_My", "90-x", "90_../x", "90_", "", "90_x y"])
def test_a_name_that_cannot_be_gets_a_sentence(begun, name):
    with pytest.raises(new_part.CannotBegin, match="expected a name such as 90_my_part"):
        new_part.begin(name, begun)


def test_a_number_that_is_taken_gets_a_sentence_and_changes_nothing(begun):
    before = (begun / "README.md").read_text()
    with pytest.raises(new_part.CannotBegin, match="there is a part 90 already: 90_my_part"):
        new_part.begin("90_other", begun)
    assert (begun / "README.md").read_text() == before and not (begun / "solutions" / "90_other").exists()
