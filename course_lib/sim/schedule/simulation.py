"""A whole simulation in one line, and its result, which draws itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from course_lib import wording
from course_lib.engine import run_coroutine
from course_lib.sim.core.dist import Dist
from course_lib.sim.core.errors import SimulationError
from course_lib.sim.core.hardware import H100, LAYER, Hardware, Layer
from course_lib.sim.core.model import Model
from course_lib.sim.schedule import replay, stats


class Result:
    """What came of a run.

    Attributes
    ----------
    models : list of Model
    time : float
        Seconds.
    memory : float
        The most bytes that a rank held.
    memory_rank : int
        That rank.
    utilisation : float
        Model FLOPs utilisation (MFU), 0 to 1.
    bubble : float
        The part of the ranks' time in which they did not compute, 0 to 1.
    """

    def __init__(self, models: list):
        self.models = models
        self.time, self.memory, self.memory_rank = stats.get_training_stats(models)
        self.utilisation, self.bubble = stats.utilisation(models), stats.bubble_fraction(models)

    def draw(self, title: str | None = None, batches: list | None = None):
        """The timeline and the memory, a `figures.Picture`."""
        from course_lib.sim.schedule.timeline import draw

        return draw(self.models, title, batches)

    def play(self, title: str | None = None, batches: list | None = None):
        """The timeline as it grows, a `plots.Moving`."""
        from course_lib.sim.schedule.timeline import animate

        return animate(self.models, title, batches)

    def trace(self, path: str | Path, batches: list | None = None) -> None:
        """Write a file for Perfetto or chrome://tracing."""
        from course_lib.sim.schedule.trace import write_chrome_trace

        write_chrome_trace(self.models, path, batches)

    def __repr__(self) -> str:
        first, over = self.models[0], stats.over_capacity_text(self.models[self.memory_rank])
        return (
            f"{first.world_size} ranks, {first.num_layers} layers, {first.global_batch_size} samples: {wording.seconds(self.time)}, "
            f"MFU {self.utilisation:.1%}, at most {wording.memory(self.memory)} (rank {self.memory_rank}), bubbles {self.bubble:.1%}"
            + (f"; {over}" if over else "")
        )

    def _repr_mimebundle_(self, **options) -> tuple[dict, dict]:
        return self.draw()._repr_mimebundle_(**options)


def simulate(
    loop: Callable,
    *,
    world_size: int,
    num_layers: int,
    global_batch_size: int = 64,
    hardware: Hardware = H100,
    layer: Layer = LAYER,
    memory_limit: bool = True,
    **arguments: object,
) -> list[Model]:
    """Run a loop on all ranks; the models afterwards. Parameters as for `run`."""
    dist = Dist(world_size, hardware, layer, memory_limit)
    models = [Model(r, dist, num_layers, global_batch_size) for r in range(world_size)]
    name = getattr(loop, "__name__", "the loop")
    coroutines = [loop(model, **arguments) for model in models]
    if not all(inspect.isawaitable(c) for c in coroutines):
        raise SimulationError(f"{name} must be defined with `async def`: what ranks send each other has to be awaited.")
    run_coroutine.run(replay.gather_ranks(coroutines))
    return models


def run(loop: Callable, **settings: object) -> Result:
    """Simulate one training step.

    Parameters
    ----------
    loop : callable
        ``async def loop(model, ...)``, which each rank runs.
    world_size, num_layers : int
    global_batch_size : int
        Samples in the step; 64 by default.
    hardware : Hardware
    layer : Layer
    memory_limit : bool
        Whether a rank that holds more than its device has ends the simulation; without, the result says so.
    **arguments
        All else goes to the loop, such as ``batch_size=4``.

    Returns
    -------
    Result

    Raises
    ------
    SimulationError
        The loop is not a training step; the message says on which rank, at which layer and when.
    """
    return Result(simulate(loop, **settings))
