"""Processor time of isolated ranks: nothing runs between requests, and a submission has a quota."""

import threading
import time

import pytest
from processes import wait_until

from course_lib.cluster import Ranks
from course_lib.sandbox import bubblewrap, cpu_quota
from course_lib.sandbox.cpu_quota import CpuQuota

MODES = [bubblewrap.UNSANDBOXED] + ([bubblewrap.SANDBOXED] if bubblewrap.problem() is None else [])
SPINS = """
import threading

def spin():
    global turns
    while True:
        turns += 1

turns = 0
for _ in range(4):
    threading.Thread(target=spin, daemon=True).start()

def seen():
    return turns
"""


@pytest.fixture(params=MODES)
def two(request, monkeypatch):
    monkeypatch.setenv(bubblewrap.ISOLATION_VARIABLE, request.param)
    ranks = Ranks(2)
    yield ranks
    ranks.stop()


def accounts(ranks):
    return list(ranks.isolated._usage.values())


def test_threads_that_a_cell_leaves_running_stop_with_its_request(two):
    two.run(SPINS)
    two.held()  # stops the processes, too, and must not let them go on
    for account in accounts(two):
        assert wait_until(account.is_stopped)
        before = account.cpu_seconds()
        time.sleep(0.3)
        assert account.cpu_seconds() == before
    first, second = two.call("seen"), two.call("seen")
    assert all(b > a for a, b in zip(first, second, strict=True)), "they continue with a request"


WAITS = """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2)
list(pool.map(abs, range(8)))
later = pool.submit(sum, range(1_000_000))

def result():
    return later.result(), list(pool.map(abs, [-1, -2]))
"""


def test_idle_threads_of_a_right_answer_disturb_nothing(two):
    assert [reply["error"] for _, reply in two.run(WAITS)] == [None, None]
    assert two.call("result") == [(sum(range(1_000_000)), [1, 2])] * 2
    assert two.call("result") == [(sum(range(1_000_000)), [1, 2])] * 2


def test_a_rank_answers_each_request_once(two):
    source = """
from course_lib.collectives.transport import isolated
isolated.connection.send({"reply": 1000, "text": 2}, b"{}")
import time
time.sleep(60)
"""
    with pytest.raises(RuntimeError, match="rank 0 was ended: it answered a request that it does not have"):
        two.run(source, targets=[0])


def test_a_quota_is_a_core_and_what_was_not_used_before():
    burst, cores = cpu_quota.BURST_SECONDS, cpu_quota.CORES
    quota = CpuQuota(0.0)
    quota.spend(0.0, 1e6)
    assert quota.left == burst, "what is unused does not add up without end"
    quota.spend(burst + cores, 1e6 + 1)
    assert quota.left == 0
    quota.spend(4.0, 1e6 + 1)
    assert quota.left == -4.0
    quota.spend(0.0, 1e6 + 1 + 5 / cores)
    assert quota.left == 1.0


def test_ranks_pause_when_the_quota_is_used_up_and_continue_later(two, monkeypatch):
    """Without a rate, the pause comes for certain: the cell needs more than there is."""
    monkeypatch.setattr(cpu_quota, "CORES", 0.0)
    monkeypatch.setattr(cpu_quota, "BURST_SECONDS", 0.2)
    monkeypatch.setattr(cpu_quota, "QUOTA", CpuQuota(time.monotonic()))
    paused = []

    def refill():
        paused.append(wait_until(lambda: all("quota" in a.pause.reasons for a in accounts(two)), 60))
        monkeypatch.setattr(cpu_quota, "CORES", 100.0)
        monkeypatch.setattr(cpu_quota, "BURST_SECONDS", 100.0)

    thread = threading.Thread(target=refill)
    thread.start()
    source = "import time\nbegin = time.process_time()\nwhile time.process_time() < begin + 1: pass"
    replies = two.run(source)
    thread.join()
    assert paused == [True] and [reply["error"] for _, reply in replies] == [None, None]
