"""Check of part 34's `next_token`: the words with the largest logits, ties, and the bytes."""

from __future__ import annotations

import numpy as np

from course_lib.check.cases.layouts import LAYOUTS
from course_lib.check.cases.repetition import GROUP, Call, in_turn
from course_lib.check.groups import GroupCheck
from course_lib.check.serving import contract

MANY_WORDS = 70_000  # more than 16 bits count


class WordCheck(GroupCheck):
    """A `Check` of the choice of words on groups of the four ranks."""

    def next_token(self, size: int = 4) -> WordCheck:
        """Check ties, single texts and words, infinities, and large vocabularies; and the bytes."""
        groups = self.groups(size)
        others = groups if self.show and size == 4 else [group[::-1] for group in groups]
        communicators = [groups, others]
        (each,) = self.sizes(1, 33, 60)
        cases = (  # what draws the logits, texts, words on each rank, dtype, which communicator
            (self._ties, 4 * size, each, np.float32, 0),
            (self._ties, 4 * size, each, np.float64, 1),
            (self._ties, 1, each, np.float32, 1),
            (self._usual, 3, 1, np.float64, 0),
            (self._extreme, 4, 5, np.float64, 1),
            (self._usual, 2, MANY_WORDS // size, np.float32, 0),
        )
        drawn, calls = [], []
        for (draw, texts, words, dtype, which), layout in zip(cases, LAYOUTS, strict=True):
            wholes = [draw(texts, len(group), words).astype(dtype) for group in groups]
            arguments: list[list] = [[] for _ in range(4)]
            for group, whole in zip(communicators[which], wholes, strict=True):
                for r, own in zip(group, np.split(whole, len(group), axis=1), strict=True):
                    arguments[r] = [np.ascontiguousarray(own), GROUP]
            drawn.append(wholes)
            calls.append(Call(arguments, which, layout))
        self.case = f"{self.describe_groups(groups, np.float64)}, several calls in turn"
        what = self.case
        results = in_turn(self, "next_token", calls, communicators)
        for number, (call, wholes, words) in enumerate(zip(calls, drawn, results, strict=True), 1):
            for group, whole in zip(communicators[call.group], wholes, strict=True):
                self.case = (
                    f"{self.describe_groups([group], whole.dtype)}, {len(whole)} texts, "
                    f"{whole.shape[1] // len(group)} words on each rank, call {number}"
                )
                for index, r in enumerate(group):
                    self._chosen(words[r], whole, len(group), index, r)
        self.case = what
        for group in groups:
            for r in group:
                self._cost([texts for _, texts, *_ in cases], group, r)
        self.covers("dtypes", "special values", "layouts", "sizes", "group order", "group sizes")
        return self

    def _ties(self, texts: int, n: int, each: int) -> np.ndarray:
        """Draw logits whose largest is on each rank in turn, and in half of the texts there twice."""
        whole = self.random.integers(-60, -3, (texts, n * each)).astype(float)
        for i in range(texts):
            end = (i % n + 1) * each
            place = int(self.random.integers(end - each, end - 1))
            largest = 2.0 if i % 2 == 0 else -2.0
            if end > each:  # a word of another rank is nearly as probable, and comes first
                near = np.nextafter(np.float32(largest), np.float32(-9))
                whole[i, int(self.random.integers(end - each))] = near
            whole[i, place] = largest
            if i < texts // 2:
                continue
            on_same_rank = i < 3 * texts // 4 or end == n * each
            low, high = (place + 1, end) if on_same_rank else (end, n * each)
            whole[i, int(self.random.integers(low, high))] = largest
        return whole

    def _usual(self, texts: int, n: int, each: int) -> np.ndarray:
        """Draw logits whose largest is the last one in the first text, and the first in another."""
        whole = self.random.standard_normal((texts, n * each))
        whole[0, -1] = whole[1, 0] = 9
        return whole

    def _extreme(self, texts: int, n: int, each: int) -> np.ndarray:
        """Draw logits of words that are not allowed, very small ones, and very large ones."""
        whole = np.full((texts, n * each), -np.inf)
        chosen = self.random.integers(1, n * each, texts)  # not the first word
        whole[0, chosen[0]] = -1e300
        whole[1] = -1e30
        whole[1, chosen[1]] = -1e-30
        whole[2] = -np.finfo(float).tiny
        whole[2, chosen[2]] = np.finfo(float).smallest_subnormal
        whole[3] = self.special(n * each, finite=True)
        return whole

    def _cost(self, texts: list[int], group: list[int], r: int) -> None:
        """Check the bytes and the calls of rank r for calls with so many texts."""
        moved, n = self.ranks.traffic[r], len(group)
        name = f"next_token, called {len(texts)} times,"
        most = contract.WORD_BYTES.number * n * sum(texts)
        cause = "gathered logits: two numbers for each text are enough, a value and a word"
        self.sent(moved, most, name=name, rank=r, cause=cause, limit=contract.WORD_BYTES)
        calls = int(contract.WORD_CALLS.number) * n * len(texts)
        cause = "an exchange for each text"
        limit = contract.WORD_CALLS
        self.calls(moved, calls, group=group, name=name, rank=r, cause=cause, limit=limit)
        self.requests_completed(self.ranks.unended[r], r)

    def _chosen(self, got: object, whole: np.ndarray, n: int, index: int, r: int) -> None:
        """Check the words that the rank with this index in its group has chosen."""
        if isinstance(got, np.ndarray) and got.dtype.kind not in "iu":
            said = f"next_token on rank {r} must return whole numbers; got dtype {got.dtype}"
            self.fail(said, "a missing astype(int)")
        texts, want = len(whole), whole.argmax(axis=1)
        each = whole.shape[1] // n
        parts = whole.reshape(texts, n, each)
        own = parts[:, index].argmax(axis=1)
        largest = whole.max(axis=1)
        best = [np.flatnonzero((parts[i] == largest[i]).any(axis=1)) for i in range(texts)]
        owner = best[0][0]
        known = {
            "the number of the word among this rank's own": own,
            "of this rank's own words": own + each * index,
            "the number within the rank that has it": want % each,
            "the number that comes out if the rank's index is multiplied by the number of ranks, not by that of its words": want % each
            + want // each * n,
            "the number that comes out if one rank has the largest logits of all texts": parts[:, owner].argmax(axis=1) + each * owner,
            "the number that comes out if a rank has logits.shape[0] words, and not logits.shape[1]": want % each + want // each * texts,
            "the last of the words that have the largest logit": whole.shape[1] - 1 - whole[:, ::-1].argmax(axis=1),
            "the sum of the words of all ranks that have the largest logit": np.array(
                [sum(int(parts[i, k].argmax()) + k * each for k in best[i]) for i in range(texts)]
            ),
            "the word with logits rounded to float32": _in_float32(whole).argmax(axis=1),
            "0 for each text: a collective with a root, such as Gather, gives only that rank the result": np.zeros(texts, int),
        }
        cause = ""
        if isinstance(got, np.ndarray) and got.shape == want.shape:
            inside = np.all((got >= 0) & (got < whole.shape[1]))
            if inside and np.array_equal(whole[np.arange(texts), got], largest):
                cause = "of equal logits, the word with the lower number counts"
        self.array(
            got,
            want,
            name="next_token",
            rank=r,
            dtype=False,
            instead={what: words for what, words in known.items() if not np.array_equal(words, want)},
            cause=cause,
            shape_cause="an axis that is lost if there is only one text, or one too many: one word for each text",
        )


def _in_float32(logits: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return logits.astype(np.float32)
