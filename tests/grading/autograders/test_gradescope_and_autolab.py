"""The archives of `make gradescope` and `make autolab`, run as those platforms do: in a root of their own, where nothing else is."""

import ensurepip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import nbformat
import psutil
import pytest
from processes import wait_until

from course_lib.sandbox import bubblewrap, landlock
from course_lib.sim.schedule import score
from grading.authoring import build
from grading.autograders import autolab, build_archive, container, find_notebook, gradescope, runner, scoreboard, wheels
from grading.autograders.runner import AutograderResults, TestOutcome
from grading.paths import ROOT
from grading.submission.assembly import UnreadableSubmission
from grading.submission.sandbox import NoSandbox

PART = "97_two"
TWO = """# ---
# jupyter:
#   course:
#     ranks: 1
# ---

# %% Start tags=["given"]
from course_lib import cluster
from course_lib.check import Check
ranks = cluster.start(1)
"""
EXERCISE = """
# %% {name} tags=["exercise"]
# %%px
def {name}(x):
    ### BEGIN SOLUTION
    return {times} * x
    ### END SOLUTION
"""
TEST = """
# %% Test {name} tags=["test"] points={points}
### BEGIN HIDDEN TESTS
check = Check("{name}", show=False)
x = check.random.standard_normal(5)
check.array(ranks.call("{name}", [dict(x=x)])[0], {times} * x, name="what {name} returns", rank=0)
### END HIDDEN TESTS
"""
RIGHT = {"first": "%%px\ndef first(x):\n    return x + x", "second": "%%px\ndef second(x):\n    return 3 * x"}

# All that may be reached; what was, is told in the error of the first test.
ATTACK = """%%px
import json, os, subprocess, sys, time
reached, forged = [], json.dumps({"scores": {"first": 10, "second": 5}, "tests": [{"name": "first", "score": 10, "max_score": 10}]})
def attempt(name, what):
    try:
        what()
        reached.append(name)
    except BaseException:
        pass
here = "/autograder"
for path in ("results/results.json", "handin.ipynb", "autograde.tar", "course/part.json", "source/course/part.json"):
    path = f"{here}/{path}"
    attempt(f"write {path}", lambda: open(path, "w").write(forged))
    attempt(f"read {path}", lambda: open(path).read())
    attempt(f"truncate {path}", lambda: os.truncate(path, 0))
    attempt(f"remove {path}", lambda: os.remove(path))
    attempt(f"replace {path}", lambda: os.rename(path, path + "x"))
for path in ("source/course/source.ipynb", "course/source.ipynb", "results", "submission", "source", "course", "."):
    attempt(f"read {path}", lambda: open(f"{here}/{path}").read())
    attempt(f"list {path}", lambda: min(set(os.listdir(f"{here}/{path}")) - {"course", "course_lib"}))  # the library is no secret
for pid in (1, 2, os.getppid() or 1):
    for name in ("environ", "mem", "fd/1", "cmdline"):
        attempt(f"read /proc/{pid}/{name}", lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
    attempt(f"write to the output of {pid}", lambda: open(f"/proc/{pid}/fd/1", "w").write(forged))
    attempt(f"kill {pid}", lambda: os.kill(pid, 9))
def later():
    if not os.fork():
        time.sleep(3)
        open(f"{here}/results/results.json", "w").write(forged)
        os._exit(0)
attempt("fork", later)
attempt("start", lambda: subprocess.Popen(["/bin/sh", "-c", f"sleep 3; echo '{forged}' >/autograder/results/results.json"]))
attempt("take all memory", lambda: bytearray(3 << 30))
print(forged, flush=True)
os.write(1, forged.encode()), os.write(2, forged.encode())
def first(x):
    print(forged, flush=True)
    os.write(1, forged.encode())
    raise ValueError(f"{forged}\\n{forged}\\nreached: {reached}")
"""
FILLS = """%%px
import os, tempfile
def second(x):
    for i in range(1000):
        with open(f"{tempfile.gettempdir()}/{i}", "wb") as file:
            file.write(bytes(1 << 20))
"""
SLEEPS = "%%px\ndef second(x):\n    import time\n    while True:\n        time.sleep(1)"

