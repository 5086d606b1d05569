"""Comparison of pipeline steps measured on the ranks with simulated steps of the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.engine.namespace import student
from course_lib.plots.pipeline import ACTIVITY_NAMES, TimedWork
from course_lib.sim.calibrate import BlockCost, calibrate
from course_lib.sim.schedule import schedules


def compare_with_simulation(ranks, functions: Mapping[str, str], size: int, *, depth: int = 8, count: int = 8, tries: int = 3) -> tuple:
    """Calibrate the simulator, run steps on the ranks, and simulate them.

    Parameters
    ----------
    ranks : Ranks
        They must have the functions.
    functions : mapping of str to str
        For each order, the name of the function that takes a step in it: ``function(stage, micro_batches, comm)``.
    size : int
        Number of ranks that work, as stages of one pipeline.
    depth : int
        Total number of blocks.
    count : int
        Number of micro-batches.
    tries : int
        Number of steps; the one of median duration is used.

    Returns
    -------
    machine : Processor
        The calibrated machine.
    panels : dict of str to list
        "GPipe, measured" and "GPipe, simulated", and so on: the work of each rank, as drawn by `plots.timeline`.
    apart : float
        Largest relative difference between a simulated and a measured time.
    """
    cost = BlockCost(width=256, heads=4, positions=64, samples=4)
    machine, panels, apart = calibrate(ranks, size), {}, 0.0
    for name, function in functions.items():
        arguments = dict(size=size, function=function, depth=depth, count=count, tries=tries, cost=vars(cost))
        steps = list(zip(*[each for each in ranks.call(measure_steps, arguments) if each], strict=True))
        work = sorted(steps, key=span_seconds)[tries // 2]
        expected = simulate_order(work, cost, depth // size, machine)
        panels |= {f"{name}, measured": work, f"{name}, simulated": expected}
        apart = max(apart, abs(span_seconds(expected) / span_seconds(work) - 1))
    return machine, panels, apart


def simulate_order(work: list[TimedWork], cost: BlockCost, depth: int, machine) -> list[TimedWork]:
    """Simulate the same order, with the times of stages of `depth` blocks each."""
    order = [[(ACTIVITY_NAMES[kind], k) for kind, k, *_ in each] for each in work]
    return schedules.schedule_times(
        order, lambda rank, kind: depth * cost.seconds(kind, machine), machine.nvlink.send(cost.message_bytes())
    )


def span_seconds(work: list[TimedWork]) -> float:
    """Seconds from the first begin to the last end."""
    return max(each[-1][3] for each in work) - min(each[0][2] for each in work)


def fastest_steps(measured: Sequence[Mapping[str, Sequence[TimedWork]]]) -> dict[str, list[TimedWork]]:
    """Choose the fastest of several steps, the one that other programs disturbed least.

    Parameters
    ----------
    measured : sequence of mapping of str to sequence of TimedWork
        For each rank and name, the rank's work in each of the steps.

    Returns
    -------
    dict of str to list of TimedWork
        For each name, the ranks' work in the fastest step, as drawn by `plots.timeline`.
    """
    return {name: min(zip(*(each[name] for each in measured), strict=True), key=span_seconds) for name in measured[0]}


def measure_steps(size, function, depth, count, tries, cost):
    """Measure the work of some steps on a rank, after a warm-up step."""
    import numpy as np

    from course_lib import memory
    from course_lib.collectives import Communicator
    from course_lib.gpt.model.decoder import Sizes, layers
    from course_lib.gpt.model.stage import Stage

    everyone, found = Communicator(), []
    me = everyone.Get_rank()
    comm = everyone.Split(color=int(me >= size), key=me)
    if me >= size:
        return None
    memory.reuse_freed()
    random = np.random.default_rng(0)
    batches = [tuple(random.integers(0, 64, (2, cost["samples"], cost["positions"]))) for _ in range(count)]
    stage = Stage(layers(Sizes(64, cost["width"], cost["heads"], depth, cost["positions"]), size, me), cost["width"])
    for _ in range(tries + 1):
        stage.done.clear()
        comm.Barrier()
        student(function)(stage, batches, comm)
        found.append(list(stage.done))
    return found[1:]
