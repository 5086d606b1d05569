"""Named random generators of a rank, whose states can be saved and restored together.

Megatron-LM keeps such a set, too: `CudaRNGStatesTracker`.
"""

from __future__ import annotations

import copy

import numpy as np


class RandomStates:
    """Random generators by name.

    Examples
    --------
    >>> states = RandomStates()
    >>> states.seed(0, rank=3)
    >>> saved = states.get()
    >>> first = states["sharded"].random()
    >>> states.set(saved)
    >>> states["sharded"].random() == first
    True
    """

    def __init__(self):
        self._generators: dict[str, np.random.Generator] = {}

    def seed(self, seed: int, rank: int) -> None:
        """Seed two generators: ``"replicated"`` draws the same numbers on all ranks, ``"sharded"`` different ones on each."""
        self.add("replicated", [seed, 0])
        self.add("sharded", [seed, 1 + rank])

    def add(self, name: str, seed: int | list[int]) -> np.random.Generator:
        """Add a generator, or seed it anew if there is one of this name; return it."""
        fresh = np.random.default_rng(seed)
        known = self._generators.setdefault(name, fresh)
        known.bit_generator.state = fresh.bit_generator.state
        return known

    def __getitem__(self, name: str) -> np.random.Generator:
        if name not in self._generators:
            known = ", ".join(self._generators) or "none yet: call seed first"
            raise KeyError(f"there is no random generator {name!r}; there are {known}.")
        return self._generators[name]

    def get(self) -> dict[str, dict]:
        """Return a copy of all generators' states, by name."""
        return {name: copy.deepcopy(one.bit_generator.state) for name, one in self._generators.items()}

    def set(self, states: dict[str, dict]) -> None:
        """Put generators back into states that `get` returned."""
        for name, state in states.items():
            self[name].bit_generator.state = state


random_states = RandomStates()  # this rank's
