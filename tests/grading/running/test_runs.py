"""Many hand-ins, many workers: nothing is lost and nothing is there twice, whatever is killed; what has changed is graded anew."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace

import nbformat
import psutil
import pytest
from processes import course_processes, wait_until

from course_lib.sandbox import cgroup
from grading import autograde as command
from grading import config
from grading.authoring import build
from grading.paths import ROOT
from grading.running import backends, grading_run
from grading.running.grading_run import GradingRun
from grading.submission.grade import Graded, Task, grade

PART = "97_one"
WRONG = "%%px\ndef first(x):\n    return x"
RUN = """
import sys
from pathlib import Path
from grading.autograde import autograde
autograde(sys.argv[1], *map(Path, sys.argv[2:4]), jobs="2")
"""


def submissions(course, part=PART):
    """Every line of the gradebook about hand-ins: one too many would be seen."""
    with config.gradebook(config.load(course.home)) as book:
        return sorted((s.student.id, s.score, len(s.notebooks), len(s.notebooks[0].grades)) for s in book.assignment_submissions(part))


def hand_in(course, wrong=("ben",), right=("ada", "cleo")):
    for student in (*wrong, *right):
        course.hand_in(PART, student, course.solved(PART, WRONG if student in wrong else None))
    return {student: 10.0 * (student in right) for student in (*wrong, *right)}


def started(course):
    words = [sys.executable, "-c", RUN, PART, str(course.home), str(course.notebooks)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)


def below(process):
    """The graders that a run has started."""
    try:
        return [p for p in psutil.Process(process.pid).children(recursive=True) if "grading.running.worker" in p.cmdline()]
    except psutil.Error:
        return []


@pytest.mark.slow
def test_a_grader_that_is_killed_loses_nothing_and_doubles_nothing(one, capfd):
    wanted = hand_in(one, [f"wrong{i}" for i in range(2)], [f"right{i}" for i in range(3)])
    before = course_processes()
    for _ in range(2):
        process = started(one)
        assert wait_until(lambda process=process: below(process), 30)
        time.sleep(random.uniform(2, 6))
        process.kill()
        process.wait()
        assert wait_until(lambda: not course_processes() - before), "a grader that was killed leaves processes behind"
    assert one.grade(PART) == wanted, "".join(capfd.readouterr())
    assert submissions(one) == sorted((student, points, 1, 1) for student, points in wanted.items())
    assert one.waiting(PART) == []


@pytest.mark.slow
def test_a_worker_that_is_killed_gives_its_hand_in_to_another_one(one):
    wanted = hand_in(one)
    process = started(one)
    for _ in range(2):  # a third time would be one too many for one hand-in
        if wait_until(lambda: below(process) or process.poll() is not None, 30) and process.poll() is None:
            time.sleep(random.uniform(0.5, 2.5))
            for worker in below(process)[:1]:
                worker.kill()
    assert process.wait(120) == 0
    assert submissions(one) == sorted((student, points, 1, 1) for student, points in wanted.items())


class Poison:
    """An object that ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (3,)


@pytest.mark.slow
def test_a_hand_in_that_takes_every_worker_along_is_said_and_costs_only_itself(one, monkeypatch, capfd):
    wanted = hand_in(one)
    real = GradingRun._task

    def poisoned(self, student):
        task = real(self, student)
        return replace(task, source=Poison()) if student == "ben" else task

    monkeypatch.setattr(GradingRun, "_task", poisoned)
    assert one.grade(PART) == {student: points for student, points in wanted.items() if student != "ben"}
    assert one.failed == ["ben"] and "ben: NOT graded: each of the 3 workers that tried it was lost" in "".join(capfd.readouterr())


@pytest.mark.slow
def test_what_is_replaced_while_it_is_graded_waits_again(one, monkeypatch):
    hand_in(one, wrong=[], right=["ada"])
    real = GradingRun._task

    def replaced(self, student):
        task = real(self, student)
        one.hand_in(PART, student, one.solved(PART, WRONG))
        return task

    monkeypatch.setattr(GradingRun, "_task", replaced)
    assert one.grade(PART) == {"ada": 10}
    monkeypatch.undo()
    assert one.waiting(PART) == ["ada"], "the newer hand-in was taken for the graded one"


def test_two_runs_at_a_time_are_one_too_many(one):
    hand_in(one)
    process = started(one)
    try:
        assert wait_until(lambda: below(process), 30)
        with pytest.raises(config.GradingConfigError, match="Another `make autograde` or `make release` is running"):
            one.grade(PART)
    finally:
        process.kill()
        process.wait()


