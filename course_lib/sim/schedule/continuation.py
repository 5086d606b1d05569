"""Check that the next step could begin: each rank must end with the updated form of what it began with."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.sim.core.errors import SimulationError
from course_lib.sim.core.values import OptState, Weight
from course_lib.sim.schedule.stats import loaded_values


def check_continuation(models: Sequence) -> None:
    """Raise SimulationError unless each rank keeps weights and optimizer states for the next step.

    Parameters
    ----------
    models : sequence of Model
        As returned by `replay.replay`.
    """
    for model in models:
        initial_values = [model.values[number] for *_, number in loaded_values(model)]
        kept = [v for v in model.values.values() if v is not None and v.holds]
        for kind, way in (
            (Weight, "keep what update returns, or what is gathered from it, in weights"),
            (OptState, "keep what update returns in opt_states"),
        ):
            first = _fraction_by_layer([v for v in initial_values if isinstance(v, kind) and not v.updated])
            last = _fraction_by_layer([v for v in kept if isinstance(v, kind) and v.updated])
            for layer, part in first.items():
                if last.get(layer, 0.0) < part:
                    if not any(row[0] == "hold" for row in model.rows):
                        way += ". Nothing was ever stored in the dicts of model.storage(); other dicts are not the rank's memory"
                    raise SimulationError(
                        f"the rank began with {_format_fraction(part)} of the {kind.name} "
                        f"and ends with {_format_fraction(last.get(layer, 0.0))} of the updated one, "
                        f"so the next step could not begin: {way}.",
                        rank=model.rank,
                        layer=layer,
                        time=model.time,
                    )


def _fraction_by_layer(values: list) -> dict[int, float]:
    """Fraction of each layer, 0 to 1."""
    shards: dict[tuple[int, int], int] = {}
    for v in values:
        shards[v.layer, v.num_shards] = shards.get((v.layer, v.num_shards), 0) | v.shards
    parts: dict[int, float] = {}
    for (layer, n), mask in shards.items():
        parts[layer] = max(parts.get(layer, 0.0), mask.bit_count() / n)
    return parts


def _format_fraction(part: float) -> str:
    return "all" if part == 1 else "nothing" if part == 0 else f"{part:.3g}"
