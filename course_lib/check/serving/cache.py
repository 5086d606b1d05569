"""Check of part 34's `PagedCache`: which slots texts have, over thousands of calls, and the bytes of the arrays."""

from __future__ import annotations

import numpy as np

from course_lib.check.groups import GroupCheck
from course_lib.check.serving.on_ranks import fill_cache, forget_trial, read_cache, use_cache
from course_lib.utils import wording

CALLS = 1500  # in each drawn run
SLACK_BYTES = 2 << 20  # in a rank's memory, besides the cache
EXPLANATIONS = {
    "KeyError": (
        "a method of PagedCache looks for a text that has no blocks",
        "free and slots, which may be called with any number, also after an allocate that was refused",
    ),
    "pop from": ("PagedCache takes a block although none is free", "allocate or append without a look at how many blocks are free"),
    "IndexError": (
        "a method of PagedCache looks for a block that its text does not have",
        "a length that grows although no block was free: a refused call changes nothing",
    ),
}


class CacheCheck(GroupCheck):
    """A `Check` of `PagedCache`. It knows how many blocks must be free, and which slots are whose."""

    def by_hand(self) -> CacheCheck:
        """Check a short story: three texts in four blocks of three tokens; one of them is freed twice."""
        ops = [("allocate", 7, 4), ("allocate", 8, 3), ("allocate", 9, 4), ("append", 7), ("append", 7), ("append", 7), ("append", 8)]
        ops += [("free", 7), ("free", 7), ("allocate", 9, 4), ("append", 8), ("free", 9), ("free", 8)]
        return self._run([(4, 3, [*ops, ("allocate", 7, 4), ("free", 7), ("allocate", 5, 12)])] * 4)

    def drawn(self, runs: int = 1) -> CacheCheck:
        """Check drawn calls, other ones on each rank: texts come, grow and go, and the cache is often full, to the last block."""
        for _ in range(runs):
            sizes = self.sizes(4, 2, 9)
            self._run([(int(self.random.integers(9, 16)), size, None) for size in sizes])
        return self

    def _run(self, cases: list[tuple]) -> CacheCheck:
        shapes = [(1, 2, 1, int(self.random.integers(1, 4))) for _ in cases]
        stories = [(blocks, size, ops or self._story(blocks, size)) for blocks, size, ops in cases]
        dtypes = np.roll(["float32", "float64", "float16", "float64"], int(self.random.integers(4))).tolist()
        given = [
            dict(blocks=blocks, block_size=size, shape=shape, dtype=dtype, ops=ops)
            for (blocks, size, ops), shape, dtype in zip(stories, shapes, dtypes, strict=True)
        ]
        self.case = f"{stories[0][0]} blocks of {stories[0][1]} tokens"
        answers = self.call(use_cache, given, explain=EXPLANATIONS, show=self.show)
        for r, ((blocks, size, ops), shape, answer) in enumerate(zip(stories, shapes, answers, strict=True)):
            self.case = f"{blocks} blocks of {size} tokens"
            data_shape, dtype, results, slots, lengths, kinds = answer
            self._data(data_shape, dtype, (*shape[:2], blocks * size, *shape[2:]), dtypes[r], r)
            self._arrays(ops, kinds, lengths, r)
            self._follow(blocks, size, ops, results, np.split(slots, np.cumsum(lengths)[:-1]), r)
        return self

    def _data(self, shape: tuple, dtype: str, want: tuple, want_dtype: str, r: int) -> None:
        if tuple(shape) != want:
            self.fail(f"data on rank {r} has shape {tuple(shape)}, expected {want}", "slots are tokens: blocks * block_size of them")
        if dtype != want_dtype:
            self.fail(f"data on rank {r} has dtype {dtype}, expected {want_dtype}", "the argument dtype; np.zeros makes float64 without it")

    def _arrays(self, ops: list[tuple], kinds: list[str], lengths: list[int], r: int) -> None:
        """Check that `slots` returned a flat array of whole numbers after each call."""
        for (method, number, *_), kind, length in zip(ops, kinds, lengths, strict=True):
            if kind in ("i1", "u1"):
                continue
            of = f"a text of {length} tokens" if length else "a text without tokens"
            got = {"f1": "floats"}.get(kind, f"an array with {kind[1]} dimensions" if kind[1:].isdigit() else f"a {kind}")
            said = f"slots({number}) on rank {r}, after {method}, must return a flat int array; it returned {got} for {of}"
            cause = "a list that is returned as it is" if got == "a list" else "np.array([]) has dtype float64: np.array(..., int)"
            self.fail(said, "an array of arrays" if kind[1:].isdigit() and kind[0] in "iu" else cause)

    def _story(self, blocks: int, size: int) -> list[tuple]:
        """Draw calls. Most of the time the cache is nearly full; now and then exactly all free blocks are asked for, or one more.

        Every third text that is freed is freed once more, as a scheduler does that preempts a text and then finds it done.
        """
        tokens: dict[int, int] = {}
        ops, number, gone, frees = [("free", 99_999)], 0, [], 0
        while len(ops) < CALLS:
            free = blocks - sum(-(-n // size) for n in tokens.values())
            kind = self.random.random()
            if tokens and kind < 0.55:
                one = int(self.random.choice(list(tokens)))
                ops.append(("append", one))
                tokens[one] += free > 0 or tokens[one] % size > 0
            elif tokens and kind < 0.7:
                one = int(self.random.choice(list(tokens)))
                del tokens[one]
                gone.append(one)
                frees += 1
                ops += [("free", one)] * (1 + (frees % 3 == 0))
            else:
                # A text that was preempted comes again.
                one = gone.pop(0) if gone and self.random.random() < 0.3 else (number := number + 1)
                draws = [int(self.random.integers(1, 2 * size)), size, free * size, free * size + 1, max((free - 1) * size, 0) + 1]
                count = max(int(self.random.choice(draws, p=[0.5, 0.2, 0.1, 0.1, 0.1])), 1)
                ops.append(("allocate", one, count))
                if -(-count // size) <= free:
                    tokens[one] = count
        ops += [("free", one) for one in tokens]
        return [*ops, ("allocate", number + 1, blocks * size), ("append", number + 1), ("free", number + 1)]

    def _follow(self, blocks: int, size: int, ops: list[tuple], results: list, slots: list[np.ndarray], r: int) -> None:
        """Follow the calls of a rank, and compare what each has left."""
        had: dict[int, np.ndarray] = {}
        freed: set[int] = set()
        owner = np.full(blocks * size, -1)
        for (method, number, *more), result, now in zip(ops, results, slots, strict=True):
            before = had.get(number, np.empty(0, int))
            free = blocks - sum(-(-len(s) // size) for s in had.values())
            count = more[0] if method == "allocate" else len(before) + 1
            fits = -(-count // size) - -(-len(before) // size) <= free
            call = f"{method}({', '.join(map(str, (number, *more)))})"
            if method != "free" and (not isinstance(result, (bool, np.bool_)) or bool(result) != fits):
                said = (
                    f"{call} on rank {r} returned {result!r}, expected {fits}: it needs {-(-count // size) - -(-len(before) // size)} more "
                )
                self.fail(f"{said}blocks, and {free} of {blocks} are free", _wrong_answer(result, fits, free, bool(freed)))
            freed |= {number} if method == "free" else set()
            want = 0 if method == "free" else count if fits else len(before)
            if len(now) != want:
                cause = _wrong_count(method, fits, len(now) > want, number in freed)
                self.fail(f"after {call}, text {number} on rank {r} has {len(now)} slots, expected {want}", cause)
            if want and (now.min() < 0 or now.max() >= blocks * size):
                self.fail(f"after {call}, a slot of text {number} on rank {r} is outside of the cache", "slot = block * block_size + place")
            kept = before[: len(now)]
            if not np.array_equal(now[: len(kept)], kept):
                cause = "slots in another order, or a new table for a text that grows"
                self.fail(f"after {call}, the earlier tokens of text {number} on rank {r} have other slots than before", cause)
            owner[before] = -1
            if len(np.unique(now)) != len(now) or np.any(owner[now] >= 0):
                others = sorted({int(n) for n in owner[now] if n >= 0})
                said = f"also belongs to text {others[0]}" if others else "belongs to two of its tokens"
                cause = (
                    "a block that was given out while in use, or that is among the free ones twice, as after a second free of the same text"
                )
                self.fail(f"after {call}, a slot of text {number} on rank {r} {said}", cause)
            places = np.arange(len(now)) % size
            if np.any(now % size != places) or np.any(now // size != (now // size)[np.arange(len(now)) // size * size]):
                said = f"after {call}, the slots of text {number} on rank {r} are {now[:8].tolist()}, in blocks of {size}"
                self.fail(said, "slot = block * block_size + place; a block's places belong to neighbouring tokens")
            owner[now] = number
            had[number] = now
            if not len(now):
                del had[number]

    def memory(self) -> CacheCheck:
        """Check the bytes of a cache on four tensor parallel ranks, when it is full."""
        layers, heads, size, block_size = 4, 4, 16 + 8 * int(self.random.integers(0, 3)), 16
        blocks = (24 << 20) // (4 * 2 * layers * heads * size * block_size)  # about 24 MB in all
        for n in (2, 4):
            shape, dtype = (layers, 2, 2 * heads // n, size), "float32"
            self.case = f"{blocks} blocks of {block_size} tokens, {layers} layers, {shape[2]} of {2 * heads} heads of {size}"
            self.ranks.call(forget_trial)
            empty = self.baseline_memory("the cache")
            seed = int(self.random.integers(1 << 40))
            given = dict(blocks=blocks, block_size=block_size, shape=shape, dtype=dtype, seed=seed)
            answers = self.ranks.call(fill_cache, given, show=self.show)
            held = self.ranks.held()
            want = int(np.prod(shape)) * blocks * block_size * 4
            for r, (data_shape, found, nbytes) in enumerate(answers):
                self._data(data_shape, found, (*shape[:2], blocks * block_size, *shape[2:]), dtype, r)
                self.value(nbytes, want, name="the bytes of the cache", rank=r)
                if held[r] - empty[r] > want + SLACK_BYTES:
                    said = f"{wording.size(held[r] - empty[r])} for a full cache; {wording.size(want)} are enough"
                    self.fail(f"rank {r} holds {said}", "a second copy of keys and values")
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
