"""Error messages of a cell: folded tracebacks, errors that ranks share, and hints."""

import re

import pytest


def errors(ranks, source):
    return [reply["error"] for _, reply in ranks.run(source, label="cell [7]")]


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
    assert all("A cell has assigned to max, sum. `del max, sum` restores Python's own meaning" in error["message"] for error in found)
    assert errors(eight, "del max, sum\nassert sum([1, 2]) == 3") == [None] * 8
    (error, *_) = errors(eight, "3()")
    assert error["message"] == "'int' object is not callable"


BROKEN = {
    "tracebacks are cut": "import sys\nsys.tracebacklimit = 0\n1 / 0",
    "a message that raises": "class UnboundLocalError(Exception):\n    __str__ = lambda self: 1 / 0\nraise UnboundLocalError",
    "a name that raises": "class E(NameError):\n    name = property(lambda self: 1 / 0)\nraise E('x')",
    "a NameError without a name": "raise NameError",
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
    "x = 1\ndef f():\n    x += 1\nf()": "choose another name inside it.",
    "def f():\n    if rank > 9:\n        k = 1\n    return k\nf()": "A line of this function assigns k, but no such line has run",
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
