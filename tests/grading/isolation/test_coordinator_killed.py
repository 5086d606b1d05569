"""When the process that grades is killed, no rank of it stays behind, whatever the rank does."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from processes import wait_until

from course_lib.sandbox import bubblewrap

MODES = [bubblewrap.UNSANDBOXED] + ([bubblewrap.SANDBOXED] if bubblewrap.problem() is None else [])
GRADER = """
import threading
import psutil
from course_lib.cluster import Ranks

def spin():
    print("spins")
    while True:
        pass

ranks = Ranks(2)
threading.Thread(target=ranks.call, args=(spin,), daemon=True).start()
while not all(process.cpu_percent(0.2) > 10 for process in map(ranks._connection.client.process, range(2))):
    pass
print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
threading.Event().wait()
"""


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("paused", [False, True])
def test_ranks_end_with_the_process_that_grades(mode, paused, tmp_path):
    script = tmp_path / "grader.py"
    script.write_text(GRADER)
    environment = os.environ | {bubblewrap.ISOLATION_VARIABLE: mode}
    grader = subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in grader.stdout.readline().split()]
    assert len(pids) >= 2 and all(map(runs, pids))
    if paused:  # as when the quota of processor time is used up
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    grader.kill()
    grader.communicate()
    assert wait_until(lambda: not any(map(runs, pids)))
