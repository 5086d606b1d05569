"""Check of part 34's `prefill` and `decode` against the whole model, on whole texts, in one place."""

from __future__ import annotations

from functools import partial

import numpy as np

from course_lib.check.groups import GroupCheck
from course_lib.check.serving import contract
from course_lib.check.serving.on_ranks import call_forward
from course_lib.check.serving.sessions import Session, in_turn, known_logits
from course_lib.gpt.model import Sizes
from course_lib.traffic import wire_bytes

RTOL = {np.float32: 2e-4, np.float64: 1e-9}
MANY_TEXTS, LONG_TEXT, MANY_LAYERS = 17, 258, 17
CLOSED = 10**15  # bytes that nobody sends, so that nobody passes the gate
COLLECTIVES = (
    *("Allreduce", "Allgather", "Reduce_scatter", "Alltoall"),
    *("Alltoallv", "Bcast", "Scatter", "Gather"),
)
SHAPE_CAUSES = {
    "prefill": "logits of more than the last token, or an axis too many: model.logits(x[-1:])[0] has none",
    "decode": "one row of logits for each text is expected, also if it is one text only",
}
EXPLANATIONS = {
    f"{CLOSED:,}": (
        "a block's qkv or mlp, or model.logits, is called more often than once",
        f"texts or tokens that go through the model one by one. {contract.MATRICES.text}",
    )
}


