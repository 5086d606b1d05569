"""Hand-ins are found as platforms and people name them, the newest counts, and nobody hands in for somebody else."""

import json
import os
import re
import zipfile
from datetime import UTC, datetime

import pytest

from grading.collect import collect
from grading.collecting import platforms
from grading.collecting.collected import format_table
from grading.config import configure
from grading.formatting import printable
from grading.people import ids, roster

PART = "03_naive_forward"


def notebook(text, part=PART):
    """A notebook that says which part it is."""
    metadata = {"course": {"part": part}} if part else {}
    return json.dumps({"cells": [], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5, "text": text})


def submitted(home, part=PART):
    return {path.parent.parent.name: text_of(path.read_text()) for path in (home / "submitted").glob(f"*/{part}/{part}.ipynb")}


def filled(name):
    """The name of the part for a P that stands alone."""
    return re.sub(r"(?<![A-Za-z])P(?![A-Za-z])", PART, name)


def text_of(text):
    try:
        return json.loads(text)["text"]
    except ValueError:
        return text


class Downloads:
    """A folder of downloads, and the folder where hand-ins go."""

    def __init__(self, folder):
        self.folder, self.home, self.clock = folder / "downloads", folder / "grading", 1.7e9
        self.folder.mkdir()
        self.home.mkdir()

    def file(self, name, text, age=None):
        path = self.folder / filled(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.startswith("{") or age == "raw" else notebook(text))
        self.clock += 60
        time = self.clock if age in (None, "raw") else age
        os.utime(path, (time, time))

    def zip(self, name, entries, mode="w"):
        with zipfile.ZipFile(self.folder / name, mode, zipfile.ZIP_DEFLATED) as archive:
            for inside, text in entries.items():
                self.clock += 60
                info = zipfile.ZipInfo(filled(inside), datetime.fromtimestamp(self.clock).timetuple()[:6])
                archive.writestr(info, text if isinstance(text, bytes) or text.startswith("{") else notebook(text))
        os.utime(self.folder / name, (self.clock, self.clock))

    def zip_in(self, name, entries):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        self.zip(name, entries)

    def collect(self, part=PART):
        done = collect(part, self.folder, self.home)
        shown = format_table(done)
        for file, why in done.refused if "more of" not in shown else ():
            assert printable(file) in shown and printable(why) in shown
        return done, submitted(self.home, part)

    def roster(self, *rows):
        (self.home / "roster.csv").write_text("\n".join(["id,name,email,canvas,moodle", *rows, ",,,,"]))


@pytest.fixture
def downloads(tmp_path):
    return Downloads(tmp_path)


@pytest.mark.parametrize(
    ("name", "student", "key", "rest"),
    [
        ("lovelaceada_123_456_P.ipynb", "lovelaceada", "123", "P.ipynb"),
        ("lovelaceada_LATE_123_456_P-1.ipynb", "lovelaceada", "123", "P-1.ipynb"),
        ("lovelaceada_123_456_evebob_7_8_P.ipynb", "lovelaceada", "123", "evebob_7_8_P.ipynb"),
        ("de_la_cruz_123_456_my_LATE_1_2_P.ipynb", "de_la_cruz", "123", "my_LATE_1_2_P.ipynb"),
        ("o_hara_3rd_31_501_P.ipynb", "o_hara_3rd", "31", "P.ipynb"),
        ("Ada Lovelace_987_assignsubmission_file_", "Ada Lovelace", "Ada Lovelace", ""),
        ("O'Hara, José [x]_987_assignsubmission_file_P.ipynb", "O'Hara, José (x)", "O'Hara, José [x]", "P.ipynb"),
        ("Eve_1_assignsubmission_file_Bob_2_assignsubmission_file_P.ipynb", "Eve", "Eve", "Bob_2_assignsubmission_file_P.ipynb"),
        ("12345-678 - Ada Lovelace - Oct 3, 2026 1159 PM", "Ada Lovelace", "Ada Lovelace", ""),
        ("12345-678 - Ada Lovelace - Oct 3, 2026 905 AM - P.ipynb", "Ada Lovelace", "Ada Lovelace", "P.ipynb"),
    ],
)
def test_a_platforms_names(name, student, key, rest):
    said = platforms.parse_name(name)
    assert (said.student, said.key, said.rest) == (student, key, rest)
    assert said.late == ("_LATE_123" in name)
    if said.platform == "brightspace":
        assert said.time == (datetime(2026, 10, 3, 9, 5) if " 905 " in name else datetime(2026, 10, 3, 23, 59))


