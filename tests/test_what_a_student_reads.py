"""What a student reads when a cell prints too much, goes too deep, is empty or is no Python."""

import ast
import re
import sys

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core import application
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook

from course_lib.engine.requests.output import OUTPUT_LIMIT, Outputs
from course_lib.tools import first_cell


def errors(ranks, source):
    return [reply["error"] for _, reply in ranks.run(source, label="cell [7]")]


def printed(reply):
    return "".join(o["text"] for o in reply["outputs"])


def test_what_is_printed_is_shown_while_the_cell_runs_and_once_at_its_end(kernel):
    kernel.run("from course_lib import cluster\nfrom course_lib.cluster import replies\nranks = cluster.start(2)\nseen = []")
    kernel.run(
        "before = replies.LiveOutput.show\nreplies.LiveOutput.show = lambda live, printed: (seen.extend(printed), before(live, printed))"
    )
    source = "%%px\nimport time\nfor i in range(3):\n    print('step', i)\n    time.sleep(1)\nprint('done')"
    text, error = kernel.run(source)
    assert error is None and re.sub(r"\x1b\[\d*m", "", text) == "ranks 0, 1\nstep 0\nstep 1\nstep 2\ndone\n"
    seen = ast.literal_eval(kernel.run("seen")[0])
    for rank in (0, 1):
        assert "".join(text for r, text in seen if r == rank).startswith("step 0\nstep 1\n"), seen


def test_of_a_bar_one_line_stays(eight):
    _, reply = eight.run("for i in range(101):\n    print(f'\\r{i} %', end='')\nprint('\\nnext\\r')")[0]
    assert printed(reply) == "100 %\nnext\n"
    replies = eight.run("from tqdm import tqdm\nfor _ in tqdm(range(50)):\n    time.sleep(0.01)")
    assert [printed(reply).count("%|") for _, reply in replies] == [1] * 8
    source = "for i in tqdm(range(60)):\n    time.sleep(0.01)\n    if i % 20 == 9:\n        print('step', i)"
    for _, reply in eight.run(f"from tqdm import tqdm\n{source}"):
        assert reply["outputs"][0]["text"] == "step 9\nstep 29\nstep 49\n"
        assert printed(reply).count("%|") == 1 and "100%|" in printed(reply)


def test_a_bar_of_the_notebook_is_one_line_in_every_page(kernel):
    source = "from course_lib import progress\nwith progress.bar(100, 'training') as bar:\n    for i in range(100):\n        bar.update()"
    kernel.run(f"import time\n{source}; time.sleep(0.005)")
    page, _ = HTMLExporter().from_notebook_node(kernel.notebook)
    assert page.count("training:") == 1 and "training: 100%|" in page and "100/100" in page


@pytest.mark.slow
def test_of_a_flood_the_first_and_the_last_lines_are_shown(eight):
    replies = eight.run("for i in range(10**6):\n    print('line', i)")
    for _, reply in replies:
        text = printed(reply)
        assert text.startswith("line 0\nline 1\n") and text.endswith("line 999998\nline 999999\n")
        assert "lines are left out here" in text and len(text) < 50_000


def test_what_is_printed_shown_and_said_as_an_error_stays_in_order(eight):
    source = "import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')\ndisplay(3)\nprint('d', end='')\n4"
    _, reply = eight.run(source)[0]
    found = [(o.get("stream"), o.get("text") or o["data"]["text/plain"]) for o in reply["outputs"]]
    assert found == [("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n"), (None, "3"), ("stdout", "d"), (None, "4")]


def test_what_is_printed_is_kept_nowhere_else(eight):
    eight.run("print('one more line')")
    (_, reply), *_ = eight.run("len(get_ipython().history_manager.outputs)")
    assert reply["outputs"][0]["data"]["text/plain"] == "0"


