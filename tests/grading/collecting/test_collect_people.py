"""Nobody's hand-in is lost without a word, or goes to somebody else: people of one name, sections, hidden files, floods, odd names."""

import json
import os
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from grading import tables
from grading.collecting import tree
from grading.collecting.collected import format_table
from grading.people import roster
from grading.results import packing
from tests.grading.collecting.test_collect import PART, Downloads, filled, notebook, zipped

DUE = datetime(2026, 11, 1, 12)


@pytest.fixture
def downloads(tmp_path):
    return Downloads(tmp_path)


def moodle(name, number, file="P.ipynb"):
    return f"{name}_{number}_assignsubmission_file_/{file}"


TWO = {  # two people of one name, as platforms name them
    "Canvas": ("wangwei_123_1001_P.ipynb", "wangwei_456_1002_P.ipynb"),
    "Moodle": (moodle("Wei Wang", 987), moodle("Wei Wang", 988)),
    "Moodle, flat": ("Wei Wang_987_assignsubmission_file_P.ipynb", "Wei Wang_988_assignsubmission_file_P.ipynb"),
    "Moodle, spelt in another way": (moodle("Wei Wang", 987), moodle("Wei  Wang", 988)),
    "Moodle, with brackets": (moodle("Wei [1]", 987), moodle("Wei (1)", 988)),
    "Brightspace": tuple(f"{n}-67890 - Wei Wang - Nov {n}, 2026 1100 AM/P.ipynb" for n in (11, 12)),
}


@pytest.mark.parametrize("people", [None, "w1,Wei Wang,,,", "w1,Wei (1),,,"])
@pytest.mark.parametrize("platform", TWO)
def test_two_people_of_one_name_are_two_people(downloads, platform, people):
    if people:
        downloads.roster(people)
    one, other = TWO[platform]
    downloads.zip("all.zip", {one: "one", other: "other"})
    done, found = downloads.collect()
    assert found == {} and {file for file, _ in done.refused} == {f"all.zip/{filled(one)}", f"all.zip/{filled(other)}"}
    if not people:
        assert all("are both called" in why for _, why in done.refused)
    (downloads.folder / "all.zip").unlink()
    downloads.zip("first.zip", {one: "one"})
    downloads.collect()
    (downloads.folder / "first.zip").unlink()
    downloads.zip("second.zip", {other: "other"})
    done, found = downloads.collect()
    assert "other" not in found.values() and len(done.refused) == 1, "in a second download"


def test_numbers_of_moodle_in_the_roster_tell_two_of_one_name_apart(downloads):
    downloads.zip("all.zip", {moodle("Wei Wang", 987): "one", moodle("Wei Wang", 988): "other"})
    downloads.roster("w1,Wei Wang,,,", "w2,Wei Wang,,,")
    done, found = downloads.collect()
    assert found == {} and all("by these numbers, such as 98" in why for _, why in done.refused)
    downloads.roster("w1,Wei Wang,,,987; 1022", "w2,Wei Wang,,,1023;988")
    assert downloads.collect()[1] == {"w1": "one", "w2": "other"}


def test_who_puts_an_id_in_the_place_of_a_name_still_gets_the_page_into_the_zip(downloads):
    downloads.zip("all.zip", {moodle("w1", 987): "one", moodle("w2", 988): "other"})
    downloads.roster("w1,Wei Wang,,,", "w2,Wei Wang,,,")
    assert downloads.collect()[1] == {"w1": "one", "w2": "other"}
    for student in ("w1", "w2"):
        page = downloads.home / "feedback" / student / PART / f"{PART}.html"
        page.parent.mkdir(parents=True)
        page.write_text(student)
    assert packing.pack(PART, downloads.home, ["w1", "w2"]).archives == {f"{PART}-moodle.zip": 2}
    with zipfile.ZipFile(downloads.home / "feedback" / f"{PART}-moodle.zip") as archive:
        assert {name.split("_")[1]: archive.read(name).decode() for name in archive.namelist()} == {"987": "w1", "988": "w2"}


def test_a_user_of_canvas_is_the_same_in_all_parts(downloads):
    other = "05_naive_backward"
    downloads.zip("03.zip", {"wangwei_123_1001_P.ipynb": "3"})
    downloads.zip("05.zip", {f"wangwei_789_2001_{other}.ipynb": notebook("5", other)})
    assert downloads.collect()[1] == {"wangwei": "3"}
    done, found = downloads.collect(other)
    assert found == {} and "users 123 and 789 are both called wangwei" in dict(done.refused)[f"05.zip/wangwei_789_2001_{other}.ipynb"]


