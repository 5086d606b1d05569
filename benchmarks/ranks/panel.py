"""The live panel of eight ranks: the share of a core that it takes, while a cell runs and while none does.

Each share is that of the kernel with the panel, minus that without it, measured in turns in one run: the ranks do nothing for the panel but
write a line every quarter of a second. No page shows it; what a browser and the server take for its messages is not included.
"""

from __future__ import annotations

from collections.abc import Iterator

from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from benchmarks.turns import turns

TURNS = turns(5)
SECONDS = 3
START = """
import time
from course_lib import cluster
from course_lib.cluster.panel import panel as module
module.UNSEEN_SECONDS = 1e9
ranks = cluster.start(8)
ranks.run("import time, numpy as np\\nfrom course_lib.collectives import Communicator\\ncomm = Communicator()\\nrank = comm.Get_rank()")
panel = ranks.panel()
"""
# Ranks 0 to 6 wait for rank 7, which prints a line from time to time.
CELL = """
for step in range(10 * SECONDS):
    if rank == 7:
        print('step', step, flush=True)
        time.sleep(0.1)
comm.Barrier()
"""
MEASURE = f"""
def share(cell):
    before, began = time.process_time(), time.monotonic()
    ranks.run({CELL!r}.replace('SECONDS', '{SECONDS}')) if cell else time.sleep({SECONDS})
    return (time.process_time() - before) / (time.monotonic() - began)

figures = {{}}
for turn in range({TURNS}):
    for cell in (True, False):
        off = share(cell)
        panel._repr_mimebundle_()
        time.sleep(0.5)
        on = share(cell)
        panel.close()
        time.sleep(0.5)
        figures.setdefault(cell, []).append(on - off)
print(*figures[True])
print(*figures[False])
ranks.stop()
"""


def figures() -> Iterator[tuple[str, list[float], float]]:
    notebook = new_notebook(cells=[new_code_cell(START), new_code_cell(MEASURE)])
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    said = "".join(output.get("text", "") for output in notebook.cells[1].outputs)
    running, resting = ([float(word) for word in line.split()] for line in said.splitlines()[:2])
    yield "panel-of-8-running-ranks-of-a-core", running, 0.01
    yield "panel-of-8-resting-ranks-of-a-core", resting, 0.01