@pytest.mark.parametrize("name", [f"ada_{PART}.ipynb", "ada", f"{PART}-1.ipynb", "ada_12_x.ipynb", f"2026_11_{PART}.ipynb"[5:], ""])
def test_other_names_are_no_platforms(name):
    assert platforms.parse_name(name) is None


def test_files_folders_and_zips(downloads):
    downloads.file("ada_P.ipynb", "a")
    downloads.file("ben/P.ipynb", "b")
    downloads.file("dan/my answer.ipynb", "d")
    downloads.file("other.ipynb", notebook("x", None))
    downloads.zip("all.zip", {"cleo/P/P.ipynb": "c"})
    done, found = downloads.collect()
    assert found == {"ada": "a", "ben": "b", "cleo": "c", "dan": "d"} and list(done.matched) == sorted(found)
    assert [file for file, _ in done.refused] == ["other.ipynb"] and "neither its content nor its name says" in done.refused[0][1]


def test_canvas(downloads):
    downloads.zip(
        "submissions.zip",
        {
            "lovelaceada_123_456_P.ipynb": "old",
            "lovelaceada_123_460_P-1.ipynb": "new",
            "ohara_LATE_124_457_P.ipynb": "late",
            "renamed_125_458_homework final (2).ipynb": "renamed",
            "zipped_126_459_hw.zip": zipped({f"deep/{PART}.ipynb": notebook("zipped")}),
            "other_127_461_04_megatron_forward.ipynb": notebook("x", "04_megatron_forward"),
            "text_128_462_essay.pdf": "x",
        },
    )
    done, found = downloads.collect()
    assert found == {"lovelaceada": "new", "ohara": "late", "renamed": "renamed", "zipped": "zipped"}
    why = dict(done.refused)
    assert len(why) == 2 and "04_megatron_forward" in why["submissions.zip/other_127_461_04_megatron_forward.ipynb"]
    assert why["submissions.zip/text_128_462_essay.pdf"] == "neither a notebook nor a zip"
    assert [student for student, _, _ in done.replaced] == ["lovelaceada"] and "late: 1\n    ohara" in format_table(done)
    stamps = {path.parent.parent.name for path in downloads.home.glob("submitted/*/*/timestamp.txt")}
    assert not stamps, "in a zip of Canvas a file's time is that of the download"
    assert format_table(done).startswith("matched: 4\n")


def zipped(entries):
    import io

    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        for name, text in entries.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def test_moodle(downloads):
    downloads.zip(
        "Course-Part 03-77.zip",
        {
            "Ada Lovelace_987_assignsubmission_file_/P-1.ipynb": "a",
            "Ben O'Hara_988_assignsubmission_file_/Untitled.ipynb": "b",
            "Cleo, the [3rd]_989_assignsubmission_file_P.ipynb": "c",
            "Dan_990_assignsubmission_file_/hw.zip": zipped({"x/y/answer.ipynb": notebook("d")}),
        },
    )
    done, found = downloads.collect()
    assert found == {"Ada Lovelace": "a", "Ben O'Hara": "b", "Cleo, the (3rd)": "c", "Dan": "d"} and not done.refused
    stamp = (downloads.home / "submitted" / "Ada Lovelace" / PART / "timestamp.txt").read_text()
    from nbgrader.utils import parse_utc

    assert abs(parse_utc(stamp).timestamp() - datetime.fromtimestamp(1.7e9 + 60, UTC).replace(tzinfo=None).timestamp()) < 2