def test_who_takes_anothers_name_takes_nothing_else(downloads):
    downloads.roster("ada,Ada Lovelace,,,", "mal,Mal Lory,,,")
    downloads.zip("1.zip", {moodle("Ada Lovelace", 101): "a", moodle("Mal Lory", 102): "m"})
    assert downloads.collect()[1] == {"ada": "a", "mal": "m"}
    downloads.zip("1.zip", {moodle("Ada Lovelace", 101): "a", moodle("Ada Lovelace", 102): "mal's"})
    done, found = downloads.collect()
    assert found == {"ada": "a", "mal": "m"} and len(done.refused) == 2
    downloads.zip("1.zip", {moodle("Ada Lovelace", 102): "mal's"})
    assert downloads.collect()[1] == {"ada": "a", "mal": "m"}


def test_a_number_in_the_roster_says_who_is_who(downloads):
    downloads.roster("ada,Ada Lovelace,,1,")
    downloads.zip("all.zip", {"lovelaceada_1_50_P.ipynb": "ada's", "lovelaceada_5_53_P.ipynb": "a stranger's"})
    done, found = downloads.collect()
    assert found == {"ada": "ada's"} and [file for file, _ in done.refused] == [f"all.zip/lovelaceada_5_53_{PART}.ipynb"]


SECTIONS = [
    ["class A/ada_P.ipynb", "class A/bob_P.ipynb", "class B/cy_P.ipynb", "class B/di_P.ipynb"],
    ["class A/ada_P.ipynb", "class A/bob_P.ipynb", "class B/cy_P.ipynb"],
    ["class A/ada/P.ipynb", "class A/bob/P.ipynb", "class B/cy/P.ipynb", "class B/di/P.ipynb"],
    ["class A/ada/P.ipynb", "class A/bob/P.ipynb", "class B/cy/P.ipynb"],
    ["class A/ada/P.ipynb", "class A/bob/P.ipynb", "class B/ada/P.ipynb", "class B/bob/P.ipynb"],
]


@pytest.mark.parametrize("people", [False, True])
@pytest.mark.parametrize("names", SECTIONS)
def test_a_folder_around_a_class_is_no_student(downloads, names, people):
    if people:
        downloads.roster(*(f"{student},{student},,," for student in ("ada", "bob", "cy", "di")))
    for name in names:
        downloads.file(name, name)
    done, found = downloads.collect()
    if people:  # then it knows those inside
        newest = {Path(name.removesuffix("/P.ipynb").removesuffix("_P.ipynb")).name: name for name in names}
        assert found == newest and not done.refused
    else:
        assert found == {} and {file for file, _ in done.refused} == set(map(filled, names)) and not done.replaced
        assert all("FROM=.../class " in why for _, why in done.refused)
    downloads.folder, downloads.home = downloads.folder / "class A", downloads.home.parent / "other"
    assert set(downloads.collect()[1]) == {"ada", "bob"}, "and then by itself"


def test_folders_around_what_a_platform_has_named(downloads):
    for name in ("sec 1/lovelaceada_1_2_P.ipynb", "sec 1/libo_2_3_P.ipynb", "sec 2/wangwei_4_5_P.ipynb", f"sec 3/{moodle('Zoe', 9)}"):
        downloads.file(name, name)
    assert set(downloads.collect()[1]) == {"lovelaceada", "libo", "wangwei", "Zoe"}


def test_each_students_folder_may_have_folders_of_the_same_name(downloads):
    for name in ("ada/notebooks/P.ipynb", "ada/backup/P.ipynb", "bob/notebooks/P.ipynb", "cy/notebooks/P.ipynb"):
        downloads.file(name, name)
    assert set(downloads.collect()[1]) == {"ada", "bob", "cy"}


@pytest.mark.parametrize("people", [False, True])
def test_a_platforms_name_in_a_zip_goes_before_that_of_the_zip(downloads, people):
    if people:
        downloads.roster("ada,Ada L,,,", "bob,Bob S,,,")
    for group, inside in (("group A", moodle("Ada L", 1)), ("group B", moodle("Bob S", 2))):
        downloads.zip(f"{group}.zip", {inside: group})
    assert downloads.collect()[1] == ({"ada": "group A", "bob": "group B"} if people else {"Ada L": "group A", "Bob S": "group B"})