CAPABILITIES = ("SETUID", "SETGID", "SETPCAP", "CHOWN", "KILL", "DAC_OVERRIDE", "FOWNER")
needs_bubblewrap = pytest.mark.skipif(
    bubblewrap.problem() is not None, reason=f"a clean root is made by bubblewrap: {bubblewrap.problem()}"
)


@pytest.fixture
def two(monkeypatch, tmp_path):
    """The part "97_two", with two exercises on one rank."""
    monkeypatch.setattr(build, "SOLUTIONS", tmp_path / "solutions")
    (tmp_path / "solutions" / PART).mkdir(parents=True)
    text = TWO
    for template in (EXERCISE, TEST):
        text += template.format(name="first", times=2, points=10)
        text += template.format(name="second", times=3, points=5)
    (tmp_path / "solutions" / PART / f"{PART}.py").write_text(text)
    return build.build(PART)


def answered(source, **answers):
    """The notebook with answers; without one, an exercise is untouched."""
    notebook = nbformat.from_dict(source)
    notebook.cells = [c for c in notebook.cells if build.kind_of(c) != "test"]
    for cell in notebook.cells:
        cell.source = answers.get(cell.id, cell.source.replace("### BEGIN SOLUTION", "raise NotImplementedError"))
    return nbformat.writes(notebook)


def unpacked(folder, **how):
    """Make the files that Gradescope has after it has built the image: all but the wheels."""
    for name in ("source", "submission", "results"):
        (folder / name).mkdir(parents=True)
    subprocess.run(["unzip", "-q", build_archive.gradescope(PART, folder.parent, **how)], cwd=folder / "source", check=True)
    shutil.copy(folder / "source" / "run_autograder", folder)
    return folder


