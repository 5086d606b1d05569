"""The live panel: what it says of each rank is true, whatever happens to the ranks and to the kernel."""

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress

import psutil
import pytest
from processes import wait_until

from course_lib.cluster import Ranks, RanksGone
from course_lib.cluster.panel import panel as module
from course_lib.cluster.panel import source, status
from course_lib.collectives import calls, snapshot
from course_lib.collectives.deadlock.layout import PID
from course_lib.utils import host

START = """
import time
import numpy as np
from course_lib.collectives import Communicator
comm = Communicator()
rank = comm.Get_rank()
"""
HANG = "print('hello', rank)\nif rank == 2:\n    while True: pass\ncomm.Allreduce(np.ones(1000), np.empty(1000))"


@pytest.fixture
def four():
    ranks = Ranks(4)
    ranks.run(START)
    yield ranks
    ranks.stop()


@pytest.fixture
def four_with_agent(monkeypatch):
    """Ranks whose machine may be another one: an agent is asked."""
    monkeypatch.setenv(host.REMOTE_NOTEBOOK_ENV, "1")
    ranks = Ranks(4)
    ranks.run(START)
    yield ranks
    ranks.stop()


@contextmanager
def running(ranks, cell):
    """While a cell runs on the ranks, as the kernel's main thread would run it; it is interrupted at the end. Yields its errors."""
    raised = []

    def run():
        try:
            raised.extend(reply["error"] for _, reply in ranks.run(cell, label="cell [5]"))
        except RanksGone as gone:
            raised.append(gone)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield raised
    finally:
        while thread.is_alive():
            with suppress(OSError):  # the connection has ended
                ranks.interrupt()
            thread.join(1.0)


def kinds(ranks):
    return [k.kind for k in ranks.panel().look()[2]]


def texts(ranks):
    return [k.text for k in ranks.panel().look()[2]]


def hangs(ranks):
    return kinds(ranks) == ["waits", "waits", "computing", "waits"]


@pytest.mark.parametrize("which", ["four", "four_with_agent"])
def test_one_rank_computes_and_the_others_wait_for_it(which, request):
    ranks = request.getfixturevalue(which)
    began = time.monotonic()
    with running(ranks, HANG):
        assert wait_until(lambda: hangs(ranks) and [k.line for k in ranks.panel().look()[2]] == [f"hello {r}" for r in range(4)])
        head, note, found = ranks.panel().look()
        assert head == "4 ranks: a cell is running" and note == ""
        waits = "waits in Allreduce #1 on world{0–3} for rank 2 (cell [5], line 4)"
        assert [k.text for k in found] == [waits, waits, "computing", waits] and found[0].short == "waits for 2"
        before = [k.seconds for k in found]
        time.sleep(0.5)
        after = [k.seconds for k in ranks.panel().look()[2]]
        most = time.monotonic() - began
        assert all(0.3 < b - a < most and b < most for a, b in zip(before, after, strict=True)), "since when is kept"
        assert all(20 << 20 < k.memory < 2 << 30 for k in found)
    assert wait_until(lambda: kinds(ranks) == ["raised"] * 4)
    assert texts(ranks)[2] == "raised KeyboardInterrupt (cell [5], line 3)"
    assert ranks.panel().look()[0] == "4 ranks: no cell is running"
    ranks.run("comm.Allreduce(np.ones(1000), np.empty(1000))\nprint('fine')")
    _, _, found = ranks.panel().look()
    assert [(k.kind, k.line, k.sent) for k in found] == [("resting", "fine", 12_000)] * 4, "2 (n-1)/n of 8 kB"
    ranks.call("Communicator")  # counts anew, which the panel does not
    assert [k.sent for k in ranks.panel().look()[2]] == [12_000] * 4


