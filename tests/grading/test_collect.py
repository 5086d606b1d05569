"""Hand-ins are found by the student's name in the file or the folder, and nobody hands in for somebody else."""

import os
import zipfile

import pytest

from grading.collect import collect

PART = "01_data_split"


def submitted(home):
    return {path.parent.parent.name: path.read_text() for path in (home / "submitted").glob(f"*/{PART}/{PART}.ipynb")}


def test_collecting_from_files_folders_and_zips(tmp_path):
    folder, home = tmp_path / "downloads", tmp_path / "grading"
    (folder / "ben").mkdir(parents=True)
    (folder / f"ada_{PART}.ipynb").write_text("a")
    (folder / "ben" / f"{PART}.ipynb").write_text("b")
    (folder / "other.ipynb").write_text("x")
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        archive.writestr(f"cleo/{PART}/{PART}.ipynb", "c")
    assert collect(PART, folder, home) == (["ada", "ben", "cleo"], [])
    assert submitted(home) == {"ada": "a", "ben": "b", "cleo": "c"}


def test_of_several_files_in_one_place_the_newest_counts_also_of_a_zip_that_comes_again(tmp_path):
    folder, home = tmp_path / "downloads", tmp_path / "grading"
    folder.mkdir()
    for age, name in enumerate((f"ada_{PART}.ipynb", f"ada_{PART}-1.ipynb", f"ada_{PART}(2).ipynb")):
        (folder / name).write_text(str(age))
        os.utime(folder / name, (1e9 + age, 1e9 + age))
    for text in ("first", "second"):
        with zipfile.ZipFile(folder / "all.zip", "w") as archive:
            archive.writestr(f"ben_{PART}.ipynb", text)
        assert collect(PART, folder, home) == (["ada", "ben"], [])
        assert submitted(home) == {"ada": "2", "ben": text}


def test_a_zip_that_is_gone_is_no_hand_in_any_more(tmp_path):
    """Nobody could take away what an earlier collecting has unpacked."""
    folder, home = tmp_path / "downloads", tmp_path / "grading"
    folder.mkdir()
    for name, text in (("first.zip", "old"), ("second.zip", "new")):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr(f"ada_{PART}.ipynb", text)
        assert collect(PART, folder, home) == (["ada"], [])
        (folder / name).unlink()
    assert submitted(home) == {"ada": "new"}


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_is_damaged_anywhere_stops_nobody(tmp_path, kind):
    folder, home = tmp_path / "downloads", tmp_path / "grading"
    folder.mkdir()
    (folder / f"ada_{PART}.ipynb").write_text("a")
    with zipfile.ZipFile(folder / "bad.zip", "w", kind) as archive:
        archive.writestr(f"ben_{PART}.ipynb", "b" * 5000 + "".join(map(str, range(500))))
    whole = (folder / "bad.zip").read_bytes()
    said = 0
    for place in range(len(whole)):
        (folder / "bad.zip").write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        collected, problems = collect(PART, folder, home)
        assert not problems or collected == ["ada"], "half a notebook was collected"
        assert "ada" in collected and all(problem.startswith("bad.zip: not unpacked") for problem in problems)
        said += len(problems)
    assert said > len(whole) // 2


def test_nobody_hands_in_for_somebody_else(tmp_path):
    folder, home = tmp_path / "downloads", tmp_path / "grading"
    (folder / "eve").mkdir(parents=True)
    (folder / f"bob_{PART}.ipynb").write_text("bob's")
    (folder / f"cleo_{PART}.ipynb").write_text("cleo's")
    (folder / "eve" / f"bob_{PART}.ipynb").write_text("eve's")
    with zipfile.ZipFile(folder / "eve.zip", "w") as archive:
        archive.writestr(f"cleo_{PART}.ipynb", "eve's")
    collected, problems = collect(PART, folder, home)
    assert collected == [] and submitted(home) == {}
    assert [p.split(":")[0] for p in problems] == ["bob", "cleo"]
    assert "eve/" in problems[0] and "eve.zip" in problems[1] and "collect again" in problems[0]


