"""Run the benchmarks, all or those named on the command line, and print one line per figure."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.communication import collectives, hosts, messages, own_ring, ring, tracing
from benchmarks.grading import autograding, collecting, kills, reporting, thousand
from benchmarks.ranks import idle, lecturing, notebooks, panel, starting
from benchmarks.serving import batching, decode
from benchmarks.simulation import pipeline, planning, simulator
from benchmarks.training import autograd, checkpointing, ddp, fsdp, gpt, grids, perceptron, shell, transformer, zero
from benchmarks.turns import MOST_TURNS_ENV

BENCHES = {
    "start": starting.figures,
    "idle": idle.figures,
    "panel": panel.figures,
    "collectives": collectives.figures,
    "messages": messages.figures,
    "own-ring": own_ring.figures,
    "trace": tracing.figures,
    "training": perceptron.figures,
    "grids": grids.figures,
    "hosts": hosts.figures,
    "shell": shell.figures,
    "zero": zero.figures,
    "simulator": simulator.figures,
    "plan": planning.figures,
    "autograd": autograd.figures,
    "ddp": ddp.figures,
    "transformer": transformer.figures,
    "ring": ring.figures,
    "pipeline": pipeline.figures,
    "fsdp": fsdp.figures,
    "gpt": gpt.figures,
    "decode": decode.figures,
    "batching": batching.figures,
    "checkpoint": checkpointing.figures,
    "crashes": checkpointing.crashes,
    "notebooks": notebooks.figures,
    "autograde": autograding.figures,
    "collect": collecting.figures,
    "report": reporting.figures,
    "lecture": lecturing.figures,
    "site": lecturing.site,
}
LONG = {"thousand": thousand.figures, "kills": kills.figures}  # most of an hour, and part of one: they run only when named

# A figure: name, values of several turns, and the limit for their median.
Figure = tuple[str, list[float], float]


def line(figure: Figure) -> str:
    """Format a figure as a line.

    >>> line(("start 8 ranks", [0.2, 0.4, 0.3], 0.5))
    'bench: start 8 ranks 0.300 [0.200..0.400] target <=0.5 ok'
    """
    name, values, limit = figure
    median = statistics.median(values)
    verdict = "ok" if median <= limit else "SHORT"
    return f"bench: {name} {median:.3f} [{min(values):.3f}..{max(values):.3f}] target <={limit:g} {verdict}"


def run(names: list[str]) -> Iterator[str]:
    """Yield the lines of the benchmarks with these names."""
    for name in names or BENCHES:
        known = BENCHES | LONG
        if name not in known:
            sys.exit(f"There is no benchmark {name!r}. There are: {', '.join(known)}.")
        for figure in known[name]():
            yield line(figure)


if __name__ == "__main__":
    # ipyparallel's own cluster takes mpiexec from the PATH.
    os.environ["PATH"] = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
    short = []
    for text in run(sys.argv[1:]):
        print(text, flush=True)
        short += [text.split()[1]] if text.endswith("SHORT") else []
    if MOST_TURNS_ENV in os.environ:
        sys.exit(0)  # fewer turns than usual show that it runs, and nothing else
    sys.exit(f"Short of its target: {', '.join(short)}." if short else 0)
