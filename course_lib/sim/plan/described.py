"""Models and clusters from a small TOML file, or by name."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path

from course_lib.sim.hardware import Link
from course_lib.sim.llm.cluster import DEVICES, Cluster, Device, cluster
from course_lib.sim.llm.configuration import PlanError
from course_lib.sim.llm.transformer import PRESETS, Transformer


def model_named(name: str) -> Transformer:
    """One of `PRESETS`; PlanError if there is none."""
    if name.lower() not in PRESETS:
        raise PlanError(f"there is no model {name!r}: choose one of {', '.join(PRESETS)}, or describe it in a file (--file).")
    return PRESETS[name.lower()]


def read(path: Path, model: Transformer | None, place: Cluster | None) -> tuple[Transformer | None, Cluster | None]:
    """A model and a cluster as a file describes them.

    Parameters
    ----------
    path : Path
        TOML with the tables ``[model]`` and ``[cluster]``, or one of them. Keys are those of `Transformer` and `Cluster`; a model's may
        begin with ``preset = "70b"``; a cluster's ``device`` is a name, or a table with what `Device` has; ``inside`` and ``network`` are
        tables with what `Link` has.
    model, place
        What there is where the file has no such table.

    Raises
    ------
    PlanError
        The file cannot be read, or what it says is not understood.
    """
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise PlanError(f"{path} is no TOML: {error}.") from None
    unknown = sorted(found.keys() - {"model", "cluster"})
    if unknown:
        raise PlanError(f"{path} has {unknown[0]!r}; it may have the tables [model] and [cluster].")
    try:
        if "model" in found:
            model = _model(path, dict(_table(path, "model", found["model"])))
        if "cluster" in found:
            place = _cluster(path, dict(_table(path, "cluster", found["cluster"])), place)
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, PlanError) else PlanError(f"{path}: {error}") from None
    return model, place


def _model(path: Path, keys: dict) -> Transformer:
    base = model_named(str(keys.pop("preset"))) if "preset" in keys else None
    _known(path, "model", keys, Transformer)
    if base:
        return replace(base, **keys)
    lacks = {"layers", "hidden", "heads"} - keys.keys()
    if lacks:
        raise PlanError(f"{path}: [model] needs {', '.join(sorted(lacks))}, or a preset.")
    return Transformer(**{"name": path.stem} | keys)


def _cluster(path: Path, keys: dict, before: Cluster | None) -> Cluster:
    gpus = keys.pop("gpus", before.gpus if before else None)
    if gpus is None:
        raise PlanError(f"{path}: [cluster] needs gpus, how many there are.")
    device = keys.pop("device", "h100")
    for name in ("inside", "network"):
        if name in keys:
            keys[name] = Link(**_known(path, f"cluster.{name}", _table(path, name, keys[name]), Link))
    _known(path, "cluster", keys, Cluster)
    if isinstance(device, str):
        return cluster(device.lower(), gpus, **keys)
    known = _known(path, "cluster.device", dict(_table(path, "device", device)), Device)
    base = DEVICES.get(str(known.get("name", "")).lower(), DEVICES["h100"])
    return replace(cluster("h100", gpus, **keys), device=replace(base, **known))


def _table(path: Path, name: str, value: object) -> dict:
    if not isinstance(value, dict):
        raise PlanError(f"{path}: {name} must be a table; got {value!r}.")
    return value


def _known(path: Path, table: str, keys: dict, kind: type) -> dict:
    """The keys, if `kind` has fields of all these names, and numbers where it has numbers."""
    names = {field.name: field.type for field in fields(kind)}
    for key, value in keys.items():
        if key not in names:
            raise PlanError(f"{path}: [{table}] has {key!r}; it may have {', '.join(names)}.")
        if names[key] in ("float", "int") and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0):
            raise PlanError(f"{path}: {key} in [{table}] must be a number, 0 or more; got {value!r}.")
    return keys