@pytest.mark.parametrize("which", ["four", "four_with_agent"])
def test_a_silent_rank_is_neither_gone_nor_deadlocked_and_ends_with_the_ranks(which, request):
    ranks = request.getfixturevalue(which)
    ranks.silence(2, seconds=600)
    raised = []

    def run():
        try:
            ranks.run("comm.Barrier()")
        except RanksGone as gone:
            raised.append(gone)

    thread = threading.Thread(target=run)
    thread.start()
    assert wait_until(lambda: kinds(ranks) == ["waits", "waits", "silent", "waits"])
    time.sleep(1.0)  # longer than it takes to find a deadlock
    assert kinds(ranks) == ["waits", "waits", "silent", "waits"]
    assert texts(ranks)[2] == "silent on purpose: it stands still, and will go on" and "for rank 2" in texts(ranks)[0]
    assert ranks.panel().look()[0] == "4 ranks: a cell is running"
    began = time.monotonic()
    ranks.stop()
    thread.join(15)
    assert raised and time.monotonic() - began < 15


def test_without_a_cell_and_without_asking(four):
    client = four.connection.client
    client.request = None  # a request would raise
    assert kinds(four) == ["resting"] * 4 and four.panel().look()[0] == "4 ranks: no cell is running"
    busy = [psutil.Process(four.connection.source.parts[r][PID]).cpu_times() for r in range(4)]
    for _ in range(200):
        four.panel().look()
    after = [psutil.Process(four.connection.source.parts[r][PID]).cpu_times() for r in range(4)]
    assert sum(b.user + b.system - a.user - a.system for a, b in zip(busy, after, strict=True)) < 0.05, "ranks were woken"
    del client.request


def test_a_killed_rank_and_all_that_end_with_it(four):
    with running(four, HANG) as raised:
        assert wait_until(lambda: hangs(four))
        pid = four.connection.source.parts[2][PID]
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: kinds(four)[2] == "gone")
        assert wait_until(lambda: kinds(four) == ["gone"] * 4)
        assert wait_until(lambda: raised)
    assert isinstance(raised[0], RanksGone)
    head, note, found = four.panel().look()
    assert head == "4 ranks: gone" and "the process of rank 2 ended, by signal SIGKILL" in note
    assert [k.kind for k in found] == ["gone"] * 4 and found[0].seconds is None
    four.restart(n=3)
    head, note, found = four.panel().look()
    assert (head, note) == ("3 ranks: no cell is running", "") and [k.text for k in found] == ["resting: no cell has run yet"] * 3
    four.stop()
    assert four.panel().look()[0] == "3 ranks: stopped" and "stopped" in repr(four.panel())


def test_a_rank_that_dies_while_nobody_looks(four):
    assert kinds(four) == ["resting"] * 4
    os.kill(four.connection.source.parts[1][PID], signal.SIGKILL)
    assert wait_until(lambda: kinds(four) == ["gone"] * 4)
    assert wait_until(lambda: "rank 1 ended, by signal SIGKILL" in four.panel().look()[1])
    assert four.panel().look()[0] == "4 ranks: ranks 0–3 are gone"


def test_a_plain_mpi_call_a_message_and_some_of_the_ranks(four):
    cell = "from mpi4py import MPI\nif rank == 0: MPI.COMM_WORLD.Recv(np.empty(1), 1)\n"
    cell += "elif rank == 1: comm.Recv(np.empty(1), 2)\nelse: time.sleep(9)"
    with running(four, cell):
        words = [
            "waits in MPI.COMM_WORLD.Recv (cell [5], line 2)",
            "waits in Recv from rank 2 (cell [5], line 3)",
            "computing",
            "computing",
        ]
        assert wait_until(lambda: all(text.startswith(w) for text, w in zip(texts(four), words, strict=True))), texts(four)
        four.connection.client.interrupt([1, 2, 3])
        assert wait_until(lambda: kinds(four)[1:] == ["raised"] * 3)
        four.connection.end()  # rank 0 can only be ended
    assert wait_until(lambda: set(kinds(four)) == {"gone"})


def test_how_long_a_rank_computes_counts_from_the_end_of_its_wait(four):
    cell = "if rank == 0: time.sleep(2)\ncomm.Iallreduce(np.ones(1000), np.empty(1000)).Wait()\ntime.sleep(9)"
    with running(four, cell):
        assert wait_until(lambda: kinds(four) == ["computing"] + ["waits"] * 3)
        assert wait_until(lambda: kinds(four) == ["computing"] * 4)
        first, *others = (k.seconds for k in four.panel().look()[2])
        assert max(others) < first - 1


