"""Export of a run as plain data, and replay of the run from that data.

The record only contains which operation used which values. Times, memory and all checks are computed anew by the simulator that
replays it, so a record can be judged without trusting the process that produced it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Mapping, Sequence

from course_lib.engine import run_coroutine
from course_lib.sim.core.dist import Dist
from course_lib.sim.core.errors import SimulationError
from course_lib.sim.core.hardware import H100, LAYER, Hardware, Layer
from course_lib.sim.core.model import Model
from course_lib.sim.schedule.stats import COMMUNICATION_KINDS


def export(models: Sequence) -> str:
    """Export the rows of all ranks as JSON."""
    return json.dumps([[_plain_row(row) for row in m.rows] for m in models])


def _plain_row(row: tuple) -> list:
    if len(row) == 2:
        return list(row)
    kind, layer, _, _, used, made, extra = row
    if kind == "input":
        extra = hex(extra)
    elif kind not in ("load", "shard", "call"):
        extra = None
    return [kind, layer, used, made, extra]


def replay(
    text: str,
    *,
    world_size: int,
    num_layers: int,
    global_batch_size: int,
    hardware: Hardware = H100,
    layer: Layer = LAYER,
    memory_limit: bool = True,
    slowdown: Mapping[int, float] | None = None,
) -> list:
    """Replay a record on new models.

    Parameters
    ----------
    text : str
        Output of `export`.

    Returns
    -------
    list of Model

    Raises
    ------
    SimulationError
        The record breaks a rule of the simulator, or is not a record.
    """
    dist = Dist(world_size, hardware, layer, memory_limit, slowdown, strict=True)
    models = [Model(r, dist, num_layers, global_batch_size) for r in range(world_size)]
    try:
        ranks = json.loads(text)
        if len(ranks) != world_size:
            raise ValueError(f"{len(ranks)} ranks instead of {world_size}")
        run_coroutine.run(gather_ranks([_replay_rank(m, rows) for m, rows in zip(models, ranks, strict=True)]))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        if isinstance(error, SimulationError):
            raise
        raise SimulationError(f"this is not the record of a run: {type(error).__name__}: {error}") from None
    return models


async def gather_ranks(coroutines: list) -> list:
    """Run all coroutines; the first error is raised, and `run_coroutine.run` ends the others."""
    collecting = gc.isenabled()
    gc.disable()  # hundreds of thousands of tuples, none of them garbage
    try:
        return await asyncio.gather(*coroutines)
    finally:
        if collecting:
            gc.enable()


async def _replay_rank(model: Model, rows: list) -> None:
    values = model.values = {}
    model.storage()
    for kind, layer, *rest in rows:
        if kind == "hold":
            model.hold(values[layer])
            continue
        if kind == "drop":
            if not values[layer].holds:
                raise ValueError("something that is not stored is dropped")
            model.drop(values[layer])
            continue
        used, made, extra = rest
        if kind in COMMUNICATION_KINDS:
            result = await values[made[0]]
        elif kind == "input":
            result = model.get_input_activation(_samples(extra, model.global_batch_size))
        else:
            operands = [values[i] for i in used]
            result = _operate(model, kind, layer, operands, extra)
        if kind == "final":
            continue
        for number, value in zip(made, result if isinstance(result, tuple) else (result,), strict=True):
            if value is not None and value.id != number:  # `stats.loaded_values` refers to values by these numbers
                raise ValueError(f"value {value.id} is called {number}")
            values[number] = value


def _samples(text: str, most: int) -> list[int]:
    from course_lib.sim.core.values import iter_bits

    if len(text) > most // 4 + 3:  # besides 0x, one digit for four samples
        raise ValueError(f"a set of more than {most} samples")
    if not re.fullmatch("0x[0-9a-f]+", text):  # a negative number would be an infinite set
        raise ValueError(f"{text!r} is not a set of samples")
    return list(iter_bits(int(text, 16)))


def _operate(model: Model, kind: str, layer: int, operands: list, extra: object) -> object:
    if kind == "load":
        return model.load_weights(layer, *extra)
    if kind == "call":
        name, place = extra
        if name in ("send", "receive"):
            return getattr(model, name)(place[0], *operands)
        if name not in COMMUNICATION_KINDS:
            raise ValueError(f"no communication {name!r}")
        return getattr(model, name)(operands[0], layer, place)
    if kind == "shard":
        return model.shard(*operands, *extra)
    if kind in ("add", "combine"):
        return getattr(model, kind)(*operands)
    if kind == "loss":
        return model.loss(*operands)
    if kind == "final":
        return model.set_final_weight(layer, *operands)
    if kind in ("forward", "backward", "update"):
        return getattr(model, kind)(layer, *operands)
    raise ValueError(f"no operation {kind!r}")
