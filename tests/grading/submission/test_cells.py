"""A cell means the same in a notebook and when graded, whatever is on top of it."""

import ast
import json
import time

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.utils.capture import capture_output
from machine import patient
from pretended_ranks import RecordingRanks, notebook_shell, run_quietly

from course_lib.cluster import time_limits
from course_lib.cluster.source import cell as cells
from grading.submission import sandbox
from grading.submission.assembly import read_cells
from grading.submission.execute import environment_variables, is_for_ranks, on_ranks
from grading.submission.flags import flags_of_cell

PX = [
    *("%%px", "%% px", "%%PX", "%px", "%%px  ", "%%px # mine", "%%px# it's mine", "%%px\t-t 1", "%%px\xa0"),
    *("%%px --targets 0", "%%px -t 1:3 # some", "%%px --targets=0,2", "%%px --targets [0, 1]", "%%px --targets=-1:"),
    *("%%px --trace", "%%px --targets 1 --trace one.json", "%%px --block", "%%px --targets all"),
    *("%%px --targets 9", "%%px --targets", "%%px --trace 0,1", "%%px --noblock", "%%px --local", "%%px it's", "%%px {n}"),
]
ABOVE = ["# my answer", "#", "", "   ", "\t# indented", "# %%px"]
WRAPPED = ["%%time", "%%timeit -n1 -r1", "%%capture", "%%capture out", "%%prun -q"]
BODIES = [
    *("x = 1", "def f(x):\n    return x\n", "s = '''\n%%px\n'''", "%time x = 1", "for i in (1, 2):\n    x = i"),
    *("x = 1\n%%px\ny = 2", "x = 1\n%%px --targets 1\ny = 2", "%px x = 1\nz = 2\n%px y = {1: 2}", "", "# nothing"),
    *("text = '''\n%px x = 1\n'''", "if True:\n    %px x = 1", "# mine\n%%time\nx = 1", "%%px\nx = 1", "return 1"),
]


@pytest.fixture(scope="module")
def shell():
    """A shell as in a notebook, whose ``%%px`` goes to `shell.ranks`."""
    with notebook_shell(RecordingRanks()) as shell:
        yield shell


def runs(shell, code):
    """Run a cell of the notebook; return what the ranks then run: (source, ranks)."""
    shell.ranks.ran.clear()
    run_quietly(shell, code)
    return list(shell.ranks.ran)


def saved(text, line_end):
    """The text of a cell, as grading reads it from a file with these line ends."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text.replace("\n", line_end))])
    return read_cells(json.dumps(notebook).encode()).cells[0].source


@st.composite
def texts(draw):
    """Cells with and without ``%%px``, and what students put above and below it."""
    some = st.lists(st.sampled_from(ABOVE), max_size=2)
    lines = list(draw(some))
    for wrap in draw(st.lists(st.sampled_from(WRAPPED), max_size=2)):
        lines += [wrap, *draw(some)]
    if draw(st.integers(0, 4)):
        lines.append(draw(st.sampled_from(PX)))
    text = "\n".join([*lines, *draw(some), draw(st.sampled_from(BODIES))])
    indent = draw(st.sampled_from(["", "", "", "    ", "\t"]))
    start = draw(st.sampled_from(["", "", "", "\ufeff", "\n\n"]))
    return start + "\n".join(indent + line if line.strip() else line for line in text.split("\n"))


@given(texts(), st.sampled_from(["\n", "\r\n", "\r"]))
def test_ranks_run_the_same_in_the_notebook_and_when_graded(shell, text, line_end):
    notebook, source = runs(shell, text), saved(text, line_end)
    added = runs(shell, on_ranks(source, whole=False)) if is_for_ranks(source) else []
    exercise = runs(shell, on_ranks(source, "a title"))
    cell = cells.read(text)
    if cell.for_ranks and not cell.problem:
        assert added == notebook == exercise
        return
    lines = "".join(f"{code}\n" for code, _ in notebook)
    if cell.lines_for_ranks:  # a request for each line in a notebook, and one for all when graded
        assert [(f"{code}\n".replace("# %%px\n", ""), len(on)) for code, on in added] == [(lines.replace("# %%px\n", ""), RecordingRanks.n)]
    elif lines:  # `%px` in a branch
        assert added == [] and "is not Python" in str(flags_of_cell("", source))
    else:
        assert added == [], "the ranks got nothing of it in the notebook"
    # An exercise without %%px, or that the notebook has refused, runs on all ranks.
    assert cell.targets or not cell.source.strip() or [on for _, on in exercise] == [(0, 1, 2, 3)]


@pytest.mark.parametrize("px", [px for px in PX if px not in PX[-7:]])
@pytest.mark.parametrize("above", ["", "# my answer\n", "\n\n# my answer\n   \n", "%%time\n", "# mine\n%%time\n# mine\n", "\ufeff"])
def test_each_way_to_write_px_counts(shell, px, above):
    ran = runs(shell, f"{above}{px}\nx = 1")
    assert len(ran) == 1 and ran[0][0].endswith("x = 1")
    assert len(ran[0][1]) == RecordingRanks.n or "-t" in px


@pytest.mark.parametrize("px", PX[-7:])
def test_a_line_of_px_that_cannot_be_is_refused_and_an_exercise_runs_all_the_same(shell, px):
    with capture_output() as said:
        result = shell.run_cell(f"{px}\nx = 1")
    assert isinstance(result.error_in_exec, cells.UsageOfPx) and "UsageOfPx" in said.stdout
    ran = runs(shell, on_ranks(f"{px}\nx = 1"))
    assert ran == ([] if "9" in px else [("# %%px\nx = 1", (0, 1, 2, 3))])


def test_nothing_of_a_line_of_px_is_evaluated_in_the_kernel(shell):
    """IPython fills in `{...}` and `$...` in a magic's line, which would run it where the tests run."""
    shell.user_ns["evaluated"] = []
    for line in (
        "# {evaluated.append(1)}",
        "--targets {evaluated.append(1)}",
        "--targets $evaluated",
        "--trace {evaluated.append(1)}.json",
    ):
        for code in (f"%%px {line}\nx = 1", on_ranks(f"%%px {line}\nx = 1"), f"%px x = '{line}'"):
            run_quietly(shell, code)
    assert shell.user_ns["evaluated"] == []
    assert runs(shell, "%px d = {1: 2}") == [("# %%px\nd = {1: 2}", (0, 1, 2, 3))]


