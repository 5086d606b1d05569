"""Check of a student's loop: it runs on the rank, and its record is replayed here.

The rank only sends which operation used which values; time, memory, order and all rules come from the simulator in this
process. What a part asks for besides is in a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from course_lib.check import Check
from course_lib.check.limits import Limit
from course_lib.sim.core.errors import SimulationError
from course_lib.sim.core.hardware import H100, LAYER, Hardware
from course_lib.sim.schedule import continuation, replay
from course_lib.sim.schedule.simulation import Result
from course_lib.utils import wording


def record_loop(loop, settings, hardware):
    """Run a loop on the rank, and return the record."""
    from course_lib.sim.core import hardware as descriptions
    from course_lib.sim.schedule import replay, simulation

    if loop not in globals():
        raise NameError(f"name '{loop}' is not defined", name=loop)
    return replay.export(simulation.simulate(globals()[loop], hardware=descriptions.HARDWARE_PRESETS[hardware], **settings))


class ScheduleCheck(Check):
    """Run a loop on the rank, and check its replay by the simulator here.

    Parameters
    ----------
    loop : str
        The student's function.
    ranks : Ranks
        One rank.
    show : bool
        Whether messages may contain expected values.
    """

    def __init__(self, loop: str, ranks, *, show: bool = True):
        super().__init__(loop, show=show)
        self.loop, self.ranks = loop, ranks

    def run(
        self,
        *,
        world_size: int,
        num_layers: int,
        global_batch_size: int,
        hardware: Hardware = H100,
        slowdown: Mapping[int, float] | None = None,
        **arguments: int,
    ) -> Result:
        """Run the loop; return its result, or raise CheckFailed if it is not a training step. For `slowdown`, see `sim.run`."""
        sizes = dict(world_size=world_size, num_layers=num_layers, global_batch_size=global_batch_size)
        self.case = ", ".join(f"{name} {value}" for name, value in (sizes | arguments).items())
        if hardware is not H100:
            self.case += f", {hardware.name}"
        self.covers("sizes", "group sizes", "repetition")
        if world_size > 16:
            self.covers("many ranks")
        call = dict(loop=self.loop, settings=sizes | arguments, hardware=hardware.name)
        answer = self.ranks.call(record_loop, call, show=self.show)[0]
        try:
            models = replay.replay(answer, **sizes, hardware=hardware, slowdown=slowdown)
            result = Result(models)
            continuation.check_continuation(models)
        except SimulationError as error:
            self.fail(str(error).rstrip("."))
        return result

    def time(self, result: Result, most: float, cause: str, limit: Limit) -> None:
        """Check that the step takes at most `most` seconds, with a tolerance of 0.1 % for the order of sums."""
        if result.time > most * 1.001:
            problem = f"the step takes T = {wording.seconds(result.time)}; {wording.seconds(most)} are enough"
            self.fail(problem, cause, limit=limit)

    def memory(self, result: Result, most: float, cause: str, limit: Limit) -> None:
        """Check that no rank holds more than `most` bytes."""
        if result.memory > most:
            held = f"rank {result.memory_rank} holds {wording.memory(result.memory)}"
            left = left_over(result.models[result.memory_rank])
            self.fail(f"{held} at its peak; {wording.memory(most)} are enough{left}", cause, limit=limit)

    def final_weights(self, models: list, layers: Callable[[int], Collection[int]]) -> None:
        """Check that each rank has set the final weights of its layers, `layers(rank)`, and of no others."""
        for model in models:
            if model.final_weights.keys() != set(layers(model.rank)):
                found = f"the final weights of layers {wording.spans(model.final_weights)}" if model.final_weights else "no final weights"
                self.fail(
                    f"rank {model.rank} has set {found}, expected those of layers {wording.spans(layers(model.rank))}",
                    "set_final_weight on one rank for all, or a layer that is left out",
                )

    def stages(self, models: list, depth: int) -> None:
        """Check that each rank of a pipeline has its own `depth` layers only, up to their final weights, and the first alone the input."""
        for model in models:
            own = set(range(model.rank * depth, (model.rank + 1) * depth))
            for kind in ("load", "forward", "backward", "update"):
                used = {row[1] for row in model.rows if row[0] == kind}
                if used != own:
                    problem = f"rank {model.rank}: {kind} ran for layers {sorted(used)}, expected {sorted(own)}"
                    self.fail(problem, "a wrong split, or the wrong order")
            if model.rank > 0 and any(row[0] == "input" for row in model.rows):
                self.fail(f"rank {model.rank} loads the input", "only the first rank has it")
        self.final_weights(models, lambda rank: range(rank * depth, (rank + 1) * depth))

    def micro_batches(self, models: list, sizes: Callable[[int], list[int]]) -> None:
        """Check that each rank goes forward with micro-batches of these sizes, `sizes(rank)`, in any order."""
        for model in models:
            got = sorted(mask.bit_count() for mask in {row[6] for row in model.rows if row[0] == "forward"})
            if got != sorted(sizes(model.rank)):
                expected = f": it has {got}, expected {sorted(sizes(model.rank))}" if self.show else ""
                self.fail(f"rank {model.rank} has micro-batches of the wrong sizes{expected}", "samples that are divided in another way")

    def passed(self) -> None:
        """Print that the check passed."""
        print(f"{self.what}, {self.case}: as expected.")


def left_over(model) -> str:
    """Describe what a rank still stores at the end of a step although nothing needs it any more."""
    kept: dict[str, set[int]] = {}
    for value in model.values.values():
        if value is not None and value.holds and not getattr(value, "updated", False):
            kept.setdefault(value.name, set()).add(value.layer)
    parts = [f"the {name} of layer{'s' * (len(layers) > 1)} {wording.spans(layers)}" for name, layers in kept.items()]
    return f"; when the step ends, it still stores {' and '.join(parts)}" if parts else ""


def compute_seconds(samples: int, hardware: Hardware = H100) -> tuple[float, float]:
    """Seconds of forward and of backward of one layer."""
    return (
        hardware.compute(LAYER.forward_flop(samples), LAYER.forward_bytes(samples)),
        hardware.compute(LAYER.backward_flop(samples), LAYER.backward_bytes(samples)),
    )


def update_seconds(part: float = 1.0, hardware: Hardware = H100) -> float:
    """Seconds of the update of this fraction of a layer."""
    return hardware.compute(LAYER.update_flop(part), LAYER.update_bytes(part))
