"""Limits and left-out kinds of cases, as the checks of all parts state them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from course_lib import check, sim
from course_lib.check.cases import KINDS
from course_lib.check.limits import Limit


def contracts() -> Iterator[ModuleType]:
    """Yield the module ``contract`` of each room of checks that has one."""
    for package in (check, sim):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith(".contract"):
                yield importlib.import_module(module.name)


def limits() -> dict[str, Limit]:
    """Return all limits by the name of their module and their own; of a dict also its key."""
    found = {}
    for contract in contracts():
        for name, value in vars(contract).items():
            if isinstance(value, Limit):
                found[f"{contract.__name__}.{name}"] = value
            if isinstance(value, dict):
                each = {key: limit for key, limit in value.items() if isinstance(limit, Limit)}
                found |= {f"{contract.__name__}.{name}.{key}": each[key] for key in each}
    return found


def reasons() -> dict[str, dict[str, str]]:
    """Return for each exercise the kinds of cases that are not drawn, with the reasons."""
    merged: dict[str, dict[str, str]] = {}
    for contract in contracts():
        for exercise, kinds in contract.NOT_DRAWN.items():
            merged.setdefault(exercise, {}).update(kinds)
    return merged


def undrawn(exercise: str, drawn: set[str]) -> list[str]:
    """Return the kinds of cases that an exercise's checks have not drawn, for no stated reason.

    None is missing for an exercise without a contract, such as one of a new part; each exercise
    that is graded has one, as a test shows.
    """
    stated = reasons().get(exercise)
    if stated is None:
        return []
    return [kind for kind in KINDS if kind not in drawn and kind not in stated]
