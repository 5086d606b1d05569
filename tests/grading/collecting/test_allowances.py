"""More time for one student and tests that do not count, as the roster says; what cannot be read is named with its line."""

from datetime import UTC, datetime, timedelta

import pytest
from nbgrader.api import Gradebook
from traitlets.config import Config

from grading.collect import collect, is_late
from grading.collecting.collected import format_table
from grading.collecting.owners import CandidateSubmission
from grading.collecting.platforms import parse_name
from grading.config import configure
from grading.formatting import display_name
from grading.paths import NOTEBOOKS, parts
from grading.people import allowances, roster

PART = "03_naive_forward"


@pytest.mark.parametrize(
    ("said", "hours"),
    [
        ("", 0),
        ("2 days", 48),
        ("1 Day 12 hours", 36),
        ("1,5 days, 30 minutes", 36.5),
        ("03_naive_forward: 1 week; 05: 12 hours", 168),
        ("03: 2 hours", 2),
        ("05: 12 hours;", 0),
        ("1 day; 03: 3 days", 72),
        ("3 days; 03: 1 day", 72),
    ],
)
def test_more_time(said, hours):
    assert allowances.extension({"id": "ada", "extension": said}, PART) == timedelta(hours=hours)


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("03_naive_forward: the whole layer", {"test-the-whole-layer"}),
        ("03: test-the-whole-layer, The collected input;05", {"test-the-whole-layer", "test-the-collected-input"}),
        ("05: the whole layer", set()),
        ("03", {"test-the-collected-input", "test-the-collected-output", "test-the-whole-layer"}),
        ("", set()),
    ],
)
def test_tests_that_do_not_count(said, names):
    assert allowances.dropped({"dropped": said}, PART) == names
    assert allowances.dropped({}, PART) == set() and allowances.extension({}, PART) == timedelta()


def test_every_name_on_a_page_is_a_name_that_the_roster_takes():
    for part in parts():
        for test in allowances.dropped({"dropped": part}, part):
            assert allowances.dropped({"dropped": f"{part[:2]}: {display_name(test)}"}, part) == {test}


@pytest.mark.parametrize(
    ("column", "said", "why"),
    [
        ("extension", "two days", "expected a time in minutes, hours, days or weeks"),
        ("extension", "-2 days", "expected a time"),
        ("extension", "2 days late", "expected a time"),
        ("extension", "2", "expected a time"),
        ("extension", "03:", "expected a time"),
        ("extension", "99: 2 days", "there is no part '99'"),
        ("extension", "9" * 400 + " weeks", "at most 366 days"),
        ("dropped", "the whole layer", "there is no part 'the whole layer'"),
        (
            "dropped",
            "03: the hole layer",
            "no test 'the hole layer'; its tests: the collected input, the collected output, the whole layer",
        ),
        ("dropped", "99: x", "there is no part '99'"),
        ("dropped", "00: x", "its tests: none"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path, column, said, why):
    (tmp_path / "roster.csv").write_text(f'id,{column}\nada,\nben,"{said}"\n')
    with pytest.raises(roster.RosterError, match=r"^roster\.csv, line 3: " + column) as raised:
        roster.read(tmp_path / "roster.csv")
    assert why in str(raised.value)


def test_a_part_that_is_not_released_has_no_tests_to_drop(tmp_path):
    with pytest.raises(allowances.AllowanceError, match=f"make release PART={PART}"):
        allowances.dropped({"dropped": "03"}, PART, tmp_path)
    assert (NOTEBOOKS / PART).exists()


def test_a_line_for_everybody_is_no_student(tmp_path):
    lines = ["id,name,extension,dropped", "*,,07: 1 day,03: the whole layer", "ada,Ada,2 days,07", "ben,Ben,,"]
    (tmp_path / "roster.csv").write_text("\n".join(lines))
    people = roster.read(tmp_path / "roster.csv")
    assert list(people.rows) == ["ada", "ben"] and people.find("*") == []
    for student in ("ada", "ben", "not in the roster"):
        assert allowances.dropped(people.row(student), PART) == {"test-the-whole-layer"}
    days = [allowances.extension(people.row(student), "07_weight_grad").days for student in ("ada", "ben", "zoe")]
    assert days == [2, 1, 1] and len(allowances.dropped(people.row("ada"), "07_weight_grad")) == 2
    assert people.row("zoe")["id"] == "zoe"


def test_collect_calls_late_who_came_after_their_own_time(tmp_path, empty_gradebook):
    home, folder = tmp_path / "home", tmp_path / "downloads"
    home.mkdir()
    (home / "gradebook.db").write_bytes(empty_gradebook.read_bytes())
    with Gradebook(configure(Config(), home).CourseDirectory.db_url) as gradebook:
        gradebook.add_assignment(PART, duedate=datetime(2020, 1, 1))
    for student in ("ada", "ben"):
        path = folder / student / f"{PART}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    assert collect(PART, folder, home).late == ["ada", "ben"]
    days = (datetime.now() - datetime(2020, 1, 1)).days
    (home / "roster.csv").write_text(f"id,extension\nada,03: {days - 300} days; 05: 2 days\nben,05: 2 days\n")
    with pytest.raises(roster.RosterError, match="at most 366 days"):
        collect(PART, folder, home)
    with Gradebook(configure(Config(), home).CourseDirectory.db_url) as gradebook:
        gradebook.update_or_create_assignment(PART, duedate=datetime.now(UTC).replace(tzinfo=None) - timedelta(days=1))
    (home / "roster.csv").write_text("id,extension\nada,03: 2 days\nben,05: 2 days\n")
    assert collect(PART, folder, home).late == ["ben"]


def test_what_canvas_calls_late_is_so_unless_the_download_was_in_time(tmp_path):
    class File:
        time = datetime(2026, 1, 3, 12)

    hand_in = CandidateSubmission(File, "ada", parse_name(f"ada_LATE_1_2_{PART}.ipynb"), 0, False)
    due, day = datetime(2026, 1, 1, 12, tzinfo=UTC), timedelta(days=1)
    assert is_late(hand_in, due, timedelta()) and is_late(hand_in, None, 4 * day), "it came late, and nobody knows how much"
    assert is_late(hand_in, due, day) and not is_late(hand_in, due, 4 * day)


def test_the_table_says_what_canvas_does_not_know(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / f"ada_LATE_1_2_{PART}.ipynb").write_text("{}")
    (tmp_path / "roster.csv").write_text("id,extension\nada,2 days\n")
    assert "ada: Canvas says so, but not by how much; the roster grants 2 days" in format_table(collect(PART, tmp_path / "d", tmp_path))