def test_what_is_no_hand_in_stops_nobody(tmp_path):
    folder, home, secret = tmp_path / "downloads", tmp_path / "grading", tmp_path / "secret.ipynb"
    folder.mkdir()
    secret.write_text("secret")
    (folder / f"ada_{PART}.ipynb").write_text("a")
    (folder / f"link_{PART}.ipynb").symlink_to(secret)
    (folder / f"dangling_{PART}.ipynb").symlink_to(folder / "nowhere")
    (folder / f"folder_{PART}.ipynb").mkdir()
    os.mkfifo(folder / f"pipe_{PART}.ipynb")
    (folder / f".._{PART}.ipynb").write_text("two dots")
    (folder / "no.zip").write_text("no zip")
    with zipfile.ZipFile(folder / "out.zip", "w") as archive:
        archive.writestr(f"../../../../outside_{PART}.ipynb", "outside")
        archive.writestr("../../evil.py", "evil")
    collected, problems = collect(PART, folder, home)
    assert submitted(home) == {"ada": "a", "outside": "outside"} and collected == ["ada", "outside"]
    assert len(problems) == 1 and problems[0].startswith("no.zip: not unpacked; is it a zip")
    assert {p.name for p in tmp_path.iterdir()} == {"downloads", "grading", "secret.ipynb"} and not list(tmp_path.rglob("*.py"))


ELSEWHERE = {
    "a folder beside, in one zip": ("all.zip", ["ada/P.ipynb", "eve/ada_P.ipynb"]),
    "a folder below, in one zip": ("all.zip", ["Ada Smith_1_file_/P.ipynb", "Eve_2_file_/Ada Smith_1_file_/P.ipynb"]),
    "a folder with a folder, in one zip": ("all.zip", ["ada/P.ipynb", "eve/ada/P/P.ipynb"]),
    "a level deeper": (None, ["part01/ada/P.ipynb", "part01/eve/ada_P.ipynb"]),
    "another ending": (None, ["ada_P.ipynb", "ada_P_eve.ipynb"]),
    "another ending, in a zip": ("all.zip", ["ada_P.ipynb", "ada_P_late_eve.ipynb"]),
    "two zips of like names": ("ada.zip", ["ada_P.ipynb", "x/ada_P.ipynb"]),
}


@pytest.mark.parametrize("how", ELSEWHERE)
def test_nobody_hands_in_for_somebody_else_wherever_it_lies(tmp_path, how):
    folder, home = tmp_path / "downloads", tmp_path / "grading"
    folder.mkdir()
    archive, names = ELSEWHERE[how]
    for who, name in zip(("ada's", "eve's"), (name.replace("P", PART) for name in names), strict=True):
        if archive:
            with zipfile.ZipFile(folder / archive, "a") as content:
                content.writestr(name, who)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(who)
    collected, problems = collect(PART, folder, home)
    assert collected == [] and submitted(home) == {} and len(problems) == 1
    assert all(name.replace("P", PART) in problems[0] for name in names)


def test_zips_that_grow_are_left_out_together(tmp_path, monkeypatch):
    monkeypatch.setattr("grading.collect.MOST_BYTES", 2 << 20)
    folder, home = tmp_path / "downloads", tmp_path / "grading"
    folder.mkdir()
    (folder / f"ada_{PART}.ipynb").write_text("a")
    for letter in "bcd":
        with zipfile.ZipFile(folder / f"{letter}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for i in range(16):
                archive.writestr(f"{letter}{i}_{PART}.ipynb", " " * 60_000)
    collected, problems = collect(PART, folder, home)
    assert "ada" in collected and [p.split(":")[0] for p in problems] == ["d.zip"] and "in all zips together" in problems[0]


@pytest.mark.parametrize("name", ["=1+1", '=HYPERLINK("http:evil","x")', "@SUM(1)_x", "+1", "-rf", ".hidden", " ", "\t=1+1", " =1"])
def test_a_name_that_is_a_formula_is_nobodys(tmp_path, name):
    folder, home = tmp_path / "downloads", tmp_path / "grading"
    folder.mkdir()
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        archive.writestr(f"{name}/{PART}.ipynb", "x")
    collected, problems = collect(PART, folder, home)
    assert collected == [] and len(problems) == 1 and "a student's name does not begin with" in problems[0]


@pytest.mark.parametrize(("one", "other"), [("ada", "Ada"), ("jos\u00e9", "jose\u0301"), ("ada", "\uff41da")])
def test_names_that_some_disks_and_eyes_take_for_one_are_named(tmp_path, one, other):
    folder, home = tmp_path / "downloads", tmp_path / "grading"
    for name in (one, other, "ben"):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{PART}.ipynb").write_text(name)
    collected, problems = collect(PART, folder, home)
    assert collected == ["ben"] and list(submitted(home)) == ["ben"]
    assert len(problems) == 2 and all(one in p and other in p and "may be one student" in p for p in problems)
