"""Check of part 34's `prefill`, `decode` and `next_token` against the whole model, on whole texts, in one place."""

from __future__ import annotations

from functools import partial

import numpy as np

from course_lib.check.groups import GroupCheck
from course_lib.check.serving.on_ranks import call_forward, call_next_token
from course_lib.check.serving.reference import full_forward, random_weights, rank_logits
from course_lib.gpt.model import Sizes
from course_lib.gpt.serving.model import part
from course_lib.traffic import wire_bytes

SLACK_BYTES = 16  # in each call
RTOL = {np.float32: 2e-4, np.float64: 1e-9}


PREFILL_CAUSE = (
    "another order than: the sum of block.out is added to x, block.mlp gets the result, and its sum is added to that; "
    "or attention to the cache before k and v are in it"
)
DECODE_CAUSES = (  # of one text alone, of the others together, and of the next token of all
    "attention to anything else than the keys and values at cache.slots(text.number), the last of which are this token's own",
    "texts of a batch that are mixed up: each has its own position, its own last slot, and attends to its own slots only",
    "keys and values of the token before that are not in the cache: in each layer, each text's belong into its last slot",
)
SHAPE_CAUSES = {
    "prefill": "logits of more than the last token, or an axis too many: model.logits(x[-1:])[0] has none",
    "decode": "one row of logits for each text is expected, also if it is one text only",
}


