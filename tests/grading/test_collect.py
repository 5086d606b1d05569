"""Hand-ins are found by the student's name in the file or the folder."""

import zipfile

from grading.collect import collect


def test_collecting_from_files_folders_and_zips(tmp_path):
    part, folder = "01_data_split", tmp_path / "downloads"
    (folder / "ben").mkdir(parents=True)
    (folder / f"ada_{part}.ipynb").write_text("a")
    (folder / "ben" / f"{part}.ipynb").write_text("b")
    (folder / "other.ipynb").write_text("x")
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        archive.writestr(f"cleo/{part}/{part}.ipynb", "c")
    home = tmp_path / "grading"
    assert collect(part, folder, home) == ["ada", "ben", "cleo"]
    assert {s: (home / "submitted" / s / part / f"{part}.ipynb").read_text() for s in ("ada", "ben", "cleo")} == {
        "ada": "a",
        "ben": "b",
        "cleo": "c",
    }
