"""Allocations: requested, and given back."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest
import slurm_cluster
from machine import patient
from processes import wait_until
from slurm_jobs import OPTIONS, PROGRAM, environment_of, line_of, of_course, processes_of, program

from course_lib.cluster import Ranks, StartError, start, startup
from course_lib.cluster.processes import slurm
from course_lib.engine.processes import slurm as asking

pytestmark = slurm_cluster.NEEDED


@contextmanager
def all_machines_taken(slurm):
    """A job of somebody else that leaves no room."""
    words = ["srun", "--nodes=2", "--exclusive", "--job-name=other", "sleep", "300"]
    other = subprocess.Popen(words, env={**os.environ, **slurm.environment}, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_until(lambda: "RUNNING" in slurm.ask("squeue", "-h", "--name=other", "-o", "%T"), 30)
    try:
        yield
    finally:
        other.kill()
        other.wait()
        slurm.ask("scancel", "--name=other")


@pytest.mark.parametrize(
    "options, word",
    [
        ("--ntasks=3", "cluster.start(n) says how many"),
        ("-n3", "cluster.start(n) says how many"),
        ("-n 3", "cluster.start(n) says how many"),
        ("--ntas=3", "cluster.start(n) says how many"),
        ("--export=NONE", "this notebook's environment"),
        ("nodes=2", "expected options of srun"),
        ("--nodes=2 short", "short belongs to none"),
        ("-N2 true", "true belongs to none"),
        ("-N 2 true", "true belongs to none"),
        ("--nodes=2 -- true", "belongs to none"),
        ("--wait=0", "when one rank ends, all do"),
        ("-D /tmp", "where the notebook is"),
        ("-Mother", "SLURM_CLUSTERS"),
        ("--mpi=none", "the course starts the ranks"),
        ("-J mine", "finds its job by its name"),
        ("--output=x", "reads what the ranks write"),
        ("--quiet", "reads what srun says"),
        ("-On3", "-On3 is several options; write each separately"),
        ("-vKn3", "several options"),
        ("-Oe/tmp/x", "several options"),
        ('--nodes="2', "No closing quotation"),
    ],
)
def test_options_that_are_the_courses_get_a_sentence(options, word):
    with pytest.raises(ValueError) as error:
        slurm.parse_options(options)
    assert word in str(error.value)


def test_options_of_the_users_pass():
    assert slurm.parse_options("--nodes=2 -N2 --ntasks-per-node=4 --time=1:00:00 -p main --mem=4G -A 'my account' -O -vv")
    with pytest.raises(TypeError, match="expected options of srun"):
        slurm.parse_options(True)


def test_what_slurm_refuses_is_said(slurm):
    with pytest.raises(StartError, match="the Slurm job ended") as error:
        Ranks(4, slurm="--partition=nowhere")
    assert "invalid partition" in str(error.value)


def test_what_will_never_begin_is_said(no_job, slurm):
    kernel = program(slurm, options="--nodes=7")
    try:
        while "waiting in the queue" not in (said := kernel.stdout.readline()):
            assert said
        assert "With these options it will never start" in said, said
    finally:
        kernel.terminate()
        kernel.wait()
    assert wait_until(lambda: "PartitionNodeLimit" not in slurm.ask("squeue", "-h", "-o", "%r"), 30)


def test_without_slurm_there_is_a_sentence(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(StartError, match="there is no srun on this machine"):
        Ranks(4, slurm="--nodes=2")


def test_slurm_and_attach_exclude_each_other():
    with pytest.raises(ValueError, match="pass only one of them"):
        start(4, slurm="--nodes=2", attach="default")


def test_the_queue_is_shown_and_an_interrupt_leaves_it(no_job, slurm, capfd, monkeypatch):
    pause, count = startup._pause, []

    def interrupted(problem, deadline, processes):
        count.append(1)
        if any("(Resources)" in line for line in processes.shown) or len(count) > 3000:
            raise KeyboardInterrupt
        pause(problem, deadline, processes)

    monkeypatch.setattr(startup, "_pause", interrupted)
    with all_machines_taken(slurm), pytest.raises(KeyboardInterrupt):
        Ranks(4, slurm=OPTIONS)
    shown = capfd.readouterr().out
    assert "waiting in the queue since" in shown and "(Resources)" in shown
    assert wait_until(lambda: not of_course(slurm), 20)


@pytest.mark.parametrize("when", ["in the queue", "while it asks", "while ranks run"])
def test_the_kernels_end_gives_the_allocation_back(no_job, slurm, when):
    kernel = program(slurm)
    try:
        if when == "while ranks run":
            while "up" not in kernel.stdout.readline():
                pass
        elif when == "in the queue":
            assert wait_until(lambda: of_course(slurm), 30)
        else:
            kernel.stdout.readline()
    finally:
        kernel.kill()
        kernel.wait()
    assert wait_until(lambda: not processes_of(slurm, "course_lib.engine.processes.slurm"), 40)  # none is left that could ask
    assert wait_until(lambda: not of_course(slurm), 40)


def test_a_kernel_that_ends_in_good_order_leaves_nothing(no_job, slurm):
    kernel = program(slurm, "pass")
    assert kernel.wait(60) == 0
    assert wait_until(lambda: not of_course(slurm), 20)  # Slurm itself takes a second


def test_a_kernel_inside_a_job_asks_for_one_of_its_own(no_job, slurm):
    words = [
        "srun",
        "--nodes=1",
        "--ntasks=1",
        "--overcommit",
        sys.executable,
        "-c",
        PROGRAM.format(options=OPTIONS, then="print(ranks.hosts)"),
    ]
    environment = {**os.environ, **slurm.environment}
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired as late:
        said = [slurm.ask("squeue", "-o", "%i %j %T %r %N"), slurm.ask("sinfo", "-N", "-l"), slurm.log("slurmctld.log")]
        pytest.fail("\n".join([f"{late.stdout} {late.stderr}", *said]))
    assert "['n1', 'n1', 'n2', 'n2']" in done.stdout, done.stderr


def test_when_srun_is_gone_with_its_machine_the_job_ends(no_job, slurm):
    """Not even the process that watches for the kernel's end is left."""
    kernel = program(slurm)
    assert any("up" in line for line in kernel.stdout), "the kernel ended before its ranks were up"
    family = [p for p in psutil.process_iter() if " ask 4 " in " ".join(line_of(p)) or (line_of(p) and line_of(p)[0].endswith("srun"))]
    mine = [p for p in family if environment_of(p).get("SLURM_CONF") == slurm.environment["SLURM_CONF"]]
    for process in mine:
        process.suspend()
    for process in [*mine, kernel]:
        process.kill()
    kernel.wait()
    assert wait_until(lambda: not of_course(slurm), 40)