def edit(one, tmp_path, monkeypatch, *pairs):
    """Change the part in solutions/, which `make autograde` then reads."""
    path = tmp_path / "solutions" / PART / f"{PART}.py"
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    monkeypatch.setattr(command, "parts", lambda: [PART])
    one.released.setdefault(PART, one.notebooks / PART / f"{PART}.ipynb")


@pytest.mark.slow
def test_changed_tests_and_points_regrade_what_they_touch_and_what_a_person_wrote_stays(one, tmp_path, monkeypatch, capfd):
    hand_in(one)
    assert one.grade(PART) == {"ada": 10, "ben": 0, "cleo": 10}
    with config.gradebook(config.load(one.home)) as book:
        for student, points in (("ada", None), ("ben", 3)):
            grade = book.find_grade("test-first", PART, PART, student)
            grade.manual_score, grade.extra_credit = points, 1
            book.find_comment("first", PART, PART, student).manual_comment = f"Well, {student}."
        book.db.commit()
    capfd.readouterr()
    edit(one, tmp_path, monkeypatch, ("points=10", "points=12"))
    assert one.grade(PART) == {"ada": 13, "ben": 4, "cleo": 12}
    assert f"{PART}: 1 test has changed since: 3 hand-ins to regrade." in capfd.readouterr().out
    more = "\n\n# %% Test more tags=['test'] points=5\n### BEGIN HIDDEN TESTS\nassert True\n### END HIDDEN TESTS\n".replace("'", '"')
    edit(
        one,
        tmp_path,
        monkeypatch,
        ("# %% Test first", "# %% Test the first"),
        ('name="the sum", rank=r)\n### END HIDDEN TESTS\n', f'name="the sum", rank=r)\n### END HIDDEN TESTS\n{more}'),
    )
    assert one.grade(PART) == {"ada": 18, "ben": 9, "cleo": 17}, "what a person gave stays, also where a test has another name now"
    assert f"{PART}: 2 tests have changed since: 3 hand-ins to regrade." in capfd.readouterr().out
    with config.gradebook(config.load(one.home)) as book:
        assert book.find_comment("first", PART, PART, "ben").manual_comment == "Well, ben."
    assert (
        one.grade(PART) == {"ada": 18, "ben": 9, "cleo": 17} and "nothing to grade; 3 hand-ins are already graded" in capfd.readouterr().out
    )
    text = (one.home / "autograded" / "ben" / PART / f"{PART}.ipynb").read_text()
    assert set(json.loads(text)["metadata"]["course"]["key"]) == {"course_lib", "start", "set-up", "first", "test-the-first", "test-more"}


@pytest.mark.slow
def test_a_test_that_goes_takes_nothing_along_that_a_person_wrote(one, tmp_path, monkeypatch):
    hand_in(one)
    wanted = one.grade(PART)
    with config.gradebook(config.load(one.home)) as book:
        book.find_grade("test-first", PART, PART, "ben").extra_credit = 2
        book.find_comment("first", PART, PART, "ada").manual_comment = "Well, ada."
        book.db.commit()
    wanted["ben"] += 2
    source = one.home / "source" / PART / f"{PART}.ipynb"
    before = source.read_bytes()
    edit(
        one,
        tmp_path,
        monkeypatch,
        ("# %% Test first", "# %% Test another"),
        ("### BEGIN HIDDEN TESTS\n", "### BEGIN HIDDEN TESTS\n# Another.\n"),
    )
    for _ in range(2):
        with pytest.raises(config.GradingConfigError, match=r"test-first is no longer in its source.* for ben\. Restore its name"):
            one.grade(PART)
        assert source.read_bytes() == before
    edit(one, tmp_path, monkeypatch, ("# %% Test another", "# %% Test first"), ("# %% First", "# %% The first"), ("# Another.\n", ""))
    assert one.grade(PART) == wanted
    with config.gradebook(config.load(one.home)) as book:
        assert book.find_comment("the-first", PART, PART, "ada").manual_comment == "Well, ada."


def penalties(course):
    with config.gradebook(config.load(course.home)) as book:
        return {s.student.id: s.notebooks[0].late_submission_penalty for s in book.assignment_submissions(PART)}


