"""Feedback pages: complete, harmless, of one file, readable on a phone; and packed so that a platform knows whose each is."""

import base64
import json
import re
import shutil
import struct
import zipfile
import zlib
from html.parser import HTMLParser

import pytest
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from traitlets.config import Config

from course_lib.cluster.isolated import sanitize
from grading import feedback, grades
from grading.authoring import build
from grading.collect import collect
from grading.collecting import platforms, records
from grading.collecting.collected import format_table
from grading.config import configure
from grading.paths import parts
from grading.report import class_results
from grading.results import packing, pages, ungraded
from grading.running import pending
from grading.submission.assembly import fingerprint

PART = "07_weight_grad"
NAME = "O'Hara, \"Ada\" <script>alert('mark-of-a-script')</script>"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
HOSTILE = "<script>mark-of-a-script</script><img src=x onerror=mark-of-a-script()>"
LONG = "verylong" * 60


def png(width, height, *more):
    """A picture of a few bytes: nobody who looks at its size needs the others."""
    header = b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = [header, *((kind, bytes(8)) for kind in more), (b"IDAT", zlib.compress(bytes(9))), (b"IEND", b"")]
    packed = (struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks)
    return "image/png", b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def jpeg(width, height, scans=1, before=b""):
    frame = struct.pack(">BBHBHHB3B", 0xFF, 0xC2, 11, 8, height, width, 1, 1, 0x11, 0)
    scan = struct.pack(">BBHB2B3B", 0xFF, 0xDA, 8, 1, 1, 0, 0, 0, 0) + b"\0"
    return "image/jpeg", b"\xff\xd8" + before + frame + scan * scans + b"\xff\xd9"


class Class:
    """Graded notebooks and a gradebook, filled by hand."""

    def __init__(self, home):
        self.home = home
        self.notebook = build.build(PART)
        with self.book() as book:
            book.add_assignment(PART)
            book.add_notebook(PART, PART)
            for cell in self.notebook.cells:
                if build.kind_of(cell) == "test":
                    book.add_grade_cell(cell.id, PART, PART, max_score=cell.metadata.nbgrader.points, cell_type="code")
                elif build.kind_of(cell) == "exercise":
                    book.add_solution_cell(cell.id, PART, PART)
        self.tests = [cell.id for cell in self.notebook.cells if build.kind_of(cell) == "test"]
        self.exercise = next(cell.id for cell in self.notebook.cells if build.kind_of(cell) == "exercise")

    def book(self):
        return Gradebook(configure(Config(), self.home).CourseDirectory.db_url)

    def graded(self, student, scores=(7, 3), outputs=None, extra=None, penalty=None, comment=None):
        """A graded hand-in, with outputs by cell."""
        notebook = build.build(PART)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = (outputs or {}).get(cell.id, [])
        with self.book() as book:
            book.update_or_create_student(student)
            book.add_submission(PART, student)
            for test, score in zip(self.tests, scores, strict=True):
                grade = book.find_grade(test, PART, PART, student)
                grade.auto_score, grade.needs_manual_grade, grade.extra_credit = score, False, extra
            book.find_comment(self.exercise, PART, PART, student).manual_comment = comment
            book.find_submission_notebook(PART, PART, student).late_submission_penalty = penalty
            book.db.commit()
        handed_in = self.home / "submitted" / student / PART / f"{PART}.ipynb"
        build.write(notebook, handed_in)
        notebook.metadata.course |= {"graded": fingerprint(handed_in.read_bytes()), "key": pending.current_key(PART, self.home)}
        build.write(notebook, self.home / "autograded" / student / PART / f"{PART}.ipynb")

    def pages(self):
        self.problems = feedback.feedback(PART, self.home)
        return {path.parents[1].name: path.read_text(encoding="utf-8") for path in self.home.glob(f"feedback/*/{PART}/{PART}.html")}


@pytest.fixture
def students(tmp_path, empty_gradebook):
    home = tmp_path / "grading"
    home.mkdir()
    shutil.copy(empty_gradebook, home)
    return Class(home)