class ForwardCheck(GroupCheck):
    """A `Check` of a text's way through a model that is split over groups of the four ranks.

    Each case has two models, on communicators with the same ranks, and calls with both in turn.
    """

    def prefill(self, *sizes: int) -> ForwardCheck:
        """Check prompts of one token, nearly a block, and more: logits, the cache, bytes."""
        for size in sizes:
            self._run("prefill", size, np.float32 if size == 2 else np.float64)
        return self

    def decode(self, *sizes: int) -> ForwardCheck:
        """Check texts alone and in batches, for two tokens each, from keys and values in a cache."""
        for size in sizes:
            self._run("decode", size, np.float32 if size == 2 else np.float64)
        return self

    def _run(self, function: str, size: int, dtype: type) -> None:
        """Check a function; groups of 4 have many texts, of 3 many layers, of 2 a long text."""
        groups = self.groups(size)
        others = groups if self.show and size == 4 else [group[::-1] for group in groups]
        sizes = self._draw_sizes(size)
        (block,) = self.sizes(1, 3, 6)
        self.case = (
            f"{self.describe_groups(groups, dtype)}, {sizes.depth} layers, {sizes.heads} heads of "
            f"{sizes.width // sizes.heads}, {sizes.vocabulary} words, blocks of {block}"
        )
        decodes = function == "decode"
        lengths = [1, block - 1, block, block + 1, 3 * block + 1]
        if size == 3:
            lengths = lengths[2:4]
        if size == 2:
            lengths.append(LONG_TEXT)
        if size == 4 and decodes:
            lengths += [1 + i % 3 for i in range(MANY_TEXTS - len(lengths))]
        given: list[dict] = [{} for _ in range(4)]
        gates: list[list] = [[] for _ in range(4)]
        pairs = []
        for color, group in enumerate(groups):
            drawn = self.random.permutation(lengths) + 2 * decodes
            first = Session(self.random, group, sizes, block, dtype, drawn)
            second = Session(self.random, others[color], sizes, block, dtype, drawn[: 3 if size != 3 else 1])
            for session in (first, second):
                if decodes:
                    session.decode_twice()
                else:
                    session.prefill_each()
            steps = list(in_turn(first, second))
            numbers = [float(number) for _, step in steps for number in step.numbers]
            for r in group:
                places = [(color, session.group.index(r)) for session in (first, second)]
                given[r] = {
                    "sessions": [session.on_rank(place[1], place) for session, place in zip((first, second), places, strict=True)],
                    "steps": [(which, function, step.texts) for which, step in steps],
                }
                gates[r] = [(0, number) for number in numbers] + 20 * [(CLOSED, 0.0)]
            pairs.append((first, second))
        answers = self.call(call_forward, given, gates=gates, explain=EXPLANATIONS, show=self.show)
        for pair in pairs:
            for r in pair[0].group:
                self._logits(function, pair, answers[r], dtype, r)
                for session, data in zip(pair, answers[r][2], strict=True):
                    self._cache(session, data, r)
                self._cost(function, pair, dtype, r)
        self.covers("dtypes", "sizes", "group order", "group sizes")
        self.covers("repetition", "same ranks twice", "arguments", "results")

    def _draw_sizes(self, size: int) -> Sizes:
        """Draw the sizes of a model for groups of `size`; it has more words than a byte counts."""
        (head,) = self.sizes(1, 3, 8)
        (depth,) = self.sizes(1, 1, 4)
        heads = size * int(self.random.integers(1, 3))
        words = 12 * int(self.random.integers(23, 30))
        if size == 3:
            depth = MANY_LAYERS
        return Sizes(words, heads * head, heads, max(depth, 1 + self.show), LONG_TEXT + 2)

    def _logits(
        self,
        function: str,
        pair: tuple[Session, Session],
        answer: tuple,
        dtype: type,
        r: int,
    ) -> None:
        """Check a rank's logits of each step, and the texts that were passed."""
        decodes = function == "decode"
        for got, left, (which, step) in zip(*answer[:2], in_turn(*pair), strict=True):
            index = pair[which].group.index(r)
            want = step.logits[:, pair[which].columns(index)].astype(dtype)
            name = "the logits of a batch"
            if len(step.texts) == 1:
                name = f"the logits of a text of {len(step.texts[0][2])} tokens"
            self.array(
                got,
                want if decodes else want[0],
                name=name,
                rank=r,
                dtype=False,
                rtol=RTOL[dtype],
                scale=float(np.abs(step.logits).max()),
                cause=step.cause,
                shape_cause=SHAPE_CAUSES[function],
                instead=partial(known_logits, pair[which], step, index, decodes=decodes),
            )
            passed = [(number, tokens) for number, tokens, _ in step.texts]
            if [(number, list(tokens)) for number, tokens in left] != passed:
                cause = "a sort, a pop or an append: the scheduler has the same texts and lists"
                self.fail(f"{function} on rank {r} has changed the texts that it was given", cause)

    def _cache(self, session: Session, data: np.ndarray, r: int) -> None:
        """Check what is in a rank's cache afterwards."""
        mine = session.heads(session.group.index(r))
        old, want = (whole[:, :, :, mine] for whole in (session.before, session.after))
        written = np.concatenate(session.slots)
        others = np.setdiff1d(np.arange(old.shape[2]), written)
        ordered = old.copy()
        for own in session.slots:
            ordered[:, :, np.sort(own)] = want[:, :, own]
        known = {
            "what was there before": old[:, :, written],
            "the values where the keys belong, and the keys where the values belong": want[:, ::-1, written],
            "what it should be, but in the order of the slots' numbers; slots are in the order of the tokens": ordered[:, :, written],
        }
        self.array(
            data[:, :, written],
            want[:, :, written].astype(data.dtype),
            name="the cache, at the slots of the texts,",
            rank=r,
            rtol=RTOL[data.dtype.type],
            cause="keys are cache.data[layer, 0], values cache.data[layer, 1], at cache.slots(text.number), which are in the tokens' order",
            instead=known,
        )
        name = "the cache, at the slots of other texts,"
        cause = "a write outside of cache.slots(text.number), such as whole blocks, or first slots"
        self.array(data[:, :, others], old[:, :, others], name=name, rank=r, cause=cause)

    def _cost(self, function: str, pair: tuple[Session, Session], dtype: type, r: int) -> None:
        """Check the bytes and the calls of a rank."""
        sizes, group = pair[0].sizes, pair[0].group
        steps = [step for session in pair for step in session.steps]
        slots = [own for step in steps for _, _, own in step.texts]
        tokens = len(slots) if function == "decode" else sum(map(len, slots))
        payload = 2 * sizes.depth * tokens * sizes.width * np.dtype(dtype).itemsize
        moved = self.ranks.traffic[r]
        name = f"{function}, called {len(steps)} times,"
        self.sent(
            moved,
            wire_bytes("Allreduce", len(group), payload) + contract.FORWARD_BYTES.number * sizes.depth * len(steps),
            name=name,
            rank=r,
            cause="an exchange besides the two sums of each layer, or sums over tokens whose keys and values are in the cache",
            limit=contract.FORWARD_BYTES,
        )
        blocks = sizes.depth * len(steps)
        most = dict.fromkeys(COLLECTIVES, int(contract.FORWARD_CALLS.number) * blocks)
        most["Send"] = 4 * len(group) * blocks
        cause = "texts that go through the model one by one, or a barrier"
        limit = contract.FORWARD_CALLS
        self.calls(moved, most, group=group, name=name, rank=r, cause=cause, limit=limit)
        self.requests_completed(self.ranks.unended[r], r)