@pytest.mark.slow
def test_one_configuration_says_what_late_hand_ins_cost(one, monkeypatch, capfd):
    hand_in(one, wrong=[], right=["ada", "ben"])
    (one.home / "nbgrader_config.py").write_text(CONFIG)
    due = datetime(2026, 11, 1, 12)
    with config.gradebook(config.load(one.home)) as book:
        book.update_or_create_assignment(PART, duedate=due)
    for student, days in (("ada", -1), ("ben", 2)):
        stamp = one.home / "submitted" / student / PART / "timestamp.txt"
        stamp.write_text(f"{due + timedelta(days=days):%Y-%m-%d %H:%M:%S} UTC\n")
    assert one.grade(PART) == {"ada": 10, "ben": 10} and penalties(one) == {"ada": None, "ben": 2}
    people = one.home / "roster.csv"
    people.write_text("id,name,email,extension\nada,Ada,,\nben,Ben,,1 day\n")
    assert one.grade(PART) == {"ada": 10, "ben": 10} and penalties(one) == {"ada": None, "ben": 1}, "an extension counts"
    people.unlink()
    with config.gradebook(config.load(one.home)) as book:
        book.update_or_create_assignment(PART, duedate=due + timedelta(days=5))
    assert one.grade(PART) == {"ada": 10, "ben": 10} and penalties(one) == {"ada": None, "ben": None}, "a due date that moves lifts it"


CONFIG = """
from pathlib import Path
from grading.config import configure
from nbgrader.plugins import LateSubmissionPlugin

c = get_config()
configure(c, Path(__file__).parent)


class ADay(LateSubmissionPlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return total_seconds_late // 86400


c.AssignLatePenalties.plugin_class = ADay
"""


def test_a_configuration_with_a_mistake_is_a_sentence(one):
    (one.home / "nbgrader_config.py").write_text("c = get_config()\nc.CourseDirectory.db_url = undefined\n")
    with pytest.raises(config.GradingConfigError, match=r"nbgrader_config.py cannot be used: NameError: name 'undefined'"):
        config.load(one.home)
    bad = config.configure(config.Config(), one.home)
    bad.CourseDirectory.db_url = "postgresql+psycopg://me:secret@127.0.0.1:1/none"
    with pytest.raises(config.GradingConfigError, match=r"postgresql\+psycopg://me:\.\.\.@127.0.0.1:1/none cannot be opened") as caught:
        config.gradebook(bad)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("engine", "jobs", "said"),
    [
        ("slurm", "", "expected dask:tcp://"),
        ("", "0", "expected a number"),
        ("", "many", "expected a number"),
        ("dask:tcp://127.0.0.1:1", "", "No Dask scheduler answers"),
        ("ipyparallel:none", "", "No ipyparallel cluster"),
    ],
)
def test_an_engine_that_is_not_there_is_a_sentence(engine, jobs, said, monkeypatch, tmp_path):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setattr(backends, "CONNECT_TIMEOUT_SECONDS", 1)
    with pytest.raises(backends.BackendError, match=said), backends.open_backend(engine, jobs):
        pass


@pytest.mark.slow
def test_a_dask_cluster_grades(one):
    from distributed import LocalCluster

    wanted = hand_in(one)
    before = course_processes()
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None) as cluster:
        os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)  # the nanny starts another one
        assert one.grade(PART, engine=f"dask:{cluster.scheduler_address}") == wanted
    assert wait_until(lambda: not course_processes() - before)


@pytest.mark.slow
def test_a_dask_scheduler_that_is_killed_is_said(one, monkeypatch):
    from distributed import Client

    hand_in(one)
    monkeypatch.setattr(grading_run, "WORKER_CHECK_SECONDS", 0.5)
    words = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    scheduler = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    address = next(found[0] for line in scheduler.stderr if (found := re.search(r"tcp://127[.\d]+:\d+", line)))
    workers = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    worker = subprocess.Popen(workers, stderr=subprocess.DEVNULL)
    try:
        real = GradingRun._task

        def killed(self, student):
            scheduler.kill()
            return real(self, student)

        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=60)
        monkeypatch.setattr(GradingRun, "_task", killed)
        with pytest.raises(backends.BackendError, match="No worker is left"):
            one.grade(PART, engine=f"dask:{address}")
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_an_ipyparallel_cluster_grades(one, monkeypatch, tmp_path):
    import ipyparallel

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    wanted = hand_in(one)
    before = course_processes()
    with ipyparallel.Cluster(n=2, cluster_id="", profile="default", log_level=50) as client:
        client.wait_for_engines(2, timeout=60)
        assert one.grade(PART, engine="ipyparallel") == wanted
    assert wait_until(lambda: not course_processes() - before)


def test_a_summary_names_what_was_not_graded_and_what_was_slow(tmp_path):
    done = command.GradingOutcome(
        {f"s{i}": Graded(None, "", {"t": 1.0}, i % 2, float(i)) for i in range(5)}, {"eve": "the file is not a notebook"}, 100
    )
    said = command.summary("03_naive_forward", done, tmp_path)
    assert said.splitlines() == [
        "03_naive_forward: 5 graded in 1 min 40 s, 3 a minute; 1 not graded.",
        "    not graded: eve: the file is not a notebook",
        "    slowest: s4 4.0 s, s3 3.0 s, s2 2.0 s",
    ]