def test_brightspace_and_a_folder_around_all(downloads):
    for name in (
        "12345-678 - Ada Lovelace - Oct 3, 2026 1159 PM",
        "12345-678 - Ada Lovelace - Oct 4, 2026 1201 AM",
        "99-1 - Ben - Oct 1, 2026 100 PM",
    ):
        downloads.file(f"part 03/{name}/answer.ipynb", name[-8:])
    downloads.file("part 03/index.html", "<html>", "raw")
    done, found = downloads.collect()
    assert found == {"Ada Lovelace": " 1201 AM", "Ben": "6 100 PM"}
    assert [file for file, _ in done.refused] == ["part 03/index.html"]


def test_what_comes_after_the_due_date_is_late(downloads):
    from nbgrader.api import Gradebook
    from traitlets.config import Config

    with Gradebook(configure(Config(), downloads.home).CourseDirectory.db_url) as gradebook:
        gradebook.add_assignment(PART, duedate=datetime.fromtimestamp(1.7e9 + 90, UTC).replace(tzinfo=None))
    downloads.zip("all.zip", {"Ada_1_assignsubmission_file_/P.ipynb": "a", "Ben_2_assignsubmission_file_/P.ipynb": "b"})
    downloads.zip("canvas.zip", {"cleo_1_2_P.ipynb": "c", "dan_LATE_3_4_P.ipynb": "d"})
    done, found = downloads.collect()
    assert done.late == ["Ben", "dan"] and set(found) == {"Ada", "Ben", "cleo", "dan"}


def test_a_student_is_one_person_in_all_parts(downloads):
    other = "04_megatron_forward"
    downloads.zip("a.zip", {"Ada Lovelace_987_assignsubmission_file_/P.ipynb": "3"})
    downloads.zip("b.zip", {f"Ada Lovelace_1055_assignsubmission_file_/{other}.ipynb": notebook("4", other)})
    assert downloads.collect()[1] == {"Ada Lovelace": "3"} and downloads.collect(other)[1] == {"Ada Lovelace": "4"}


def test_names_of_zips_without_the_flag_for_utf_8(downloads):
    downloads.zip("all.zip", {"José_1_assignsubmission_file_/P.ipynb": "j"})
    data = bytearray((downloads.folder / "all.zip").read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(mark) + place
        data[at + 1] &= ~0x08
    (downloads.folder / "all.zip").write_bytes(data)
    assert downloads.collect()[1] == {"José": "j"}


def test_with_a_roster_all_ways_lead_to_one_id_and_who_is_missing_is_said(downloads):
    downloads.roster(
        'al1,"Lovelace, Ada",ada@x.org,,', "oh2,Ben O'Hara,,,", "lw3,Li Wei,,31,Li Wei", "lw4,Li Wei,,32,Li Wei B", "zz5,Zoe,,,"
    )
    downloads.zip(
        "canvas.zip", {"lovelaceada_11_456_P.ipynb": "a", "liwei_31_1_P.ipynb": "3", "liwei_32_2_P.ipynb": "4", "eve_9_1_P.ipynb": "e"}
    )
    downloads.zip("moodle.zip", {"Ben O'Hara_9_assignsubmission_file_/P.ipynb": "b"})
    done, found = downloads.collect()
    assert found == {"al1": "a", "lw3": "3", "lw4": "4", "oh2": "b"} and done.missing == ["zz5"]
    assert [file for file, _ in done.refused] == [f"canvas.zip/eve_9_1_{PART}.ipynb"] and "nobody in roster.csv" in done.refused[0][1]
    assert "missing: 1\n    zz5" in format_table(done)
    downloads.file("ada@x.org/P.ipynb", "by address")
    assert downloads.collect()[1]["al1"] == "a", "from two places, and nobody knows which is newer"


def test_two_users_of_canvas_with_one_name_are_not_mixed_up(downloads):
    downloads.zip("canvas.zip", {"liwei_31_1_P.ipynb": "3", "liwei_32_2_P.ipynb": "4", "ada_33_3_P.ipynb": "a"})
    done, found = downloads.collect()
    assert found == {"ada": "a"} and len(done.refused) == 2 and "the column 'canvas'" in done.refused[0][1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,email\nAda,x", "no column 'id'"),
        ("id,name\nada,A\nAda,B", "line 3: id 'Ada': it is also on line 2"),
        ("id,name\n=1+1,A", "expected no space and none of ="),
        ("id,name\nada,A\n\uff41da,B", "line 3: id .*: it is also on line 2"),
        ("id,name\ncon,A", "Windows"),
        ("id,name\n,A", "line 2"),
        ("id,name\na/b,A", r"line 2: id 'a/b': not a valid name for a student's folder: expected none of \[ \] \* \? / .*, got 'a/b'"),
    ],
)
def test_a_roster_that_cannot_be_used_says_where(downloads, text, said):
    (downloads.home / "roster.csv").write_text(text)
    with pytest.raises(roster.RosterError, match=said):
        downloads.collect()


