"""Models and clusters, read from a small TOML file or selected by name."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, fields, replace
from pathlib import Path

from course_lib.sim.core.hardware import Link
from course_lib.sim.llm.cluster import DEVICE_PRESETS, Cluster, Device
from course_lib.sim.llm.configuration import PlanError
from course_lib.sim.llm.hardware.presets import NETWORK_EFFICIENCIES
from course_lib.sim.llm.hardware.software import SOFTWARE_PRESETS, Software
from course_lib.sim.llm.transformer import MODEL_PRESETS, Transformer

# Smaller values indicate another unit.
MIN_VALUES = {
    "memory": (1e9, "bytes"),
    "bandwidth": (1e6, "bytes a second"),
    "memory_bandwidth": (1e9, "bytes a second"),
    "flops": (1e9, "FLOP a second"),
    "flops8": (1e9, "FLOP a second"),
}


def model_named(name: str) -> Transformer:
    """Look up one of `MODEL_PRESETS`; PlanError if there is none."""
    if name.lower() not in MODEL_PRESETS:
        raise PlanError(f"there is no model {name!r}: choose one of {', '.join(MODEL_PRESETS)}, or describe it in a file (--file).")
    return MODEL_PRESETS[name.lower()]


def device_named(name: str) -> Device:
    """Look up one of `DEVICE_PRESETS`; PlanError if there is none."""
    return _named("device", name, DEVICE_PRESETS)


def software_named(name: str) -> Software:
    """Look up one of `SOFTWARE_PRESETS`; PlanError if there is none."""
    return _named("software", name, SOFTWARE_PRESETS)


def network_named(name: str, device: Device) -> Link:
    """Return the device's link to other nodes, on a network of this kind; PlanError if there is none of it."""
    return replace(device.network, efficiency=_named("network", name, NETWORK_EFFICIENCIES))


def _named(kind: str, name: str, presets: dict) -> object:
    if name.lower() not in presets:
        raise PlanError(f"there is no {kind} {name!r}: choose one of {', '.join(presets)}, or describe it in a file (--file).")
    return presets[name.lower()]


def read(path: Path, model: Transformer | None, device: Device | None, gpus: int | None) -> tuple[Transformer | None, Cluster | None]:
    """Read a model and a cluster from a file.

    Parameters
    ----------
    path : Path
        TOML with the tables ``[model]`` and ``[cluster]``, or one of them. Keys are those of `Transformer` and `Cluster`; a model may
        start with ``preset = "70b"``; a cluster's ``device`` is a name, or a table with the fields of `Device`, which may start with the
        ``name`` of a known one; ``inside`` and ``network`` are tables with the fields of `Link`.
    model, device, gpus
        Defaults for what the file does not specify.

    Raises
    ------
    PlanError
        The file cannot be read, or contains something unknown.
    """
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise PlanError(f"{path} is not valid TOML: {error}.") from None
    unknown = sorted(found.keys() - {"model", "cluster"})
    if unknown:
        raise PlanError(f"{path} has {unknown[0]!r}; it may have the tables [model] and [cluster].")
    try:
        if "model" in found:
            model = _model(path, dict(_require_table(path, "model", found["model"])))
        place = _cluster(path, dict(_require_table(path, "cluster", found.get("cluster", {}))), device, gpus)
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, PlanError) else PlanError(f"{path}: {error}") from None
    return model, place


def _model(path: Path, keys: dict) -> Transformer:
    base = model_named(str(keys.pop("preset"))) if "preset" in keys else None
    _check_keys(path, "model", keys, Transformer)
    if base:
        # Defaults derived from a size are derived from the new one; and the preset's name is extended if anything else changes.
        again = {name: None for name, (of, was) in _derived(base).items() if was and not of.isdisjoint(keys)}
        return replace(base, **again | ({"name": f"{base.name} ({path.name})"} if keys else {}) | keys)
    _require_keys(path, "model", keys, {"layers", "hidden", "heads"}, ", or a preset")
    return Transformer(**{"name": path.stem} | keys)


