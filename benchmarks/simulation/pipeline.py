"""A step of 1F1B with as many ranks as cores, four at most: how far it is from what the simulator predicts for this machine.

Eight blocks of width 256, eight micro-batches of 4 x 64 tokens, float32; part 25's solution. The machine is recalibrated each time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

from benchmarks.turns import turns
from course_lib import cluster, sim

TURNS = turns(5)
NAME = "one_forward_one_backward_step"


def figures() -> Iterator[tuple[str, list[float], float]]:
    from grading.authoring import reference

    apart = []
    with tempfile.TemporaryDirectory() as folder:
        reference.write(folder)
        ranks = cluster.start(4)
        ranks.run(f"import sys; sys.path.insert(0, {folder!r}); from transformer_impl import {NAME}")
        for _ in range(TURNS):
            _, panels, _ = sim.compare_with_simulation(ranks, {"1F1B": NAME}, 4 if (os.cpu_count() or 1) > 3 else 2)
            took, expected = (panels[f"1F1B, {kind}"].seconds for kind in ("measured", "simulated"))
            apart.append(abs(took / expected - 1))
        ranks.stop()
    yield "pipeline-1f1b-measured/simulated-apart", apart, 0.15
