"""Memory of a rank as the loop sees it: dicts that account for their contents."""

from __future__ import annotations

from collections.abc import Iterable

from course_lib.sim.core.errors import MissingValue, SimulationError
from course_lib.sim.core.values import VALUES
from course_lib.utils import wording

_MISSING = object()


class Storage(dict):
    """Dict whose values occupy the rank's memory until they are deleted or replaced.

    The student chooses the keys: a layer, or a tuple such as (layer, micro-batch). A list, tuple or dict of values is counted as it is
    when it is stored.
    """

    __slots__ = ("_within", "model", "name")

    def __init__(self, name: str, model):
        self.name, self.model = name, model
        self._within: dict[object, list] = {}  # values of the containers, by key

    def __setitem__(self, key: object, value: object) -> None:
        model = self.model
        if key in self:
            old = dict.__getitem__(self, key)
            if old.__class__ in VALUES:
                model.drop(old)
            else:
                self._drop_within(key)
        dict.__setitem__(self, key, value)
        if value.__class__ in VALUES:
            if value.model is not model:
                self._refuse(key, value)
            model.hold(value)
        else:
            self._within[key] = [self._checked(key, v) for v in _leaves(value)]
            for inner in self._within[key]:
                model.hold(inner)

    def __delitem__(self, key: object) -> None:
        if key not in self:
            self.__missing__(key)
        old = dict.pop(self, key)
        if old.__class__ in VALUES:
            self.model.drop(old)
        else:
            self._drop_within(key)

    def __missing__(self, key: object):
        ways = {"weights": "load_weights or all_gather", "opt_states": "load_weights", "activations": "forward"}
        way = f" ({ways[self.name]} would have created it)" if self.name in ways else ""
        layer = key if isinstance(key, int) else None
        keys = ", ".join(repr(k) for k in list(self)[:6]) + (", ..." if len(self) > 6 else "")
        there = f" The existing keys: {keys}." if keys else ""
        loaded = sorted({row[1] for row in self.model.rows if row[0] == "load"})
        if loaded and len(loaded) < self.model.num_layers:
            there += f" This rank has loaded the weights of layer{'s' * (len(loaded) > 1)} {wording.spans(loaded)}."
        text = f"{self.name}[{key!r}] does not exist: it was never stored on this rank{way}, or has been deleted.{there}"
        raise MissingValue(text, rank=self.model.rank, layer=layer, time=self.model.time)

    def _drop_within(self, key: object) -> None:
        for value in self._within.pop(key):
            self.model.drop(value)

    def _checked(self, key: object, value: object) -> object:
        if value.__class__ not in VALUES or value.model is not self.model:
            self._refuse(key, value)
        return value

    def _refuse(self, key: object, value: object) -> None:
        model = self.model
        if value.__class__ in VALUES:
            problem = f"is a {value.name} of rank {value.model.rank}: it has to be sent here first."
        elif hasattr(value, "__await__") or hasattr(value, "exchange"):
            problem = "is a communication that was not awaited: write `await` before it."
        else:
            problem = f"must be a weight, an optimizer state, an activation or a gradient; got {type(value).__name__}."
        raise SimulationError(f"{self.name}[{key!r}] {problem}", rank=model.rank, time=model.time)

    # The other dict methods, in terms of the two above.

    def pop(self, key: object, default: object = _MISSING) -> object:
        value = dict.pop(self, key, _MISSING)
        if value.__class__ in VALUES:
            self.model.drop(value)
        elif value is _MISSING:
            return self.__missing__(key) if default is _MISSING else default
        else:
            self._drop_within(key)
        return value

    def popitem(self) -> tuple:
        if not self:
            return self.pop("anything")
        key = next(reversed(self))
        return key, self.pop(key)

    def clear(self) -> None:
        for key in list(self):
            del self[key]

    def setdefault(self, key: object, default: object = None) -> object:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: object, **more: object) -> None:
        for key, value in dict(*others, **more).items():
            self[key] = value

    def __ior__(self, other: object) -> Storage:
        self.update(other)
        return self


def _leaves(value: object) -> Iterable:
    """Yield the values in a container; anything else is its own leaf."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [leaf for v in value.values() for leaf in _leaves(v)]
    if isinstance(value, (list, tuple, set)):
        return [leaf for v in value for leaf in _leaves(v)]
    return [value]