@pytest.mark.slow
def test_one_hand_in_is_graded_anew_on_request(one, capsys):
    wanted = hand_in(one, right=["ada", "ben"], wrong=[])
    assert one.grade(PART) == wanted
    capsys.readouterr()
    assert one.grade(PART, student="ada") == wanted and "1 to grade, 1 graded before" in capsys.readouterr().out
    for nobody in ("eve", "../ada", "."):
        with pytest.raises(command.NoSubmission, match="has not handed in"):
            one.grade(PART, student=nobody)
    assert one.grade(PART) == wanted and "nothing to grade; 2 hand-ins are already graded" in capsys.readouterr().out


def test_a_file_that_cannot_be_graded_is_no_error_of_the_command_unless_one_wants_it(monkeypatch, capsys):
    monkeypatch.setattr(command, "autograde", lambda *_, **__: ["eve"])
    monkeypatch.setattr("sys.argv", ["autograde", PART])
    monkeypatch.setattr(command, "required_part", lambda *_: PART)
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(getattr(command.sys, stream), "reconfigure", lambda **_: None, raising=False)
    for strict, code in (("", 0), ("1", 1)):
        monkeypatch.setenv("STRICT", strict)
        with pytest.raises(SystemExit) as ended:
            command.main()
        assert int(ended.value.code) == code and "Some hand-ins could not be graded" in capsys.readouterr().out


@pytest.mark.slow
def test_what_one_file_says_of_itself_stops_nobody_and_fakes_no_line(one, capfd):
    hand_in(one, wrong=[], right=["ada"])
    bad = {
        "half": b'{"cells":[{"cell_type":"code","source":["\\ud800",1]}]}',
        "lines": b'{"cells":{"9\\nada: 15 of 15\\u001b[1A":[]}}',
    }
    for student, data in bad.items():
        path = one.home / "submitted" / student / PART / f"{PART}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    odd = one.home / "submitted" / "odd" / PART
    odd.mkdir(parents=True)
    (odd / os.fsdecode(b"caf\xe9.ipynb")).write_text("{}")
    assert one.grade(PART) == {"ada": 10} and one.failed == ["half", "lines", "odd"]
    said = "".join(capfd.readouterr())
    assert "\x1b[1A" not in said and "\nada: 15 of 15" not in said and "half: NOT graded: the file is not a notebook" in said
    why = one.home / "submitted" / "lines" / PART / "not_graded.txt"
    assert why.read_text().startswith("the file is not a notebook") and "\n" not in why.read_text()
    one.hand_in(PART, "lines", one.solved(PART))
    assert one.grade(PART) == {"ada": 10, "lines": 10} and not why.exists()


@pytest.mark.slow
def test_a_gradebook_that_a_kill_has_left_behind_its_source_is_brought_up_to_date(one, tmp_path, monkeypatch):
    hand_in(one, wrong=[], right=["ada"])
    assert one.grade(PART) == {"ada": 10}
    edit(one, tmp_path, monkeypatch, ("points=10", "points=12"))
    build.write(build.build(PART), one.home / "source" / PART / f"{PART}.ipynb")  # and the gradebook was not told
    assert one.grade(PART) == {"ada": 12}


@pytest.mark.slow
def test_a_time_that_is_known_better_counts_without_grading_anew(one, capfd):
    hand_in(one, wrong=[], right=["ada"])
    (one.home / "nbgrader_config.py").write_text(CONFIG)
    due = datetime(2026, 11, 1, 12)
    with config.gradebook(config.load(one.home)) as book:
        book.update_or_create_assignment(PART, duedate=due)
    stamp = one.home / "submitted" / "ada" / PART / "timestamp.txt"
    stamp.write_text("2026-11-04 12:00:00 UTC\n")
    assert one.grade(PART) == {"ada": 10} and penalties(one) == {"ada": 3}
    stamp.write_text("2026-11-01 11:00:00 UTC\n")
    assert one.grade(PART) == {"ada": 10} and penalties(one) == {"ada": None}
    assert "nothing to grade" in capfd.readouterr().out