def test_a_roster_of_a_spreadsheet(downloads):
    (downloads.home / "roster.csv").write_bytes("\ufeffid;name;email\r\nal1;Adä Löve;\r\n".encode())
    downloads.file("Adä Löve/P.ipynb", "a")
    assert downloads.collect()[1] == {"al1": "a"}


def test_of_several_uploads_the_last_counts_by_number_and_by_time(downloads):
    for name in ("ada_P.ipynb", "ada_P-1.ipynb", "ada_P (2).ipynb", "ben_P(1).ipynb", "ben_P.ipynb"):
        downloads.file(name, name)
    done, found = downloads.collect()
    assert found == {"ada": "ada_P (2).ipynb", "ben": "ben_P(1).ipynb"}
    assert len(done.replaced) == 3


def test_a_second_download_replaces_the_first(downloads):
    downloads.zip("submissions.zip", {"ada_1_5_P.ipynb": "old", "ben_2_6_P.ipynb": "ben"})
    downloads.zip("submissions (1).zip", {"ada_1_9_P-1.ipynb": "new", "ben_2_6_P.ipynb": "ben"})
    downloads.zip("moodle.zip", {"Cleo_1_assignsubmission_file_/P.ipynb": "old"})
    downloads.zip("moodle(1).zip", {"Cleo_1_assignsubmission_file_/P.ipynb": "new"})
    assert downloads.collect()[1] == {"ada": "new", "ben": "ben", "Cleo": "new"}


def test_a_stale_folder_does_not_win_over_a_newer_file(downloads):
    downloads.file("submissions/ada_P.ipynb", "old")
    downloads.file("submissions/ben_P.ipynb", "b")
    downloads.file("Cleo_1_assignsubmission_file_/P.ipynb", "old")
    downloads.file("download/Cleo_1_assignsubmission_file_/P.ipynb", "new")
    downloads.file("download/Dan_2_assignsubmission_file_/P.ipynb", "d")
    downloads.file("ada_P.ipynb", "new")
    found = downloads.collect()[1]
    assert found["ada"] == "new" and found["Cleo"] == "new" and found["Dan"] == "d"


def test_a_zip_that_is_gone_is_no_hand_in_any_more(downloads):
    for name, text in (("first.zip", "old"), ("second.zip", "new")):
        downloads.zip(name, {"ada_P.ipynb": text})
        assert downloads.collect()[1] == {"ada": text}
        (downloads.folder / name).unlink()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_is_damaged_anywhere_stops_nobody(downloads, kind):
    downloads.file("ada_P.ipynb", "a")
    text = "b" * 5000 + "".join(map(str, range(300)))
    with zipfile.ZipFile(downloads.folder / "bad.zip", "w", kind) as archive:
        archive.writestr(f"ben_{PART}.ipynb", text)
    whole, said = (downloads.folder / "bad.zip").read_bytes(), 0
    for place in range(len(whole)):
        (downloads.folder / "bad.zip").write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        done, found = downloads.collect()
        assert found.pop("ada") == "a" and set(found.values()) <= {text}, "half a notebook was collected"
        for path in downloads.home.glob("submitted/*/*/*"):
            path.unlink()
        said += len(done.refused)
    assert said > len(whole) // 2


