"""A whole simulation in a single call, with a result that displays itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

from course_lib.engine import run_coroutine
from course_lib.sim.core.dist import Dist
from course_lib.sim.core.errors import SimulationError
from course_lib.sim.core.hardware import H100, LAYER, Hardware, Layer
from course_lib.sim.core.model import Model
from course_lib.sim.schedule import replay, stats
from course_lib.utils import wording


class Result:
    """Result of a run.

    Attributes
    ----------
    models : list of Model
    time : float
        Seconds.
    memory : float
        Peak bytes of the rank that held most.
    memory_rank : int
        The rank that held most.
    utilisation : float
        Model FLOPs utilisation (MFU), 0 to 1.
    bubble : float
        Fraction of the ranks' time without computation, 0 to 1.
    """

    def __init__(self, models: list):
        self.models = models
        self.time, self.memory, self.memory_rank = stats.get_training_stats(models)
        self.utilisation, self.bubble = stats.utilisation(models), stats.bubble_fraction(models)

    def draw(self, title: str | None = None, batches: list | None = None):
        """Draw the timeline and the memory, as a `figures.Picture`."""
        from course_lib.sim.schedule.timeline import draw

        return draw(self.models, title, batches)

    def play(self, title: str | None = None, batches: list | None = None):
        """Animate the timeline, as a `plots.Animation`."""
        from course_lib.sim.schedule.timeline import animate

        return animate(self.models, title, batches)

    def trace(self, path: str | Path, batches: list | None = None) -> None:
        """Write a file for Perfetto or chrome://tracing."""
        from course_lib.sim.schedule.trace import write_chrome_trace

        write_chrome_trace(self.models, path, batches)

    def __repr__(self) -> str:
        first, over = self.models[0], stats.over_capacity_text(self.models[self.memory_rank])
        sizes = f"{first.world_size} ranks, {first.num_layers} layers, {first.global_batch_size} samples"
        judged = f"T = {wording.seconds(self.time)}, MFU {self.utilisation:.1%}, bubble fraction {self.bubble:.1%}"
        most = f"at most {wording.memory(self.memory)} (rank {self.memory_rank})"
        return f"{sizes}: {judged}, {most}" + (f"; {over}" if over else "")

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
    slowdown: Mapping[int, float] | None = None,
    **arguments: object,
) -> list[Model]:
    """Run a loop on all ranks, and return the models. Parameters as for `run`."""
    dist = Dist(world_size, hardware, layer, memory_limit, slowdown, strict=True)
    models = [Model(r, dist, num_layers, global_batch_size) for r in range(world_size)]
    drive(loop, models, **arguments)
    return models


def drive(loop: Callable, models: list[Model], **arguments: object) -> None:
    """Run a loop on these ranks; after an error, each model has what its rank did until then."""
    name = getattr(loop, "__name__", "the loop")
    coroutines = [loop(model, **arguments) for model in models]
    if not all(inspect.isawaitable(c) for c in coroutines):
        raise SimulationError(f"{name} must be defined with `async def`: communication has to be awaited.")
    run_coroutine.run(replay.gather_ranks(coroutines))


def run(loop: Callable, **settings: object) -> Result:
    """Simulate one training step.

    Parameters
    ----------
    loop : callable
        ``async def loop(model, ...)``, which each rank runs.
    world_size, num_layers : int
    global_batch_size : int
        Samples per step; by default 64.
    hardware : Hardware
    layer : Layer
    memory_limit : bool
        Whether exceeding a device's memory ends the simulation; otherwise the result reports it.
    slowdown : mapping of int to float, optional
        Ranks whose computation takes this many times as long as the hardware's.
    **arguments
        Further arguments of the loop, such as ``batch_size=4``.

    Returns
    -------
    Result

    Raises
    ------
    SimulationError
        The loop is not a valid training step; the message says on which rank, at which layer and when.
    """
    return Result(simulate(loop, **settings))
