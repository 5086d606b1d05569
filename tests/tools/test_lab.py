"""`make lab`: it copies new notebooks, and starts JupyterLab with a user's options."""

from course_lib.tools import doctor, lab


def test_make_lab_adds_and_never_overwrites(tmp_path):
    notebooks = tmp_path / "notebooks" / "01_a"
    notebooks.mkdir(parents=True)
    (notebooks / "01_a.ipynb").write_text("released")
    work = tmp_path / "my_work"
    assert [p.name for p in lab.copy_new(tmp_path / "notebooks", work)] == ["01_a.ipynb"]
    (work / "01_a.ipynb").write_text("my answer")
    (work / "notes.txt").write_text("mine")
    (notebooks / "01_a.ipynb").write_text("released again")
    assert lab.copy_new(tmp_path / "notebooks", work) == []
    assert (work / "01_a.ipynb").read_text() == "my answer"
    assert sorted(p.name for p in work.iterdir()) == [".originals", "01_a.ipynb", "notes.txt"]


def test_make_lab_listens_on_loopback_with_a_token(tmp_path, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    words = " ".join(lab.command(tmp_path, []))
    assert "--ServerApp.ip=127.0.0.1" in words and "token" not in words  # Jupyter makes a token
    assert "--no-browser" in words or doctor.sys.platform == "darwin"


def test_what_a_user_says_to_make_lab_is_said_once(tmp_path):
    for said in (["--ServerApp.ip=0.0.0.0"], ["--ip=0.0.0.0"], ["--ip", "0.0.0.0"]):
        words = lab.command(tmp_path, [*said, "--log-level=INFO"])
        assert words[-len(said) - 1 :] == [*said, "--log-level=INFO"] and "127.0.0.1" not in str(words) and "ERROR" not in str(words)
    assert f"--ServerApp.root_dir={tmp_path}" in words
