"""Ranks, machines and jobs that end: who went, where, and why."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import slurm_cluster
from machine import patient
from processes import wait_until
from slurm_jobs import OPTIONS, environment_of, errors, line_of, processes_of

from course_lib.cluster import RanksGone
from course_lib.cluster.processes import slurm
from course_lib.cluster.replies import RanksError

pytestmark = slurm_cluster.NEEDED


def test_a_rank_that_ends_is_named_with_its_machine(own):
    ranks = own(4)
    with pytest.raises(RanksGone, match=r"rank 3 on n2 ended: exited with exit code 7"):
        ranks.run("if rank == 3:\n    os._exit(7)\ncomm.Barrier()")


def test_a_rank_that_ends_in_good_order_does_not_leave_the_others_waiting(own):
    ranks = own(4)
    with pytest.raises(RanksGone, match=r"rank 3 on n2 ended before the others"):
        ranks.run("if rank == 3:\n    os._exit(0)\ncomm.Barrier()")


def test_a_killed_rank_is_named_with_its_machine(own):
    ranks = own(4)
    with pytest.raises(RanksGone, match=r"rank 2 on n2 ended: killed"):
        ranks.run("if rank == 2:\n    os.kill(os.getpid(), signal.SIGKILL)\ncomm.Barrier()")


def soon(slurm, *words):
    """A command of Slurm's, after a second."""
    subprocess.Popen(["sh", "-c", 'sleep 1; exec "$@"', "sh", *words], env={**os.environ, **slurm.environment})


def test_a_cancelled_job_is_said(own, slurm):
    ranks = own(4)
    soon(slurm, "scancel", "--me")
    with pytest.raises(RanksGone, match=r"cancelled, with scancel"):
        ranks.run("time.sleep(60)")


def test_a_job_that_is_cancelled_while_nothing_runs_is_said_at_the_next_cell(own, slurm):
    ranks = own(4)
    slurm.ask("scancel", "--me")
    assert wait_until(lambda: not ranks.alive(), 30)
    with pytest.raises(RanksGone, match=r"cancelled, with scancel"):
        ranks.run("1")


@pytest.mark.slow
def test_time_that_is_over_is_said(own, slurm):
    ranks = own(4, "--nodes=2 --time=1 --overcommit")
    with pytest.raises(RanksGone, match=r"The allocation's time has run out. Ask for more"):
        ranks.run("time.sleep(200)")


def test_a_machine_that_slurm_has_given_up_is_named_with_its_ranks(own, slurm):
    ranks = own(4)
    soon(slurm, "scontrol", "update", "nodename=n2", "state=down", "reason=test")
    try:
        with pytest.raises(RanksGone, match=r"A machine of the allocation has failed: n2") as gone:
            ranks.run("time.sleep(60)")
        assert "and ranks 2, 3 went with it" in str(gone.value)
    finally:
        slurm.ask("scontrol", "update", "nodename=n2", "state=resume")
    assert wait_until(lambda: slurm.ask("sinfo", "-h", "-o", "%T").split() == ["idle"], 60)


def test_a_controller_that_ends_is_named(own, slurm):
    ranks = own(4)
    (controller,) = processes_of(slurm, "course_lib.engine.processes.slurm controller")
    subprocess.Popen([sys.executable, "-S", "-c", f"import os, time; time.sleep(1); os.kill({controller.pid}, 9)"])
    began = time.monotonic()
    with pytest.raises(RanksGone, match="process that passes cells on to the ranks has ended"):
        ranks.run("time.sleep(60)")
    assert time.monotonic() - began < patient(20)


@contextmanager
def machine_stops(slurm, node, after, for_=60.0):
    """Soon nothing of a machine runs, or says a word, for so many seconds."""
    pids = [p.pid for p in slurm.of_node(node) if "pytest" not in " ".join(line_of(p))]
    program = f"""
import os, time
def tell(number):
    for pid in {pids}:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
time.sleep({after})
tell({int(signal.SIGSTOP)})
time.sleep({for_})
tell({int(signal.SIGCONT)})
"""
    teller = subprocess.Popen([sys.executable, "-S", "-c", program])
    try:
        yield
    finally:
        teller.kill()
        teller.wait()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("options", "node", "went", "cell"),
    [
        (OPTIONS, "n2", "ranks 2, 3", "comm.Barrier() if rank % 2 else time.sleep(60)"),
        (OPTIONS, "n1", "ranks 0, 1", "time.sleep(60)"),
        ("--nodes=1 --time=10 --nodelist=n2", "n2", "ranks 0–3", "time.sleep(60)"),
    ],
)
def test_a_machine_that_fails_is_named_with_its_ranks(own, slurm, options, node, went, cell):
    ranks = own(4, options)
    assert node in ranks.hosts
    began = time.monotonic()
    with machine_stops(slurm, node, 1.0), pytest.raises(RanksGone, match=f"heard from {node} for 8 s, and {went} went with it"):
        ranks.run(cell)
    assert time.monotonic() - began < patient(30.0)  # 12 s on a quiet machine, with what it takes to end the job


