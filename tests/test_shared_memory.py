"""MPICH's files in /dev/shm: what killed processes left stops nobody, and goes."""

import os
import subprocess
import sys

from course_lib.collectives import shm


def test_what_a_killed_process_left_stops_nobody():
    """MPICH names the file by the process's number, and ends a process that meets one of its name; only Linux has such files."""
    code = (
        "import os, pathlib, sys\n"
        "if sys.platform == 'linux':\n"
        "    pathlib.Path(f'/dev/shm/mpich_shm_{os.getpid():x}_0').write_bytes(bytes(100))\n"
        "from course_lib.collectives.communicator import Communicator\n"
        "print(Communicator().Get_size())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stdout + done.stderr


def test_old_files_and_the_own_name_are_swept_and_others_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(shm, "FOLDER", tmp_path)
    own, old, new, foreign = (tmp_path / name for name in (f"{shm.NAME}{os.getpid():x}_0", f"{shm.NAME}0_0", f"{shm.NAME}0_1", "other"))
    for file in (own, old, new, foreign):
        file.write_bytes(b"x")
    for file in (old, foreign):
        os.utime(file, (1e9, 1e9))
    shm.make_way()
    assert sorted(tmp_path.iterdir()) == sorted([new, foreign])
