"""Hand-ins that cheat, or that want to do harm: none gains a point, none reaches anything, and the next one is graded as ever."""

import hashlib
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import nbformat
import pytest
from machine import patient

import course_lib
from course_lib.check import Check, CheckFailed
from course_lib.cluster import time_limits
from course_lib.cluster.isolated import sanitize
from course_lib.sandbox import bubblewrap, landlock
from grading import feedback
from grading.running import limited_process
from grading.submission import flags
from grading.submission.execute import reduce_to_verdict

PART = "97_one"
WRONG = "%%px\ndef first(x):\n    {}return x"


def wrong(course, extra="pass; "):
    """A wrong answer that does something `extra` before; it earns nothing."""
    return course.solved(PART, WRONG.format(extra))


def hidden(notebook):
    return [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade")]


def skipped(course):
    notebook = wrong(course)
    for cell in hidden(notebook):
        cell.metadata.tags = ["skip-execution"]
    return notebook


def deleted(course):
    notebook = wrong(course)
    notebook.cells = [c for c in notebook.cells if c not in hidden(notebook)]
    return notebook


def rewritten(course):
    notebook = wrong(course)
    for cell in hidden(notebook):
        cell.source, cell.metadata.nbgrader.points = "10.0", 1000
        cell.outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "10.0"}, execution_count=1)]
    return notebook


def moved_before_the_answer(course):
    notebook = wrong(course)
    notebook.cells = [*hidden(notebook), *notebook.cells]
    return notebook


def made_a_solution_cell(course):
    notebook = wrong(course)
    for cell in hidden(notebook):
        cell.metadata.nbgrader.update(grade=False, solution=True, locked=False)
        cell.source = "10.0"
    return notebook


def redefined_checker(course):
    notebook = wrong(course)
    attack = """
import course_lib.check, course_lib.cluster.ranks, numpy.testing
course_lib.check.Check.array = course_lib.check.Check.tuple = lambda self, *a, **k: (1, 2)
course_lib.cluster.ranks.Ranks.call = lambda *a, **k: []
get_ipython().ast_transformers.append(None)
class Check:
    def __getattr__(self, name): return lambda *a, **k: None
"""
    place = notebook.cells.index(course.cell(notebook, "first"))
    notebook.cells.insert(place, nbformat.v4.new_code_cell(attack))
    notebook.cells.insert(0, nbformat.v4.new_code_cell(attack))
    return notebook


def in_example_cell(course):
    notebook = wrong(course)
    course.cell(notebook, "an-example").source = "from course_lib import check\ncheck.Check.fail = lambda *a, **k: None"
    return notebook


LOOKS = """%%px
import gc, inspect, pathlib, sys
def first(x):
    found = []
    frame = inspect.currentframe()
    while frame:
        found += [v for k, v in list(frame.f_locals.items()) if k in ("want", "total", "xs", "check")]
        frame = frame.f_back
    found += get_ipython().user_ns.get("In", [])[-1:]
    for path in list(pathlib.Path("..").glob("**/*.ipynb"))[:50]:
        found.append(path.read_text())
    found = [f for f in found if type(f).__module__ == "numpy"]
    return found[0] if found else x
"""
IN_FUNCTION = {
    "displayhook": "import sys; sys.displayhook(10.0); ",
    "printed floats": "print(10.0); ",
    "ast transformers": "get_ipython().ast_transformers.append(type('T', (), {'visit': lambda s, n: n})()); ",
    "numpy.testing": "import numpy.testing as t; t.assert_array_equal = t.assert_allclose = lambda *a, **k: None; ",
    "course_lib on the rank": "import course_lib.check as c; c.Check.array = c.Check.fail = lambda *a, **k: None; ",
    "wire on the rank": "import course_lib.engine.serialization as w; w.encode = lambda v, d=0: {'float': '0x1p3'}; ",
    "os._exit": "import os; os._exit(0); ",
    "exits": "raise SystemExit(0); ",
    "raises what the checker raises": "from course_lib.check import CheckFailed; raise CheckFailed('10.0'); ",
}
IN_NOTEBOOK = [skipped, deleted, rewritten, moved_before_the_answer, made_a_solution_cell, redefined_checker, in_example_cell]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Non-unique cell id")  # one of them copies cells
def test_no_cheat_gets_a_point(one):
    course = one
    for cheat in IN_NOTEBOOK:
        course.hand_in(PART, cheat.__name__, cheat(course))
    for name, code in IN_FUNCTION.items():
        course.hand_in(PART, name.replace(" ", "-"), wrong(course, code))
    course.hand_in(PART, "looks", course.solved(PART, LOOKS))
    course.hand_in(PART, "z-honest", course.solved(PART))
    folder = course.home / "submitted" / "displayhook" / PART
    (folder / "course_lib").mkdir()
    for name in ("course_lib/__init__.py", "numpy.py", "sitecustomize.py"):
        (folder / name).write_text("raise SystemExit('a file beside the notebook was imported')")
    points = course.grade(PART)
    assert course.failed == []
    assert points.pop("z-honest") == 10, "the hand-in after the hostile ones was not graded as usual"
    assert len(points) == len(IN_NOTEBOOK) + len(IN_FUNCTION) + 1
    assert {name: p for name, p in points.items() if p} == {}