def test_ranks_that_were_not_asked_rest(four):
    thread = threading.Thread(target=four.run, args=("time.sleep(1.5)",), kwargs={"targets": [1, 2]})
    thread.start()
    assert wait_until(lambda: kinds(four) == ["resting", "computing", "computing", "resting"])
    thread.join()
    assert kinds(four) == ["resting"] * 4


VIEWS = [
    (snapshot.RankView(0, snapshot.LOST, 3), "unknown", "unknown: n1 no longer responds"),
    (snapshot.RankView(1, snapshot.GONE, 3), "gone", "gone: its process has ended"),
    (snapshot.RankView(2, snapshot.FINISHED, 2, 15), "waits", "has not begun the cell yet"),
    (snapshot.RankView(3, snapshot.FINISHED, 3, 15), "resting", "resting"),
    (snapshot.RankView(3, snapshot.RAISED, 3, 15, text="ValueError (cell [1], line 2)"), "raised", "raised ValueError (cell [1], line 2)"),
    (
        snapshot.RankView(3, snapshot.WAITING, 3, 15, 3 << 42 | 4, calls.SPLIT, 15, 0b0011, text="cell [1], line 2"),
        "waits",
        "waits in Split #2 on world{0–3} for rank 2 (cell [1], line 2)",
    ),
    (
        snapshot.RankView(3, snapshot.WAITING, 3, 15, 3 << 42 | 4, calls.SPLIT, 10, 0b0010, True, text="cell [1], line 2"),
        "waits",
        "waits in Split #2 on group{1, 3} (cell [1], line 2): all others are there",
    ),
    (
        snapshot.RankView(
            3, snapshot.WAITING, 3, 15, -9, calls.IALLREDUCE, 15, 0b0001, text="Iallreduce #1 on world{0–3} (cell [1], line 2)"
        ),
        "waits",
        "waits in Iallreduce #1 on world{0–3} for ranks 1, 2 (cell [1], line 2)",
    ),
    (
        snapshot.RankView(3, snapshot.DEADLOCKED, 3, 15, 3 << 42 | 2, calls.BARRIER, 15, text="cell [1], line 2"),
        "raised",
        "raised DeadlockError in Barrier #1 on world{0–3} (cell [1], line 2)",
    ),
]


@pytest.mark.parametrize(("view", "kind", "text"), VIEWS)
def test_each_state_has_words_and_a_symbol_of_its_own(view, kind, text):
    others = [snapshot.RankView(r, snapshot.FINISHED, 3, 15) for r in range(4)]
    others[view.rank] = view
    seen = snapshot.Snapshot(tuple(others), ("n1", "n1", "n2", "n2"))
    assert status._describe(view, seen, seen.late(), None)[:2] == (kind, text)
    assert len(set(status.SYMBOLS.values())) == len(status.SYMBOLS)


def test_what_a_rank_prints_cannot_break_the_panel(four):
    four.run("print('\\x1b[31m<b>bold</b>\\x1b[0m\\x07', 'x' * 3000)\nprint('10 %\\r20 %\\r<i>done</i>\\x1b[1m', end='')")
    assert [k.line for k in four.panel().look()[2]] == ["<i>done</i>"] * 4
    four.run("print('é' * 1000)")
    assert {k.line for k in four.panel().look()[2]} == {"é" * 127}


def test_a_machine_that_does_not_answer_is_named():
    nobody = source.HostSource(["n1", "n2"], {"n1": ("127.0.0.1", 1, "00"), "n2": ("127.0.0.1", 1, "00")})
    nobody.refresh()
    assert [k.text for k in status.statuses(nobody, {})] == [f"unknown: {name} has not answered yet" for name in ("n1", "n2")]


CELL = "%%px\nimport time\nprint('at work')\ntime.sleep(1)"
THREADS = "print([t.name for t in threading.enumerate()].count('panel'))"


