"""The rules for AI assistants in a student's folder."""

from pathlib import Path

from course_lib.tools import ai_tutor, hub, lab


def test_an_assistant_finds_the_rules_under_the_name_that_it_looks_for(tmp_path):
    assert [path.name for path in ai_tutor.write(tmp_path)] == ["AGENTS.md", "CLAUDE.md", "GEMINI.md"]
    assert ai_tutor.RULES.read_text().strip() in (tmp_path / "AGENTS.md").read_text()
    assert (tmp_path / "CLAUDE.md").read_text().splitlines()[-1] == "@AGENTS.md"
    assert ai_tutor.write(tmp_path) == []


def test_make_lab_writes_them(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "PROJECT_ROOT", tmp_path)
    monkeypatch.setattr(lab.first_cell, "install_config", lambda: None)
    (tmp_path / "notebooks").mkdir()
    assert (lab.prepare() / "AGENTS.md").exists()


def test_a_students_server_on_the_hub_writes_them_too(tmp_path):
    notebooks = [path for path in (Path(hub.__file__).parents[2] / "notebooks").iterdir() if path.is_dir()]
    assert f"{len(notebooks)} new notebooks" in hub.copy_new_notebooks(tmp_path / "work")
    assert (tmp_path / "work" / "AGENTS.md").exists()


def test_new_rules_of_the_instructor_arrive_and_no_rules_leave_no_file(tmp_path):
    rules = tmp_path / "rules.md"
    rules.write_text("Be kind.")
    ai_tutor.write(tmp_path, rules)
    rules.write_text("Ask first.")
    ai_tutor.write(tmp_path, rules)
    assert (tmp_path / "AGENTS.md").read_text() == f"{ai_tutor.GENERATED_MARK}\n\nAsk first.\n"
    for empty in (lambda: rules.write_text(" \n"), rules.unlink):
        empty()
        ai_tutor.write(tmp_path, rules)
        assert not [path for path in tmp_path.iterdir() if path != rules]


def test_what_a_student_has_written_stays(tmp_path):
    (tmp_path / "AGENTS.md").write_text("My own rules.")
    (tmp_path / "target").write_text("mine")
    (tmp_path / "CLAUDE.md").symlink_to(tmp_path / "target")
    (tmp_path / "GEMINI.md").write_bytes(b"\xff\xfe")
    assert ai_tutor.write(tmp_path) == []
    ai_tutor.write(tmp_path, tmp_path / "none")
    assert (tmp_path / "AGENTS.md").read_text() == "My own rules." and (tmp_path / "target").read_text() == "mine"
    assert (tmp_path / "GEMINI.md").read_bytes() == b"\xff\xfe" and (tmp_path / "CLAUDE.md").is_symlink()