# More than one thing in each, since each costs a start of the ranks.

READS = """%%px
import os, socket
def first(x):
    found = [dict(os.environ)]
    for path in PATHS:
        for read in (os.listdir, os.readlink, lambda p: open(p, "rb").read(200_000)):
            try:
                found.append(read(path))
            except Exception as error:
                found.append(type(error).__name__)
    for address in ADDRESSES:
        try:
            with socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX) as connection:
                connection.connect(address)
        except Exception as error:
            found.append(type(error).__name__)
    print(found)
    return x
"""

LEAVES = """%%px
import os
def first(x):
    for folder in ("/tmp", "/dev/shm", os.getcwd()):
        for attempt in (nested, fifo, link, sparse, many):
            try:
                os.chdir(folder)
                attempt()
            except Exception:
                pass
    os._exit(3)
def nested():
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
def fifo():
    os.mkfifo("log.txt")
def link():
    os.symlink("/etc/passwd", "stdout.txt")
def sparse():
    with open("core", "wb") as file:
        file.truncate(3 << 29)
def many():
    for i in range(20_000):
        open(f"f{i}", "w").close()
"""

TAKES = """%%px
import os, sys, threading, time
def first(x):
    for attempt in (forks, threads, memory, deep):
        try:
            attempt()
        except BaseException:
            pass
    return x
def forks():
    while True:
        os.fork()
def threads():
    for _ in range(3000):
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
def memory():
    kept = []
    while True:
        kept.append(bytearray(1 << 28))
def deep():
    sys.setrecursionlimit(1 << 30)
    def again(): again()
    again()
"""

SHOWS = """%%px
from IPython.display import display
def first(x):
    return x
mark = "-".join(["mark", "of", "a", "script"])
script = "<script>alert('" + mark + "')</script>"
for kind in ("text/html", "application/javascript", "image/svg+xml", "text/markdown", "text/latex", "application/pdf", "MIME"):
    display({kind: script}, raw=True)
display({"image/png": 'iVBORw0KGgo=">' + script}, raw=True)
display({"image/png": "iVBORw0KGgo="}, raw=True, metadata={"image/png": {"width": '1">' + script}})
display({"text/plain": "shown " * 3, "text/html": script}, raw=True)
"""

FLOODS = """%%px
from IPython.display import display
def first(x):
    raise ValueError("x" * 60_000_000)
display({"text/plain": "y" * 60_000_000}, raw=True)
"""

SPIES = """%%px
def first(x):
    raise ValueError(f"seen: {float(x.sum())!r}")
"""

LEAKS = """%%px
def first(x):
    raise ValueError("the test: " + "t" * 3000)
"""

LEAKS_IN_LINES = """%%px
from course_lib.engine.requests import tracebacks
def first(x):
    lines = ["the test: " + "u" * 3000] * 500
    tracebacks.describe = lambda error: {"name": "E", "message": "m", "place": "", "kind": ["E"], "lines": lines}
    raise ValueError
"""

FILLS = "%%px\ndisplay({'text/plain': str(comm.Get_rank()) * 190_000}, raw=True)"
FLAGS = "eval('0')\n" * 3000

LIES = """%%px
import course_lib.engine.serialization as wire
def first(x):
    wire.encode = lambda value, depth=0: {"float": "0x1" + "f" * 200_000}
    return x
"""

SPOILS = """%%px
import course_lib.check, pathlib
def first(x):
    for path in pathlib.Path(course_lib.check.__file__).parents[1].rglob("*.py"):
        try:
            path.chmod(0o666)
        except OSError:
            pass
        try:
            with path.open("a") as file:
                file.write("\\nraise SystemExit(0)\\n")
        except OSError:
            pass
    return x
"""

# Students, whose names are folders: what stands for others in a pattern, options, quotes, letters of many kinds.
NAMES = ("*", "...", "[z]-honest", "?-honest", "-rf", 'it\'s "me"', "žofie 学生", "a" * 120)


# Without isolation, these would do what they try to.
GUARD = "from course_lib.collectives.transport import isolated\nassert isolated.connection, 'this rank is not isolated'\n"


