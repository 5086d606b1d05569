"""Check of part 17's loop: ZeRO stage 3 as a schedule."""

from __future__ import annotations

from course_lib.sim.core.batches import get_next_microbatch
from course_lib.sim.core.hardware import H100, LAYER
from course_lib.sim.schedule.check import ScheduleCheck, compute_seconds, contract, update_seconds
from course_lib.sim.schedule.simulation import Result


class ZeroScheduleCheck(ScheduleCheck):
    """A `ScheduleCheck` with the time and the memory of a step in which everything is sharded."""

    def run(self, **sizes: object) -> Result:
        """Run a step, and check that every rank has set its part of each final weight; return its result."""
        result = super().run(**sizes)
        self.final_weights(result.models, lambda rank: range(sizes["num_layers"]))
        return result

    def step(self, *, world_size: int, num_layers: int, global_batch_size: int, batch_size: int) -> Result:
        """Run a step, and check its time and memory; return its result."""
        sizes = dict(world_size=world_size, num_layers=num_layers, global_batch_size=global_batch_size, batch_size=batch_size)
        result = self.run(**sizes)
        self.micro_batches(
            result.models, lambda rank: [len(samples) for samples in get_next_microbatch(global_batch_size, world_size, batch_size, rank)]
        )
        cause = "something is not sharded, or more than a layer or two is gathered at a time, or activations are kept after their last use"
        self.memory(result, step_bytes(**sizes), cause, contract.ZERO_WEIGHTS)
        cause = "a layer is gathered more than twice per micro-batch, or its gradient is all-reduced instead of reduce-scattered"
        self.time(result, step_seconds(**sizes), cause, contract.TIME[self.loop])
        return result


def step_seconds(world_size: int, num_layers: int, global_batch_size: int, batch_size: int) -> float:
    """Time without overlap: compute + communication, of two all-gathers and a reduce-scatter per layer and micro-batch."""
    link, whole = H100.link(range(world_size)), LAYER.weight_bytes()
    share, total = global_batch_size // world_size, 0.0
    for start in range(0, share, batch_size):
        samples = min(batch_size, share - start)
        total += num_layers * (sum(compute_seconds(samples)) + 3 * link.all_gather(whole, world_size))
        total += H100.host.send(LAYER.activation_bytes(samples))
    return total + num_layers * update_seconds(1 / world_size)


def step_bytes(world_size: int, num_layers: int, global_batch_size: int, batch_size: int) -> float:
    """Memory of the shards, of the activations of a micro-batch with their gradients, and of a few layers that are briefly whole."""
    sharded = num_layers * (2 * LAYER.weight_bytes() + LAYER.optimizer_bytes()) / world_size
    samples = min(batch_size, global_batch_size // world_size)
    activations = (num_layers + contract.ZERO_ACTIVATIONS.number) * LAYER.activation_bytes(samples)
    return sharded + activations + contract.ZERO_WEIGHTS.number * LAYER.weight_bytes()
