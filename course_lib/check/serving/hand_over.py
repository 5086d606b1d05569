"""Check of part 34's `hand_over`: the right heads in the right slots, and no byte too many."""

from __future__ import annotations

import numpy as np

from course_lib.check.groups import SHUFFLED_ORDERS, GroupCheck
from course_lib.check.serving.on_ranks import call_hand_over

SLACK_BYTES = 64  # for each rank that receives


class HandOverCheck(GroupCheck):
    """A `Check` of a text's way from a rank with all heads to ranks that share them."""

    def hands_over(self, many: int = 2, dtype: type = np.float32) -> HandOverCheck:
        """Check a text on its way to `many` ranks, whose caches have it in other slots, and blocks of another size."""
        order = list(SHUFFLED_ORDERS[int(self.random.integers(len(SHUFFLED_ORDERS)))])  # world ranks by their place in the group
        source = int(self.random.integers(1, 4))
        if self.show and many < 3:
            order, source = [0, 1, 2, 3], 1
        target = [place for place in (3, 2, 1, 0) if place != source][:many]
        self.random.shuffle(target)
        target = target[::-1] if target == sorted(target) else target  # so that places and ranks are in another order
        layers, size, number = self.sizes(1, 2, 5)[0], self.sizes(1, 2, 7)[0], int(self.random.integers(3, 90))
        heads = many * int(self.random.integers(2, 4))
        count = self.sizes(1, 7, 14)[0]
        self.case = f"{count} tokens, {layers} layers, {heads} heads of {size}, from rank {source} to {target}, {np.dtype(dtype)}"
        self.case += "" if order == sorted(order) else f", in a group whose ranks 0 to 3 are ranks {order} of everyone" * self.show
        blocks = {place: size for place, size in enumerate(self.sizes(4, 2, 6))}
        data, slots, given = {}, {}, [{}] * 4
        for place, r in enumerate(order):
            own = heads if place == source else heads // many
            length = -(-2 * count // blocks[place]) * blocks[place]
            data[place] = self.random.standard_normal((layers, 2, length, own, size)).astype(dtype)
            drawn = self.random.permutation(length)
            slots[place] = {number: drawn[:count], number + 1: drawn[count:]}
            if place not in (source, *target):
                del slots[place][number]
            given[r] = dict(
                data=data[place].copy(),
                block_size=blocks[place],
                slots=slots[place],
                number=number,
                source=source,
                target=list(target),
                place=(0, place),
            )
        answers = self.call(call_hand_over, given, show=self.show)
        parts = np.split(data[source][:, :, slots[source][number]], many, axis=3)
        for place, r in enumerate(order):
            want = data[place].copy()
            if place in target:
                want[:, :, slots[place][number]] = parts[target.index(place)]
                self._handed(answers[r], want, parts, target.index(place), slots[place][number], (place, r))
            cause = "a write into slots of another text, or at the source's slots"
            self.array(answers[r], want, name=f"the rest of the cache of place {place}", rank=r, cause=cause)
        for place, r in enumerate(order):
            most = (sum(part.nbytes for part in parts) if place == source else 0) + SLACK_BYTES * many
            cause = "more than each rank's part of the text (other heads, other slots, a larger dtype), or messages by way of other ranks"
            self.sent(self.ranks.traffic[r], most, name="hand_over", rank=r, cause=cause)
            self.requests_completed(self.ranks.unended[r], r)
        return self

    def _handed(self, got: object, want: np.ndarray, parts: list, index: int, slots: np.ndarray, where: tuple[int, int]) -> None:
        """Check what a rank has of the text: part `index` of `parts`."""
        if not isinstance(got, np.ndarray) or got.shape != want.shape:
            return
        mine, (place, r) = parts[index], where
        whole = np.concatenate(parts, axis=3)
        known = {f"part {i} of the heads; target[{index}] needs part {index}": part for i, part in enumerate(parts) if i != index}
        if len(parts) > 1:
            known["every other head; a part is heads that follow each other"] = whole[:, :, :, index :: len(parts)]
        ordered = mine[:, :, np.argsort(np.argsort(slots))]
        known["what it should be, but in the order of the slots' numbers; slots are in the order of the tokens"] = ordered
        cause = (
            "the source's slots, as the text has other ones on each rank; or cache.data[:, :, slots][:] = part, which writes into a copy"
        )
        self.array(got[:, :, slots], mine, name=f"what place {place} has of the text,", rank=r, cause=cause, instead=known)