def guarded(course, **sources):
    """Hand-ins by student, each a cell that runs only where ranks are isolated."""
    cells = {name.replace("_", "-"): source.replace("%%px\n", f"%%px\n{GUARD}", 1) for name, source in sources.items()}
    return {name: course.solved(PART, source) for name, source in cells.items()}


def with_cells(course, sources):
    """A wrong answer, and cells of the student's own."""
    return add_cells(wrong(course), sources)


def add_cells(notebook, sources):
    """Add code cells in front of the first hidden test; below it, none is run."""
    first_test = notebook.cells.index(hidden(notebook)[0])
    notebook.cells[first_test:first_test] = [nbformat.v4.new_code_cell(source) for source in sources]
    return notebook


def test_a_text_of_many_codes_is_a_plain_text():
    """To make a page of them takes time with their square."""
    shown = sanitize.outputs(
        [{"stream": "stdout", "text": "\x1b[1mx\x1b[0m" * 100_000}, {"stream": "stdout", "text": "\x1b[1mbold\x1b[0m"}]
    )
    assert "\x1b" not in shown[0]["text"] and len(shown[0]["text"]) < 201_000 and shown[1]["text"] == "\x1b[1mbold\x1b[0m"
    assert "\x1b" not in sanitize.error({"name": "E", "message": "\x1b[1m\x1b[0m" * 100_000})["message"]


def test_an_error_that_an_answer_fills_is_cut():
    text = "\x1b[31mA\x1b[0m" * (1 << 20)
    cell = nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("error", ename="CheckFailed", evalue=text, traceback=[text] * 3)])
    reduce_to_verdict(cell)
    assert len(json.dumps(cell.outputs)) < 50_000 and "\x1b" not in cell.outputs[0].evalue
    with pytest.raises(CheckFailed) as caught:
        Check("x", show=False).fail(f"on rank 0, {text!r} is wrong")
    assert len(str(caught.value)) < 3_000


@pytest.mark.parametrize("step", ["time.sleep(60)", "bytearray(1 << 30)", "os._exit(3)", "subprocess.Popen(['sleep', '100'])"])
def test_a_step_that_does_not_end_well_costs_only_itself(step):
    before = time.monotonic()
    told = limited_process.run_or_explain(exec, (step, {"time": time, "os": os, "subprocess": subprocess}), deadline=2, memory=1 << 28)
    expected = {"t": "it took more than 2 s", "b": "ended with code 1", "o": "ended with code 3"}
    assert (expected[step[0]] in told) if step[0] in expected else told is None
    assert time.monotonic() - before < patient(30)


def fingerprint(folder):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.py")}


def text(cell):
    return "".join(str(o.get("text", "")) for o in cell.outputs)


@pytest.fixture
def services(tmp_path):
    """Sockets that listen, and whether anybody has come."""
    made = [socket.socket(family) for family in (socket.AF_UNIX, socket.AF_UNIX, socket.AF_INET)]
    addresses = [f"{tempfile.mkdtemp()}/service", f"\0course-{os.getpid()}", ("127.0.0.1", 0)]
    for one, address in zip(made, addresses, strict=True):
        one.bind(address)
        one.listen()
        one.setblocking(False)
    yield made
    for one in made:
        one.close()


MODES = [bubblewrap.UNSANDBOXED] + (
    [bubblewrap.SANDBOXED] if bubblewrap.problem() is None else []
)  # conftest.py says so where there is no sandbox


@pytest.fixture
def secret(tmp_path):
    """A word that no answer may read, and the files that hold it."""
    word = f"secret-{os.urandom(8).hex()}"
    files = [folder / f".course-{word[-8:]}" for folder in (tmp_path, Path.home(), Path("/var/tmp"), Path("/tmp"))]
    for path in files:
        path.write_text(word)
    yield word, files
    for path in files:
        path.unlink()