def test_a_machine_that_is_silent_for_a_while_comes_back(own, slurm):
    ranks = own(4)
    with machine_stops(slurm, "n2", 0.5, 4.5):
        assert errors(ranks.run("time.sleep(2)\ncomm.Barrier()")) == [None] * 4


def agents_of(ranks):
    ranks.run("children = [int(c) for c in open(f'/proc/self/task/{os.getpid()}/children').read().split()]")
    children = [child for some in ranks.pull("children") for child in some]
    return [child for child in children if "agent.py" in " ".join(line_of(psutil.Process(child)))]


def test_without_agents_ranks_do_not_hang(own):
    ranks = own(4)
    found = agents_of(ranks)
    assert len(found) == 2
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    assert errors(ranks.run("comm.Barrier()")) == [None] * 4
    began = time.monotonic()
    with pytest.raises((RanksGone, RanksError)):
        ranks.call(lambda: comm.Barrier() if rank else time.sleep(60))  # noqa: F821
    assert time.monotonic() - began < patient(20)


def test_ranks_that_no_kernel_watches_say_that_a_machine_is_lost(no_job, slurm, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import os, time\nfrom course_lib.collectives import Communicator\ncomm = Communicator()\ncomm.Barrier()\n"
        "print('ready', flush=True)\ntime.sleep(3)\ntry:\n    comm.Barrier()\nexcept Exception as error:\n    print(error, flush=True)\n"
    )
    words = ["srun", "--job-name=program", *OPTIONS.split(), "--ntasks=4", "--mpi=pmi2", sys.executable, str(script)]
    environment = {**os.environ, **slurm.environment}
    running = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    stopped = []
    try:
        for _ in range(4):
            assert "ready" in running.stdout.readline()
        stopped = [
            p for p in psutil.process_iter() if str(script) in " ".join(line_of(p)) and environment_of(p).get("SLURMD_NODENAME") == "n2"
        ]
        stopped += [p for rank in stopped for p in rank.children()]
        for process in stopped:
            process.suspend()
        said = running.stdout.readline()
        assert "(n1) wait" in said and "ranks 2, 3 (n2) are lost" in said, said
    finally:
        for process in stopped:
            process.resume()
        running.kill()
        running.wait()
        slurm.ask("scancel", "--name=program")
    assert wait_until(lambda: "program" not in slurm.ask("squeue", "-h", "-o", "%j"), 20)


@pytest.mark.parametrize(
    "log, words",
    [
        ("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-20T15:00:00 DUE TO TIME LIMIT ***", "time has run out"),
        ("srun: error: Node failure on n[2-3]\nsrun: Force Terminated job 5", "has failed: n[2-3], and ranks 4–7 went with it."),
        ("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-20 ***\nsrun: error: n2: tasks 4-7: Terminated", "It was cancelled"),
        (
            "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-20 ***\nsrun: error: n1: task 0: Exited with exit code 93",
            "cancelled",
        ),
        (
            "srun: error: n1: task 0: Exited with exit code 93\nslurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026 ***",
            "passes cells on",
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=5.0\nsrun: error: n2: task 3: Out Of Memory", "Memory ran out"),
        ("srun: error: n2: tasks 4-5,7: Killed", "ranks 4, 5, 7 on n2 ended: killed"),
    ],
)
def test_how_a_job_ends_is_said(tmp_path, log, words):
    (tmp_path / "log.txt").write_text(log)
    for rank in range(8):
        (tmp_path / f"rank-{rank}").write_text("n1" if rank < 4 else "n2")
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert words in slurm.Allocation(8, tmp_path, ended, ended, "course-x").exit_reason()


def test_a_python_that_is_not_on_all_machines_is_said(tmp_path):
    why = "slurmstepd: error: execve(): /home/u/course/.venv/bin/python: No such file or directory"
    (tmp_path / "log.txt").write_text(f"{why}\nsrun: error: n1: tasks 0-3: Exited with exit code 2\n")
    ended = subprocess.Popen(["false"])
    ended.wait()
    said = slurm.Allocation(4, tmp_path, ended, ended, "course-x").ended()
    assert f"Python did not start there: do all machines see {sys.prefix}?" in said and why in said


def test_another_program_that_srun_ran_in_our_place_is_said(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert "a word in slurm=... that belongs to no option" in slurm.Allocation(4, tmp_path, ended, ended, "course-x").ended()


def test_the_tests_own_slurm_ends_with_them_even_if_they_are_killed():
    killed = "import os, slurm_cluster; print(slurm_cluster.Slurm().folder, flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run(
        [sys.executable, "-c", killed],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(slurm_cluster.__file__).parent)},
    )
    folder = done.stdout.strip()

    def left():
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            if folder in " ".join(process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.info["cmdline"])
        return found

    try:
        assert folder and wait_until(lambda: not left(), 20), f"still there: {left()}"
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
