"""`make pictures`: draw README's three pictures from real runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from course_lib import cluster, plots, sim
from course_lib.cluster import replies
from course_lib.plots.figures import INK, Picture, new_figure
from grading.authoring import reference

HERE = Path(__file__).resolve().parent
FORGETFUL = """\
if rank != 4:
    comm.Allreduce(mine, total)
"""
SET_UP = """\
import numpy as np
from course_lib.collectives import Communicator
comm = Communicator()
rank = comm.Get_rank()
mine, total = np.ones(3), np.empty(3)
piece = np.array_split(np.arange(1, 12 * 16 + 1), comm.Get_size())[rank]
"""


def as_seen(source: str, error: replies.RanksError) -> Picture:
    """Draw a cell and its error message, as in a notebook."""
    said = [re.sub(r"\x1b\[\d*m", "", line) for line in error._render_traceback_()]
    wrapped = [part for line in said for part in (re.findall(r".{1,96}(?:\s|$)", line) if len(line) > 96 else [line])]
    lines = source.strip().split("\n")
    figure, (axes,) = new_figure(
        9, 0.24 * (len(lines) + len(wrapped) + 3), "One rank forgets a collective: who waits, in which line, for whom"
    )
    axes.axis("off")
    axes.set(xlim=(0, 1), ylim=(len(lines) + len(wrapped) + 1, 0))
    axes.axhspan(0, len(lines) + 0.4, color="#F3F3F3")
    for row, line in enumerate(lines):
        axes.text(0.01, row + 0.7, line, family="monospace", fontsize=9, color=INK, va="center")
    for row, line in enumerate(wrapped, len(lines) + 1):
        red = "Error" in line or row > len(lines) + len(said)
        axes.text(0.01, row + 0.5, line.rstrip(), family="monospace", fontsize=9, color="#B00020" if red else INK, va="center")
    return Picture(figure, " ".join(said))


def deadlock(ranks: cluster.Ranks) -> Picture:
    """Return a picture of a deadlock: seven of eight ranks wait, and their message."""
    try:
        replies.raise_errors(ranks.run(FORGETFUL, label="cell [3]"))
    except replies.RanksError as error:
        return as_seen(FORGETFUL, error)
    raise AssertionError("all ranks came")


def main() -> None:
    ranks = cluster.start(8)
    try:
        ranks.run(SET_UP)
        found = {
            "deadlock": deadlock(ranks),
            "shards": plots.holdings(
                np.arange(1, 12 * 16 + 1).reshape(12, 16),
                ranks.pull("piece"),
                "A weight, sharded over eight data parallel ranks",
                ("inputs", "outputs"),
            ),
        }
    finally:
        ranks.stop()
    result = sim.run(reference.loops()["part3_training_loop"], world_size=4, num_layers=8, global_batch_size=32, batch_size=4)
    found["timeline"] = result.draw("Pipeline training on 4 ranks: one forward, one backward")
    for name, picture in found.items():
        (HERE / f"{name}.png").write_bytes(picture.png())
        print(f"docs/{name}.png: {picture.text[:100]}")


if __name__ == "__main__":
    main()
