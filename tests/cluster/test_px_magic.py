"""``%%px`` in a real kernel: it blocks, groups, names the student's own lines, and can be interrupted."""

import os
import re
import signal
import threading
import time

import pytest
from machine import patient
from processes import course_processes, wait_until

SETUP = "from course_lib import cluster\nranks = cluster.start(4)\nranks"
IMPORTS = (
    "%%px\nimport time\nimport numpy as np\nfrom course_lib.collectives import Communicator\ncomm = Communicator()\nrank = comm.Get_rank()"
)


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text or "")


def started(kernel):
    text, error = kernel.run(SETUP)
    assert error is None and "4 ranks on this machine" in text
    assert kernel.run(IMPORTS) == ("", None)


@pytest.fixture
def four(same_kernel):
    """A notebook with four ranks that are up."""
    started(same_kernel)
    return same_kernel


def number(kernel):
    """The number of the cell that ran last."""
    return kernel.notebook.cells[-1].execution_count


def test_cells_block_and_are_shown_grouped(four):
    text, error = four.run("%%px\ntime.sleep(1)\nprint('odd' if rank == 2 else 'same')")
    assert error is None
    assert plain(text) == "ranks 0, 1, 3\nsame\nrank 2\nodd\n"
    assert plain(four.run("%%px\nrank // 4")[0]) == "all ranks\n0"
    assert plain(four.run("%%px --targets 1,3\nrank")[0]) == "rank 1\n1rank 3\n3"
    assert plain(four.run("%px print('line')")[0]) == "all ranks\nline\n"


def test_a_ranks_warning_stands_below_its_number_and_before_the_verdict(four):
    define = "%%px\nimport warnings\ndef f():\n    if rank < 2:\n        warnings.warn(f'odd {rank}')\n    return 1 / (rank - 4)"
    assert four.run(define)[1] is None
    text, error = four.run("ranks.call('f', show=True)\nassert False, 'not right yet'")
    places = [plain(text).index(said) for said in ("rank 0", "odd 0", "rank 1", "odd 1")]
    assert places == sorted(places) and "not right yet" in error


def test_a_traceback_starts_at_the_students_line_and_comes_once(four):
    four.run("%%px\ndef mine(x):\n    y = x + 1\n    return y.nonsense")
    defined = number(four)
    _, error = four.run("%%px\nmine(1)")
    lines = plain(error).splitlines()
    assert lines[0] == "all ranks"
    assert lines[1:3] == [f"cell [{defined + 1}], line 2", "    mine(1)"]
    assert lines[3:5] == [f"cell [{defined}], line 4, in mine", "    return y.nonsense"]
    assert lines[5] == "AttributeError: 'int' object has no attribute 'nonsense'" and len(lines) == 6
    _, error = four.run("%%px\nif rank == 3:\n    print('x'")
    assert "SyntaxError" in plain(error) and "line 3" in plain(error)


def test_a_deadlock_costs_seconds_and_the_next_cell_works(four):
    four.run("%%px\ndef share():\n    if rank != 2:\n        comm.Barrier()")
    began = time.monotonic()
    _, error = four.run("%%px\nshare()")
    assert time.monotonic() - began < patient(10)
    where = f"world{{0–3}} (cell [{number(four) - 1}], line 4)"
    assert f"ranks 0, 1, 3 wait in Barrier #1 on {where}; rank 2 has finished the cell without it" in plain(error)
    assert four.run("%%px\ncomm.Barrier()") == ("", None)


def stopped(kernel, source, seconds=3.0):
    """Run a cell, and press the stop button after some seconds."""
    press = threading.Timer(seconds, os.kill, (kernel.pid, signal.SIGINT))
    press.start()
    try:
        text, error = kernel.run(source)
    finally:
        press.cancel()
    return plain(text), plain(error).splitlines()


def test_a_cell_that_is_stopped_says_where_each_rank_was_and_keeps_what_was_printed(four):
    source = """%%px
print("begin", rank)
def work():
    while rank < 2:
        time.sleep(0.01)
    if rank == 2:
        comm.Barrier()
work()"""
    text, lines = stopped(four, source)
    cell = rf"cell \[{number(four)}\]"
    assert [f"rank {r}\nbegin {r}" in text for r in range(4)] == [True] * 4
    assert lines[0] == "KeyboardInterrupt: the cell was stopped."
    said = "\n".join(lines[1:])
    for r in (0, 1):
        assert re.search(rf"ranks? (0, 1|{r}) (was|were) at {cell}, line [45], in work\n    (time|while)", said), said
    assert re.search(rf"rank 2 was at {cell}, line 7, in work\n    comm.Barrier\(\)", said), said
    assert "rank 3 had finished" in said and len(lines) < 10 and "site-packages" not in said
    assert four.run("%%px\ncomm.Barrier()") == ("", None)


