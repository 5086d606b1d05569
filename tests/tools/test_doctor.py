"""`make doctor`: one line for each thing that the course needs."""

import sys

import pytest

from course_lib.tools import doctor


@pytest.mark.slow
def test_the_doctor_has_a_line_for_everything():
    lines = [line for _, line in doctor.report()]
    for word in ("Python 3", "MPICH", "4 ranks start", "cores", "memory", "threads", "/dev/shm", "browser", "network"):
        assert any(word in line for line in lines), f"no line about {word}"
    assert not [line for line in lines if line.startswith("PROBLEM")]


def test_a_report_names_no_person_and_no_folder(monkeypatch, tmp_path, capsys):
    home = tmp_path / "home" / "ada"
    monkeypatch.setattr(doctor.Path, "home", lambda: home)
    monkeypatch.setattr(doctor.getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(doctor.socket, "gethostname", lambda: "analytical-engine")
    where = f"Python in {sys.prefix}, {home}/bin/mpiexec of ada on analytical-engine, {doctor.course_lib.__path__[0]}, radar"
    monkeypatch.setattr(doctor, "CHECKS", (lambda: (True, where, ""), lambda: (False, "no browser", "install one")))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        doctor.main()
    assert ended.value.code == 1 and "doctor.txt has these lines" in capsys.readouterr().out
    lines = (tmp_path / "doctor.txt").read_text().splitlines()
    assert lines[0] == "ok      Python in PYTHON, HOME/bin/mpiexec of USER on HOST, COURSE/course_lib, radar"
    assert lines[1] == "PROBLEM no browser -> install one"
