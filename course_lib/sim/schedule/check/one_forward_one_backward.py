"""Check of part 19's loop: the order of 1F1B, micro-batches in flight, and time."""

from __future__ import annotations

from course_lib.sim.core.batches import get_global_batch_list
from course_lib.sim.core.hardware import FREE_COMMUNICATION, LAYER
from course_lib.sim.llm.costs.schedule import work_order
from course_lib.sim.schedule import replay, stats
from course_lib.sim.schedule.check import ScheduleCheck, compute_seconds, contract, left_over, update_seconds
from course_lib.sim.schedule.simulation import Result
from course_lib.utils import wording

SHOWN_PIECES = 16  # pieces of a rank's work that the check half way prints


class OneForwardOneBackwardCheck(ScheduleCheck):
    """A `ScheduleCheck` with the order of the work, the micro-batches in flight, the time and the memory of a step."""

    def order_alone(self, **sizes: int) -> None:
        """Check half way: print each rank's work next to the wanted order, however far the loop comes.

        Nothing else has to be right yet: not memory, nor time, nor updates. An error of the simulator is only quoted.

        Raises
        ------
        CheckFailed
            A rank departs from the order, or stops before its last backward.
        """
        arguments = dict(batch_size=sizes.pop("batch_size"))
        self.case = ""  # its only case stands in the cell
        record, error = self.ranks.call(record_attempt, dict(loop=self.loop, sizes=sizes, arguments=arguments))[0]
        models = replay.replay(record, **sizes, memory_limit=False)
        orders = wanted_orders(sizes["world_size"], -(-sizes["global_batch_size"] // arguments["batch_size"]))
        wrong, short = [], []
        for rank, (got, wanted) in enumerate(zip(orders_of(models), orders, strict=True)):
            if got == wanted:
                print(f"rank {rank}: {_pieces(got, 0)}   right")
            elif got == wanted[: len(got)]:
                short.append(rank)
                print(f"rank {rank}: {_pieces(got, 0)}   right so far" if got else f"rank {rank}: nothing yet")
            else:
                at = _first_difference(got, wanted)
                wrong.append(f"rank {rank} from piece of work {at + 1} on")
                print(f"rank {rank}: {_pieces(got, at)}   not yet: here it should be\n        {_pieces(wanted, at)}")
        stopped = f". The loop stopped with: {error}".rstrip(".") if error else ""
        if wrong:
            cause = "" if stopped else "too many or too few forwards before the first backward"
            self.fail(f"another order: {', '.join(wrong)}{stopped}", cause)
        if short:
            self.fail(f"{wording.ranks(short)} did not get to the last backward{stopped}")
        print(f"The order is right on every rank. Next come memory and time{stopped}.")

    def order(self, **sizes: int) -> Result:
        """Run a step, and check each rank's order; which samples come first is up to the loop. Return its result."""
        result = self.run(**sizes)
        wanted_of = wanted_orders(sizes["world_size"], -(-sizes["global_batch_size"] // sizes["batch_size"]))
        for rank, (got, wanted) in enumerate(zip(orders_of(result.models), wanted_of, strict=True)):
            if got != wanted:
                at = _first_difference(got, wanted)
                said, expected = (" ".join(work[max(0, at - 3) : at + 4]) for work in (got, wanted))
                shown = f": it did {said}, expected {expected}" if self.show else ""
                self.fail(f"rank {rank} breaks the 1F1B order at step {at + 1}{shown}", "too many or too few forwards at the start")
        wanted = [len(batch) for batch in get_global_batch_list(sizes["global_batch_size"], sizes["batch_size"])]
        self.micro_batches(result.models, lambda rank: wanted)
        self.stages(result.models, sizes["num_layers"] // sizes["world_size"])
        return result

    def in_flight(self, result: Result, *, world_size: int, num_layers: int, global_batch_size: int, batch_size: int) -> None:
        """Check that a rank keeps the activations of its micro-batches in flight, and of what it is computing, and no more."""
        depth, batches = num_layers // world_size, -(-global_batch_size // batch_size)
        state = depth * (2 * LAYER.weight_bytes() + LAYER.optimizer_bytes()) + LAYER.weight_bytes()
        for model in result.models:
            flying, most = stats.in_flight(model), min(world_size - model.rank, batches)
            if flying > most:
                self.fail(
                    f"rank {model.rank} has {flying} micro-batches in flight, but {most} are enough",
                    "forward runs too far ahead",
                    limit=contract.IN_FLIGHT,
                )
            activations = most * depth + contract.FURTHER_ACTIVATIONS.number
            enough = state + activations * LAYER.activation_bytes(batch_size)
            if stats.peak_memory(model) > enough:
                problem = f"rank {model.rank} holds too much at its peak{left_over(model)}"
                self.fail(problem, "activations not freed after their backward", limit=contract.FURTHER_ACTIVATIONS)

    def bubble(self, *, world_size: int, num_layers: int, global_batch_size: int, batch_size: int) -> Result:
        """Run a step with free communication, and check that it takes the formula's time plus the update; return its result."""
        sizes = dict(world_size=world_size, num_layers=num_layers, global_batch_size=global_batch_size, batch_size=batch_size)
        result, depth, batches = self.run(**sizes, hardware=FREE_COMMUNICATION), num_layers // world_size, global_batch_size // batch_size
        for model in result.models:
            ran = sum(row[0] == "forward" for row in model.rows)
            if ran > depth * batches:
                self.fail(
                    f"rank {model.rank}: forward ran {ran} times for {depth} layers and {batches} micro-batches", "a layer that runs again"
                )
        seconds = (batches + world_size - 1) * depth * sum(compute_seconds(batch_size)) + depth * update_seconds()
        cause = "a message that is sent later than it could be, or a different order"
        self.time(result, seconds, cause, contract.TIME[self.loop])
        return result


def record_attempt(loop, sizes, arguments):
    """Run a loop on the rank as far as it goes; return the record, and the simulator's error or an empty string."""
    from course_lib.sim.core.dist import Dist
    from course_lib.sim.core.errors import SimulationError
    from course_lib.sim.core.model import Model
    from course_lib.sim.schedule import replay, simulation

    if loop not in globals():
        raise NameError(f"name '{loop}' is not defined", name=loop)
    dist, error = Dist(sizes["world_size"], strict=True), ""
    models = [Model(rank, dist, sizes["num_layers"], sizes["global_batch_size"]) for rank in range(sizes["world_size"])]
    try:
        simulation.drive(globals()[loop], models, **arguments)
    except SimulationError as problem:
        error = str(problem)
    return replay.export(models), error


def wanted_orders(ranks: int, batches: int) -> list[list[str]]:
    """List each rank's work in 1F1B.

    >>> wanted_orders(2, 3)[0]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    return [[f"{'F' if forward else 'B'}{k}" for forward, _, k in work_order(rank, ranks, 1, batches)] for rank in range(ranks)]


def orders_of(models: list) -> list[list[str]]:
    """List each rank's work, with its micro-batches numbered as it took them."""
    orders = []
    for model in models:
        done = stats.schedule(model)
        numbers = {mask: k for k, mask in enumerate(dict.fromkeys(mask for kind, mask in done if kind == "forward"))}
        orders.append([f"{kind[0].upper()}{numbers.get(mask)}" for kind, mask in done])
    return orders


def _first_difference(got: list[str], wanted: list[str]) -> int:
    """Index of the first piece of work that differs."""
    return next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))


def _pieces(work: list[str], at: int) -> str:
    """Some pieces of work, from a little before this one on."""
    start = max(0, at - SHOWN_PIECES // 2)
    shown = " ".join(work[start : start + SHOWN_PIECES])
    return ("... " if start else "") + shown + (" ..." if len(work) > start + SHOWN_PIECES else "")
