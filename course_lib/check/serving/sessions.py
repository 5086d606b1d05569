"""Calls of `prefill` and `decode` with one model and one cache, and what they should give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from course_lib.check.serving.models import draw_numbers, scale_weights
from course_lib.check.serving.reference import full_forward, random_weights, rank_logits
from course_lib.gpt.model import Sizes
from course_lib.gpt.serving.model import part

PREFILL_CAUSE = (
    "another order than: the sum of block.out is added to x, block.mlp gets the result, and its "
    "sum is added to that; or attention to the cache before k and v are in it"
)
ALONE_CAUSE = "attention to anything else than the keys and values at cache.slots(text.number), the last of which are this token's own"
TOGETHER_CAUSE = "texts of a batch that are mixed up: each has its own position, its own last slot, and attends to its own slots only"
NEXT_CAUSE = "keys and values of the token before that are not in the cache: in each layer, each text's belong into its last slot"


@dataclass
class Step:
    """A call of `prefill` or `decode`.

    Parameters
    ----------
    texts : list of (int, list of int, numpy.ndarray)
        Number, tokens, slots.
    numbers : numpy.ndarray
        Of the gates, see `models`.
    cause : str
        The usual cause of wrong logits.
    logits : numpy.ndarray
        What the whole model gives, ``(texts, vocabulary)``.
    earlier : list of numpy.ndarray
        In `decode`: for each text the keys and values of its tokens before the last.
    """

    texts: list[tuple[int, list[int], np.ndarray]]
    numbers: np.ndarray
    cause: str
    logits: np.ndarray
    earlier: list[np.ndarray] = field(default_factory=list)


class Session:
    """A model on a group of ranks, a cache, and the calls that are made with both.

    Parameters
    ----------
    random : numpy.random.Generator
    group : list of int
        World ranks.
    sizes : Sizes
    block_size : int
    dtype : type
    texts : int
        Number of texts; their `lengths` are those of their prompts.

    Attributes
    ----------
    slots : list of numpy.ndarray
        Of each text.
    before, after : numpy.ndarray
        The cache's data with all heads, before the first call and after the last one.
    steps : list of Step
    """

    def __init__(
        self,
        random: np.random.Generator,
        group: list[int],
        sizes: Sizes,
        block_size: int,
        dtype: type,
        lengths: list[int],
    ):
        self._random, self.group, self.sizes, self.block_size = random, group, sizes, block_size
        self.weights = random_weights(random, sizes, dtype)
        order = random.permutation(sum(lengths) + 2 * block_size)
        self.slots = np.split(order, np.cumsum(lengths))[:-1]
        shape = sizes.depth, 2, len(order), sizes.heads, sizes.width // sizes.heads
        self.before = random.standard_normal(shape).astype(dtype)
        self.after = self.before.astype(np.float64)
        self.steps: list[Step] = []

    def prefill_each(self) -> Session:
        """Add a call of `prefill` for each text."""
        for k, own in enumerate(self.slots):
            step = self._begin([(10 + k, self._tokens(k, len(own)), own)], PREFILL_CAUSE)
            weights = scale_weights(self.weights, step.numbers)
            logits, kept = full_forward(weights, self.sizes, step.texts[0][1])
            step.logits[0] = logits[-1]
            self.after[:, :, own] = kept
        return self

    def decode_twice(self) -> Session:
        """Add calls of `decode`: one text alone, the others together, and the next token of all.

        A text's earlier tokens are drawn: their keys and values must come from the cache.
        """
        count = len(self.slots)
        alone = int(self._random.integers(count))
        self._decode([alone], 1, ALONE_CAUSE)
        if count > 1:
            self._decode([k for k in range(count) if k != alone], 1, TOGETHER_CAUSE)
        self._decode(self._random.permutation(count).tolist(), 0, NEXT_CAUSE)
        return self

    def _decode(self, batch: list[int], left: int, cause: str) -> None:
        """Add a call of `decode`, after which so many tokens of each text are left."""
        slots = [self.slots[k][: len(self.slots[k]) - left] for k in batch]
        texts = [(10 + k, self._tokens(k, len(own)), own) for k, own in zip(batch, slots, strict=True)]
        step = self._begin(texts, cause)
        weights = scale_weights(self.weights, step.numbers)
        for i, (_, tokens, own) in enumerate(texts):
            earlier = self.after[:, :, own[:-1]]
            logits, kept = full_forward(weights, self.sizes, tokens, earlier)
            step.logits[i] = logits[0]
            step.earlier.append(earlier)
            self.after[:, :, own] = kept

    def _begin(self, texts: list, cause: str) -> Step:
        numbers = draw_numbers(self._random, self.sizes.depth)
        step = Step(texts, numbers, cause, np.empty((len(texts), self.sizes.vocabulary)))
        self.steps.append(step)
        return step

    def _tokens(self, k: int, count: int) -> list[int]:
        """Draw tokens of text k; of every other text, the last one is beyond what a byte holds."""
        tokens = self._random.integers(0, self.sizes.vocabulary, count).tolist()
        if k % 2 == 0:
            tokens[-1] = int(self._random.integers(256, self.sizes.vocabulary))
        return tokens

    def on_rank(self, index: int, place: tuple[int, int]) -> dict:
        """Return what the rank with this index in the group is given."""
        sizes = self.sizes
        return {
            "sizes": (sizes.vocabulary, sizes.width, sizes.heads, sizes.depth, sizes.length),
            "weights": part(self.weights, len(self.group), index),
            "place": place,
            "data": np.ascontiguousarray(self.before[:, :, :, self.heads(index)]),
            "block_size": self.block_size,
        }

    def heads(self, index: int) -> slice:
        """Return the heads of the rank with this index."""
        return self._share(self.sizes.heads, index)

    def columns(self, index: int) -> slice:
        """Return the words of the rank with this index."""
        return self._share(self.sizes.vocabulary, index)

    def _share(self, count: int, index: int) -> slice:
        n = len(self.group)
        return slice(index * count // n, (index + 1) * count // n)


def in_turn(first: Session, second: Session) -> Iterator[tuple[int, Step]]:
    """Yield the steps of two sessions in turn, each with the session's number."""
    for pair in zip_longest(first.steps, second.steps):
        for which, step in enumerate(pair):
            if step is not None:
                yield which, step


