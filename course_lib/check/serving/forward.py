"""Check of part 34's `prefill`, `decode` and `next_token` against the whole model, on whole texts, in one place."""

from __future__ import annotations

import numpy as np

from course_lib.check.groups import GroupCheck
from course_lib.check.serving.on_ranks import call_forward, call_next_token
from course_lib.check.serving.reference import full_forward, random_weights
from course_lib.gpt.model import Sizes
from course_lib.gpt.serving.model import part
from course_lib.traffic import wire_bytes

SLACK_BYTES = 16  # in each call
RTOL = {np.float32: 2e-4, np.float64: 1e-9}


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
        sizes = Sizes(words, heads * head, heads, self.sizes(1, 1, 4)[0], 8 * block)
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
            cases.append((group, slots, steps, right, old))
        answers = self.ranks.call(call_forward, given, show=self.show)
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
        group, slots, steps, right, old = case
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
            for got, (_, batch) in zip(found, steps, strict=True):
                want = np.array([right[number - 10][0][at, mine] for number, _, _, at in batch])
                what = (
                    f"the logits of a text of {len(batch[0][2])} tokens"
                    if name == "prefill" or len(batch) == 1
                    else "the logits of a batch"
                )
                want = want[0] if name == "prefill" else want
                scale = float(np.abs(right[batch[0][0] - 10][0]).max())
                cause = (
                    "the position of a token; keys and values that come too late into the cache; or a sum over the ranks that is missing"
                )
                self.array(got, want.astype(dtype), name=what, rank=r, cause=cause, rtol=RTOL[dtype], scale=scale)
            part_of = slice(index * heads, (index + 1) * heads)
            written = np.concatenate(slots)
            others = np.setdiff1d(np.arange(old.shape[2]), written)
            cause = "cache.slots(text.number): the slots of its tokens, in order, in each layer; keys are [layer, 0], values [layer, 1]"
            want = kept[:, :, written, part_of].astype(dtype)
            self.array(data[:, :, written], want, name="the cache, at the slots of the texts,", rank=r, cause=cause, rtol=RTOL[dtype])
            want = old[:, :, others, part_of]
            self.array(data[:, :, others], want, name="the cache, at the slots of other texts,", rank=r, cause="slots of whole blocks")
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

    def next_token(self, size: int = 4, dtype: type = np.float32) -> ForwardCheck:
        """Check the most probable words, each on another rank, ties within a rank and between ranks, a single text; and the bytes."""
        for texts in (4 * size, 1):
            self._next_token(size, texts, dtype)
        return self

    def _next_token(self, size: int, texts: int, dtype: type) -> None:
        groups, each = self.groups(size), self.sizes(1, 33, 60)[0]
        self.case = f"{self.describe_groups(groups, dtype)}, {texts} text{'s' * (texts > 1)}, {each} words on each rank"
        given, wanted = [{}] * 4, {}
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
                given[r], wanted[r] = dict(logits=mine, place=(color, index)), whole.argmax(axis=1)
        answers = self.ranks.call(call_next_token, given, show=self.show)
        for group in groups:
            for r in group:
                got, after = answers[r]
                if isinstance(got, np.ndarray) and got.dtype.kind not in "iu":
                    self.fail(f"next_token on rank {r} must return whole numbers; got dtype {got.dtype}", "a missing astype(int)")
                own = given[r]["logits"].argmax(axis=1)
                known = {"the number of the word among this rank's own": own, "of this rank's own words": own + each * group.index(r)}
                known |= {"the number within the rank that has it": wanted[r] % each} if len(group) > 1 else {}
                cause = "of equal logits, the word with the lower number counts"
                self.array(got, wanted[r], name="next_token", rank=r, dtype=False, instead=known, cause=cause)
                self.array(after, given[r]["logits"], name="the logits, after the call,", rank=r, cause="an operation in place")
                n = len(group)
                most = wire_bytes("Allgather", n, n * texts * 2 * 8) + 4 * SLACK_BYTES
                cause = "gathered logits: two numbers for each text are enough, a value and a word"
                self.sent(self.ranks.traffic[r], most, name="next_token", rank=r, cause=cause)
                if (calls := sum(entry[2] for entry in self.ranks.traffic[r])) > 2 * n:
                    said = f"next_token on rank {r} made {calls} exchanges for {texts} texts; one or two are enough for all of them"
                    self.fail(said, "an exchange for each text")