def test_interrupting_a_cell(four):
    threading.Timer(1.0, os.kill, (four.pid, signal.SIGINT)).start()
    _, error = four.run("%%px\ntime.sleep(60)")
    assert "KeyboardInterrupt" in plain(error)
    assert plain(four.run("%%px\nrank * 0")[0]) == "all ranks\n0"


def test_a_dead_rank_is_said_and_start_brings_new_ones(four):
    _, error = four.run("%%px\nimport os\nif rank == 1:\n    os._exit(3)")
    assert "the process of rank 1 ended, with exit code 3" in plain(error)
    _, error = four.run("%%px\n1")
    assert "ranks.restart(rerun=True)" in plain(error)
    started(four)


def test_top_level_await_and_figures_on_ranks(four):
    text, error = four.run("%%px\nimport asyncio\nawait asyncio.sleep(0.01)\nprint('awaited')")
    assert error is None and plain(text) == "all ranks\nawaited\n"
    four.run("%%px\nfrom IPython.display import display\ndisplay({'image/png': 'aGk='}, raw=True)")
    assert four.notebook.cells[-1].outputs[-1].data["image/png"].strip() == "aGk="


def test_a_killed_or_restarted_kernel_leaves_nothing(kernel):
    before = course_processes()
    started(kernel)
    assert course_processes() - before
    os.kill(kernel.pid, signal.SIGKILL)
    assert wait_until(lambda: not course_processes() - before, 15)


# Rank 2 answers when all others are waiting for it, and after three times as long as it has waited for any of them.
LATE = """
began, here, answer = time.monotonic(), np.zeros(1), np.zeros(1)
if rank == 2:
    for other in (0, 1, 3):
        comm.Recv(answer, other)
    time.sleep(0.1 + 3 * (time.monotonic() - began))
    for other in (0, 1, 3):
        comm.Send(here, other)
else:
    comm.Sendrecv(here, 2, recvbuf=answer, source=2)
print("said")
"""


def test_a_trace_is_shown_below_the_cell_and_written_for_perfetto(four, tmp_path):
    text, error = four.run(f"%%px --trace {tmp_path / 'trace.json'} # One late{LATE}")
    assert error is None and "said" in plain(text)
    picture, table = (o.data for o in four.notebook.cells[-1].outputs if o.output_type == "display_data")
    assert "Rank 2 held the others up longest" in picture["text/plain"] and picture["image/png"]
    assert "application/vnd.jupyter.widget-view+json" in picture
    assert "rank 2" in table["text/plain"] and "<table>" in table["text/html"]
    assert '"traceEvents"' in (tmp_path / "trace.json").read_text()


def test_a_trace_of_a_cell_that_raises_is_shown_before_its_error(four):
    _, error = four.run("%%px --trace\nif rank != 1:\n    comm.Barrier()")
    assert "DeadlockError" in plain(error)
    said = [o.data["text/plain"] for o in four.notebook.cells[-1].outputs if o.output_type == "display_data"]
    assert "Rank 1 held the others up longest" in said[0]


def test_a_trace_that_cannot_be_written_hides_no_error(four, tmp_path):
    (tmp_path / "taken").touch()
    text, error = four.run(f"%%px --trace {tmp_path}/taken/trace.json\n1 / 0")
    assert "ZeroDivisionError" in plain(error) and "The trace was not written to" in plain(text)


def test_a_check_that_passes_after_a_failed_cell_says_that_it_may_have_checked_the_cell_before(four):
    passes = "from course_lib.check import Check\nCheck('area').passed()"
    four.run("%%px\ndef area(r):\n    return 3 * r")
    assert four.run(passes) == ("area: all ranks have what was expected.\n", None)
    four.run("%%px\ndef area(r):\n    return 3.1 * r)")
    assert "the last cell with area has ended with an error" in four.run(passes)[0]
    four.run("%%px\ndef area(r):\n    return 3.1 * r")
    assert four.run(passes) == ("area: all ranks have what was expected.\n", None)