def test_letters_of_all_kinds_and_halves_of_them_come_through(eight):
    _, reply = eight.run("print('žluť 学生 🎓' * 1000)\nprint('half: \\ud800')")[0]
    assert printed(reply) == "žluť 学生 🎓" * 1000 + "\nhalf: \\ud800\n"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["stdout", "stderr"]),
            st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), max_size=9).flatmap(
                lambda t: st.integers(0, 9000).map(t.__mul__)
            ),
        )
    )
)
def test_a_rank_keeps_no_more_than_there_is_room_for_and_all_where_there_is(pieces):
    outputs = Outputs()
    for stream, text in pieces:
        outputs.write(stream, text)
    outputs.finish()
    whole, kept = "".join(text for _, text in pieces), "".join(o["text"] for o in outputs)
    if len(whole.encode()) <= OUTPUT_LIMIT // 2:
        assert kept == whole
    else:
        assert len(kept.encode()) <= OUTPUT_LIMIT + 100
        end = kept.split(" are left out here ...\n\n")[-1]
        assert whole.endswith(end) and (whole[:100] == kept[:100] or "\n" in whole[:OUTPUT_LIMIT])


def test_a_traceback_of_a_thousand_frames_is_folded(eight):
    (error, *_) = errors(eight, "def down(n):\n    return down(n + 1)\ndown(0)")
    assert error["name"] == "RecursionError" and len(error["lines"]) < 10
    assert error["lines"][0] == "cell [7], line 3" and "more calls between these" in error["lines"][4]


def test_a_traceback_of_some_frames_is_whole(eight):
    source = "".join(f"def f{i}(x):\n    return f{i + 1}(x)\n" for i in range(6)) + "def f6(x):\n    return 1 / x\nf0(0)"
    (error, *_) = errors(eight, source)
    assert [line.rsplit(" ", 1)[-1] for line in error["lines"][2::2]] == [f"f{i}" for i in range(7)]


def test_ranks_that_fail_in_the_same_line_with_other_numbers_share_it(eight):
    from course_lib.cluster.replies import RanksError, group

    replies = eight.run("x = rank if rank < 6 else 0\nraise ValueError(f'{x} is too small')", label="cell [7]")
    error = RanksError(group(replies, "error"), 8)
    text = re.sub(r"\x1b\[\d*m", "", "\n".join(error._render_traceback_()))
    assert text.startswith("all ranks\ncell [7], line 2\n    raise") and text.count("cell [7]") == 1
    assert "ValueError on ranks 0, 6, 7: 0 is too small\nValueError on rank 1: 1 is too small\n" in text


def test_one_of_pythons_own_functions_that_has_become_a_number_is_named(eight):
    for source in ("sum = 3\nmax = 4", "sum([1, 2])"):
        found = errors(eight, source)
    assert all("Some cell has assigned to max, sum. `del max, sum` brings back" in error["message"] for error in found)
    assert errors(eight, "del max, sum\nassert sum([1, 2]) == 3") == [None] * 8
    (error, *_) = errors(eight, "3()")
    assert error["message"] == "'int' object is not callable"