def _derived(base: Transformer) -> dict[str, tuple[set[str], bool]]:
    """Fields that have a default: the fields that it is derived from, and whether they have it here."""
    width = base.head_width == base.hidden // base.heads
    return {
        "feed_forward": ({"hidden"}, base.feed_forward == 4 * base.hidden),
        "kv_heads": ({"heads"}, base.kv_heads == base.heads),
        "head_width": ({"hidden", "heads"}, width),
        "value_width": ({"hidden", "heads", "head_width"}, base.value_width == base.head_width),
        "expert_feed_forward": ({"feed_forward", "hidden"}, not base.experts or base.expert_feed_forward == base.feed_forward),
    }


def _cluster(path: Path, keys: dict, device: Device | None, gpus: int | None) -> Cluster | None:
    gpus, described = keys.pop("gpus", gpus), keys.pop("device", device or "h100")
    if gpus is None and not keys and described == "h100":
        return None
    if gpus is None:
        raise PlanError(f"{path}: [cluster] needs gpus, the number of devices.")
    software = keys.pop("software", None)
    if software is not None:
        keys["software"] = _software(path, software)
    network = keys.get("network")
    if isinstance(network, str):
        del keys["network"]
    _links(path, "cluster", keys)
    _check_keys(path, "cluster", keys, Cluster)
    if isinstance(described, str):
        try:
            described = device_named(described)
        except PlanError:
            known = ", ".join(DEVICE_PRESETS)
            raise PlanError(f"{path}: there is no device {described!r}: choose one of {known}, or give a table of its fields.") from None
    elif not isinstance(described, Device):
        described = _device(path, dict(_require_table(path, "device", described)))
    if isinstance(network, str):
        keys["network"] = network_named(network, described)
    return Cluster(described, gpus, **keys)


def _software(path: Path, described: object) -> Software:
    """Software by name, or by a table of its fields, which may have a name to start from."""
    if isinstance(described, str):
        return software_named(described)
    keys = dict(_check_keys(path, "cluster.software", _require_table(path, "software", described), Software))
    base = SOFTWARE_PRESETS.get(str(keys.get("name", "")).lower(), Software(path.stem))
    return replace(base, **keys)


def _device(path: Path, keys: dict) -> Device:
    _links(path, "cluster.device", keys)
    _check_keys(path, "cluster.device", keys, Device)
    base = DEVICE_PRESETS.get(str(keys.get("name", "")).lower())
    if base:
        return replace(base, **{key: value for key, value in keys.items() if key != "name"})
    needed = {field.name for field in fields(Device) if field.default is MISSING}
    _require_keys(path, "cluster.device", keys, needed, f", or the name of a known device: {', '.join(DEVICE_PRESETS)}")
    return Device(**keys)


def _links(path: Path, table: str, keys: dict) -> None:
    """Replace the tables that describe links by links."""
    for name in ("inside", "network"):
        if name in keys:
            known = _check_keys(path, f"{table}.{name}", _require_table(path, name, keys[name]), Link)
            _require_keys(path, f"{table}.{name}", known, {"bandwidth"}, "")
            keys[name] = Link(**known)


def _require_keys(path: Path, table: str, keys: dict, needed: set[str], otherwise: str) -> None:
    lacks = needed - keys.keys()
    if lacks:
        raise PlanError(f"{path}: [{table}] also needs {' and '.join(sorted(lacks))}{otherwise}.")


def _require_table(path: Path, name: str, value: object) -> dict:
    if not isinstance(value, dict):
        raise PlanError(f"{path}: {name} must be a table; got {value!r}.")
    return value


def _check_keys(path: Path, table: str, keys: dict, kind: type) -> dict:
    """Return the keys after checking that `kind` has fields of these names and types."""
    names = {field.name: field.type for field in fields(kind)}
    for key, value in keys.items():
        if key not in names:
            raise PlanError(f"{path}: [{table}] has {key!r}; it may have {', '.join(names)}.")
        wanted = names[key].removesuffix(" | None")
        what, kinds = {"float": ("a number", (int, float)), "int": ("a whole number", int), "bool": ("true or false", bool)}.get(
            wanted, ("a text", str) if wanted == "str" else ("", object)
        )
        if not isinstance(value, kinds) or (isinstance(value, bool) and wanted != "bool"):
            raise PlanError(f"{path}: {key} in [{table}] must be {what}; got {value!r}.")
        if 0 < MIN_VALUES.get(key, (0, ""))[0] > value > 0:
            least, unit = MIN_VALUES[key]
            raise PlanError(f"{path}: {key} in [{table}] is in {unit}, so at least {least:g}; got {value!r}.")
    return keys