def test_a_zip_of_one_name_with_a_platforms_other_name_in_it_is_nobodys(downloads):
    downloads.roster("ada,Ada L,,,", "bob,Bob S,,,")
    downloads.zip("ada.zip", {moodle("Bob S", 2): "bob's"})
    downloads.zip("x.zip", {moodle("Ada L", 1): "ada's"})
    done, found = downloads.collect()
    assert found == {"ada": "ada's"}
    assert [file for file, _ in done.refused] == [f"ada.zip/{filled(moodle('Bob S', 2))}"] and "the zip is called 'ada'" in done.refused[0][
        1
    ]


def test_a_second_download_of_one_student_alone(downloads):
    downloads.zip("CS-03-9.zip", {moodle("Ada", 1): "old", moodle("Bob", 2): "b"})
    downloads.zip("CS-03-9 (1).zip", {moodle("Ada", 1): "new"})
    assert downloads.collect()[1] == {"Ada": "new", "Bob": "b"}


HIDDEN = [
    moodle("Chk", 2, f".ipynb_checkpoints/{PART}-checkpoint.ipynb"),
    moodle("Dot", 3, f".{PART}.ipynb"),
    moodle("Folder", 4, ".hw/P.ipynb"),
    ".Odd_5_assignsubmission_file_/P.ipynb",
]


@pytest.mark.parametrize("extracted", [False, True])
def test_what_is_hidden_is_named_where_nothing_else_of_that_student_is_there(downloads, extracted):
    names = [*HIDDEN, moodle("Ada", 1), moodle("Ada", 1, f".ipynb_checkpoints/{PART}-checkpoint.ipynb"), "__MACOSX/._P.ipynb"]
    if extracted:
        for name in names:
            downloads.file(name, name)
    else:
        downloads.zip(
            "all.zip", {name: name for name in names} | {moodle("Zip", 6, "hw.zip"): zipped({".work/P.ipynb": "z", "readme.txt": ""})}
        )
    done, found = downloads.collect()
    wanted = set(map(filled, HIDDEN)) | ({moodle("Zip", 6, "hw.zip/.work/P.ipynb")} if not extracted else set())
    assert set(found) == {"Ada"}
    assert {file.removeprefix("all.zip/") for file, why in done.refused if why.startswith("hidden")} == wanted


def test_who_sends_many_files_hides_nobody_else(downloads):
    flood = zipped({f"{i}.ipynb": "{}" for i in range(900)})
    entries = {moodle("Mal", 1, f"{i}.zip"): flood for i in range(3)} | {moodle("Zed", 2, "answer.py"): "x", moodle("Zoe", 3, "P.py"): "x"}
    downloads.zip("all.zip", entries)
    done, _ = downloads.collect()
    shown = format_table(done)
    assert "Zed" in shown and "Zoe" in shown and shown.count("Mal") == 11
    assert f"not matched: {len(done.refused)}" in shown and "more of all.zip/Mal_1_assignsubmission_file_" in shown


def test_one_students_zips_take_no_room_from_others(downloads, monkeypatch):
    monkeypatch.setattr("grading.collecting.unpack.MAX_BYTES_PER_STUDENT", 1 << 20)
    big = zipped({f"{i}.ipynb": "x" * 300_000 for i in range(3)})
    entries = {moodle("Mal", 1, f"{i}.zip"): big for i in range(8)} | {moodle("Zed", 2, "hw.zip"): zipped({f"{PART}.ipynb": notebook("z")})}
    for extracted in (False, True):
        if extracted:
            (downloads.folder / "all.zip").unlink()
            for name, data in entries.items():
                path = downloads.folder / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(data)
        else:
            downloads.zip("all.zip", entries)
        done, found = downloads.collect()
        assert found == {"Zed": "z"} and any("Mal" in file and "for one student's files in zips" in why for file, why in done.refused)


def due(downloads):
    from nbgrader.api import Gradebook
    from traitlets.config import Config

    from grading.config import configure

    with Gradebook(configure(Config(), downloads.home).CourseDirectory.db_url) as gradebook:
        gradebook.update_or_create_assignment(PART, duedate=DUE)


def test_what_canvas_calls_late_costs_the_same_after_each_download(downloads):
    due(downloads)
    stamps = []
    for day in (3, 13):
        downloads.clock = datetime(2026, 11, day, tzinfo=UTC).timestamp()
        downloads.zip("all.zip", {"ada_LATE_1_2_P.ipynb": "a", "bob_3_4_P.ipynb": "b"})
        done, _ = downloads.collect()
        assert done.late == ["ada"] and "ada: Canvas says so, but not by how much; it counts as one second late" in format_table(done)
        stamps.append((downloads.home / "submitted" / "ada" / PART / "timestamp.txt").read_text())
    assert stamps == ["2026-11-01 12:00:01 UTC\n"] * 2
    assert not (downloads.home / "submitted" / "bob" / PART / "timestamp.txt").exists()