BROKEN = {
    "tracebacks are cut": "import sys\nsys.tracebacklimit = 0\n1 / 0",
    "a message that raises": "class UnboundLocalError(Exception):\n    __str__ = lambda self: 1 / 0\nraise UnboundLocalError",
    "a name that raises": "class E(NameError):\n    name = property(lambda self: 1 / 0)\nraise E('x')",
    "a name that is none": "raise NameError",
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_error_that_cannot_be_described_is_said_all_the_same(eight, what):
    try:
        found = errors(eight, BROKEN[what])
        assert all(error and error["lines"] for error in found), found
        assert errors(eight, "1") == [None] * 8
    finally:
        eight.run("import sys\nsys.__dict__.pop('tracebacklimit', None)")


EMPTY = {
    "def split(x):\n    # Your code here.\n    raise NotImplementedError\nsplit(1)": "split is still empty",
    "class Layer:\n    def forward(self, x):\n        raise NotImplementedError()\nLayer().forward(1)": "Layer.forward is still empty",
    "raise NotImplementedError": "this cell is still empty",
}


@pytest.mark.parametrize("source", EMPTY)
def test_an_empty_exercise_is_named(eight, source):
    (error, *_) = errors(eight, source)
    assert error["message"] == f"{EMPTY[source]}. Replace this line with your answer, and run the cell again."


HINTS = {
    "exit()": "To leave a function, write return.",
    "def f():\n    quit(1)\nf()": "To leave a function, write return.",
    "import sys\nsys.exit('done')": "To leave a function, write return.",
    "x = 1\ndef f():\n    x += 1\nf()": "choose another name in it.",
    "def f():\n    if rank > 9:\n        k = 1\n    return k\nf()": "Some line of this function assigns k, but none has on this rank",
    "import numpy as np\nB = comm.Bcast(np.ones(2))\nnp.ones((2, 2)) @ B": "A collective returns nothing",
    "import numpy as np\nfor part in comm.Barrier():\n    pass": "A collective returns nothing",
    "comm.Barrier().T": "A collective returns nothing",
    "input('how many?')": "write the value into the cell",
    "import numpy as np\nnp.ones(4) / comm.Get_size": "without its parentheses",
    "import numpy as np\nout = np.ones(4)\nout /= comm.Get_size": "without its parentheses",
    "import numpy as np\nnp.empty(comm.Get_size)": "without its parentheses",
    "import numpy as np\nwhole = np.arange(4)\nwhole /= 2": "x = x / n makes a new array",
}


@pytest.mark.parametrize("source", HINTS)
def test_the_usual_cause_of_an_error_of_python_is_said(eight, source):
    setup = "from course_lib.collectives import Communicator\ncomm = Communicator()\n"
    assert all(HINTS[source] in error["message"] for error in errors(eight, setup + source))
    assert errors(eight, "1") == [None] * 8


@pytest.mark.parametrize("source", ["def f():\n    a = 1\n  b = 2", "if 1:\nx = 1", "x = 1\n  y = 2", "if 1:\n\tx = 1\n        y = 2"])
def test_wrong_indentation_names_the_cell(eight, source):
    (error, *_) = errors(eight, source)
    assert error["name"] in ("IndentationError", "TabError") and "cell [7], line" in error["message"]
    assert 'File "cell [7]"' in error["lines"][0]


def test_a_cell_for_ranks_that_are_not_up_says_which_cell_to_run_first(tmp_path, monkeypatch, new_kernel):
    first_cell.install_config(tmp_path)
    assert str(tmp_path / "etc" / "ipython") == application.ENV_CONFIG_DIRS[0].replace(sys.prefix, str(tmp_path))
    written = tmp_path / "etc" / "ipython" / "ipython_config.py"
    (tmp_path / "profile_default").mkdir()
    (tmp_path / "profile_default" / "ipython_config.py").write_text(written.read_text())
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    cells = [
        "# Start the ranks\nranks = cluster.start(2)\nprint([each for each in range(3)])",
        "%%px  # Set up the ranks\ndef group(n):\n    return n",
    ]
    nbformat.write(new_notebook(cells=[new_code_cell(source) for source in cells]), tmp_path / "part.ipynb")
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "part.ipynb"))  # as JupyterLab does
    kernel = new_kernel()
    assert "The cell 'Start the ranks' defines it: run that first." in kernel.run("ranks.call('f')")[1]
    assert "run that first" not in kernel.run("nowhere")[1] and "run that first" not in kernel.run("each")[1]
    for source in ("%%px\nx = 1", "%px x = 1"):
        _, error = kernel.run(source)
        assert "in this notebook none are up yet" in error and "first code cell" in error
    kernel.run("from course_lib import cluster\nranks = cluster.start(2)")
    assert kernel.run("%%px\nprint('works')")[0].endswith("works\n")
    assert "The cell 'Set up the ranks' defines it: run that first." in kernel.run("%%px\ngroup(2)")[1]
    assert "group is on the ranks" not in kernel.run("group(2)")[1]
    assert "run that first" not in kernel.run("%%px\nnowhere")[1]


def test_a_configuration_of_somebody_else_is_left_alone(tmp_path):
    path = tmp_path / "etc" / "ipython" / "ipython_config.py"
    path.parent.mkdir(parents=True)
    path.write_text("c.mine = 1")
    first_cell.install_config(tmp_path)
    assert path.read_text() == "c.mine = 1"