class Outline(HTMLParser):
    """The text that a page shows, and everything that it would load or run."""

    def __init__(self, page):
        super().__init__()
        self.text, self.bad, self.tags = "", [], []
        self.feed(page)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.text += " " if tag == "td" else ""
        for name, value in attrs:
            of_page = name == "href" and value.startswith(("#", "https://", "http://"))  # a link that a reader may click
            if (name in ("src", "href", "srcset", "data") and not of_page and not value.startswith("data:image/")) or name.startswith("on"):
                self.bad.append((tag, name, value))

    def handle_data(self, data):
        self.text += "" if self.tags and self.tags[-1] == "style" else data


def test_a_page_says_all_and_nothing_in_it_runs_or_is_loaded(students):
    (students.home / "roster.csv").write_text('id,name\nada,"' + NAME.replace('"', '""') + '"\n')
    shown = [
        new_output("stream", text=HOSTILE + LONG),
        new_output("display_data", data={"text/html": HOSTILE, "text/plain": "as text", "application/javascript": "mark-of-a-script()"}),
        new_output("display_data", data={"image/png": PNG, "text/plain": "a figure"}),
        new_output("display_data", data={"image/png": f'"><script>{HOSTILE}', "text/plain": "no figure"}),
        new_output("display_data", data={"image/svg+xml": f"<svg>{HOSTILE}</svg>"}),
    ]
    failed = [new_output("error", ename="CheckFailed", evalue="x", traceback=[f"CheckFailed: the mean on rank 2 {HOSTILE} {LONG}"])]
    students.graded(
        "ada", (7, 1.5), {students.exercise: shown, students.tests[1]: failed}, extra=0.5, penalty=2, comment="See **axis** $x^2$"
    )
    page = students.pages()["ada"]
    seen = Outline(page)
    assert students.problems == {} and seen.bad == [] and not {"script", "link", "iframe", "object", "svg", "base"} & set(seen.tags)
    assert "url(" not in page and "@import" not in page and "default-src 'none'" in page
    assert len(page) < 150_000, "a thousand of these are mailed"
    assert f"{PART} {NAME}" in seen.text, "the name as it is, as text"
    assert "7.5 of 10 points" in seen.text and "handed in late −2 points" in seen.text
    assert "the mean in every grid 7.5 of 7 points, 0.5 of them extra credit" in seen.text
    assert "Test: any shape2 of 3 points, 0.5 of them extra credit" in seen.text
    assert (
        "CheckFailed: the mean on rank 2 <script>" in seen.text
        and "as text" in seen.text
        and "no figure" not in seen.text
        and seen.tags.count("img") == 1
    )
    assert "Comment" in seen.text and "<strong>axis</strong>" in page and "<msup><mi>x</mi><mn>2</mn></msup>" in page
    hidden = [c.source for c in students.notebook.cells if build.kind_of(c) == "test"]
    assert "check.random" not in page and not any(line in seen.text for source in hidden for line in source.splitlines() if len(line) > 40)


def test_a_picture_that_unpacks_to_gigabytes_is_on_no_page(students):
    """Also where it was graded before pictures were looked at."""
    large = [png(30_000, 30_000), png(1, 20_001), jpeg(65_535, 65_535), png(10, 10, b"acTL"), *[png(5_000, 4_999)] * 5]
    shown = [new_output("display_data", data={kind: base64.b64encode(data).decode()}) for kind, data in large]
    students.graded("ada", outputs={students.exercise: shown})
    seen = Outline(students.pages()["ada"])
    assert seen.tags.count("img") == 4, "of the five that each are small enough, four have room"
    assert "30,000 x 30,000 pixels is too large" in seen.text and "65,535 x 65,535" in seen.text and "1 x 20,001" in seen.text
    assert "is animated" in seen.text and "one more image" in seen.text


THUMBNAIL = b"\xff\xe1\0\x20" + jpeg(8, 8)[1].ljust(30, b"\0")  # in a segment of its own, which is not looked into


