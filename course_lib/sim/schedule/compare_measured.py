"""Steps of a pipeline as the ranks did them, beside the same order with the times that the simulator expects."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.engine.namespace import student
from course_lib.plots.pipeline import ACTIVITY_NAMES, TimedWork
from course_lib.sim.calibrate import BlockCost, calibrate
from course_lib.sim.schedule import schedules


def compare_with_simulation(ranks, functions: Mapping[str, str], size: int, *, depth: int = 8, count: int = 8, tries: int = 3) -> tuple:
    """Calibrate, have the ranks do steps, and simulate these.

    Parameters
    ----------
    ranks : Ranks
        They have the functions.
    functions : mapping of str to str
        By the name of an order, that of the function that does a step in it: ``function(stage, micro_batches, comm)``.
    size : int
        How many of the ranks work, as stages of one pipeline.
    depth : int
        Blocks in all.
    count : int
        Micro-batches.
    tries : int
        Steps; the one that takes the median time is looked at.

    Returns
    -------
    machine : Processor
        What was calibrated.
    panels : dict of str to list
        "GPipe, measured" and "GPipe, simulated", and so on: the work of each rank, as `plots.timeline` draws it.
    apart : float
        The most by which a simulated time differs from the measured one, as a share of that.
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
    """The same order, with the times of stages that have `depth` blocks each."""
    order = [[(ACTIVITY_NAMES[kind], k) for kind, k, *_ in each] for each in work]
    return schedules.schedule_times(
        order, lambda rank, kind: depth * cost.seconds(kind, machine), machine.nvlink.send(cost.message_bytes())
    )


def span_seconds(work: list[TimedWork]) -> float:
    """From the first begin to the last end."""
    return max(each[-1][3] for each in work) - min(each[0][2] for each in work)


def measure_steps(size, function, depth, count, tries, cost):
    """On a rank: the work of some steps, after one that is not counted."""
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