@pytest.fixture(params=MODES)
def graded_together(request, one, services, secret, monkeypatch):
    """Grades hand-ins beside an honest one, with feedback; what came of it: see the end."""
    mode, word = request.param, secret[0]
    monkeypatch.setenv("COURSE_TEST_TOKEN", word)
    monkeypatch.setenv("SANDBOX", "none" if mode == bubblewrap.UNSANDBOXED else "")

    def grade(hand_ins):
        library, before, began = Path(course_lib.__file__).parent, set(os.listdir(tempfile.gettempdir())), time.monotonic()
        untouched = fingerprint(library)
        for name, notebook in hand_ins.items():
            one.hand_in(PART, name, notebook)
        one.hand_in(PART, "z-honest", one.solved(PART))
        points = one.grade(PART)
        most = patient(8)  # one page never ends, and a busy machine takes its time for the others
        monkeypatch.setattr(feedback, "PAGE_DEADLINE_SECONDS", most)
        pageless = feedback.feedback(PART, one.home, one.notebooks)
        assert points.pop("z-honest") == 10 and {name: p for name, p in points.items() if p} == {}
        assert time.monotonic() - began < patient(600)  # not a speed test: a hang would take longer
        assert fingerprint(library) == untouched
        left = set(os.listdir(tempfile.gettempdir())) - before
        assert not [name for name in left if name.startswith("course-")], "something was left behind"
        for service in services:
            with pytest.raises(BlockingIOError):
                service.accept()
        pages = {p.parts[-3]: p.read_text() for p in (one.home / "feedback").glob(f"*/{PART}/*.html")}
        graded = {p.parts[-3]: p.read_text() for p in (one.home / "autograded").glob(f"*/{PART}/*.ipynb")}
        assert len(graded) == len(points) + 1 and len(pages) == len(graded) - len(pageless)
        assert all("it took more than" in why for why in pageless.values())
        outputs = [json.dumps([cell.get("outputs") for cell in json.loads(notebook)["cells"]]) for notebook in graded.values()]
        for written in (*pages.values(), *outputs):
            assert len(written) < 12_000_000
            assert "mark-of-a-script" not in written
            if mode == bubblewrap.SANDBOXED or landlock.abi_version():
                assert word not in written and "root:x:" not in written and "BEGIN HIDDEN TESTS" not in written
        table = one.home / flags.TABLE
        return graded, pages, sorted(pageless), table.read_text() if table.exists() else ""

    return grade


@pytest.mark.slow
def test_an_answer_that_wants_to_do_harm_reaches_nothing_and_takes_no_more_than_it_may(graded_together, one, secret, services):
    one.untouched(PART)
    source = one.home / "source" / PART / f"{PART}.ipynb"
    files = (*secret[1], source, one.home / "gradebook.db", one.home, Path.home(), "/etc/passwd", "/proc/1/environ")
    addresses = [service.getsockname() for service in services]
    addresses = [a.decode() if isinstance(a, bytes) else a for a in addresses]
    reads = READS.replace("PATHS", repr([*map(str, files)])).replace("ADDRESSES", repr(addresses))
    hand_ins = guarded(one, reads=reads, leaves=LEAVES, takes=TAKES, lies=LIES, spoils=SPOILS, spies=SPIES, spies_too=SPIES)
    graded, pages, pageless, table = graded_together(hand_ins)
    assert one.failed == [] and pageless == []
    assert "COURSE_TEST_TOKEN" not in graded["reads"]
    seen = [set(re.findall(r"seen: (-?[\d.e-]+)", pages[name])) for name in ("spies", "spies-too")]
    assert seen[0] and seen[1] and not seen[0] & seen[1], "each run of the tests draws other arguments"
    assert f'"reads","{PART}","first",4,' in table and "imports os" in table and "honest" not in table


@pytest.mark.slow
@pytest.mark.parametrize("graded_together", MODES[:1], indirect=True)  # output is cut outside the sandbox
def test_what_an_answer_shows_is_cut_and_is_no_script(graded_together, one, monkeypatch):
    monkeypatch.setenv(time_limits.UNATTENDED, str(patient(6)))
    hand_ins = guarded(one, shows=SHOWS, floods=FLOODS, leaks=LEAKS, leaks_in_lines=LEAKS_IN_LINES)
    hand_ins |= {
        "fills": with_cells(one, [FILLS] * 20 + [FLAGS]),
        "many": with_cells(one, ["1"] * 20_000),
        "blank": with_cells(one, ["x = 1\n" + " \n" * 90_000 + "pass\n"]),
        "endless": with_cells(one, ["%%px\nwhile True: pass"] * 3),
    }
    graded, pages, pageless, table = graded_together(hand_ins)
    assert one.failed == ["many"] and pageless == ["blank"]
    assert "the test: ttt" in pages["leaks"] and "t" * 400 not in pages["leaks"], "what an answer says of a test is cut"
    lines = [line for line in pages["leaks-in-lines"].splitlines() if "uuu" in line]
    assert 0 < len(lines) <= 20 and all("u" * 400 not in line for line in lines)
    assert len(graded["fills"]) < 6_000_000 and "the outputs of this notebook exceed 5 MB" in graded["fills"]
    assert "shown shown shown" in graded["shows"]
    added = [c for c in nbformat.reads(graded["endless"], 4).cells if "while True" in c.source]
    assert "not run when grading: the added cells took" in text(added[-1])
    assert table.count('\n"fills",') == 101 and "and 2,900 more lines, from here on" in table


@pytest.mark.slow
def test_a_name_that_stands_for_others_is_graded_as_the_name_that_it_is(graded_together, one):
    _, _, pageless, _ = graded_together({name: wrong(one) for name in NAMES})
    assert one.failed == ["...", "[z]-honest"] and pageless == []
