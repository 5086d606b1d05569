"""Control groups, which mostly root has; .ci/run runs this besides."""

import os
import signal
import time

import pytest

from grading import cgroup

pytestmark = pytest.mark.root


def test_a_control_group_ends_what_is_left_in_it():
    with cgroup.limited(f"course-test-{os.getpid()}") as groups:
        child = os.fork()
        if not child:
            os.setsid()  # away from those who started it
            cgroup.join(groups, os.getpid())
            time.sleep(60 if groups else 0)
            os._exit(0)
        time.sleep(0.5)
    _, status = os.waitpid(child, 0)
    assert not [group for group in groups if group.exists()]
    assert os.WTERMSIG(status) == (signal.SIGKILL if groups else 0)
