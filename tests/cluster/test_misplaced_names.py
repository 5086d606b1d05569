"""Names that are defined in the notebook and belong on the ranks, and the other way round."""

import pytest

EXERCISE = "def split_data(x):\n    return x"
CHECK = "def look():\n    return split_data(3)\nprint(ranks.call(look))"


@pytest.fixture
def two(same_kernel):
    """A notebook without names, and two ranks without those of the tests."""
    assert same_kernel.run("%reset -f")[1] is None
    assert same_kernel.run("from course_lib import cluster\nranks = cluster.start(2)")[1] is None
    assert same_kernel.run("%%px\nfor name in ('split_data', 'f', 'x', 'y'):\n    globals().pop(name, None)")[1] is None
    return same_kernel


def test_an_answer_in_the_notebook_does_not_count_on_the_ranks(two):
    two.run(EXERCISE)
    assert "split_data is defined in the notebook, and the ranks do not see it" in two.run(CHECK)[1]
    two.run(f"%%px\n{EXERCISE}")
    assert two.run(CHECK) == ("[3, 3]\n", None)
    two.run(EXERCISE.replace("return x", "return 2 * x"))  # newer than what the ranks have
    assert "Put %%px on the first line" in two.run(CHECK)[1]


def test_a_function_of_ones_own_that_no_check_calls_is_in_nobodys_way(two):
    two.run("def evaluate(x):\n    return x\nclass MLP:\n    pass")
    two.run(f"%%px\n{EXERCISE}")
    assert two.run(CHECK) == ("[3, 3]\n", None)
    two.run("def measured():\n    return evaluate(3)")
    assert "evaluate is defined in the notebook" in two.run("ranks.call(measured)")[1]


def test_nor_does_one_hide_in_what_a_check_of_the_course_calls(two):
    two.run("class MyDP:\n    pass\nasync def part1_training_loop(model):\n    pass")
    two.run("from course_lib.check.data import ddp\nfrom course_lib.sim.schedule import check")
    assert "MyDP is defined in the notebook" in two.run("ranks.call(ddp.wrap_model, dict(values=[], size=2))")[1]
    said = two.run("ranks.call(check.record_loop, dict(loop='part1_training_loop', settings={}, hardware='H100 80 GB'))")[1]
    assert "part1_training_loop is defined in the notebook" in said


def test_comments_may_stand_above_px(two):
    assert two.run(f"# mine\n\n%%px\n{EXERCISE}") == ("", None) and two.run(CHECK) == ("[3, 3]\n", None)
    assert two.run("# mine\n%%px") == ("", None)
    assert "[3, 3]" in two.run("# %%px\nprint([3, 3])")[0]  # a comment is no magic


HINTS = {
    "%%px\nprint(plots)": ("plots = 1", "plots is in the notebook, not on the ranks"),
    "%%px\nprint(splitdata)": (f"%%px\n{EXERCISE}", "Is it split_data?"),
    "%%px\nprint(y)": ("%%px --targets 0\ny = 1", "or the others have the name, as its cell ran with --targets."),
    "%%px\nprint(unheard_of)": ("", "Has the cell that defines it been run, with %%px at the top?"),
    "ranks.call('split_dat')": (f"%%px\n{EXERCISE}", "Is it split_data?"),
    "%%px\ndef f():\n    n = len(x)\n    x = 3\nf()": ("%%px\nx = [1]", "choose another name inside it"),
}


@pytest.mark.parametrize("source", HINTS)
def test_a_name_that_is_not_there_gets_a_hint(two, source):
    before, said = HINTS[source]
    two.run(before)
    assert said in two.run(source)[1]


def test_a_name_that_the_ranks_have_is_said_in_the_notebook(two):
    two.run("%%px\nmine = 3")
    assert "mine is on the ranks, not in the notebook: is %%px missing at the top of this cell?" in two.run("print(mine)")[1]
    assert two.run("print(nowhere)")[1].endswith("name 'nowhere' is not defined")
    two.run("ranks.stop()")
    assert two.run("print(mine)")[1].endswith("name 'mine' is not defined")
    two.run("ranks.restart(rerun=True)")


PX = {
    "x = 1\n%%px\ny = 2": "%%px must be the first line of its cell, but here it is line 2.",
    "# mine\n\nx = 1\n\n%%px --targets 0\ny = 2": "here it is line 5",
    "%%px --targets 9\nx = 1": "%%px --targets: the ranks are 0 to 1; got '9'.",
    "%%px --targets 0-3\nx = 1": "expected ranks such as 2 or 0,1 or 1:4; got '0-3'.",
    "%%px --targets 5:\nx = 1": "%%px --targets: the ranks are 0 to 1; got '5:'.",
    "%%px --trace 0,1\nx = 1": "the name of a file must end in .json; got '0,1'. For some ranks: %%px --targets 0,2 --trace.",
    "%%px --target 1 --quickly\nx = 1": "Use %%px alone, %%px --targets 0,2 for some ranks, or %%px --trace.",
}


@pytest.mark.parametrize("source", PX)
def test_px_that_cannot_be_gets_one_sentence(two, source):
    said = two.run(source)[1]
    assert PX[source] in said and said.count("\n") == 0
    assert two.run('text = """\n%%px\n"""\nprint(len(text))') == ("6\n", None)


def test_stopped_ranks_say_how_to_go_on(two):
    two.run(f"%%px\n{EXERCISE}")
    two.run("ranks.stop()")
    assert "ranks.restart(rerun=True)" in two.run(CHECK)[1]
    two.run("ranks.restart(rerun=True)")
    assert two.run(CHECK) == ("[3, 3]\n", None)
