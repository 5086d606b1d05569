"""Tab, Shift-Tab and ``?`` for what lives on the ranks, in a real kernel."""

import re
import time

import pytest
from jupyter_core.utils import run_sync

from course_lib.cluster.notebook.completion import _Cursor

SETUP = "from course_lib import cluster\nranks = cluster.start(2)\nmine_here = 1\ncomma = 2"
CELL = """%%px
import numpy as np
from course_lib.collectives import Communicator
comm = Communicator()
my_numbers = np.arange(3)
def my_function(x, scale=2):
    "Scale it."
    return scale * x
"""


@pytest.fixture(scope="module")
def notebook(same_kernel):
    assert same_kernel.run(SETUP)[1] is None and same_kernel.run(CELL)[1] is None
    return same_kernel


def asked(kernel, what, code):
    """The kernel's reply to a complete_request or inspect_request at the place of `|`."""
    channel = kernel.client.kc
    place = code.index("|")
    request = channel.complete if what == "complete" else channel.inspect
    return run_sync(_replied)(request, code.replace("|", ""), place)


async def _replied(request, code, place):
    return (await request(code, place, reply=True, timeout=20))["content"]


def completed(kernel, code):
    """The texts that stand there after a completion."""
    reply, place = asked(kernel, "complete", code), code.index("|")
    begin = code[: reply["cursor_start"]].rsplit("\n", 1)[-1]
    assert reply["cursor_end"] == place
    return {begin + text for text in reply["matches"]}


@pytest.mark.parametrize("top", ["%%px\n", "# mine\n%%px\n", "%%px --targets 1\nx = 1\n"])
def test_names_of_the_ranks_are_completed_in_their_cells(notebook, top):
    assert {"comm.Allreduce", "comm.Allgather"} <= completed(notebook, f"{top}comm.All|")
    assert {"my_numbers", "my_function"} <= completed(notebook, f"{top}my_|")
    assert completed(notebook, f"{top}y = my_numbers.argma|") == {"y = my_numbers.argmax"}
    assert "mine_here" not in completed(notebook, f"{top}mi|"), "that is not on the ranks"
    reply = asked(notebook, "complete", f"{top}my_f|")
    assert [one["text"] for one in reply["metadata"]["_jupyter_types_experimental"]] == reply["matches"] == ["my_function"]


def test_in_other_cells_only_what_the_notebook_does_not_have(notebook):
    assert {"my_numbers", "my_function"} <= completed(notebook, "my_|")
    assert {"comma", "comm"} <= completed(notebook, "com|")
    assert "comm.Allreduce" in completed(notebook, "comm.Allr|")
    assert completed(notebook, "mine_here.bit_l|") == {"mine_here.bit_length"}
    assert completed(notebook, "%%p|") >= {"%%px"}


def test_help_comes_from_the_ranks(notebook):
    for code in ("%%px\ny = my_function(|", "%%px\nmy_func|tion", "my_function(|3)"):
        reply = asked(notebook, "inspect", code)
        assert reply["found"] and "my_function(x, scale=2)" in plain(reply["data"]["text/plain"])
    assert "Allreduce" in plain(asked(notebook, "inspect", "%%px\ncomm.Allreduce(|")["data"]["text/plain"])
    assert not asked(notebook, "inspect", "%%px\nnowhere(|")["found"]
    text, error = notebook.run("%%px\nmy_function?")
    assert error is None and "Scale it." in text and text.count("Scale it.") == 1, "all ranks say the same"


def test_a_cell_with_much_above_it_keeps_nobody_waiting():
    for above in ("\n" * 1000, "# a\n\n" * 1000, "   \n" * 1000):
        began = time.monotonic()
        assert not _Cursor(f"{above}x = 1", 5).is_for_ranks and _Cursor(f"{above}%%px\nx = 1", 5).is_for_ranks
        assert time.monotonic() - began < 5, "not a speed test: it would take for longer than anybody waits"


def test_it_is_quick_also_beside_ranks_that_are_busy_and_without_any(notebook):
    notebook.run("%%px\nimport threading, time, signal")
    busy = "import time\nfuture = ranks._connection.client.request(1, {'do': 'cell', 'source': 'time.sleep(4)', 'label': 'cell [0]', "
    assert notebook.run(busy + "'round': 1, 'targets': 2, 'epoch': 0})")[1] is None
    assert "comm.Allreduce" in completed(notebook, "%%px\ncomm.Allr|")
    assert notebook.run(busy.replace("request(1", "request(0") + "'round': 1, 'targets': 1, 'epoch': 0})")[1] is None
    began = time.monotonic()
    assert "comm.Allreduce" not in completed(notebook, "%%px\ncomm.Allr|")
    assert time.monotonic() - began < 2, "rank 0 is busy for four seconds"
    assert notebook.run("from concurrent.futures import wait; wait([future], 60); ranks.stop()")[1] is None
    assert "comm.Allreduce" not in completed(notebook, "%%px\ncomm.Allr|")


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