def test_in_a_kernel_the_widget_follows_and_its_thread_ends_with_it(kernel):
    assert kernel.run("from course_lib import cluster\nranks = cluster.start(2)")[1] is None
    text, error = kernel.run("ranks.panel()")
    assert error is None and "2 ranks: no cell is running" in text, text
    shown = kernel.notebook.cells[-1].outputs[-1].data
    assert "application/vnd.jupyter.widget-view+json" in shown
    keep = "lambda content: sent.append((time.monotonic(), content['state'][0]))"
    kernel.run(f"import threading, time, os, signal\npanel, sent = ranks.panel(), []\npanel._outlets['test'] = {keep}")
    kernel.run("time.sleep(2.5); began = time.monotonic()")
    kernel.run(CELL)
    text, _ = kernel.run("print([head for when, head in sent if when > began])")
    assert "a cell is running" in text, "while the kernel's main thread waits"
    stopped = "threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
    stopped += "get_ipython().run_cell_magic('px', '', 'while True: pass')"
    _, error = kernel.run(stopped)
    assert "the cell was stopped" in error
    kernel.run("time.sleep(0.6)")
    assert "no cell is running" in kernel.run("print(sent[-1])")[0], "after the kernel was interrupted"
    assert kernel.run(THREADS)[0] == "1\n"
    kernel.run("ranks.stop(); time.sleep(0.6)")
    assert kernel.run(THREADS)[0] == "0\n" and "2 ranks: stopped" in kernel.run("print(sent[-1])")[0]
    kernel.run("ranks.restart(n=3); time.sleep(0.6)")
    assert kernel.run(THREADS)[0] == "1\n" and "3 ranks: no cell is running" in kernel.run("print(sent[-1])")[0]
    assert "3 ranks: new ranks are starting" in kernel.run("print(sent)")[0]
    assert kernel.run("panel.close(); time.sleep(0.6)")[1] is None
    assert kernel.run(THREADS)[0] == "0\n", "closed"
    text, error = kernel.run("ranks.panel()")
    assert error is None and kernel.run(THREADS)[0] == "1\n", "once more"
    kernel.run("from course_lib.cluster.panel import panel as module; module.UNSEEN_SECONDS = 0.5")
    time.sleep(1.5)
    assert kernel.run(THREADS)[0] == "0\n", "no page shows it"
    assert kernel.run("ranks.panel()._widget.views = 1; time.sleep(0.1)") and kernel.run(THREADS)[0] == "1\n"
    kernel.run("ranks.stop()")


def test_nothing_is_sent_where_nothing_changes(four, monkeypatch):
    monkeypatch.setattr(module, "REPEAT_SECONDS", 0.4)
    panel, sent = four.panel(), []
    panel._outlets["test"] = sent.append
    panel.resume()
    time.sleep(3)
    assert 1 <= len(sent) <= 4, [s["state"] for s in sent]  # the ranks' memory may change
    four.run("time.sleep(3)")
    assert len(sent) >= 6 and sum(s["running"] for s in sent) >= 4, "while a cell runs, a page must notice silence"
    panel.close()
    assert wait_until(lambda: panel._thread is None)


def test_an_error_is_shown_and_the_thread_goes_on(four, monkeypatch):
    panel, sent = four.panel(), []
    panel._outlets["test"] = sent.append
    monkeypatch.setattr(four.connection.source, "refresh", lambda: 1 / 0)
    panel.resume()
    assert wait_until(lambda: sent and "ZeroDivisionError" in sent[-1]["state"][1])
    monkeypatch.undo()
    assert wait_until(lambda: len(sent[-1]["state"][2]) == 4)
    panel.close()


def test_the_board_of_ranks_that_ended_is_let_go(four):
    def count():
        links = []
        for n in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # that of the folder itself
                links.append(os.readlink(f"/proc/self/fd/{n}"))
        return sum("course-shared" in link for link in links)

    four.panel().look()
    before = count()
    assert before >= 1 and not os.get_inheritable(four.connection.source._descriptor)
    four.restart(n=2)
    four.panel().look()
    assert count() == before
    four.stop()
    four.panel().look()
    assert count() == before - 1