class ForwardCheck(GroupCheck):
    """A `Check` of a text's way through a model that is split over groups of the four ranks."""

    def prefill(self, size: int = 4, dtype: type = np.float64) -> ForwardCheck:
        """Check prompts of one token, of nearly a block, a block, a little more, and several: logits, what is kept, bytes."""
        return self._run(size, dtype, decodes=False)

    def decode(self, size: int = 4, dtype: type = np.float64) -> ForwardCheck:
        """Check texts alone and in batches, for two tokens each, from keys and values that the check has put into the cache."""
        return self._run(size, dtype, decodes=True)

    def _run(self, size: int, dtype: type, *, decodes: bool) -> ForwardCheck:
        groups = self.groups(size)
        block, words, head = self.sizes(1, 3, 6)[0], 4 * self.sizes(1, 3, 9)[0], self.sizes(1, 3, 8)[0]
        heads = 4 * int(self.random.integers(1, 3))
        sizes = Sizes(words, heads * head, heads, max(self.sizes(1, 1, 4)[0], 1 + self.show), 8 * block)
        self.case = (
            f"{self.describe_groups(groups, dtype)}, {sizes.depth} layers, {heads} heads of {head}, {words} words, blocks of {block}"
        )
        given, cases = [{}] * 4, []
        for color, group in enumerate(groups):
            weights = random_weights(self.random, sizes, dtype)
            lengths = [1, block - 1, block, block + 1, 3 * block + 1]
            texts = [self.random.integers(0, words, n + 2 * decodes).tolist() for n in self.random.permutation(lengths)]
            order = self.random.permutation(sum(map(len, texts)) + 2 * block)
            slots = np.split(order, np.cumsum([len(t) for t in texts]))[:-1]
            steps = self._decode_steps(texts, slots, words) if decodes else self._prefill_steps(texts, slots)
            old = self.random.standard_normal((sizes.depth, 2, len(order), heads, head)).astype(dtype)
            right = [full_forward(weights, sizes, t) for t in texts]
            if decodes:
                for text, own, (_, kept) in zip(texts, slots, right, strict=True):
                    old[:, :, own[: len(text) - 2]] = kept[:, :, : len(text) - 2]
            for index, r in enumerate(group):
                n = len(group)
                mine = slice(index * heads // n, (index + 1) * heads // n)
                sent = [(kind, [(k, tokens, own) for k, tokens, own, _ in batch]) for kind, batch in steps]
                given[r] = dict(
                    sizes=(words, sizes.width, heads, sizes.depth, sizes.length),
                    weights=part(weights, n, index),
                    place=(color, index),
                    data=np.ascontiguousarray(old[:, :, :, mine]),
                    block_size=block,
                    steps=sent,
                )
            cases.append((group, slots, steps, right, old, weights))
        answers = self.call(call_forward, given, show=self.show)
        for case in cases:
            self._compare(case, answers, sizes, dtype, decodes)
        return self

    def _prefill_steps(self, texts: list, slots: list) -> list[tuple]:
        """Prefill each text: its number, its tokens, its slots, and the position whose logits are wanted."""
        return [("prefill", [(10 + k, tokens, own, len(tokens) - 1)]) for k, (tokens, own) in enumerate(zip(texts, slots, strict=True))]

    def _decode_steps(self, texts: list, slots: list, words: int) -> list[tuple]:
        """Decode one text alone, the others together; then all of them together, in another order.

        The texts' earlier tokens are wrong: their keys and values must come from the cache.
        """
        alone, steps = int(self.random.integers(len(texts))), []
        for batch, more in (([alone], 1), ([k for k in range(len(texts)) if k != alone], 1), (self.random.permutation(len(texts)), 2)):
            found = []
            for k in map(int, batch):
                count = len(texts[k]) - 2 + more
                fake = [*self.random.integers(0, words, count - 1).tolist(), texts[k][count - 1]]
                found.append((10 + k, fake, slots[k][:count], count - 1))
            steps.append(("decode", found))
        return steps

    def _compare(self, case: tuple, answers: list, sizes: Sizes, dtype: type, decodes: bool) -> None:
        group, slots, steps, right, old, weights = case
        n, name = len(group), "decode" if decodes else "prefill"
        columns, heads = sizes.vocabulary // n, sizes.heads // n
        kept = old.copy()
        for own, (_, values) in zip(slots, right, strict=True):
            kept[:, :, own] = values
        tokens = sum(len(own) if name == "prefill" else 1 for _, batch in steps for _, _, own, _ in batch)
        payload = 2 * sizes.depth * tokens * sizes.width * np.dtype(dtype).itemsize
        for index, r in enumerate(group):
            found, data = answers[r]
            mine = slice(index * columns, (index + 1) * columns)
            for number, (got, (_, batch)) in enumerate(zip(found, steps, strict=True)):
                want = np.array([right[k - 10][0][at, mine] for k, _, _, at in batch])
                alone = name == "prefill" or len(batch) == 1
                what = f"the logits of a text of {len(batch[0][2])} tokens" if alone else "the logits of a batch"
                want = want[0] if name == "prefill" else want
                scale = float(np.abs(right[batch[0][0] - 10][0]).max())
                causes = dict(cause=DECODE_CAUSES[number] if decodes else PREFILL_CAUSE, shape_cause=SHAPE_CAUSES[name])
                causes["instead"] = partial(_known_logits, (weights, sizes, n, index), batch, right, old, decodes)
                self.array(got, want.astype(dtype), name=what, rank=r, rtol=RTOL[dtype], scale=scale, **causes)
            before, after = (whole[:, :, :, index * heads : (index + 1) * heads] for whole in (old, kept))
            self._kept(data, after, before, slots, r)
            most = wire_bytes("Allreduce", n, payload) + SLACK_BYTES * len(steps)
            cause = "an exchange besides the two sums of each layer, or sums over tokens whose keys and values are in the cache"
            self.sent(self.ranks.traffic[r], most, name=f"{len(steps)} calls of {name}", rank=r, cause=cause)
            calls = sum(entry[2] for entry in self.ranks.traffic[r])
            if calls > (2 * sizes.depth + 1) * len(steps):
                said = (
                    f"{len(steps)} calls of {name} on rank {r} made {calls} exchanges; two in each of the {sizes.depth} layers are enough"
                )
                self.fail(said, "texts that go through the model one by one")
            self.requests_completed(self.ranks.unended[r], r)

    def _kept(self, data: np.ndarray, want: np.ndarray, old: np.ndarray, slots: list, r: int) -> None:
        """Check what is in a rank's cache afterwards."""
        written = np.concatenate(slots)
        others = np.setdiff1d(np.arange(old.shape[2]), written)
        ordered = old.copy()
        for own in slots:
            ordered[:, :, np.sort(own)] = want[:, :, own]
        known = {
            "what was there before": old[:, :, written],
            "the values where the keys belong, and the keys where the values belong": want[:, ::-1, written],
            "what it should be, but in the order of the slots' numbers; slots are in the order of the tokens": ordered[:, :, written],
        }
        cause = "keys are cache.data[layer, 0], values cache.data[layer, 1], at cache.slots(text.number), which are in the tokens' order"
        name, rtol = "the cache, at the slots of the texts,", RTOL[data.dtype.type]
        self.array(data[:, :, written], want[:, :, written].astype(data.dtype), name=name, rank=r, cause=cause, rtol=rtol, instead=known)
        cause = "a write outside of cache.slots(text.number), such as whole blocks, or the first slots of the cache"
        self.array(data[:, :, others], old[:, :, others], name="the cache, at the slots of other texts,", rank=r, cause=cause)

    def next_token(self, size: int = 4, dtype: type = np.float32) -> ForwardCheck:
        """Check the most probable words, each on another rank, ties within a rank and between ranks, a single text; and the bytes."""
        for texts in (4 * size, 1):
            self._next_token(size, texts, dtype)
        return self

    def _next_token(self, size: int, texts: int, dtype: type) -> None:
        groups, each = self.groups(size), self.sizes(1, 33, 60)[0]
        self.case = f"{self.describe_groups(groups, dtype)}, {texts} text{'s' * (texts > 1)}, {each} words on each rank"
        given = [{}] * 4
        for color, group in enumerate(groups):
            n = len(group)
            whole = self.random.integers(-60, -3, (texts, n * each)).astype(dtype)
            for i in range(texts):
                end = (i % n + 1) * each
                place = int(self.random.integers(end - each, end - 1))
                whole[i, place] = -2 if i % 2 else 2
                if end > each:  # a word of another rank is nearly as probable, and comes first
                    whole[i, int(self.random.integers(end - each))] = np.nextafter(whole[i, place], dtype(-9))
                if i >= texts // 2:  # the same value again: on the same rank, or on a later one
                    low, high = (place + 1, end) if i < 3 * texts // 4 or end == n * each else (end, n * each)
                    whole[i, int(self.random.integers(low, high))] = whole[i, place]
            for index, r in enumerate(group):
                mine = np.ascontiguousarray(whole[:, index * each : (index + 1) * each])
                given[r] = dict(logits=mine, place=(color, index))
        answers = self.call(call_next_token, given, show=self.show)
        for group in groups:
            whole = np.concatenate([given[r]["logits"] for r in group], axis=1)
            for r in group:
                self._chosen(*answers[r], given[r]["logits"], whole, group.index(r), r)
                n = len(group)
                most = wire_bytes("Allgather", n, n * texts * 2 * 8) + 4 * SLACK_BYTES
                cause = "gathered logits: two numbers for each text are enough, a value and a word"
                self.sent(self.ranks.traffic[r], most, name="next_token", rank=r, cause=cause)
                if (calls := sum(entry[2] for entry in self.ranks.traffic[r])) > 2 * n:
                    said = f"next_token on rank {r} made {calls} exchanges for {texts} texts; one or two are enough for all of them"
                    self.fail(said, "an exchange for each text")

    def _chosen(self, got: object, after: object, logits: np.ndarray, whole: np.ndarray, index: int, r: int) -> None:
        """Check which words a rank has chosen: `whole` has all ranks' logits, `logits` its own."""
        self.array(after, logits, name="the logits, after the call,", rank=r, cause="an operation in place")
        if isinstance(got, np.ndarray) and got.dtype.kind not in "iu":
            self.fail(f"next_token on rank {r} must return whole numbers; got dtype {got.dtype}", "a missing astype(int)")
        texts, each, want = len(whole), logits.shape[1], whole.argmax(axis=1)
        own, parts = logits.argmax(axis=1), whole.reshape(len(whole), -1, logits.shape[1])
        best = [np.flatnonzero((parts == whole.max(axis=1)[:, None, None]).any(axis=2)[i]) for i in range(texts)]
        known = {
            "the number of the word among this rank's own": own,
            "of this rank's own words": own + each * index,
            "the number within the rank that has it": want % each,
            "the number that comes out if the rank's index is multiplied by the number of ranks, not by that of its words": want % each
            + want // each * (whole.shape[1] // each),
            "the number that comes out if one rank has the largest logits of all texts": parts[:, best[0][0]].argmax(axis=1)
            + each * best[0][0],
            "the number that comes out if a rank has logits.shape[0] words, and not logits.shape[1]": want % each + want // each * texts,
            "the last of the words that have the largest logit": whole.shape[1] - 1 - whole[:, ::-1].argmax(axis=1),
            "the sum of the words of all ranks that have the largest logit": np.array(
                [sum(int(parts[i, r].argmax()) + r * each for r in ranks) for i, ranks in enumerate(best)]
            ),
            "the word with logits rounded to float32": whole.astype(np.float32).argmax(axis=1),
            "0 for each text: a collective with a root, such as Gather, gives only that rank the result": np.zeros(texts, int),
        }
        cause, shape_cause = "", "an axis that is lost if there is only one text, or one too many: one word for each text"
        if isinstance(got, np.ndarray) and got.shape == want.shape and np.all((got >= 0) & (got < whole.shape[1])):
            chosen = whole[np.arange(texts), got]
            cause = "of equal logits, the word with the lower number counts" if np.array_equal(chosen, whole.max(axis=1)) else ""
        known = {what: array for what, array in known.items() if not np.array_equal(array, want)}
        self.array(got, want, name="next_token", rank=r, dtype=False, instead=known, cause=cause, shape_cause=shape_cause)


def _known_logits(model: tuple, batch: list, right: list, old: np.ndarray, decodes: bool) -> dict[str, np.ndarray]:
    """A rank's logits of a batch as known mistakes make them, by what the mistake is."""
    weights, sizes, n, index = model

    def of(row: int = -1, again: bool = False, first: bool = False, late: bool = False, placed: bool = False, **how: object) -> np.ndarray:
        found = []
        for place, (number, tokens, own, at) in enumerate(batch):
            if decodes and not again:
                how["kept"] = right[number - 10][1][:, :, : at + 1]
            how |= dict(late=old[:, :, own[at]]) if late else dict(shift=place - at) if placed else {}
            ran = [*tokens[:at], tokens[0]] if first else list(tokens)
            found.append(rank_logits(weights, sizes, ran, n, **how)[index, row])
        return np.array(found) if decodes else found[0]

    every = {
        "the result if positions are one too large": of(shift=1),
        "the result if x is replaced by the sum, not added to it": of(share=0.0),
        "the result if block.mlp gets x as it was before attention": of(beside=True),
        "the result if keys and values are mixed up": of(swapped=True),
    }
    if n > 1:
        every |= {
            "the result if block.out is not added up over the ranks": of(sums=(False, True)),
            "the result if block.mlp is not added up over the ranks": of(sums=(True, False)),
            "the result if nothing is added up over the ranks": of(sums=(False, False)),
            "the result if x is in each rank's summand, and so in the sum once for each rank": of(share=float(n)),
        }
    if decodes:
        return every | {
            "the result if a token does not attend to itself": of(sees=-1),
            "the result if a token's own keys and values are not yet in its slot, the last one, when it attends": of(late=True),
            "the result if a text's place in the batch is taken for the position of its token": of(placed=True),
            "the result for a text's first token instead of its last": of(first=True),
            "the result of another run of the whole text: what is in the cache counts": of(again=True),
        }
    return every | {
        "the result if a token also attends to later ones": of(sees=len(batch[0][1])),
        "the result if the position of every token is 0": of(shift=-len(batch[0][1])),
        "what follows the first token, not the last one": of(row=0),
    }