def test_a_name_that_is_no_utf_8_is_refused_and_one_that_lies_there_stops_no_table(downloads):
    odd = os.fsdecode(b"Jos\x82 N")
    downloads.file(moodle(odd, 99), "j")
    downloads.file(moodle("Ada", 1), "a")
    done, found = downloads.collect()
    assert found == {"Ada": "a"} and "not valid UTF-8" in done.refused[0][1]
    path = downloads.home / "grades.csv"
    tables.write(path, [["name"], [odd], ["Ada"]])
    assert path.read_text() == '"name"\n"Jos\\udc82 N"\n"Ada"\n'


def test_a_table_stays_whole_where_a_new_one_cannot_be_written(tmp_path):
    def rows():
        yield ["name"]
        raise OSError("no room")

    path = tmp_path / "grades.csv"
    path.write_text("the old one")
    with pytest.raises(OSError, match="no room"):
        tables.write(path, rows())
    assert path.read_text() == "the old one"


@pytest.mark.parametrize("name", ["علی\u200cرضا", "\u200fAda", "A\u00adda", "Zo\u200de"])
def test_a_name_has_no_signs_that_nobody_sees(downloads, name):
    downloads.file(moodle(name, 1), "x")
    (student,) = downloads.collect()[1]
    assert student.isprintable(), "nbgrader takes no other"


def test_what_is_no_notebook_wins_over_none_that_is(downloads):
    downloads.file(moodle("Ada", 1, f"{PART}_ok.ipynb"), "good")
    downloads.file(moodle("Ada", 1), "", "raw")
    downloads.file(moodle("Bob", 2), "good")
    done, found = downloads.collect()
    assert found == {"Ada": "good", "Bob": "good"} and "cannot be read as a notebook" in done.refused[0][1]
    downloads.file(moodle("Bob", 2), "", "raw")
    done, found = downloads.collect()
    assert found == {"Ada": "good", "Bob": "good"} and "cannot be read as a notebook" in dict(done.refused)[filled(moodle("Bob", 2))]
    downloads.file(moodle("Cy", 3), "", "raw")
    assert "Cy" in downloads.collect()[0].matched, "where it is all that there is, grading says what is wrong with it"


def test_of_one_upload_the_file_that_is_called_as_it_should_be_counts(downloads):
    downloads.zip("c.zip", {"ada_1_100_P.ipynb": "right", "ada_1_101_P-Copy1.ipynb": "copy", "bob_2_5_P-Copy1.ipynb": "only"})
    downloads.zip("m.zip", {moodle("Cy", 1): "right", moodle("Cy", 1, "old/P.ipynb"): "old"})
    done, found = downloads.collect()
    assert found == {"ada": "right", "bob": "only", "Cy": "right"} and not done.replaced
    assert {why for _, why in done.refused} == {"there is one with the expected name or place next to it, and that one counts"}


def test_a_notebook_that_a_browser_has_called_a_text(downloads):
    downloads.file(moodle("Ada", 1, "P.ipynb.txt"), "a")
    downloads.file(moodle("Bob", 2, "P.ipynb.json"), "b")
    assert downloads.collect()[1] == {"Ada": "a", "Bob": "b"}


def test_the_name_of_a_group_may_stand_before_a_students_in_moodle_and_is_no_double_name(downloads):
    downloads.roster("ada,Ada L,,,", "lena,Lena Groß,,,", "lee,Bo Lee,,,", "rm,Rosa M,,,Group A-Rosa M")
    entries = {
        moodle("Group A-Ada L", 1): "a",
        moodle("Anna-Lena Groß", 2): "x",
        moodle("Kim Park-Lee", 3): "x",
        moodle("Group A-Rosa M", 4): "r",
    }
    downloads.zip("m.zip", entries)
    done, found = downloads.collect()
    assert found == {"rm": "r"}, "the column 'moodle' says so"
    why = {file.split("/")[1].split("_")[0]: why for file, why in done.refused}
    assert "may be ada;" in why["Group A-Ada L"] and "may be lena;" in why["Anna-Lena Groß"] and "may be" not in why["Kim Park-Lee"]