def clean_root(folder, command, user, **variables):
    """Run a command where there are only the system, Python, and this folder as /autograder; `user` None is root, as in a container."""
    python = [Path(path) for path in dict.fromkeys([sys.base_prefix, sys.prefix]) if path != "/usr"]
    above = sorted({parent for path in python for parent in path.parents} - {Path("/"), Path("/usr")})
    binds = "".join(f"--perms 0755 --dir {path} " for path in above) + "".join(f"--ro-bind {path} {path} " for path in python)
    links = " ".join(f"--symlink usr/{name} /{name}" for name in ("bin", "sbin", "lib", "lib64"))
    apart = f"--unshare-all --uid {user} --gid {user}"
    if user is None:
        apart = "--unshare-pid --unshare-net --unshare-ipc " + " ".join(f"--cap-add CAP_{name}" for name in CAPABILITIES)
    words = (
        f"bwrap {apart} --die-with-parent --ro-bind /usr /usr {links} --proc /proc --dev /dev "
        "--ro-bind-try /etc/alternatives /etc/alternatives --perms 1777 --tmpfs /dev/shm --perms 1777 --tmpfs /tmp "
        f"--perms 0755 --tmpfs /root {binds} --bind {folder} /autograder --chdir /autograder --clearenv"
    ).split()
    variables = {"PATH": "/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "COURSE_PYTHON": sys.executable, **variables}
    words += [word for name, value in variables.items() for word in ("--setenv", name, value)]
    last = f"{command}; echo $? >/tmp/code; for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline >&2; echo >&2; done; exit $(cat /tmp/code)"
    done = subprocess.run([*words, "bash", "-c", last], capture_output=True, text=True, timeout=120, check=False)
    left = [line for line in done.stderr.splitlines() if "python" in line and "bash -c" not in line]
    assert done.returncode == 0 and not left, (done, left)
    return done.stdout


@needs_bubblewrap
def test_on_gradescope_a_solved_hand_in_gets_everything(two, tmp_path):
    place = unpacked(tmp_path / "autograder")
    (place / "submission" / "my notes").mkdir()
    (place / "submission" / "my notes" / "Answer (2).ipynb").write_text(answered(two, **RIGHT))
    other = ROOT / "notebooks" / "01_data_split" / "01_data_split.ipynb"
    shutil.copy(other, place / "submission")
    (place / "submission" / "photo.png").write_bytes(b"none")
    said = clean_root(place, "bash source/setup.sh && /autograder/run_autograder", user=0)
    assert said.startswith("The ranks were isolated by ")
    told = json.loads((place / "results" / "results.json").read_text())
    rows = [(t["name"], t["score"], t["max_score"], t["status"], t["output"]) for t in told["tests"]]
    assert rows == [("first", 10, 10, "passed", "passed"), ("second", 5, 5, "passed", "passed")]
    assert told["stdout_visibility"] == "hidden" and told["output"] == "" and "leaderboard" not in told and "score" not in told


@pytest.mark.slow
@needs_bubblewrap
def test_on_gradescope_a_hostile_hand_in_reaches_nothing_and_gets_nothing(two, tmp_path):
    place = unpacked(tmp_path / "autograder")
    (place / "submission" / f"{PART}.ipynb").write_text(answered(two, first=ATTACK, second=FILLS))
    source = {path: path.read_bytes() for path in (place / "source").rglob("*") if path.is_file()}
    said = clean_root(place, "/autograder/run_autograder", user=0)
    assert len(said.splitlines()) == 1, said
    told = json.loads((place / "results" / "results.json").read_text())
    assert [t["score"] for t in told["tests"]] == [0, 0] and {t["status"] for t in told["tests"]} == {"failed"}
    assert told["tests"][0]["output"].endswith("reached: []"), told["tests"][0]["output"]
    assert "rank 0 was ended: it had written" in told["tests"][1]["output"] or "OSError" in told["tests"][1]["output"]
    assert {path: path.read_bytes() for path in (place / "source").rglob("*") if path.is_file() and path.suffix != ".pyc"} == source


@pytest.mark.root
@needs_bubblewrap
def test_where_root_has_neither_bubblewrap_nor_landlock_ranks_are_users_that_reach_nothing(two, tmp_path):
    place = unpacked(tmp_path / "autograder")
    (place / "submission" / f"{PART}.ipynb").write_text(answered(two, first=ATTACK, second=RIGHT["second"]))
    module = place / "source" / "course" / "course_lib" / "sandbox" / "landlock.py"
    module.write_text(module.read_text() + "\n\ndef abi_version():\n    return 0\n")
    said = clean_root(place, "/autograder/run_autograder", user=None, SANDBOX="none")
    assert said == "The ranks ran as users that own nothing, without bubblewrap (SANDBOX=none) and without Landlock.\n"
    told = json.loads((place / "results" / "results.json").read_text())["tests"]
    assert [t["score"] for t in told] == [0, 5], told
    reached = told[0]["output"].rpartition("reached: ")[2]
    assert set(re.sub(r"\d+", "N", reached).strip("[]").split(", ")) == {"'read /proc/N/cmdline'"}, "all may read these"


@pytest.mark.slow
@needs_bubblewrap
def test_on_autolab_a_hostile_hand_in_says_nothing_and_ends_in_time(two, tmp_path):
    place = build_archive.autolab_files(PART, tmp_path, minutes=1.6)
    (place / "handin.ipynb").write_text(answered(two, first=ATTACK, second=SLEEPS))
    said = clean_root(place, "make -f autograde-Makefile", user=1000).splitlines()
    assert json.loads(said[-1]) == {"scores": {"first": 0.0, "second": 0.0}}
    late = said[-2].removeprefix("    | ")
    assert re.fullmatch(r"not run: it took more than \d+ s and was ended\.", late)
    assert said[:3] == [f"1 of 2 tests have {late}", "The ranks were isolated by bubblewrap.", "first: 0 of 10"]
    assert said[-3:-1] == ["second: 0 of 5", f"    | {late}"]
    assert said[-4] == "    | reached: []" and all(line.startswith("    | ") for line in said[3:-3])


@pytest.mark.slow
def test_what_was_earned_is_there_when_the_platform_ends_the_run(two, tmp_path):
    place = unpacked(tmp_path / "autograder")
    (place / "submission" / f"{PART}.ipynb").write_text(answered(two, first=RIGHT["first"], second=SLEEPS))
    course, results = place / "source" / "course", place / "results" / "results.json"
    variables = {**os.environ, "PYTHONPATH": str(course)}
    process = subprocess.Popen(
        [sys.executable, "-m", "grading.autograders", "gradescope"], cwd=course, env=variables, stdout=subprocess.PIPE
    )

    def tests():
        return json.loads(results.read_text())["tests"] if results.exists() else [{"score": 0}]

    assert wait_until(lambda: tests()[0]["score"], 60)
    started = psutil.Process(process.pid).children(recursive=True)
    assert tests()[1]["output"].startswith("not run: ")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0 and started and not [p for p in started if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert [t["score"] for t in tests()] == [10, 0]
    assert tests()[1]["output"] == "not run: the platform ended the run before this test had run."


def fake_python(folder, version):
    folder.mkdir()
    (folder / "python3").write_text(f'#!/bin/bash\nif [ "$1" = -c ]; then echo {version}; else exit 9; fi\n')
    (folder / "python3").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@pytest.fixture
def source(two, tmp_path):
    """An archive that is unpacked, for another Python than there is."""
    return unpacked(tmp_path / "autograder", python="3.99") / "source"


def test_another_python_is_said_when_the_image_is_built(source, tmp_path):
    variables = {"PATH": fake_python(tmp_path / "bin", "3.10")}
    done = subprocess.run(["bash", "setup.sh", tmp_path / "place"], cwd=source, env=variables, capture_output=True, text=True, check=False)
    assert (
        done.returncode == 1
        and "is for Python 3.99, and this image has 3.10. On Gradescope, choose the base image Ubuntu 24.04" in done.stderr
    )
    assert not (tmp_path / "place").exists()


@pytest.mark.slow
def test_the_wheels_are_installed_without_a_network_and_once(source, tmp_path):
    (source / "course" / "python-version").write_text(f"{sys.version_info.major}.{sys.version_info.minor}\n")
    (source / "wheels").mkdir()
    bundled = [Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels")]  # the second is Debian's
    (pip,) = [pip for folder in bundled for pip in folder.glob("pip-*.whl")][:1]
    shutil.copy(pip, source / "wheels")
    with zipfile.ZipFile(source / "wheels" / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "words = 'it is here'")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\nRequires-Dist: nowhere-to-be-had\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    variables = {"PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin", "PIP_INDEX_URL": "http://127.0.0.1:9"}
    for _ in range(2):
        subprocess.run(["bash", "setup.sh", tmp_path / "place"], cwd=source, env=variables, check=True)
        shutil.rmtree(source / "wheels" / "none", ignore_errors=True)
    python = tmp_path / "place" / "bin" / "python"
    assert subprocess.check_output([python, "-c", "import tiny; print(tiny.words)"], text=True) == "it is here\n"
    subprocess.run(["bash", "setup.sh", tmp_path / "place"], cwd=source, env={"PATH": "/usr/bin:/bin"}, check=True)


def test_an_image_that_was_not_set_up_says_so_in_both_places(source):
    script = (source / "run_autograder").read_text()
    assert script.index("results.json") < script.index("exec"), "a sentence is there before anything can fail"
    (source / "autograde.txt").write_text("")
    variables = {"PATH": fake_python(source / "bin", "3.10")}
    shutil.copy(ROOT / "grading/autograders/run_autolab", source)
    done = subprocess.run(["bash", "run_autolab"], cwd=source, env=variables, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {"scores": {}} and "this image has 3.10" in done.stdout


# Which file it is.


def put(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.ipynb").write_text(text)


def test_the_notebook_is_found_whatever_it_is_called(two, tmp_path):
    good, bare = answered(two, **RIGHT), json.loads(answered(two, **RIGHT))
    bare["metadata"] = {}
    for cell in bare["cells"]:
        cell["metadata"] = {}
    bare["nbformat_minor"] = 4
    for cell in bare["cells"]:
        del cell["id"]
    checkpoints = tmp_path / ".ipynb_checkpoints"
    checkpoints.mkdir()
    for name, text in {"Untitled3": good, "no metadata left": json.dumps(bare)}.items():
        put(tmp_path, **{name: text, "other": (ROOT / "notebooks/01_data_split/01_data_split.ipynb").read_text()})
        put(checkpoints, Untitled3=answered(two, first="%%px\ndef first(x):\n    return 0"))
        assert find_notebook.find_notebook(tmp_path, PART, two) == text.encode()
        (tmp_path / f"{name}.ipynb").unlink()
    put(tmp_path, **{PART: good, f"{PART}-Copy1": answered(two, first=RIGHT["first"])})
    assert find_notebook.find_notebook(tmp_path, PART, two) == good.encode(), "the one that is called as it should be"


BAD = {
    "nothing": (lambda f, two: None, "ipynb, got nothing"),
    "no notebook": (lambda f, two: (f / "<b>.pdf").write_text("x"), "ipynb, got <b>.pdf"),
    "broken": (lambda f, two: put(f, a='{"cells": ['), "not a notebook"),
    "empty": (lambda f, two: put(f, a=""), "not a notebook"),
    "deep": (lambda f, two: put(f, a="[" * 200_000), "not a notebook"),
    "a link": (lambda f, two: (f / "a.ipynb").symlink_to("/etc/passwd"), "ipynb, got a.ipynb"),
    "a folder": (lambda f, two: (f / "a.ipynb").mkdir(), "ipynb, got a.ipynb"),
    "another part": (lambda f, two: put(f, a=(ROOT / "notebooks/01_data_split/01_data_split.ipynb").read_text()), "of 01_data_split"),
    "two": (lambda f, two: put(f, a=answered(two, **RIGHT), b=answered(two)), "got 2: a.ipynb, b.ipynb"),
    "many": (lambda f, two: put(f, **{str(i): "" for i in range(60)}), "got 60"),
    "large": (lambda f, two: put(f, a="x" * (find_notebook.MAX_NOTEBOOK_BYTES + 1)), "clear its outputs"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_graded_is_said_in_a_sentence(name, two, tmp_path):
    make_it, said = BAD[name]
    folder = tmp_path / "submission"
    folder.mkdir()
    make_it(folder, two)
    with pytest.raises(UnreadableSubmission, match=said):
        find_notebook.find_notebook(folder, PART, two)


# What goes into the archive.


def test_an_archive_holds_no_answers_and_nothing_of_this_machine(two, tmp_path):
    path = build_archive.gradescope(PART, tmp_path)
    with zipfile.ZipFile(path) as zipped:
        files = {info.filename: zipped.read(info) for info in zipped.infolist()}
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in zipped.infolist()}
    assert {"setup.sh", "run_autograder", "course/part.json", "course/source.ipynb"} <= set(files)
    assert {name for name, mode in modes.items() if mode != 0o644} == {"setup.sh", "run_autograder"}
    assert {modes["setup.sh"], modes["run_autograder"]} == {0o755}
    known = ("course/course_lib/", "course/grading/", "course/part.json", "course/source.ipynb", "course/python-version")
    assert not [name for name in files if not name.startswith((*known, "setup.sh", "run_autograder"))]
    for name, data in files.items():
        for word in (str(ROOT), str(Path.home()), str(tmp_path), "BEGIN SOLUTION", "return 2 * x"):
            assert word.encode() not in data or name.endswith(".py"), (name, word)
            assert word in ("BEGIN SOLUTION", "/root") or word.encode() not in data, (name, word)
    source = nbformat.reads(files["course/source.ipynb"].decode(), as_version=4)
    assert [build.kind_of(c) for c in source.cells].count("test") == 2
    before = path.read_bytes()
    assert build_archive.gradescope(PART, tmp_path).read_bytes() == before
    with tarfile.open(fileobj=io.BytesIO((build_archive.autolab_files(PART, tmp_path) / "autograde.tar").read_bytes())) as tar:
        assert set(tar.getnames()) == {*files} - {"run_autograder"} | {"run_autolab"}
        assert {(info.uname, info.gname, info.uid) for info in tar} == {("", "", 0)}


def test_only_the_modules_that_are_needed_go_along():
    names = {path.as_posix() for path in build_archive.required_modules()}
    assert {
        "grading/__init__.py",
        "grading/submission/grade.py",
        "grading/autograders/runner.py",
        "grading/submission/assembly.py",
    } <= names
    others = (
        "config",
        "running/gradebook_writer",
        "collect",
        "people/roster",
        "variants",
        "authoring/answers",
        "autograders/build_archive",
        "results/course_grades",
    )
    assert all((ROOT / "grading" / f"{name}.py").exists() for name in others) and not names & {f"grading/{name}.py" for name in others}


def test_what_hidden_tests_use_goes_along():
    with_cases = [
        part for part in ("01_data_split", "29_plan") if "course/grading/authoring/cases/plan.py" in build_archive.archive_contents(part)
    ]
    assert with_cases == ["29_plan"]


def test_a_part_without_tests_is_refused():
    with pytest.raises(build_archive.NothingToGrade, match="00_warmup has nothing to grade"):
        build_archive.archive_contents("00_warmup")


def test_the_wheels_are_those_of_the_python_there():
    told = {python: dict(line.split("==") for line in wheels.needed("", python)) for python in ("3.11", "3.12")}
    names = set(told["3.12"])
    assert {"numpy", "mpich", "ipykernel", "nbgrader", "pip", "tinycss2"} <= names
    assert not names & {"jupyterlab", "notebook", "jupyter-server", "babel", "pytest", "scikit-learn", "scipy", "jupytext"}
    pins = [line.split(" ;")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()]
    assert not [f"{name}=={version}" for name, version in told["3.12"].items() if f"{name}=={version}" not in pins]
    assert told["3.11"]["contourpy"] != told["3.12"]["contourpy"]
    digits = {line.split("==")[0] for line in wheels.needed("datasets.load('digits')", "3.12")}
    assert digits - names == {"scikit-learn"}, "its digits are a file"


def test_wheels_are_downloaded_once_and_what_fails_is_said(tmp_path, monkeypatch):
    calls = []

    def pip(words, **_):
        calls.append(words)
        here = Path(words[words.index("--dest") + 1])
        for line in words[words.index("--dest") + 2 :]:
            if "missing" not in line:
                (here / f"{line.replace('==', '-')}-py3-none-any.whl").touch()
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(wheels.subprocess, "run", pip)
    for _ in range(2):
        assert [path.name for path in wheels.fetched(["tiny==1.0"], "3.12", tmp_path)] == ["tiny-1.0-py3-none-any.whl"]
    assert len(calls) == 1
    with pytest.raises(wheels.WheelError, match=r"could not be downloaded: missing==2. Usual causes: no network"):
        wheels.fetched(["tiny==1.0", "missing==2"], "3.12", tmp_path)
    assert calls[1][-1] == "missing==2" and "tiny==1.0" not in calls[1], "what is there is not fetched again"


# What is written down.

ENTRY = {
    "handle": "=cmd()",
    "score": 4.25,
    "runs": [{"settings": settings, "utilisation": 0.512, "memory": 64e9, "time": 12.3456} for settings in score.SETTINGS],
}


def results(part=PART, **more):
    tests = {
        "test-a": TestOutcome("a", 10, 10, "passed", True),
        "test-b": TestOutcome("b", 5, 0, '{"scores": {"b": 5}}\n{"scores": {"b": 5}}', True),
    }
    return AutograderResults(part, tests, isolation="By a test.", **more)


def test_nothing_that_a_student_says_begins_a_line_on_autolab():
    told = autolab.feedback(results(messages=["1 of 2"]))
    assert told.splitlines() == ["1 of 2", "By a test.", "a: 10 of 10", "    | passed", "b: 0 of 5", *['    | {"scores": {"b": 5}}'] * 2]
    assert autolab.scores(results()) == {"scores": {"a": 10, "b": 0}}
    stopped = results()
    stopped.tests["test-b"].ran = False
    runner._stopped(stopped, 'the file is not a notebook:\n{"scores": {"b": 5}}\r\x1b[2J')
    assert stopped.messages == ['1 of 2 tests have not run: the file is not a notebook: {"scores": {"b": 5}} [2J.']
    assert stopped.tests["test-a"].output == "passed" and "\n" not in stopped.tests["test-b"].output


def test_part_20_has_a_leaderboard_without_handles():
    told = gradescope.as_json(results(scoreboard.LEADERBOARD_PART, entry=ENTRY))["leaderboard"]
    assert [row["name"] for row in told] == scoreboard.column_names(scoreboard.LEADERBOARD_PART)
    assert told[:3] == [
        {"name": "score", "value": 4.25, "order": "desc"},
        {"name": "MFU in %, 32 ranks", "value": 51.2, "order": "desc"},
        {"name": "memory in GB, 32 ranks", "value": 64.0, "order": "asc"},
    ]
    assert autolab.scores(results(scoreboard.LEADERBOARD_PART, entry=ENTRY))["scoreboard"] == [row["value"] for row in told]
    assert autolab.scores(results(scoreboard.LEADERBOARD_PART))["scoreboard"] == [0] * len(told)


def test_a_strangers_text_moves_no_cursor_and_can_be_written():
    text = runner.plain_text("\x1b[31mred\x1b[0m\n\x1b]0;title\x07 \ud800 \u202e \r{")
    assert text == "red\n ]0;title  ?    {" and json.dumps(text).encode()


def test_where_nothing_keeps_an_answer_from_the_tests_nothing_is_graded(monkeypatch):
    monkeypatch.setattr(bubblewrap, "problem", lambda: "bubblewrap is not installed")
    monkeypatch.setattr(landlock, "abi_version", lambda: container.LANDLOCK_ABI_TRUNCATE - 1)
    monkeypatch.setattr(container.RankFolders, "other_users", False, raising=False)
    monkeypatch.setattr("course_lib.cluster.isolated.launcher._others_may_run_python", lambda: False)
    with pytest.raises(NoSandbox, match="cannot keep answers away from the tests here: bubblewrap is not installed"):
        container.isolation()
    monkeypatch.setattr(landlock, "abi_version", lambda: container.LANDLOCK_ABI_TRUNCATE)
    assert container.isolation() == ("none", "The ranks were isolated by Landlock, without bubblewrap (bubblewrap is not installed).")


def test_memory_that_ran_out_is_counted(monkeypatch, tmp_path):
    files = [tmp_path / "memory.events", tmp_path / "memory.oom_control"]
    monkeypatch.setattr(container, "OOM_COUNTER_FILES", [*map(str, files)])
    assert container.oom_kills() == 0
    files[1].write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert container.oom_kills() == 2
    files[0].write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert container.oom_kills() == 3