def test_what_squeue_says_is_shown(tmp_path, monkeypatch, capfd):
    done = subprocess.CompletedProcess([], 0, "12|PENDING|Priority|2026-11-20T14:03:00|2026-11-20T15:00:00\n", "")
    monkeypatch.setattr(slurm.subprocess, "run", lambda *words, **options: done)
    waiting = slurm.Allocation(4, tmp_path, None, None, "course-x")
    said = (
        "Slurm job 12 has been waiting in the queue since 2026-11-20 14:03:00 (Priority); Slurm expects it to begin at 2026-11-20 15:00:00"
    )
    assert waiting.waits() == said
    waiting.show(said)
    waiting.show(said.replace("15:00:00", "15:00:02"))  # it guesses anew all the time
    waiting.show(said.replace("Priority", "Resources"))
    assert capfd.readouterr().out == f"{said}.\n{said.replace('Priority', 'Resources')}.\n"


def test_a_slurm_that_does_not_answer_holds_nobody_up_and_the_job_that_is_left_is_named(tmp_path, monkeypatch, capfd):
    for name in ("squeue", "scancel"):
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(asking, "COMMAND_SECONDS", 0.3)
    monkeypatch.setattr(asking, "JOB_CANCEL_SECONDS", 1.0)
    began = time.monotonic()
    asking.cancel(subprocess.Popen(["true"]), "course-x")
    assert time.monotonic() - began < patient(10)
    said = capfd.readouterr().out
    assert said == "Slurm did not end the job course-x within 1 s: `squeue --name=course-x` shows it, `scancel --name=course-x` ends it.\n"
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "log.txt").write_text(f"something else\n{said}")
    ended = subprocess.Popen(["true"])
    ended.wait()
    slurm.Allocation(4, folder, ended, ended, "course-x").stop()
    assert capfd.readouterr().out == said and not folder.exists()


@pytest.mark.slow
def test_what_slurm_does_not_end_is_said_when_the_ranks_stop(tmp_path, monkeypatch, capfd):
    for name, does in {"srun": "exec sleep 600", "squeue": "echo 7", "scancel": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv(slurm.SHARED_FOLDER_VARIABLE, str(tmp_path))
    asked = slurm.allocate(4, "--nodes=2")
    assert wait_until(lambda: psutil.Process(asked.mpiexec.pid).children(), 10)
    asked.stop()
    assert f"Slurm did not end the job {asked.name} within 20 s" in capfd.readouterr().out
    assert not asked.folder.exists()


def test_ranks_that_did_not_begin_are_named(tmp_path):
    for rank in (0, 1, 3):
        (tmp_path / f"rank-{rank}").write_text("n1")
    (tmp_path / "ready-0").touch()
    said = slurm.Allocation(5, tmp_path, None, None).missing()
    assert "ranks 2, 4 did not start; the others are on n1." in said and "ranks 1, 3 (n1) started, but did not get ready" in said


def test_machines_that_cannot_be_connected_say_why(no_job, slurm, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif os.environ.get('SLURM_PROCID') == '2':\n    os.environ['COURSE_ADDRESS'] = '192.0.2.1'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(StartError, match=r"the machines cannot be connected. n2: COURSE_ADDRESS='192.0.2.1': expected .* lo \(127.0.0.1\)"):
        Ranks(4, slurm=OPTIONS)
    assert wait_until(lambda: not of_course(slurm), 30)


def test_a_rank_that_does_not_come_is_named(no_job, slurm, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os, time\nif os.environ.get('SLURM_PROCID') == '3':\n    time.sleep(300)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(startup, "SLURM_LIMIT", 20.0)
    with pytest.raises(StartError, match=r"rank 3 did not start; the others are on n1, n2"):
        Ranks(4, slurm=OPTIONS)
    assert wait_until(lambda: not of_course(slurm), 30)