ELSEWHERE = {  # where Eve's file lies, and where it goes: to Eve, or to nobody
    "her folder": (None, ["ada_P.ipynb", "eve/ada_P.ipynb"], "eve"),
    "her folder, with others' names in it": (None, ["ada_P.ipynb", "eve/ada_P.ipynb", "eve/ben_P.ipynb"], None),
    "a folder beside, in one zip": ("all.zip", ["ada/P.ipynb", "eve/ada_P.ipynb"], "eve"),
    "a folder below, in one zip": (
        "all.zip",
        ["Ada_1_assignsubmission_file_/P.ipynb", "Eve_2_assignsubmission_file_/Ada_1_assignsubmission_file_/P.ipynb"],
        "Eve",
    ),
    "a platform's name in a folder of hers": (
        None,
        ["Ada_1_assignsubmission_file_/P.ipynb", "eve/Ada_1_assignsubmission_file_/P.ipynb"],
        None,
    ),
    "a folder with a folder, in one zip": ("all.zip", ["ada/P.ipynb", "eve/ada/P/P.ipynb"], "eve"),
    "a level deeper": (None, ["part01/ada/P.ipynb", "part01/eve/ada_P.ipynb"], "eve"),
    "behind her name in Canvas": ("all.zip", ["ada_1_2_P.ipynb", "eve_3_4_ada_1_9_P.ipynb"], "eve"),
    "behind her name in Moodle": (
        "all.zip",
        ["Ada_1_assignsubmission_file_P.ipynb", "Eve_2_assignsubmission_file_Ada_1_assignsubmission_file_P.ipynb"],
        "Eve",
    ),
    "another ending": (None, ["ada_P.ipynb", "ada_P_eve.ipynb"], None),
    "another ending, in a zip": ("all.zip", ["ada_P.ipynb", "ada_P_late_eve.ipynb"], None),
}


@pytest.mark.parametrize("how", ELSEWHERE)
def test_nobody_hands_in_for_somebody_else_wherever_it_lies(downloads, how):
    archive, names, whose = ELSEWHERE[how]
    texts = {name: "eve's" if i else "ada's" for i, name in enumerate(names)}
    if archive:
        downloads.zip(archive, texts)
    else:
        for name, text in texts.items():
            downloads.file(name, text)
    done, found = downloads.collect()
    assert [student for student, text in found.items() if text == "eve's"] == ([whose] if whose else [])
    assert "ada's" in found.values() or (len(done.refused) == 1 and filled(names[0]) in done.refused[0][1])


def test_a_zip_of_a_student_is_theirs(downloads):
    downloads.file("cleo_P.ipynb", "cleo's")
    downloads.zip("eve.zip", {"cleo_P.ipynb": "eve's"})
    done, found = downloads.collect()
    assert found == {} and "eve.zip" in done.refused[0][1] and "collect again" in done.refused[0][1]
    downloads.file("eve/P.ipynb", "eve's folder")
    assert downloads.collect()[1] == {"cleo": "cleo's", "eve": "eve's folder"}, "who Eve is is known now"