def known_logits(session: Session, step: Step, index: int, *, decodes: bool) -> dict[str, np.ndarray]:
    """Return a rank's logits of a step as known mistakes make them, by what the mistake is.

    Parameters
    ----------
    index : int
        The rank's place in the group.
    """
    n = len(session.group)
    weights = scale_weights(session.weights, step.numbers)

    def of(
        row: int = -1,
        *,
        again: bool = False,
        first: bool = False,
        late: bool = False,
        placed: bool = False,
        **how: object,
    ) -> np.ndarray:
        logits = []
        for i, (_, tokens, own) in enumerate(step.texts):
            if decodes and not again:
                room_for_last = [(0, 0), (0, 0), (0, 1), (0, 0), (0, 0)]
                how["kept"] = np.pad(step.earlier[i], room_for_last)
            if late:
                how["late"] = session.before[:, :, own[-1]]
            if placed:
                how["shift"] = i - len(tokens) + 1
            ran = [*tokens[:-1], tokens[0]] if first else tokens
            logits.append(rank_logits(weights, session.sizes, ran, n, **how)[index, row])
        return np.array(logits) if decodes else logits[0]

    known = {
        "the result if positions are one too large": of(shift=1),
        "the result if x is replaced by the sum, not added to it": of(share=0.0),
        "the result if block.mlp gets x as it was before attention": of(beside=True),
        "the result if keys and values are mixed up": of(swapped=True),
    }
    if n > 1:
        known |= {
            "the result if block.out is not added up over the ranks": of(sums=(False, True)),
            "the result if block.mlp is not added up over the ranks": of(sums=(True, False)),
            "the result if nothing is added up over the ranks": of(sums=(False, False)),
            "the result if x is in each rank's summand, and so in the sum once for each rank": of(share=float(n)),
        }
    if decodes:
        return known | {
            "the result if a token does not attend to itself": of(sees=-1),
            "the result if a token's own keys and values are not yet in its slot, the last one, when it attends": of(late=True),
            "the result if a text's place in the batch is taken for the position of its token": of(placed=True),
            "the result for a text's first token instead of its last": of(first=True),
            "the result of another run of the whole text: what is in the cache counts": of(again=True),
        }
    tokens = len(step.texts[0][1])
    return known | {
        "the result if a token also attends to later ones": of(sees=tokens),
        "the result if the position of every token is 0": of(shift=-tokens),
        "what follows the first token, not the last one": of(row=0),
    }
