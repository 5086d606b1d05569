"""Check of part 34's `PagedCache`: which slots texts have, over thousands of calls, and bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from course_lib.check.groups import GroupCheck
from course_lib.check.serving import contract
from course_lib.check.serving.on_ranks import fill_cache, forget_trial, read_cache, use_caches
from course_lib.utils import wording

CALLS = 500  # for each cache of a drawn run
MANY_SLOTS = 70_000  # more than 16 bits count
EXPLANATIONS = {
    "KeyError": (
        "a method of PagedCache looks for a text that has no blocks",
        "free and slots, which may be called with any number, also after an allocate that was refused",
    ),
    "pop from": (
        "PagedCache takes a block although none is free",
        "allocate or append without a look at how many blocks are free",
    ),
    "IndexError": (
        "a method of PagedCache looks for a block that its text does not have",
        "a length that grows although no block was free: a refused call changes nothing",
    ),
}


@dataclass
class Caches:
    """Caches of a rank, and calls of their methods, now of one, now of another.

    Parameters
    ----------
    sizes : list of (int, int)
        Blocks, and tokens in a block, of each cache.
    calls : list of (int, str, int, ...)
        Which cache, the method, the text, and further arguments.
    shape : tuple of int
        Of what a token keeps.
    dtype : str
    """

    sizes: list[tuple[int, int]]
    calls: list[tuple]
    shape: tuple[int, ...]
    dtype: str

    def on_rank(self) -> dict:
        """Return the arguments of `use_caches`."""
        same = {"shape": self.shape, "dtype": self.dtype}
        caches = [{"blocks": blocks, "block_size": size, **same} for blocks, size in self.sizes]
        return {"caches": caches, "calls": self.calls}


class CacheCheck(GroupCheck):
    """A `Check` of `PagedCache`. It knows how many blocks must be free, and which slots are whose."""

    def by_hand(self) -> CacheCheck:
        """Check a short story: three texts in four blocks of three tokens; one is freed twice."""
        calls = [("allocate", 7, 4), ("allocate", 0, 3), ("allocate", 9, 4), ("append", 7)]
        calls += [("append", 7), ("append", 7), ("append", 0), ("free", 7), ("free", 7)]
        calls += [("allocate", 9, 4), ("append", 0), ("free", 9), ("free", 0)]
        calls += [("allocate", 7, 4), ("free", 7), ("allocate", 5, 12)]
        return self._run([([(4, 3)], [(0, *call) for call in calls])] * 4)

    def drawn(self) -> CacheCheck:
        """Check drawn calls of two caches on each rank: texts come, grow and go.

        The caches are often full, to the last block. Some have blocks of one token, or one block.
        """
        block_sizes = self.random.permutation([1, *self.sizes(3, 2, 9)]).tolist()
        stories = []
        for i, size in enumerate(block_sizes):
            sizes = [(int(self.random.integers(9, 16)), size), ((1, 6, 9, 12)[i], size % 4 + 2)]
            # The same numbers in both caches, and small ones, also 0, on some ranks only.
            first = 0 if i % 2 == 0 else int(self.random.integers(1000, 1_000_000))
            drawn = [self._story(blocks, size, first) for blocks, size in sizes]
            order = self.random.permutation(np.repeat([0, 1], [len(calls) for calls in drawn]))
            left = [iter(calls) for calls in drawn]
            stories.append((sizes, [(int(which), *next(left[which])) for which in order]))
        return self._run(stories)

    def many_slots(self) -> CacheCheck:
        """Check a cache with more slots than 16 bits count, and a text that has all of them."""
        calls = [(0, "allocate", 3, MANY_SLOTS), (0, "append", 3), (0, "free", 3)]
        return self._run([([(MANY_SLOTS // 10, 10)], calls)] * 4)

    def _run(self, stories: list[tuple[list, list]]) -> CacheCheck:
        dtypes = np.roll(["float32", "float64", "float16", "float64"], int(self.random.integers(4)))
        ranks = [
            Caches(sizes, calls, (1, 2, 1, int(self.random.integers(1, 4))), str(dtype))
            for (sizes, calls), dtype in zip(stories, dtypes, strict=True)
        ]
        self.case = _describe(*ranks[0].sizes[0])
        given = [caches.on_rank() for caches in ranks]
        answers = self.call(use_caches, given, explain=EXPLANATIONS, show=self.show)
        for r, (caches, (made, results, slots)) in enumerate(zip(ranks, answers, strict=True)):
            for (blocks, size), (data_shape, dtype) in zip(caches.sizes, made, strict=True):
                self.case = _describe(blocks, size)
                want = (*caches.shape[:2], blocks * size, *caches.shape[2:])
                self._data(data_shape, dtype, want, caches.dtype, r)
            self._arrays(caches.calls, slots, r)
            follow = [_Follow(self, blocks, size, r) for blocks, size in caches.sizes]
            before = caches.calls[0]
            for call, result, (own, earlier) in zip(caches.calls, results, slots, strict=True):
                which, *rest = call
                self.case = _describe(*caches.sizes[which])
                follow[which].after(*rest, result=result, slots=own)
                follow[before[0]].still(before[2], earlier, rest)
                before = call
        self.covers("dtypes", "sizes", "repetition", "results")
        return self

    def _data(self, shape: tuple, dtype: str, want: tuple, want_dtype: str, r: int) -> None:
        """Check shape and dtype of a cache's data."""
        if tuple(shape) != want:
            cause = "slots are tokens: blocks * block_size of them"
            self.fail(f"data on rank {r} has shape {tuple(shape)}, expected {want}", cause)
        if dtype != want_dtype:
            cause = "the argument dtype; np.zeros makes float64 without it"
            self.fail(f"data on rank {r} has dtype {dtype}, expected {want_dtype}", cause)

    def _arrays(self, calls: list[tuple], slots: list, r: int) -> None:
        """Check that `slots` returned a flat array of whole numbers after each call."""
        for (_, method, number, *_), (own, _) in zip(calls, slots, strict=True):
            if isinstance(own, np.ndarray) and own.ndim == 1 and own.dtype.kind in "iu":
                continue
            cause = "np.array([]) has dtype float64: np.array(..., int)"
            if not isinstance(own, np.ndarray):
                got, cause = f"a {type(own).__name__}", "a list that is returned as it is"
            elif own.ndim != 1:
                got, cause = f"an array with {own.ndim} dimensions", "an array of arrays"
            else:
                got = f"an array of {own.dtype}"
            said = f"slots({number}) on rank {r}, after {method}, must return a flat int array"
            self.fail(f"{said}; it returned {got}", cause)

    def _story(self, blocks: int, size: int, first: int = 0) -> list[tuple]:
        """Draw calls; most of the time, the cache is nearly full.

        Now and then exactly all free blocks are asked for, or one more. Every third text that is
        freed is freed once more, as a scheduler does that preempts a text and then finds it done.
        Numbers of texts begin with `first`.
        """
        tokens: dict[int, int] = {}
        calls: list[tuple] = [("free", first + 99_999)]
        number, frees, gone = first - 1, 0, []
        while len(calls) < CALLS:
            free = blocks - sum(-(-count // size) for count in tokens.values())
            kind = self.random.random()
            if tokens and kind < 0.55:
                text = list(tokens)[int(self.random.integers(len(tokens)))]
                calls.append(("append", text))
                tokens[text] += free > 0 or tokens[text] % size > 0
            elif tokens and kind < 0.7:
                text = list(tokens)[int(self.random.integers(len(tokens)))]
                del tokens[text]
                gone.append(text)
                frees += 1
                calls += [("free", text)] * (1 + (frees % 3 == 0))
            else:
                if gone and self.random.random() < 0.3:
                    text = gone.pop(0)  # it was preempted, and comes again
                else:
                    number += 1
                    text = number
                draws = [int(self.random.integers(1, 2 * size + 1)), size, free * size]
                draws += [free * size + 1, max((free - 1) * size, 0) + 1]
                count = max(int(self.random.choice(draws, p=[0.5, 0.2, 0.1, 0.1, 0.1])), 1)
                calls.append(("allocate", text, count))
                if -(-count // size) <= free:
                    tokens[text] = count
        calls += [("free", text) for text in tokens]
        last = number + 1
        return [*calls, ("allocate", last, blocks * size), ("append", last), ("free", last)]

    def memory(self) -> CacheCheck:
        """Check the bytes of a cache on four tensor parallel ranks, when it is full."""
        layers, heads, size, block_size = 4, 4, 16 + 8 * int(self.random.integers(0, 3)), 16
        blocks = (24 << 20) // (4 * 2 * layers * heads * size * block_size)  # about 24 MB in all
        slack = int(contract.CACHE_BYTES.number) << 20
        for n in (2, 4):
            shape, dtype = (layers, 2, 2 * heads // n, size), "float32"
            self.case = f"{_describe(blocks, block_size)}, {layers} layers, {shape[2]} of {2 * heads} heads of {size}"
            self.ranks.call(forget_trial)
            empty = self.baseline_memory("the cache")
            seed = int(self.random.integers(1 << 40))
            given = dict(blocks=blocks, block_size=block_size, shape=shape, dtype=dtype, seed=seed)
            answers = self.ranks.call(fill_cache, given, show=self.show)
            held = self.ranks.held()
            want = int(np.prod(shape)) * blocks * block_size * 4
            for r, (data_shape, data_dtype) in enumerate(answers):
                whole = (*shape[:2], blocks * block_size, *shape[2:])
                self._data(data_shape, data_dtype, whole, dtype, r)
                holds = held[r] - empty[r]
                if holds > want + slack:
                    said = f"{wording.size(holds)} for a full cache of {wording.size(want)}"
                    cause = "a second copy of keys and values"
                    self.fail(f"rank {r} holds {said}", cause, limit=contract.CACHE_BYTES)
            self._read_back(seed, (layers, blocks * block_size, *shape[2:]))
        self.ranks.call(forget_trial)
        return self

    def _read_back(self, seed: int, shape: tuple[int, ...]) -> None:
        """Check some of the numbers with which `fill_cache` has filled a cache."""
        layers, tokens, *rest = shape
        layer, kind = int(self.random.integers(layers)), int(self.random.integers(2))
        some = np.sort(self.random.permutation(tokens)[:50])
        drawn = np.random.default_rng(seed)
        for _ in range(2 * layer + kind + 1):
            values = drawn.random((tokens, *rest), np.float32)
        found = self.ranks.call(read_cache, dict(layer=layer, kind=kind, tokens=some), show=self.show)
        for r, got in enumerate(found):
            self.array(got, values[some], name="what was written into the cache", rank=r, cause="two slots that share memory")


class _Follow:
    """The tables of a cache after each call, as its slots show them.

    Parameters
    ----------
    check : CacheCheck
        Fails where something is wrong.
    blocks, size : int
        Blocks, and tokens in a block.
    r : int
        The rank.
    """

    def __init__(self, check: CacheCheck, blocks: int, size: int, r: int):
        self.check, self.blocks, self.size, self.r = check, blocks, size, r
        self.had: dict[int, np.ndarray] = {}  # by text: its slots
        self.freed: set[int] = set()
        self.owner = np.full(blocks * size, -1)  # by slot: its text

    def after(self, method: str, number: int, *more: int, result: object, slots: np.ndarray) -> None:
        """Compare what a call has returned, and the slots of its text after it."""
        before = self.had.get(number, np.empty(0, int))
        free = self.blocks - sum(-(-len(own) // self.size) for own in self.had.values())
        count = more[0] if method == "allocate" else len(before) + 1
        need = -(-count // self.size) - -(-len(before) // self.size)
        fits = need <= free
        call = f"{method}({', '.join(map(str, (number, *more)))})"
        is_bool = isinstance(result, (bool, np.bool_))
        if method != "free" and (not is_bool or bool(result) != fits):
            said = (
                f"{call} on rank {self.r} returned {result!r}, expected {fits}: it needs {need} "
                f"more blocks, and {free} of {self.blocks} are free"
            )
            self.check.fail(said, _wrong_answer(result, fits, free, bool(self.freed)))
        if method == "free":
            self.freed.add(number)
            want = 0
        else:
            want = count if fits else len(before)
        if len(slots) != want:
            cause = _wrong_count(method, fits, len(slots) > want, number in self.freed)
            said = f"text {number} on rank {self.r} has {len(slots)} slots, expected {want}"
            self.check.fail(f"after {call}, {said}", cause)
        self._slots(f"after {call},", number, before, slots.astype(int))
        self.owner[before] = -1
        self.owner[slots] = number
        self.had[number] = slots
        if not want:
            del self.had[number]

    def still(self, number: int, slots: object, later: list) -> None:
        """Compare the slots of the text of the call before, which were read together."""
        want = self.had.get(number, np.empty(0, int))
        if not isinstance(slots, np.ndarray) or not np.array_equal(slots, want):
            said = f"the slots of text {number} on rank {self.r} are other ones when those of text {later[1]} are read as well"
            self.check.fail(said, "one array in which the slots of all texts are returned")

    def _slots(self, when: str, number: int, before: np.ndarray, now: np.ndarray) -> None:
        """Check that a text has its earlier slots, no other text's, and whole blocks."""
        size, fail = self.size, self.check.fail
        text = f"text {number} on rank {self.r}"
        if len(now) and (now.min() < 0 or now.max() >= self.blocks * size):
            cause = "slot = block * block_size + place"
            fail(f"{when} a slot of {text} is outside of the cache", cause)
        kept = before[: len(now)]
        if not np.array_equal(now[: len(kept)], kept):
            cause = "slots in another order, or a new table for a text that grows"
            fail(f"{when} the earlier tokens of {text} have other slots than before", cause)
        others = self.owner[now]
        others = others[(others >= 0) & (others != number)]
        if len(np.unique(now)) != len(now) or len(others):
            said = f"also belongs to text {others[0]}" if len(others) else "belongs to two tokens"
            cause = "a block that was given out while in use, or that is among the free ones twice, as after a second free of the same text"
            fail(f"{when} a slot of {text} {said}", cause)
        places = np.arange(len(now))
        first_of_block = places // size * size
        if np.any(now % size != places % size) or np.any(now // size != (now // size)[first_of_block]):
            said = f"{when} the slots of {text} are {now[:8].tolist()}, in blocks of {size}"
            cause = "slot = block * block_size + place; a block's places belong to neighbouring tokens"
            fail(said, cause)


def _describe(blocks: int, size: int) -> str:
    return f"{blocks} block{'s' * (blocks > 1)} of {size} token{'s' * (size > 1)}"


def _wrong_answer(result: object, fits: bool, free: int, freed: bool) -> str:
    """The usual cause of a wrong answer of `allocate` or `append`."""
    if result is None:
        return "a missing return: True or False"
    if fits:
        return "blocks that a text has given back, and that nobody can use" if freed else "a comparison that refuses the last free blocks"
    rounded = "a number of blocks that is rounded down; or a check of tokens, where whole blocks are needed"
    return rounded if free else "no look at the free blocks"


def _wrong_count(method: str, fits: bool, more: bool, freed: bool) -> str:
    """The usual cause of a wrong number of slots."""
    if not fits:
        return "a text that got some of its blocks, though not all fit"
    if method == "free":
        return "a text that is not forgotten when its blocks are given back"
    if more:
        return "slots of whole blocks: only tokens count"
    if freed and method == "allocate":
        return "something that was kept of a text that was freed: its number may come again, and then it begins anew"
    return "a number of blocks that is rounded down, or a count of tokens that does not grow with them"