@pytest.mark.parametrize("line", ["%%time\n", "# c\n", "%%px\n", "x = 1\n%px x\n", "(", "    ", "%%px --targets 0\nx = '''\n"])
def test_a_long_cell_keeps_nobody_waiting(line):
    text = line * 20_000
    began = time.monotonic()
    assert len(cells.read(text).lines_for_ranks) < len(text) and len(cells.below_magics(text)) <= len(text)
    assert time.monotonic() - began < patient(20), "not a speed test: it would take for longer than anybody waits"


STUDENTS_CELLS = [
    "%%px\nrank = __import__('mpi4py.MPI').MPI.COMM_WORLD.Get_rank()",
    "# my answer\n\n%%px\ndef a():\n    return 1",
    "%%time\n# mine\n%%px\nb = a() + rank",
    "%%px --targets 1 # one\nc = 3",
    "%%px --targets [0]\nd = 4",
    "%%px --trace\ne = 5",
    "%%writefile helpers.py\ndef triple(x):\n    return 3 * x",
    "%%px\nimport helpers\nf = helpers.triple(rank)",
    "%%px\n%%writefile more.py\nhalf = 0.5",
    "%%px\nfrom more import half\ng = half",
    "%px h = {1: rank}\nkernel = 1\n%px i = h[1] + 1",
    "%%px\n!true\n%matplotlib inline\nfiles = !true\nj = len(files)",
    "%%px\nk = 1\n%%px\nl = 2",
    "%%px\nm = '''\n%%px\n'''",
    "%%px\n%%time\nn = 6",
    "%%px\n# mine\n%%capture\nprint('not shown')\no = 7",
    "%%px\nimport asyncio\nawait asyncio.sleep(0)\np = 8",
    "q = 9",
    "import math\n%%px\nr = 10",
    "%%px --quickly\ns = 11",
    "%%px\ncount = 0",
    "%%timeit -n1 -r1\n%%px\ncount += 1",
    "%%px\nt = 12\n1 / 0\nu = 13",
]
LOOK = """
def look():
    from IPython import get_ipython
    own = get_ipython().user_ns.items()
    return {k: repr(v) for k, v in own if not k.startswith("_") and isinstance(v, (int, float, str, dict)) and k != "Out"}
print(ranks.call(look))
"""


@pytest.mark.slow
def test_the_ranks_have_the_same_after_the_notebook_and_after_grading(new_kernel, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a cell writes files
    start = "from course_lib import cluster\nranks = cluster.start(2)"
    notebook = new_kernel()
    with environment_variables({time_limits.UNATTENDED: str(patient(30)), **sandbox.sandbox_variables()}):
        graded = new_kernel()
    assert notebook.run(start)[1] is None and graded.run(start)[1] is None
    for text in STUDENTS_CELLS:
        notebook.run(text)
        if is_for_ranks(text):
            graded.run(on_ranks(text, whole=False))
    in_notebook, when_graded = (ast.literal_eval(kernel.run(LOOK)[0].strip().splitlines()[-1]) for kernel in (notebook, graded))
    assert in_notebook == when_graded
    assert {*"bcefghijklmnopt", "rank", "count", "files"} - in_notebook[1].keys() <= {"files"}
    assert not {*"qrsu", "kernel"} & in_notebook[1].keys() and in_notebook[1]["count"] == "1"