def test_what_is_no_hand_in_stops_nobody(downloads, tmp_path):
    secret = tmp_path / "secret.ipynb"
    secret.write_text("secret")
    downloads.file("ada_P.ipynb", "a")
    for name, target in (("link", secret), ("dangling", tmp_path / "nowhere")):
        (downloads.folder / f"{name}_{PART}.ipynb").symlink_to(target)
    (downloads.folder / f"folder_{PART}.ipynb").mkdir()
    os.mkfifo(downloads.folder / f"pipe_{PART}.ipynb")
    (downloads.folder / "no.zip").write_text("no zip")
    (downloads.folder / ".DS_Store").write_text("x")
    downloads.zip(
        "out.zip", {"../../../../outside_P.ipynb": "outside", "../../evil.py": "evil", "/abs/P.ipynb": "x", "C:\\x\\P.ipynb": "y"}
    )
    link = zipfile.ZipInfo(f"ben_{PART}.ipynb")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(downloads.folder / "link.zip", "w") as archive:
        archive.writestr(link, str(secret))
    done, found = downloads.collect()
    assert found == {"ada": "a"}
    why = {file.split("/")[0]: why for file, why in done.refused}
    assert {"out.zip", "link.zip", "no.zip", f"link_{PART}.ipynb", f"dangling_{PART}.ipynb", f"pipe_{PART}.ipynb"} == set(why)
    assert "leads out" in why["out.zip"] and why["link.zip"] == "a link" and "is it a complete zip" in why["no.zip"]
    assert {p.name for p in tmp_path.iterdir()} == {"downloads", "grading", "secret.ipynb"} and not list(tmp_path.rglob("*.py"))


def test_a_zip_in_a_zip_has_an_end_and_zips_that_grow_are_left_out_together(downloads, monkeypatch):
    inner = zipped({f"{PART}.ipynb": notebook("deep")})
    for _ in range(5):
        inner = zipped({"again.zip": inner})
    downloads.zip("ada.zip", {"ada_1_2_hw.zip": inner})
    done, found = downloads.collect()
    assert found == {} and "too deep" in done.refused[0][1]
    monkeypatch.setattr("grading.collecting.unpack.MAX_NOTEBOOK_BYTES", 50_000)
    downloads.zip("ada.zip", {"ada_1_2_P.ipynb": notebook(" " * 60_000), "ben_2_3_P.ipynb": "b"})
    done, found = downloads.collect()
    assert found == {"ben": "b"} and "more than" in done.refused[0][1], "one file too large costs itself only"
    monkeypatch.undo()
    monkeypatch.setattr("grading.collecting.unpack.MAX_BYTES", 2 << 20)
    for letter in "bcd":
        downloads.zip(f"{letter}.zip", {f"{letter}{i}_P.ipynb": notebook(" " * 60_000) for i in range(16)})
    done, found = downloads.collect()
    assert len(found) == 35 and len(done.refused) == 15
    assert all(file.startswith("d.zip/d") and "for all zips together" in why for file, why in done.refused)


@pytest.mark.parametrize("name", ["=1+1", '=HYPERLINK("http:evil","x")', "@SUM(1)_x", "+1", "-rf", " ", "\t=1+1", " =1"])
def test_a_name_that_is_a_formula_is_nobodys(downloads, name):
    downloads.zip("all.zip", {f"{name}/P.ipynb": "x", "ben/P.ipynb": "b"})
    done, found = downloads.collect()
    assert found == {"ben": "b"} and len(done.refused) == 1


NO_IDS = [
    "",
    "...",
    ".x",
    "..\\X",
    "a/b",
    "x\n[z]",
    "x\u2028y",
    "x\x1by",
    "x\x00",
    "x\u00a0y",
    "*",
    "x?",
    "x]",
    "ada.",
    "ada ",
    " ada",
    "\uff1d1",
]
DEVICES = ["con", "NUL", "aux.x", "Com1", "com\u00b9"]


@pytest.mark.parametrize("name", [*NO_IDS, *DEVICES, "a" * 129, "\u5b66" * 67, "Jos\udc82"])
def test_a_name_that_is_no_folders_on_every_disk_is_no_id(name):
    assert "expected" in ids.id_problem(name) and ids.id_problem(name).isprintable()


