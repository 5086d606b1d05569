"""Eight idle ranks, with controller and kernel: the share of a core that they take, and their memory."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from benchmarks.turns import turns

CELLS = (
    "from course_lib import cluster\nranks = cluster.start(8)",
    "%%px\nimport numpy as np\nfrom course_lib.collectives import Communicator\n"
    "comm, total = Communicator(), np.empty(1)\ncomm.Allreduce(np.ones(1), total)",
)
TURNS = turns(5)
SECONDS = 4.0


def figures() -> Iterator[tuple[str, list[float], float]]:
    notebook = new_notebook()
    client = NotebookClient(notebook, timeout=120, kernel_name="python3")
    with client.setup_kernel():
        for source in (*CELLS, "ranks.stop()"):
            if source == "ranks.stop()":
                kernel = psutil.Process(client.km.provisioner.pid)
                processes = [kernel, *kernel.children(recursive=True)]
                time.sleep(2)
                shares = []
                for _ in range(TURNS):
                    before = sum(sum(p.cpu_times()[:2]) for p in processes)
                    time.sleep(SECONDS)
                    shares.append((sum(sum(p.cpu_times()[:2]) for p in processes) - before) / SECONDS)
                # A page that several share is divided among them.
                memory = sum(p.memory_full_info().pss for p in processes) / 2**20
            notebook.cells.append(new_code_cell(source))
            client.execute_cell(notebook.cells[-1], len(notebook.cells) - 1)
    yield "idle-8-ranks-of-a-core", shares, 0.01
    yield "idle-8-ranks-mebibytes", [memory], 300