def test_a_time_of_brightspace_that_cannot_be_read_is_said_where_it_decides(downloads):
    for day, text in (("19", "old"), ("20", "new")):
        downloads.file(f"1-9 - Ada L - {day} Listopadu 2026 1201/P.ipynb", text)
    downloads.file("2-9 - Bob - 20 Listopadu 2026 1201/P.ipynb", "b")
    done, found = downloads.collect()
    assert found == {"Bob": "b"} and "no time can be read from" in done.refused[0][1]


def test_names_that_differ_in_capitals_are_named_over_two_downloads(downloads):
    for name in ("Bob S", "bob s"):
        downloads.zip("m.zip", {moodle(name, 1): name})
        done, found = downloads.collect()
    assert found == {"Bob S": "Bob S"} and "may be the same student as Bob S" in done.refused[0][1]


@pytest.mark.parametrize("record", ['{"platform": null}', "[]", "{", '{"file": 1, "age": []}', '{"file": "x", "age": ["a", null, 1]}'])
def test_a_record_that_is_broken_costs_nothing(downloads, record):
    downloads.file("ada/P.ipynb", "old")
    downloads.collect()
    (downloads.home / "collected" / PART / "ada.json").write_text(record)
    downloads.file("ada/P.ipynb", "new")
    downloads.file("bob/P.ipynb", "b")
    assert downloads.collect()[1] == {"ada": "new", "bob": "b"}


@pytest.mark.parametrize(
    "text",
    [
        "ID;Name;E-Mail\r\nal1;Ada L;x\r\n",
        "sep=;\r\nid;name\r\nal1;Ada L\r\n",
        "Matrikel,ID,Name\n1,al1,Ada L\n",
        "id\tname\nal1\tAda L\n",
        'id,name\nal1,"L, Ada"\n',
    ],
)
def test_a_roster_as_spreadsheets_write_it(downloads, text):
    (downloads.home / "roster.csv").write_bytes(text.encode())
    downloads.file("Ada L/P.ipynb", "a")
    assert downloads.collect()[1] == {"al1": "a"}


def test_a_quote_that_is_not_closed_is_named(downloads):
    (downloads.home / "roster.csv").write_text('id,name\nal1,"Ada L\nbo2,Bo\n')
    with pytest.raises(roster.RosterError, match="is a closing quote missing"):
        downloads.collect()


def test_a_folder_is_looked_at_as_often_whatever_lies_beside_it(downloads, monkeypatch):
    looks = []
    real = tree.platforms.parse_name
    monkeypatch.setattr(tree.platforms, "parse_name", lambda name: looks.append(name) or real(name))
    counted = []
    for n in (50, 100):
        for i in range(n):
            downloads.file(f"all/s{i}/P.ipynb", f"{i}")
        looks.clear()
        assert len(downloads.collect()[1]) == n
        counted.append(len(looks))
    assert counted[1] < 3 * counted[0], "it grows with the square of the class"


@pytest.mark.parametrize("people", [False, True])
@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["section-A/ada/P.ipynb", "section-A/bob/P.ipynb", "section-B/cy/P.ipynb"], "ada bob cy"),
        (["part03/ada/P.ipynb", "part03/bob/P.ipynb", "part03 (1)/ada/P.ipynb"], "ada bob"),
        (["old/ada/P.ipynb", "old/bob/P.ipynb", "old/cy/P.ipynb", "new/ada/P.ipynb", "new/bob/P.ipynb", "new/cy/P.ipynb"], "ada bob cy"),
        (["A/ada.zip", "B/cy.zip"], "ada cy"),
        (["week1.zip/ada/P.ipynb", "week2.zip/bob/P.ipynb"], "ada bob"),
        ([f"A/{moodle('ada', 1)}", f"B/{moodle('bob', 2)}"], "ada bob"),
        (["subs/ada_1_50_P.ipynb", "cy/P.ipynb"], "cy"),
        (["team-1.zip/P.ipynb", "team-2.zip/P.ipynb", "ada.zip/P.ipynb"], "team-1 team-2 ada"),
    ],
)
def test_folders_and_zips_around_hand_ins_are_no_students(downloads, names, wanted, people):
    if people:
        downloads.roster(*(f"{student},{student},,," for student in ("ada", "bob", "cy", "team-1", "team-2")))
    zips = {}
    for name in names:
        outer, dot, inside = name.partition(".zip/")
        if dot:
            zips.setdefault(f"{outer}.zip", {})[inside] = name
        elif name.endswith(".zip"):
            downloads.zip_in(name, {"P.ipynb": name})
        else:
            downloads.file(name, name)
    for name, entries in zips.items():
        downloads.zip(name, entries)
    done, found = downloads.collect()
    assert set(found) <= set(wanted.split()), "a folder became a student"
    assert len(found) + len(done.refused) + len(done.replaced) == len(names)
    if people and names[0] != "subs/ada_1_50_P.ipynb":
        assert set(found) == set(wanted.split())


