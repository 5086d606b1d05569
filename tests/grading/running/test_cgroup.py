"""Control groups, which mostly root has; .ci/run runs this besides. And that a hand-in fits where graders are small."""

import os
import signal
import time
from pathlib import Path

import nbformat
import pytest
from traitlets.config import Config

from course_lib.sandbox import cgroup
from grading import config
from grading.authoring import build
from grading.running import limited_process
from grading.submission.grade import FORWARDED_OPTIONS, Task, grade

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


def test_a_control_group_limits_processor_time():
    """Version 2 has one file with quota and period, version 1 two; either may lack the controller."""
    with cgroup.limited(f"course-test-{os.getpid()}") as groups:
        quotas = []
        for group in groups:
            if (group / "cpu.max").exists():
                quotas.append((group / "cpu.max").read_text().split())
            elif (group / "cpu.cfs_quota_us").exists():
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                quotas.append([(group / name).read_text().strip() for name in names])
        assert quotas == [["800000", "100000"]] or not _has_cpu_controller(groups)
        assert cgroup.MAX_CORES == 8


def _has_cpu_controller(groups):
    """Return whether the system lets this process limit processor time."""
    if len(groups) == 1:
        return "cpu" in (groups[0].parent / "cgroup.subtree_control").read_text().split()
    return os.access("/sys/fs/cgroup/cpu", os.W_OK)


def test_a_group_is_made_without_the_files_that_a_system_lacks(tmp_path, monkeypatch):
    """Such as memory.swap.max without swap: in a control group's folder, no other file can be made."""
    (tmp_path / "course").mkdir()
    (tmp_path / "course" / "memory.max").touch()
    monkeypatch.setattr(Path, "mkdir", lambda self: None)
    group = cgroup._made(tmp_path / "course", {"memory.max": 5, "memory.swap.max": 0})
    assert [(file.name, file.read_text()) for file in group.iterdir()] == [("memory.max", "5")]


@pytest.mark.parametrize(("part", "megabytes"), [("03_naive_forward", 768), ("15_distributed_optimizer", 768), ("08_zero3_layer", 1024)])
def test_a_hand_in_fits_where_graders_are_small(part, megabytes, monkeypatch, tmp_path):
    monkeypatch.setattr(cgroup, "MEMORY_BYTES", megabytes << 20)
    with cgroup.limited(f"course-test-{os.getpid()}") as groups:
        assert groups, "root has control groups"
    source = nbformat.writes(build.build(part), version=4)
    options = {name: dict(config.configure(Config(), tmp_path)[name]) for name in FORWARDED_OPTIONS}
    graded = limited_process.run_limited(grade, (Task(source, source.encode(), options),), 300, 2 << 30)
    assert graded.problem is None
    said = [
        output.evalue
        for cell in nbformat.reads(graded.notebook, 4).cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    ]
    assert graded.points == {c.id: c.metadata.nbgrader.points for c in nbformat.reads(source, 4).cells if build.kind_of(c) == "test"}, said