@pytest.mark.parametrize(
    ("picture", "why"),
    [
        (png(5_000, 5_000), None),
        (png(20_000, 1_250), None),
        (jpeg(5_000, 5_000, scans=10), None),
        (jpeg(640, 480, before=THUMBNAIL), None),
        (png(5_001, 5_000), "5,001 x 5,000"),
        (png(20_001, 1), "20,001 x 1"),
        (png(2**32 - 1, 2**32 - 1), "too large"),
        (png(0, 5), "complete PNG"),
        (png(5, 5, b"IHDR"), "complete PNG"),
        (png(5, 5, b"acTL"), "animated"),
        (png(5, 5, *[b"tEXt"] * 10_001), "pieces"),
        (("image/png", png(5, 5)[1][:-12]), "complete PNG"),
        (("image/png", png(5, 5)[1][:20]), "complete PNG"),
        (("image/png", jpeg(5, 5)[1]), "complete PNG"),
        (("image/jpeg", b"\xff\xd8\xff"), "complete JPEG"),
        (jpeg(5_001, 5_000, before=THUMBNAIL), "5,001 x 5,000"),
        (jpeg(5, 0), "complete JPEG"),
        (jpeg(5, 5, before=b"\0" + THUMBNAIL), "complete JPEG"),
        (jpeg(5, 5, before=jpeg(6, 6, scans=0)[1][2:-2]), "complete JPEG"),
        (jpeg(5, 5, scans=101), "scans"),
    ],
)
def test_a_picture_from_a_rank_has_a_bounded_size(picture, why):
    kind, content = picture
    data = base64.b64encode(content).decode()
    (shown,) = sanitize.outputs([{"data": {kind: data, "text/plain": "a figure"}}])
    if why is None:
        assert shown["data"] == {kind: data, "text/plain": "a figure"}
    else:
        assert list(shown["data"]) == ["text/plain"] and why in shown["data"]["text/plain"]


def test_what_does_not_count_or_waits_for_a_person_is_said(students):
    (students.home / "roster.csv").write_text("id,dropped\nada,07: any shape\nben,\n")
    students.graded("ada", (6, 0))
    students.graded("ben", (6, 0))
    with students.book() as book:
        book.find_grade(students.tests[1], PART, PART, "ben").needs_manual_grade = True
        book.db.commit()
    shown = {student: Outline(page).text for student, page in students.pages().items()}
    assert "6 of 7 points" in shown["ada"] and "Test: any shapedoes not count" in shown["ada"]
    assert "6 of 10 points" in shown["ben"] and "Test: any shapenot graded yet, 3 points possible" in shown["ben"]
    assert f"{PART} ben" in shown["ben"], "who has no name has an id"


def test_every_formula_of_every_part_becomes_one_that_browsers_draw():
    drawn = 0
    for part in parts():
        for cell in build.build(part).cells:
            if cell.cell_type == "markdown":
                text = re.sub(r"<(pre|code)\b.*?</\1>", "", pages.markdown(cell.source), flags=re.DOTALL)
                assert not re.search(r"\$|\\[a-zA-Z]", text), f"{part}: {text}"
                assert "mpadded" not in text and "&#x00028;</mo><mtable" not in text, "drawn wrongly by browsers"
                formulas = len(re.findall(r"\$\$.+?\$\$|\$[^$\n]+\$", re.sub(r"`[^`]*`", "", cell.source), re.DOTALL))
                assert text.count("<math") >= formulas and text.count("<math") == text.count("</math>")
                drawn += formulas
    assert drawn > 50


def test_a_formula_that_cannot_be_read_is_left_as_it_is():
    text = pages.markdown(r"$\frac{1$ and $x < y$ and `$code$` and $$a \left( b = c \right) = d = e$$")
    assert "<script" not in pages.markdown(r"$<script>alert(1)</script>$")
    assert "<code>$code$</code>" in text and text.count("<math") == 4 and "\\left" not in text
    assert pages.markdown("[there](18_pipeline.ipynb)") == "<p>there</p>\n", "a link to what does not come along"