def test_a_number_that_was_somebody_elses_before_is_named(downloads):
    downloads.roster("ada,Ada Lovelace,,,", "mal,Mal Lory,,,")
    downloads.zip("1.zip", {moodle("Mal Lory", 102): "mal's"})
    downloads.collect()
    downloads.zip("1.zip", {moodle("Ada Lovelace", 102): "mal's again"})
    done, found = downloads.collect()
    assert found == {"mal": "mal's"} and "user 102 is mal" in done.refused[0][1]


def test_a_record_of_an_earlier_version_has_its_number_in_its_name(downloads):
    downloads.zip("1.zip", {"smithjohn_109_5009_P.ipynb": "one"})
    downloads.collect()
    path = downloads.home / "collected" / PART / "smithjohn.json"
    record = json.loads(path.read_text())
    del record["number"]
    path.write_text(json.dumps(record))
    downloads.zip("1.zip", {"smithjohn_110_6010_P.ipynb": "other"})
    done, found = downloads.collect()
    assert found == {"smithjohn": "one"} and "users 109 and 110" in done.refused[0][1]


def test_the_roster_says_who_is_who_also_against_what_was_collected_before(downloads):
    downloads.zip("1.zip", {"lovelaceada_5_53_P.ipynb": "a stranger's"})
    downloads.roster("ada,Ada Lovelace,,,")
    assert downloads.collect()[1] == {"ada": "a stranger's"}
    downloads.roster("ada,Ada Lovelace,,1,", "adb,Ada Lovelace,,5,")
    done, found = downloads.collect()
    assert found == {"ada": "a stranger's"} and "user 5 is ada" in done.refused[0][1]
    downloads.zip("1.zip", {"lovelaceada_1_50_P.ipynb": "ada's"})
    assert downloads.collect()[1] == {"ada": "ada's"}
    downloads.zip("1.zip", {"lovelaceada_5_53_P.ipynb": "a stranger's"})
    assert downloads.collect()[1] == {"ada": "ada's", "adb": "a stranger's"}


def test_a_zip_of_moodles_zips_keeps_all_times(downloads):
    due(downloads)
    downloads.clock = datetime(2026, 10, 30, tzinfo=UTC).timestamp()
    downloads.zip("in time.zip", {moodle("Ada", 1): "a", moodle("Bob", 2): "b"})
    data = (downloads.folder / "in time.zip").read_bytes()
    (downloads.folder / "in time.zip").unlink()
    downloads.clock = datetime(2026, 11, 30, tzinfo=UTC).timestamp()
    downloads.zip("all.zip", {"CS.zip": data})
    done, found = downloads.collect()
    assert set(found) == {"Ada", "Bob"} and not done.late


def test_the_same_file_again_is_neither_late_nor_of_nobody_knows_where(downloads):
    due(downloads)
    downloads.file("ada/P.ipynb", "a", datetime(2026, 10, 30, tzinfo=UTC).timestamp())
    assert not downloads.collect()[0].late
    stamp = downloads.home / "submitted" / "ada" / PART / "timestamp.txt"
    before = stamp.read_text()
    downloads.file("ada/P.ipynb", "a", datetime(2026, 11, 30, tzinfo=UTC).timestamp())
    downloads.collect()
    assert stamp.read_text() == before
    downloads.zip("c.zip", {"bob_1_2_P.ipynb": "b"})
    downloads.collect()
    (downloads.folder / "c.zip").unlink()
    downloads.file("bob/P.ipynb", "b")
    downloads.collect()
    assert json.loads((downloads.home / "collected" / PART / "bob.json").read_text())["platform"] == "canvas"


def test_a_file_that_cannot_be_read_is_said(downloads, monkeypatch):
    downloads.file("ada/P.ipynb", "a")
    downloads.file("bob/P.ipynb", "b")
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "bob" not in str(path) and real(path, mode))  # root may read all
    done, found = downloads.collect()
    assert found == {"ada": "a"} and done.refused == [(f"bob/{PART}.ipynb", "it cannot be read: Permission denied")]
