"""Comparison of pipeline steps measured on the ranks with simulated steps of the same order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from course_lib.engine.namespace import student
from course_lib.sim.calibrate import BlockCost, calibrate
from course_lib.sim.schedule import schedules
from course_lib.trace import span
from course_lib.trace.timeline import Trace


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
    panels : dict of str to Trace
        "GPipe, measured" and "GPipe, simulated", and so on.
    apart : float
        Largest relative difference between a simulated and a measured time.
    """
    cost = BlockCost(width=256, heads=4, positions=64, samples=4)
    machine, panels, apart = calibrate(ranks, size), {}, 0.0
    for name, function in functions.items():
        arguments = dict(size=size, function=function, depth=depth, count=count, tries=tries, cost=vars(cost))
        with ranks.trace(show=False) as traces:
            ranks.call(measure_steps, arguments)
        step = sorted(traces[0].parts("step")[1:], key=lambda part: part.seconds)[tries // 2]  # the first one is a warm-up
        message = machine.nvlink.send(cost.message_bytes())
        expected = simulate_order(step, lambda rank, kind: depth // size * cost.seconds(kind, machine), message)
        panels |= {f"{name}, measured": step, f"{name}, simulated": expected}
        apart = max(apart, abs(expected.seconds / step.seconds - 1))
    return machine, panels, apart


def simulate_order(step: Trace, seconds: Callable[[int, str], float], message: float = 0.0) -> Trace:
    """Simulate a step in the order of a measured one; `seconds` and `message` as for `schedules.schedule_times`."""
    return schedules.as_trace(schedules.schedule_times(measured_order(step), seconds, message), "step", message)


def measured_order(step: Trace) -> list[schedules.WorkOrder]:
    """Return the work of each rank in a measured step, in its order."""
    return [[(e.name, int(e.label)) for e in sorted(r.events, key=lambda e: e.begin) if e.label] for r in step.ranks]


def measure_steps(size, function, depth, count, tries, cost):
    """Take some steps on a rank, after a warm-up step; each is a span."""
    import numpy as np

    from course_lib import memory
    from course_lib.collectives import Communicator
    from course_lib.gpt.model.decoder import Sizes, layers
    from course_lib.gpt.model.stage import Stage

    everyone = Communicator()
    me = everyone.Get_rank()
    comm = everyone.Split(color=int(me >= size), key=me)
    if me >= size:
        return
    memory.reuse_freed()
    random = np.random.default_rng(0)
    batches = [tuple(random.integers(0, 64, (2, cost["samples"], cost["positions"]))) for _ in range(count)]
    stage = Stage(layers(Sizes(64, cost["width"], cost["heads"], depth, cost["positions"]), size, me), cost["width"])
    for _ in range(tries + 1):
        comm.Barrier()
        with span("step"):
            student(function)(stage, batches, comm)
