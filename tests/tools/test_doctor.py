"""`make doctor`: one line for each thing that the course needs."""

import pytest

from course_lib.tools import doctor


@pytest.mark.slow
def test_the_doctor_has_a_line_for_everything():
    lines = [line for _, line in doctor.report()]
    for word in ("Python 3", "MPICH", "4 ranks start", "cores", "memory", "threads", "/dev/shm", "browser", "network"):
        assert any(word in line for line in lines), f"no line about {word}"
    assert not [line for line in lines if line.startswith("PROBLEM")]
