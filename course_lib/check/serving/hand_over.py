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
        if self.show:
            order, source = [0, 1, 2, 3], 1
        target = [place for place in (3, 2, 1, 0) if place != source][:many]
        self.random.shuffle(target)
        target = target[::-1] if target == sorted(target) else target  # so that places and ranks are in another order
        layers, size, number = self.sizes(1, 2, 5)[0], self.sizes(1, 2, 7)[0], int(self.random.integers(3, 90))
        heads = many * int(self.random.integers(2, 4))
        count = self.sizes(1, 7, 14)[0]
        self.case = f"{count} tokens, {layers} layers, {heads} heads of {size}, from rank {source} to {target}, {np.dtype(dtype)}"
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
        answers = self.ranks.call(call_hand_over, given, show=self.show)
        whole = data[source][:, :, slots[source][number]]
        for place, r in enumerate(order):
            want = data[place].copy()
            if place in target:
                mine = np.split(whole, many, axis=3)[target.index(place)]
                want[:, :, slots[place][number]] = mine
                got = answers[r]
                known = {"the heads of another rank": np.split(whole, many, axis=3)[target.index(place) - 1]} if many > 1 else {}
                if isinstance(got, np.ndarray) and got.shape == want.shape:
                    got, cause = (
                        got[:, :, slots[place][number]],
                        "target[i] gets part i of the heads; its slots are other ones than the source's",
                    )
                    self.array(got, mine, name=f"what place {place} has of the text,", rank=r, cause=cause, instead=known)
            self.array(
                answers[r], want, name=f"the rest of the cache of place {place}", rank=r, cause="slots of another text, or of the source"
            )
            most = (whole.nbytes if place == source else 0) + SLACK_BYTES * many
            cause = "whole heads or blocks that nobody needs, a broadcast, or a part that goes to several ranks"
            self.sent(self.ranks.traffic[r], most, name="hand_over", rank=r, cause=cause)
            self.requests_completed(self.ranks.unended[r], r)
        return self