@pytest.mark.parametrize(
    "name", ["ada", "Lovelace, Ada", "O'Hara", "J. Doe", "Jose\u0301", "\u017eofie \u5b66\u751f", "contessa", "a" * 128, "com10"]
)
def test_a_name_that_is_one_is_an_id(name):
    assert ids.id_problem(name) is None and ids.folder_problem(name) is None


@pytest.mark.parametrize("name", ["x\x07y", "nul", "a" * 150])
def test_a_name_that_grading_would_refuse_is_refused_before(downloads, name):
    downloads.zip("all.zip", {f"{name}/P.ipynb": "x", "ben/P.ipynb": "b"})
    done, found = downloads.collect()
    assert found == {"ben": "b"} and "expected" in done.refused[0][1]


@pytest.mark.parametrize(("one", "other"), [("ada", "Ada"), ("ada", "\uff41da")])
def test_names_that_some_disks_and_eyes_take_for_one_are_named(downloads, one, other):
    for name in (one, other, "ben"):
        downloads.file(f"{name}/P.ipynb", name)
    done, found = downloads.collect()
    assert found == {"ben": "ben"} and len(done.refused) == 2
    assert all(one in why and other in why and "may be the same student" in why for _, why in done.refused)


def test_zips_in_folders_are_of_a_class_or_of_a_student(downloads):
    for week, number in (("week1", 11), ("week2", 55)):
        downloads.zip_in(f"{week}/submissions.zip", {f"lovelaceada_1_{number}_P.ipynb": week})
    assert downloads.collect()[1] == {"lovelaceada": "week2"}
    downloads.file("ben/P.ipynb", "b")
    downloads.zip_in("eve/w.zip", {"ben_1_99_P.ipynb": "eve's", "carl_2_99_P.ipynb": "eve's"})
    found = downloads.collect()[1]
    assert found["ben"] == "b" and "carl" not in found


@pytest.mark.parametrize("roster", [False, True])
@pytest.mark.parametrize(
    ("beside", "inside"),
    [
        ({"submissions.zip": {"ada_1_11_P.ipynb": "ada's", "bob_2_12_P.ipynb": "b"}}, "ada_1_99_P.ipynb"),
        (
            {"p.zip": {"ada_1_assignsubmission_file_P.ipynb": "ada's", "bob_2_assignsubmission_file_P.ipynb": "b"}},
            "ada_1_assignsubmission_file_/P.ipynb",
        ),
        ({"ada.zip": {"P.ipynb": "ada's"}}, "ada_1_99_P.ipynb"),
        ({"ada_P.zip": {"P.ipynb": "ada's"}}, "ada/P.ipynb"),
        ({"ada.zip": {"P.ipynb": "ada's"}, "bob.zip": {"P.ipynb": "b"}}, "ada_P.ipynb"),
    ],
)
def test_a_zip_that_eve_has_packed_makes_nobody_of_her(downloads, roster, beside, inside):
    if roster:
        downloads.roster("ada,Ada,,1,", "bob,Bob,,2,", "eve,Eve,,3,")
    for name, entries in beside.items():
        downloads.zip_in(filled(name), entries)
    downloads.zip_in("eve.zip", {inside: "eve's"})
    found = downloads.collect()[1]
    assert found.get("ada", "") != "eve's" and found.get("bob", "b") == "b"
    assert not roster or found["ada"] == "ada's"


def test_two_names_of_a_platform_in_a_students_own_folder(downloads):
    for name in ("ada/P.ipynb", "bob/P.ipynb", "eve/carl_1_99_P.ipynb", "eve/dora_2_99_P.ipynb"):
        downloads.file(name, name[:3])
    assert set(downloads.collect()[1]) <= {"ada", "bob", "eve"}