def test_pages_go_back_under_the_names_under_which_hand_ins_came(students, tmp_path):
    names = {
        "canvas.zip": ["o_hara_LATE_31_501_my answer.ipynb", "lovelaceada_32_502_w.zip"],
        "moodle.zip": ["José, Ana_987_assignsubmission_file_/x/y.ipynb", "Ben_988_assignsubmission_file_hw-1.ipynb"],
        "brightspace.zip": ["index.html", "12-34 - Eve - Oct 3, 2026 1159 PM/answer.ipynb"],
        "own.zip": ["zoe_P.ipynb"],
    }
    text = json.dumps({"cells": [], "metadata": {"course": {"part": PART}}, "nbformat": 4, "nbformat_minor": 5})
    (tmp_path / "w").mkdir()
    for archive, entries in names.items():
        with zipfile.ZipFile(tmp_path / "w" / archive, "w") as file:
            for name in entries:
                with zipfile.ZipFile(tmp_path / "inner.zip", "w") as inner:
                    inner.writestr("a.ipynb", text)
                file.writestr(name.replace("_P", f"_{PART}"), (tmp_path / "inner.zip").read_bytes() if name.endswith(".zip") else text)
    done = collect(PART, tmp_path / "w", students.home)
    assert sorted(done.matched) == ["Ben", "Eve", "José, Ana", "lovelaceada", "o_hara", "zoe"]
    (students.home / "submitted" / "old" / PART).mkdir(parents=True)
    records.write(students.home, "old", PART, {"platform": "canvas", "age": [1, 0, 0], "file": "x"})
    for student in [*done.matched, "old"]:
        page = students.home / "feedback" / student / PART / f"{PART}.html"
        page.parent.mkdir(parents=True)
        page.write_text(f"page of {student}")
    packed = packing.pack(PART, students.home, [*done.matched, "old"])
    assert packed.archives == {f"{PART}-canvas.zip": 2, f"{PART}-moodle.zip": 2, f"{PART}-brightspace.zip": 1}
    inside = {}
    for archive in packed.archives:
        with zipfile.ZipFile(students.home / "feedback" / archive) as file:
            inside |= {name: file.read(name).decode() for name in file.namelist()}
    assert inside.pop("index.html") == text, "Brightspace's own table goes back, too"
    assert inside == {
        f"o_hara_LATE_31_501_{PART}.html": "page of o_hara",
        f"lovelaceada_32_502_{PART}.html": "page of lovelaceada",
        f"José, Ana_987_assignsubmission_file_/{PART}.html": "page of José, Ana",
        f"Ben_988_assignsubmission_file_/{PART}.html": "page of Ben",
        f"12-34 - Eve - Oct 3, 2026 1159 PM/{PART}.html": "page of Eve",
    }
    assert (
        packed.left.keys() == {"zoe", "old"}
        and "did not come from a platform" in packed.left["zoe"]
        and "make collect again" in packed.left["old"]
    )
    again = packing.pack(PART, students.home, ["zoe"])
    assert again.archives == {} and not list(students.home.glob("feedback/*.zip")), "a zip of yesterday"


def test_two_hand_ins_of_one_name_are_not_mixed_up_in_a_zip(students):
    for student in ("ada", "eve"):
        path = records.path(students.home, student, PART)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict(platform="moodle", name="Ada_1_assignsubmission_file_", age=[0, 0, 0], file="x")))
        page = students.home / "feedback" / student / PART / f"{PART}.html"
        page.parent.mkdir(parents=True)
        page.write_text(student)
    packed = packing.pack(PART, students.home, ["ada", "eve"])
    assert packed.archives == {f"{PART}-moodle.zip": 1} and "it has the same name as the hand-in of ada" in packed.left["eve"]
    assert platforms.feedback_path("../../x_1_2_y.ipynb", PART) != "../../x" and platforms.feedback_path("ada.ipynb", PART) is None


def test_a_folder_of_which_nbgrader_makes_no_page_is_named(students):
    for name in ("ada", "...", "..\\X", "a\nb"):
        students.graded(name)
    assert students.pages().keys() == {"ada"} and students.problems.keys() == {"...", "..\\X", "a\nb"}
    assert all("rename it" in why for why in students.problems.values())


def test_the_command_says_who_has_no_page_and_why(students, monkeypatch, capsys):
    (students.home / "roster.csv").write_text("id,name\nada,\nben,\nzoe,\n")
    students.graded("ada")
    path = students.home / "autograded" / "broken" / PART / f"{PART}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text("<html>")
    ben = students.home / "submitted" / "ben" / PART / f"{PART}.ipynb"
    ben.parent.mkdir(parents=True)
    ben.write_text("{}")
    monkeypatch.setattr(feedback, "GRADING", students.home)
    monkeypatch.setattr("sys.argv", ["feedback", PART])
    with pytest.raises(SystemExit, match="1 page could not be written"):
        feedback.main()
    said = capsys.readouterr().out
    assert f"1 page in grading/feedback/*/{PART}/" in said and "without a page: 3" in said and "zoe: nothing handed in" in said
    assert f"ben: not graded yet; make autograde PART={PART} says why" in said and "    broken: " in said
    assert "No zips for platforms: none of these hand-ins came from a platform." in said


