"""MPICH's files in /dev/shm: what killed processes left stops nobody, and goes."""

import os
import subprocess
import sys

import pytest

from course_lib.collectives import shared_memory


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
    monkeypatch.setattr(shared_memory, "SHM_FOLDER", tmp_path)
    name = shared_memory.MPICH_PREFIX
    own, old, new, foreign = (tmp_path / file for file in (f"{name}{os.getpid():x}_0", f"{name}0_0", f"{name}0_1", "other"))
    killed, starting = (tmp_path / f"{shared_memory.COURSE_PREFIX}{pid}-x" for pid in (1, 2))  # of ranks that had not all opened it
    for file in (own, old, new, foreign, killed, starting):
        file.write_bytes(b"x")
    for file in (old, foreign, killed):
        os.utime(file, (1e9, 1e9))
    shared_memory.remove_stale_files()
    assert sorted(tmp_path.iterdir()) == sorted([new, foreign, starting])


FORBIDDEN = """
import ctypes, errno, os, platform, struct, sys
number = {"x86_64": 310, "aarch64": 270}[platform.machine()]
code = b"".join(struct.pack("HBBI", *line) for line in (
    (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | errno.EPERM), (0x06, 0, 0, 0x7FFF0000)))
buffer = ctypes.create_string_buffer(code, len(code))
rules = ctypes.create_string_buffer(struct.pack("HP", 4, ctypes.addressof(buffer)))
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # no new privileges
assert ctypes.CDLL(None).prctl(22, 2, rules) == 0, "no filter"
from course_lib.cluster import Ranks
from course_lib.collectives import shared_memory
assert not shared_memory.can_read_other_processes()
ranks = Ranks(4)
ranks.run("import numpy as np\\nfrom course_lib.collectives import Communicator\\ntotal = np.zeros(1 << 18)")
ranks.run("Communicator().Allreduce(np.ones(1 << 18), total)")
print([float(total[-1]) for total in ranks.pull("total")])
ranks.stop()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such call")
def test_ranks_come_up_where_a_container_forbids_to_read_others_memory():
    done = subprocess.run([sys.executable, "-c", FORBIDDEN], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[4.0, 4.0, 4.0, 4.0]\n", done.stdout + done.stderr
