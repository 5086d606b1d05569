"""Check of part 18's loop: a pipeline with the whole batch."""

from __future__ import annotations

from course_lib.sim.core.hardware import H100, LAYER
from course_lib.sim.schedule.check import ScheduleCheck, compute_seconds, contract, update_seconds
from course_lib.sim.schedule.simulation import Result


class PipelineScheduleCheck(ScheduleCheck):
    """A `ScheduleCheck` with the split of the layers, the time and the memory of a step."""

    def split(self, world_size: int, num_layers: int, global_batch_size: int) -> Result:
        """Run a step, and check that each rank does all work of its own layers, with all samples; return its result."""
        result = self.run(world_size=world_size, num_layers=num_layers, global_batch_size=global_batch_size)
        depth = num_layers // world_size
        self.stages(result.models, depth)
        for model in result.models:
            for kind in ("forward", "backward"):
                ran = sum(row[0] == kind for row in model.rows)
                if ran > depth:
                    self.fail(f"rank {model.rank}: {kind} ran {ran} times for its {depth} layers", "a layer that runs again")
            for event in model.log:
                if event.kind in ("forward", "backward") and len(event.samples) != global_batch_size:
                    samples = f"only {len(event.samples)} of the {global_batch_size} samples"
                    self.fail(f"rank {model.rank} runs {event.kind} on {samples} at once")
        return result

    def step(self, world_size: int, num_layers: int, global_batch_size: int) -> Result:
        """Run a step, and check the split of the layers, the time and the memory; return its result."""
        result = self.split(world_size, num_layers, global_batch_size)
        for model in result.models:
            sent = sorted(row[6][1][0] for row in model.rows if row[0] == "call" and row[6][0] == "send")
            neighbors = [rank for rank in (model.rank - 1, model.rank + 1) if 0 <= rank < world_size]
            if sent != neighbors:
                problem = f"rank {model.rank} sends {len(sent)} messages, to ranks {sent}; one to each neighbor is enough"
                self.fail(problem, limit=contract.PIPELINE_MESSAGES)
        enough = step_bytes(world_size, num_layers, global_batch_size)
        cause = "activations or gradients that are no longer needed"
        self.memory(result, enough, cause, contract.PIPELINE_ACTIVATIONS)
        enough = step_seconds(world_size, num_layers, global_batch_size)
        cause = "a rank that waits for more than it needs, or that updates before it has passed the gradient on"
        self.time(result, enough, cause, contract.TIME[self.loop])
        return result


def step_seconds(world_size: int, num_layers: int, global_batch_size: int) -> float:
    """Time of one rank after the other: the compute of all layers, one message each way between neighbours, one rank's update."""
    link, message = H100.link(range(world_size)), LAYER.activation_bytes(global_batch_size)
    communication = 2 * (world_size - 1) * link.send(message) + H100.host.send(message)
    return num_layers * sum(compute_seconds(global_batch_size)) + communication + num_layers / world_size * update_seconds()


def step_bytes(world_size: int, num_layers: int, global_batch_size: int) -> float:
    """Memory of a rank's layers with their gradients and activations, and of whatever is being computed."""
    depth = num_layers / world_size
    state = depth * (2 * LAYER.weight_bytes() + LAYER.optimizer_bytes())
    return state + (depth + contract.PIPELINE_ACTIVATIONS.number) * LAYER.activation_bytes(global_batch_size)