def test_who_handed_in_something_else_is_told_why_in_grades_report_and_on_a_page(students, tmp_path, monkeypatch, capsys):
    home, downloads = students.home, tmp_path / "downloads"
    (home / "roster.csv").write_text("id,name,canvas\nada,Ada,11\nben,Ben,12\ncleo,,13\ndan,,14\neve,,15\nzoe,,16\n")
    downloads.mkdir()
    other = json.dumps({"cells": [], "metadata": {"course": {"part": "02_process_groups"}}, "nbformat": 4, "nbformat_minor": 5})
    entries = {f"ben_12_2_{PART}.ipynb": other, "cleo_13_3_<b>my answer.py": "x = 1", f"dan_14_4_{PART}.ipynb": "", "who_99_9_x.py": ""}
    entries["zoe_16_6_all.zip"] = "PK, and no more"
    with zipfile.ZipFile(downloads / "canvas.zip", "w") as archive:
        for name, text in entries.items():
            archive.writestr(name, text)
    students.graded("ada")
    said = format_table(collect(PART, downloads, home))
    assert f"    ben: {PART}.ipynb: a notebook of 02_process_groups" in said and "    eve\n" in said
    (home / "submitted" / "dan" / PART / "not_graded.txt").write_text("the file is not a notebook: it is empty")
    for student, fault in (("fay", "the ranks did not start: /home/prof"), ("gus", "user 12 is ben; rename the folder")):
        path = home / "submitted" / student / PART / f"{PART}.ipynb"
        path.parent.mkdir(parents=True)
        if student == "fay":
            build.write(students.notebook, path)
            (path.parent / "not_graded.txt").write_text(fault)
        else:
            records.refuse(home, student, PART, fault)
        assert ungraded.reason_for_student(PART, student, home) == ungraded.ASK_INSTRUCTOR and fault in ungraded.lasting_reason(
            PART, student, home
        )
        shutil.rmtree(path.parents[1])
        records.refuse(home, student, PART, "")
    course, _ = grades.grades(home)
    why = {student: course.mark(student, PART).missing for student in course.students}
    assert why == {
        "ada": "",
        "ben": f"refused: {PART}.ipynb: a notebook of 02_process_groups",
        "cleo": "refused: <b>my answer.py: neither a notebook nor a zip",
        "dan": "not graded: the file is not a notebook: it is empty",
        "eve": "nothing handed in",
        "zoe": why["zoe"],
    }
    assert why["zoe"].startswith("refused: all.zip: not unpacked; is it a complete zip")
    report = class_results.read(PART, home)
    assert set(report.ungraded) == {"ben", "cleo", "dan", "zoe"} and "a notebook of 02_process_groups" in report.ungraded["ben"]
    assert report.missing == ["eve"]
    monkeypatch.setattr(feedback, "GRADING", home)
    monkeypatch.setattr("sys.argv", ["feedback", PART])
    feedback.main()
    said = capsys.readouterr().out
    assert "4 pages there to say why nothing was graded" in said and "without a page: 1" in said and "99" not in said
    with zipfile.ZipFile(home / "feedback" / f"{PART}-canvas.zip") as archive:
        assert sorted(archive.namelist()) == [f"{name}_{PART}.html" for name in ("ben_12_2", "cleo_13_3", "dan_14_4", "zoe_16_6")]
        pages = {name.partition("_")[0]: Outline(archive.read(name).decode()) for name in archive.namelist()}
    assert "a notebook of 02_process_groups" in pages["ben"].text and "Ben" in pages["ben"].text and "not a notebook" in pages["dan"].text
    assert "<b>my answer.py: neither a notebook nor a zip" in pages["cleo"].text and not any(page.bad for page in pages.values())
    course, _ = grades.grades(home)
    (home / "submitted" / "ada" / PART / f"{PART}.ipynb").write_text("a newer one")
    (home / "submitted" / "ada" / PART / "not_graded.txt").write_text("the file is not a notebook")
    assert "ada" not in feedback.ungradable(PART, course), "the points of the earlier one stand"
    assert course.mark("ada", PART).missing == "a newer hand-in: not graded: the file is not a notebook"
    # What comes then is graded as if nothing had been.
    (downloads / f"ben_12_5_{PART}.ipynb").write_text(other.replace("02_process_groups", PART))
    collect(PART, downloads, home)
    assert grades.grades(home)[0].mark("ben", PART).missing == "not graded: make autograde"