@pytest.mark.slow
def test_an_extension_that_was_granted_in_nbgrader_stays_where_the_roster_says_nothing(one):
    hand_in(one, wrong=[], right=["ada"])
    assert one.grade(PART) == {"ada": 10}
    with config.gradebook(config.load(one.home)) as book:
        book.update_or_create_assignment(PART, duedate=datetime(2026, 11, 1))
        book.grant_extension(PART, "ada", days=3)
    assert one.grade(PART) == {"ada": 10}
    people = one.home / "roster.csv"
    for lines in ("ada,\nben,3 days", "ada,05: 3 days\nben,", "ada,\nben,"):
        people.write_text(f"id,extension\n{lines}\n")
        assert one.grade(PART) == {"ada": 10}
        with config.gradebook(config.load(one.home)) as book:
            assert book.find_submission(PART, "ada").extension == timedelta(days=3), lines


@pytest.mark.slow
def test_an_extension_that_the_roster_takes_back_ends(one):
    hand_in(one, wrong=[], right=["ada"])
    with config.gradebook(config.load(one.home)) as book:
        book.update_or_create_assignment(PART, duedate=datetime(2026, 11, 1))
    people = one.home / "roster.csv"
    for line, days in (("3 days", 3), ("03: 1 day", None), ("2 days; 03: 3 days", 2), ("", None)):
        people.write_text(f"id,extension\nada,{line}\n")
        assert one.grade(PART) == {"ada": 10}
        with config.gradebook(config.load(one.home)) as book:
            assert book.find_submission(PART, "ada").extension == (days and timedelta(days=days)), line
    people.write_text("id,extension\nada,3 days\n")
    one.grade(PART)
    people.unlink()
    one.grade(PART)
    with config.gradebook(config.load(one.home)) as book:
        assert book.find_submission(PART, "ada").extension is None


def test_a_cluster_that_has_ended_is_said(one, monkeypatch):
    class Nobody(Executor):
        def submit(self, *task):
            return Future()

    @contextlib.contextmanager
    def started(*_):
        yield backends.Backend(Nobody(), 2, "nowhere", lambda: 0)

    hand_in(one, wrong=[], right=["ada"])
    monkeypatch.setattr(backends, "open_backend", started)
    monkeypatch.setattr(grading_run, "WORKER_CHECK_SECONDS", 0.2)
    with pytest.raises(backends.BackendError, match="No worker is left"):
        one.grade(PART)


def test_where_the_ranks_do_not_come_up_it_is_tried_again_and_never_0(monkeypatch):
    source = build.from_text(NO_RANKS, PART)
    told, text = [], nbformat.writes(source, version=4)
    found = grade(Task(text, text.encode()), told.append)
    assert found.lost and found.points == {} and told == [] and "the ranks did not start: no room" in found.problem


def test_where_the_kernel_does_not_come_up_it_is_tried_again(one, monkeypatch):
    from jupyter_client.asynchronous import AsyncKernelClient

    source = build.build(PART)
    text = nbformat.writes(source, version=4)

    async def died(*_, **__):
        raise RuntimeError("Kernel died before replying to kernel_info")  # another program took a port, say

    monkeypatch.setattr(AsyncKernelClient, "wait_for_ready", died)
    found = grade(Task(text, text.encode()))
    assert found.lost and found.points == {} and "the notebook's kernel did not start" in found.problem


NO_RANKS = """# ---
# jupyter:
#   course:
#     ranks: 2
# ---

# %% Start tags=["given"]
from course_lib.engine.processes.mpiexec import StartError
raise StartError("no room")

# %% First tags=["exercise"]
# %%px
### BEGIN SOLUTION
first = 1
### END SOLUTION

# %% Test first tags=["test"] points=10
### BEGIN HIDDEN TESTS
ranks.pull("first")
### END HIDDEN TESTS
"""


def test_on_a_hub_only_as_many_hand_ins_are_graded_at_a_time_as_fit_its_limit(monkeypatch):
    """The limit of all of a server's processes is not to be seen among its files there; JupyterHub says it."""
    monkeypatch.setattr(backends.os, "sched_getaffinity", lambda _: range(64))
    monkeypatch.setattr(backends.psutil, "virtual_memory", lambda: SimpleNamespace(available=256 << 30))
    monkeypatch.setattr(cgroup, "_above", lambda controller: [])
    monkeypatch.delenv(cgroup.HUB_MEMORY_VARIABLE, raising=False)
    assert backends.parallel_submissions() == 64
    monkeypatch.setattr(cgroup.psutil, "process_iter", lambda _: [SimpleNamespace(info={"memory_info": SimpleNamespace(rss=256 << 20)})])
    monkeypatch.setenv(cgroup.HUB_MEMORY_VARIABLE, str(2 << 30))
    assert backends.parallel_submissions() == 2
    monkeypatch.setenv(cgroup.HUB_MEMORY_VARIABLE, str(16 << 30))
    assert backends.parallel_submissions() == 21
