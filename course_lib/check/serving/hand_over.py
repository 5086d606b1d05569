"""Check of part 34's `hand_over`: the right heads in the right slots, and no byte too many."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from course_lib.check.groups import SHUFFLED_ORDERS, GroupCheck
from course_lib.check.serving import contract
from course_lib.check.serving.on_ranks import call_hand_over, call_hand_over_late

OTHER_TEXT = 50  # its number is that much larger
ANY_SOURCE = "a Recv without its source takes the first message, perhaps another rank's"


@dataclass
class Place:
    """A rank's place in a communicator, with a cache.

    Parameters
    ----------
    before, after : numpy.ndarray
        The cache's data, ``(layers, 2, slots, heads, size)``, before and after all calls.
    block_size : int
    handed : dict of int to (int, numpy.ndarray, list of numpy.ndarray)
        On a target, by text: which part it gets, its slots there, and all parts.
    """

    before: np.ndarray
    after: np.ndarray
    block_size: int
    handed: dict[int, tuple[int, np.ndarray, list]] = field(default_factory=dict)


class HandOverCheck(GroupCheck):
    """A `Check` of a text's way from a rank with all heads to ranks that share them."""

    def hands_over(self, many: int = 2, dtype: type = np.float32, members: int = 4) -> HandOverCheck:
        """Check texts on their way to `many` ranks, in a communicator of so many `members`.

        There are two communicators with the same ranks, and caches for each. The first call's text
        comes again, in other slots; in between, the other communicator has one of this number.
        Then, two ranks send texts to the same targets, on virtual ranks.
        """
        orders = self._orders(many, members)
        routes = [self._route(many, members) for _ in orders]
        caches = [self._draw_caches(many, members, [source], dtype) for source, _ in routes]
        number = int(self.random.integers(0, OTHER_TEXT))
        first, second, third = self.sizes(3, 20, 32)
        lengths = ((0, number, first), (1, number, second), (0, number + 1, 1), (0, number, third))
        calls: dict[int, list] = {r: [] for r in range(4)}
        most = dict.fromkeys(range(4), 0.0)  # bytes
        self._describe(lengths, orders, routes, caches, dtype)
        for which, text, count in lengths:
            source, target = routes[which]
            slots = {place: self._slots(caches[which][place], count) for place in range(members)}
            whole = caches[which][source].after[:, :, slots[source][0]]
            parts = np.split(whole, many, axis=3)
            for i, place in enumerate(target):
                own = slots[place][0]
                caches[which][place].after[:, :, own] = parts[i]
                caches[which][place].handed[text] = i, own, parts
            for place, r in enumerate(orders[which]):
                texts = {text + OTHER_TEXT: slots[place][1]}
                if place in (source, *target):
                    texts[text] = slots[place][0]
                calls[r].append((which, which, texts, text, source, list(target)))
                most[r] += contract.HANDED_BYTES.number * many
                most[r] += whole.nbytes if place == source else 0
        given = []
        for r in range(4):
            places = [order.index(r) if r in order else -1 for order in orders]
            own = [caches[w][place] for w, place in enumerate(places) if place >= 0]
            given.append(
                {
                    "caches": [(cache.before.copy(), cache.block_size) for cache in own],
                    "calls": calls[r],
                    "places": [(int(place < 0), place) for place in places],
                }
            )
        answers = self.call(call_hand_over, given, show=self.show)
        for r in orders[0]:
            for which, order in enumerate(orders):
                place = order.index(r)
                self._compare(answers[r][0][which], caches[which][place], place, r)
            wanted = [target for *_, target in calls[r]]
            if [list(target) for target in answers[r][1]] != wanted:
                cause = "a sort or a pop: the caller needs its list"
                self.fail(f"hand_over on rank {r} has changed target, an argument", cause)
        for r in range(4):
            self._cost(len(calls[r]), many, most[r], orders[0] if r in orders[0] else [r], r)
        self._late_source(many, dtype)
        self.covers("dtypes", "special values", "sizes", "group order", "group sizes")
        self.covers("repetition", "same ranks twice", "arguments", "results")
        return self

    def _orders(self, many: int, members: int) -> list[list[int]]:
        """Draw two communicators with the same ranks: world ranks by their place."""
        if self.show and members == 4 and many < 3:
            return [[0, 1, 2, 3], [0, 1, 2, 3]]
        order = list(SHUFFLED_ORDERS[int(self.random.integers(len(SHUFFLED_ORDERS)))])[:members]
        return [order, order[::-1]]

    def _route(self, many: int, members: int) -> tuple[int, list[int]]:
        """Draw the source and the targets; these are not in the order of their numbers."""
        source = int(self.random.integers(1, members))
        places = [place for place in range(members) if place != source]
        target = self.random.permutation(places)[:many].tolist()
        if target == sorted(target):
            target.reverse()
        return source, target

    def _draw_caches(
        self,
        many: int,
        members: int,
        sources: list[int],
        dtype: type,
    ) -> list[Place]:
        """Draw a cache for each place, which has all heads or its part of them."""
        (layers,) = self.sizes(1, 2, 5)
        (size,) = self.sizes(1, 5, 9)
        heads = int(self.random.integers(2, 4))  # of each target
        places = []
        for place, block_size in enumerate(self.sizes(members, 2, 8)):
            length = -(-2 * 32 // block_size) * block_size
            own = heads * many if place in sources else heads
            data = self.special(layers, 2, length, own, size, dtype=dtype)
            places.append(Place(data, data.copy(), block_size))
        return places

    def _slots(self, cache: Place, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw the slots of a text with so many tokens, and those of another text."""
        order = self.random.permutation(cache.before.shape[2])
        return order[:count], order[count:]

    def _late_source(self, many: int, dtype: type) -> None:
        """Check texts from two ranks to the same targets, where the first one's comes later.

        The second source is ready while the first call is still going on: it has no part in it.
        """
        late, early, *places = self.random.permutation(many + 2).tolist()
        (count,) = self.sizes(1, 20, 32)
        caches = self._draw_caches(many, many + 2, [late, early], dtype)
        free = [self._slots(cache, 2 * count)[0] for cache in caches]
        text = int(self.random.integers(0, OTHER_TEXT))
        slots: list[dict] = [{} for _ in caches]
        calls = []
        for source, target in ((late, places), (early, places[::-1])):
            own = [some[len(calls) * count :][:count] for some in free]
            whole = caches[source].before[:, :, own[source]]
            parts = np.split(whole, many, axis=3)
            for i, place in enumerate(target):
                caches[place].after[:, :, own[place]] = parts[i]
                caches[place].handed[text] = i, own[place], parts
            for place in (source, *target):
                slots[place][text] = own[place]
            calls.append((text, source, target))
            text += 1
        said = " and ".join(f"text {number} from {one} to {some}" for number, one, some in calls)
        self.case = f"{many + 2} virtual ranks on rank 0, {np.dtype(dtype)}, "
        self.case += f"{said}, of which rank {early} is ready first"
        given = [(c.before, c.block_size, own) for c, own in zip(caches, slots, strict=True)]
        seed = int(self.random.integers(1 << 32))
        arguments = [{"caches": given, "calls": calls, "late": late, "seed": seed}]
        arguments += [{"caches": [], "calls": [], "late": 0, "seed": 0}] * 3
        answers = self.call(call_hand_over_late, arguments, show=self.show)
        for place, cache in enumerate(caches):
            self._compare(answers[0][place], cache, place, 0)

    def _describe(self, lengths: tuple, orders: list, routes: list, caches: list, dtype: type) -> None:
        """Say in words what is handed over."""
        layers, _, _, heads, size = caches[0][routes[0][0]].before.shape
        tokens = ", ".join(str(count) for *_, count in lengths)
        ways = " and ".join(f"from {source} to {target}" for source, target in routes)
        self.case = f"texts of {tokens} tokens, {layers} layers, {heads} heads of {size}, {ways}, "
        self.case += f"{np.dtype(dtype)}"
        if orders[0] != sorted(orders[0]) and self.show:
            self.case += f", in a group of ranks {orders[0]} of everyone, and then {orders[1]}"

    def _compare(self, got: object, cache: Place, place: int, r: int) -> None:
        """Check a rank's cache: the texts that it has been handed, and the rest."""
        if isinstance(got, np.ndarray) and got.shape == cache.after.shape:
            # A text that came twice counts in its last slots.
            for text, (index, slots, parts) in cache.handed.items():
                others = {other: part[i] for other, (i, _, part) in cache.handed.items()}
                others.pop(text)
                self._handed(got, cache.after, text, index, slots, parts, others, place, r)
        cause = "a write into slots of another text, or at the source's slots"
        name = f"the rest of the cache of place {place}"
        self.array(got, cache.after, name=name, rank=r, cause=cause)

    def _handed(
        self,
        got: np.ndarray,
        want: np.ndarray,
        text: int,
        index: int,
        slots: np.ndarray,
        parts: list,
        others: dict[int, np.ndarray],
        place: int,
        r: int,
    ) -> None:
        """Check what a rank has of a text: part `index` of `parts`; of other texts it has `others`."""
        mine, whole = parts[index], np.concatenate(parts, axis=3)
        known = {f"part {i} of the heads; target[{index}] needs part {index}": part for i, part in enumerate(parts) if i != index}
        if len(parts) > 1:
            known["every other head; a part is heads that follow each other"] = whole[:, :, :, index :: len(parts)]
        known["what it should be, but in the order of the slots' numbers; slots are in the order of the tokens"] = mine[
            :, :, np.argsort(np.argsort(slots))
        ]
        for other, part in others.items():
            known[f"what it should have of text {other}; {ANY_SOURCE}"] = part
        self.array(
            got[:, :, slots],
            want[:, :, slots],
            name=f"what place {place} has of text {text},",
            rank=r,
            cause="the source's slots, as the text has other ones on each rank; slots or parts that "
            "are kept from another call; or cache.data[:, :, slots][:] = part, which writes into a "
            "copy",
            instead=known,
        )

    def _cost(self, calls: int, many: int, most: float, group: list[int], r: int) -> None:
        """Check the bytes and the calls of a rank."""
        moved = self.ranks.traffic[r]
        name = f"hand_over, called {calls} times,"
        cause = "more than each rank's part of the text (other heads, other slots, a larger dtype), or messages by way of other ranks"
        self.sent(moved, most, name=name, rank=r, cause=cause, limit=contract.HANDED_BYTES)
        number = int(contract.HANDED_CALLS.number) * many * calls
        limit = contract.HANDED_CALLS
        self.calls(moved, number, group=group, name=name, rank=r, limit=limit)
        self.requests_completed(self.ranks.unended[r], r)
