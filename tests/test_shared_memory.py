"""MPICH's files in /dev/shm: what killed processes left stops nobody, and goes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.collectives import shm

pytestmark = pytest.mark.skipif(not shm.FOLDER.is_dir(), reason="only Linux has /dev/shm")


def test_what_a_killed_process_left_stops_nobody():
    """MPICH names the file by the process's number, and ends a process that meets one of its name."""
    code = (
        "import os, pathlib\n"
        "pathlib.Path(f'/dev/shm/mpich_shm_{os.getpid():x}_0').write_bytes(bytes(100))\n"
        "from course_lib.collectives.communicator import Communicator\n"
        "print(Communicator().Get_size())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stdout + done.stderr


def test_old_files_of_this_user_are_swept_and_new_ones_are_not():
    names = [Path(f"/dev/shm/mpich_shm_test{os.getpid():x}{age}_0") for age in ("old", "new")]
    for name in names:
        name.write_bytes(b"x")
    os.utime(names[0], (1e9, 1e9))
    shm.make_way()
    assert [name.exists() for name in names] == [False, True]
    names[1].unlink()