def test_in_moodle_time_counts_before_a_number_that_a_student_has_chosen(downloads):
    downloads.zip("p.zip", {"Ada_1_assignsubmission_file_/P-1.ipynb": "old"})
    downloads.zip("p (1).zip", {"Ada_1_assignsubmission_file_/P.ipynb": "new"})
    assert downloads.collect()[1] == {"Ada": "new"}


def test_a_students_zip_has_the_time_of_the_upload_and_not_the_one_that_she_wrote(downloads):
    inner = zipped({f"{PART}.ipynb": notebook("in a zip")})  # the time in it is now
    downloads.zip("p.zip", {"Ada_1_assignsubmission_file_/w.zip": inner})
    assert downloads.collect()[1] == {"Ada": "in a zip"}
    assert (downloads.home / "submitted" / "Ada" / PART / "timestamp.txt").read_text().startswith("2023-11-14")
    downloads.zip("p (1).zip", {"Ada_1_assignsubmission_file_/P.ipynb": "later"})
    assert downloads.collect()[1] == {"Ada": "later"}


def test_an_older_download_does_not_replace_what_was_collected(downloads):
    downloads.zip("new.zip", {"ada_1_31_P-1.ipynb": "new", "bob_2_1_P.ipynb": "b"})
    downloads.collect()
    (downloads.folder / "new.zip").unlink()
    downloads.zip("old.zip", {"ada_1_11_P.ipynb": "old", "bob_2_1_P.ipynb": "b"})
    done, found = downloads.collect()
    assert found == {"ada": "new", "bob": "b"} and "collected before" in done.refused[0][1]


def test_one_students_zip_costs_nobody_else_theirs(downloads, monkeypatch):
    monkeypatch.setattr("grading.collecting.unpack.MAX_FILES_PER_STUDENT", 20)
    many = {"eve_5_6_w.zip": zipped({f"{i}.ipynb": "" for i in range(21)})}
    deep = {"fay_6_7_w.zip": zipped({"d/" * 8000 + f"{PART}.ipynb": "x"})}
    long = {"gil_7_8_w.zip": zipped({"_" * 60_000 + ".ipynb": "x"})}
    none = {"hal_8_9_w.zip": zipped({"__MACOSX/._x": "x"})}
    downloads.zip("submissions.zip", {"ada_1_2_P.ipynb": "a"} | many | deep | long | none | {"zoe_9_9_P.ipynb": "z"})
    done, found = downloads.collect()
    assert found == {"ada": "a", "zoe": "z"}
    assert [why[:10] for _, why in sorted(done.refused)] == ["not unpack", "its name i", "its name i", "it is empt"]


def test_a_name_that_no_disk_takes_costs_itself_only(downloads):
    downloads.zip("class.zip", {"ada_P.ipynb": "a", "b" * 280 + "_P.ipynb": "b", "zoe_P.ipynb": "z"})
    done, found = downloads.collect()
    assert found == {"ada": "a", "zoe": "z"} and len(done.refused) == 1


def test_no_name_writes_a_line_of_its_own_into_the_table(downloads):
    downloads.zip("submissions.zip", {"eve_5_6_x.py\nmissing: 0\nmatched: 1\x1b[1A": "x", "ada_1_2_P.ipynb": "a"})
    done, _ = downloads.collect()
    assert "\x1b" not in format_table(done) and format_table(done).count("\n") == 3


def test_hidden_names_and_other_ways_to_write_a_date():
    assert platforms.parse_name("Participant_1234_assignsubmission_file_").student == "Participant 1234"
    for date in ("3 October 2026 23-59", "3 Okt. 2026 2359", "Okt 5, 2026 23:59"):
        assert platforms.parse_name(f"12-34 - Ada - {date}").student == "Ada", date


def test_one_notebook_can_be_collected(downloads, tmp_path):
    path = tmp_path / f"ada_{PART}.ipynb"
    path.write_text(json.dumps({"cells": [], "metadata": {"course": {"part": PART}}, "nbformat": 4, "nbformat_minor": 5}))
    assert list(collect(PART, path, downloads.home).matched) == ["ada"]
