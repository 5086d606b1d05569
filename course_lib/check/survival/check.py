"""Checks of part 37's `hear` and `agree`; for `DiLoCo` see `survival.diloco`, for `FaultTolerantDiLoCo` `survival.training`.

With isolated ranks, silences and deadlines are in virtual time (`coordination.virtual_network`), and every run of a right answer is the
same whatever the machine does. Silences begin in a round, and whom a rank must have heard is what the broker has delivered: neither
depends on what else an answer sends. With a student's ranks, both are real, and short: there, only what must hold at any speed is checked.
"""

from __future__ import annotations

import itertools
import math
import time

import numpy as np

from course_lib.check.groups import GroupCheck
from course_lib.check.survival import contract
from course_lib.check.survival.diloco import DiLoCoCheck
from course_lib.check.survival.late_messages import FEW_VOTES, late_cases
from course_lib.check.survival.on_ranks import agree_often, agree_virtually, hear_rounds
from course_lib.check.survival.rounds import Rounds, last_round
from course_lib.check.survival.training import LIMIT, SurvivalCheck

__all__ = ["AgreementCheck", "DiLoCoCheck", "SurvivalCheck"]

PATIENCE, LONG = 20.0, 1e4  # virtual seconds
ALL = (0, 1, 2, 3)
ENDLESS = {
    "hear": ("hear goes on without an end", "a deadline that begins anew with each message, or a wait for a rank that is not there"),
    "agree": (
        "agree goes on without an end",
        "a rank that keeps its own proposal: all take over the most frequent one, the smallest of equally frequent ones",
    ),
}
A, B, C = 0, 1, 2  # proposals: places in one of these, which are in ascending order, however they are compared by mistake
PROPOSALS = (
    ((0, 1, 2), (0, 1, 2, 3), (1, 2, 3)),
    ((0, 7, 9, 9), (1,), (2, 0)),
    ((), (0,), (0, 1, 2, 3)),
    ((-5, 60), (-1, 0), (-1, 1 << 40)),
)
NOT_AT_ONCE = "a look at `enough` only where a message comes: when the deadline is over, look at once"
CLOCK = 0.05  # seconds by which a real time may differ
VALUES = None, 0, "", (), [], {}, False, -0.0, float("nan"), (1, (2.5, "x"))  # besides arrays
Cut = tuple[list[set[int]], float]


class AgreementCheck(GroupCheck):
    """A `Check` of `hear` and `agree`."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, ranks, show=show)
        self._values, self._proposals = itertools.cycle((*VALUES, "array")), itertools.cycle(PROPOSALS)

    # Of `hear`.

    def hear_all(self) -> AgreementCheck:
        """Check rounds in which all ranks are there."""
        if self.ranks.isolated:
            return self._hear("all ranks there", [(0, 0), (0, 1), (1, 0)], everyone=True, seconds=0.0)
        return self._hear("all ranks there", [(0, 0), (1, 0)], everyone=True, deadline=3.0, seconds=3.0, patience=1.5)

    def hear_late(self, rank: int) -> AgreementCheck:
        """Check that all wait for a rank that is back long before the deadline."""
        case = f"rank {rank} silent for a seventh of the deadline"
        return self._hear(case, [(0, 0)], {rank: (0.4, 0)}, everyone=True, deadline=3.0, home=set(ALL))

    def hear_without(self, rank: int, late: int) -> AgreementCheck:
        """Check rounds without a rank, while another one is late, and so hears of the next round before this one is over."""
        case = f"rank {rank} silent, and rank {late} a little late"
        return self._hear(case, [(0, 0), (0, 1), (1, 0)], {rank: (2.6, 0), late: (0.3, 0)}, deadline=0.5, patience=1.4, home={late})

    def hear_patiently(self, *pair: int) -> AgreementCheck:
        """Check that two ranks wait longer than the deadline for two that are silent, and that they give up in the end."""
        self._hear(f"ranks {pair} silent beyond the deadline", [(0, 0)], {r: (0.8, 0) for r in pair}, deadline=0.2)
        case = f"ranks {pair} silent for longer than deadline and patience"
        return self._hear(case, [(0, 0)], {r: (1.5, 0) for r in pair}, deadline=0.1, patience=0.3, stuck=set(ALL) - set(pair))

    def rounds(self) -> AgreementCheck:
        """Check rounds with silences of all kinds."""
        keys = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
        self.hear_all()
        for r in ALL:
            others = [k for k in ALL if k != r]
            without = {k: others for k in others}
            self._hear(f"rank {r} silent all the time", keys, {r: (LONG, 0)}, exact=without)
            self._in_time(set(others), len(keys), "the deadline, although enough are heard", NOT_AT_ONCE)
            self._hear(f"rank {r} silent for half a deadline", keys, {r: (0.5, 1)}, everyone=True, seconds=0.5)
            for after in (1, 2, 4):
                self._hear(f"rank {r} silent for 2.5 deadlines, after {after} messages", keys, {r: (2.5, after)})
                self._hear(f"rank {r} silent, and no deadline", keys, {r: (2.5, after)}, deadline=0.0)
            away = {k: (5.5, 0) for k in others[:2]}
            self._hear(f"two ranks silent, and back in time: {sorted(away)}", keys, away, waits=5.5)
            away = {k: (PATIENCE + 0.7, 0) for k in others[:2]}  # after the deadline and nearly all of the patience
            self._hear(f"two ranks silent, and back at the last moment: {sorted(away)}", keys, away, waits=PATIENCE + 0.7)
            away = {k: (LONG, 0) for k in others[:2]}
            self._hear(f"two ranks silent for too long: {sorted(away)}", keys, away, stuck=set(ALL) - set(away))
            self._in_time(set(ALL) - set(away), 1 + PATIENCE, "the deadline and the patience", "a patience that begins anew")
        self._hear_after_a_timeout()
        for size in (4, 3, 2, 1):
            self._hear(f"groups of {size}", keys, size=size, everyone=True, seconds=0.0)
        self.covers("group order", "group sizes", "sizes", "repetition", "same ranks twice")
        return self

    def _hear(
        self,
        case: str,
        keys: list[tuple[int, int]],
        silent: dict[int, tuple[float, int]] | None = None,
        *,
        size: int | None = None,
        deadline: float = 1.0,
        everyone: bool = False,
        exact: dict[int, list[int]] | None = None,
        seconds: float | None = None,
        waits: float = 0.0,
        stuck: set[int] | None = None,
        patience: float = 5.0,
        home: set[int] | None = None,
    ) -> AgreementCheck:
        """Check rounds of `hear`.

        Parameters
        ----------
        silent : dict of int to (float, int)
            Ranks that fall silent: for how many seconds, and after how many messages.
        everyone : bool
            Whether all must be heard, in every round.
        exact : dict of int to list of int
            Whom these ranks must hear.
        seconds : float
            What the virtual clock must show in the end, at most; with real ranks, the time that all rounds take.
        waits : float
            What it must show at least.
        stuck : set of int
            Ranks that must get a TimeoutError.
        home : set of int
            Ranks that fall silent, and must yet hear enough in each round.
        """
        groups, isolated, silent = self.groups(size) if size else [list(ALL)], self.ranks.isolated, silent or {}
        self.case = case
        self._plan_all(silent, keys)
        values = [[self._draw_value() for _ in keys] for _ in ALL]
        places, enough = self.colors_and_keys(groups), {r: 2 * len(group) // 3 + 1 for group in groups for r in group}
        common = dict(keys=keys, deadline=deadline, patience=PATIENCE if isolated else patience)
        arguments = [dict(place=places[r], values=values[r], enough=enough[r], **common) for r in ALL]
        began = time.monotonic()
        answered = self.call(hear_rounds, arguments, explain={"TimeLimit": ENDLESS["hear"]}, show=self.show, limit=LIMIT)
        (found, later, after_calls, kept, each), took = zip(*answered, strict=True), time.monotonic() - began
        for r in () if isolated else ALL:
            self._took(each[r], found[r], r, silent.get(r, (0.0,))[0], deadline, patience)
        for group in groups:
            for i, r in enumerate(group):
                away = silent.keys() - (home or set())
                self._heard(found[r], r, i, keys, [values[k] for k in group], enough[r], stuck or set(), away)
                self._kept(found[r], later[r], r, i, keys)
                self._puts_back(kept[r], r)
                for value, before in zip(after_calls[r], values[r], strict=False):
                    self._value(value, before, f"the value that rank {r} sends, after the call,", r, "an operation in place")
                wanted = list(range(len(group))) if everyone else (exact or {}).get(r)
                if wanted is not None and (isolated or everyone):
                    self._hears_exactly(keys, found[r], wanted, r)
        if isolated:
            self._clock(seconds, waits)
            rounds = Rounds(isolated.broker.coordinator.network)
            rounds.check(self, set(silent))
            for group in groups:
                self._delivered(rounds, group, keys, [found[r] for r in group], deadline)
        elif seconds is not None and took > seconds:
            self.fail("ranks wait although all have been heard", "a loop over listen without a break: it ends when the time is over")
        self.covers("dtypes", "arguments", "results")
        return self

    def _hear_after_a_timeout(self) -> None:
        """Check what a rank hears in the round after one that it has given up.

        Rank `ahead` is there at once, so that its message of the next round comes before that.
        """
        late, ahead, *others = self.random.permutation(4).tolist()
        self.case = f"no messages of ranks {sorted(others)} to rank {late} until its patience ends"
        keys = [(0, 0), (0, 1)]
        self._plan_all({}, keys)
        network = self.ranks.isolated.broker.coordinator.network
        network.plan_partition([{late}, set(others)], PATIENCE + 1.5)
        common = dict(keys=keys, enough=3, deadline=1.0, patience=PATIENCE, goes_on=True)
        sent = [[10 * r, 10 * r + 1] for r in ALL]
        answered = self.call(
            hear_rounds,
            [common | dict(place=(0, r), values=sent[r]) for r in ALL],
            explain={"TimeLimit": ENDLESS["hear"]},
            show=self.show,
            limit=LIMIT,
        )
        given_up, heard = answered[late][0]
        if given_up != "TimeoutError":
            problem = f"rank {late} cannot hear enough ranks in round {keys[0]}"
            cause = "too few ranks that are taken for enough"
            self.fail(f"{problem}, and does not raise TimeoutError", cause)
        if not isinstance(heard, dict) or ahead not in heard:
            problem = f"after a TimeoutError in round {keys[0]}, rank {late} does not hear rank "
            problem += f"{ahead} in round {keys[1]}, although its message has come before"
            cause = "later messages that are put back at the end of a round, but not with an error"
            self.fail(problem, cause, limit=contract.KEEPS_LATER)
        wanted = {r: sent[r][1] for r in ALL}
        if heard != wanted:
            problem = f"after a TimeoutError in round {keys[0]}, rank {late} hears {heard}"
            cause = "a message of another round, of which the key tells; or one that is thrown away"
            self.fail(f"{problem} in round {keys[1]}, expected {wanted}", cause)

    def _plan_all(self, silent: dict[int, tuple[float, int]], keys: list) -> None:
        """Plan silences in these rounds, in which other messages do not arrive."""
        for r, (length, after) in silent.items():
            self._plan(r, length, after, keys)
        if self.ranks.isolated:
            self.ranks.isolated.broker.coordinator.network.plan_rounds_only()

    def _puts_back(self, kept: list[tuple], r: int) -> None:
        """Check that no message of an earlier round is put back: `kept` has the keys of rounds and messages."""
        for key, kept_key in kept:
            if tuple(kept_key) < tuple(key):
                cause = "a message that is put back unless it is of this round: forget those of earlier rounds"
                self.fail(f"in round {key}, rank {r} puts back a message of round {kept_key}", cause)

    def _hears_exactly(self, keys: list, found: list, wanted: list[int], r: int) -> None:
        """Check whom a rank has heard in each round."""
        for key, heard in zip(keys, found, strict=False):
            if heard == "TimeoutError":
                self.fail(f"in round {key}, rank {r} raises TimeoutError, expected {wanted}", "messages of the round that are thrown away")
            if sorted(heard) != wanted:
                cause = "a round that ends with enough ranks, before the deadline; or a later round's message that is thrown away"
                self.fail(f"in round {key}, rank {r} hears {sorted(heard)}, expected {wanted}", cause)

    def _draw_value(self) -> object:
        """Draw what a rank sends: arrays of all lengths and dtypes, and values that are not true, in turn."""
        value = next(self._values)
        if value != "array":
            return value
        return self.special(*self.sizes(1, 0, 6), dtype=("float64", "float32", "int64")[int(self.random.integers(3))])

    def _delivered(self, rounds: Rounds, group: list[int], keys: list[tuple[int, int]], found: list, deadline: float) -> None:
        """Check that each rank of a group has heard whom it must, and no one else, by the messages that the broker has delivered."""
        for place, r in enumerate(group):
            for key, heard in zip(keys, found[place], strict=False):
                if heard == "TimeoutError":
                    continue
                sent = rounds.sends(r, key)
                ends, begins = rounds.next_place(r, key), max((event.time for _, event in sent), default=0.0)
                received = {group.index(k): (at, event) for k, (at, event) in rounds.received(r, key).items()}
                may = {place} | {k for k, (at, _) in received.items() if at < ends}
                must = {place} | {k for k, (_, event) in received.items() if event.time < begins + deadline}
                if set(heard) - may:
                    cause = 'values that came in another way than as messages about "round" with the key of the round'
                    who = min(set(heard) - may)
                    self.fail(f"in round {key}, rank {r} hears rank {who}, whose message has not arrived", cause)
                if must - set(heard):
                    cause = "a later round's message that is thrown away, or a round that ends before its deadline"
                    who = min(must - set(heard))
                    self.fail(f"in round {key}, rank {r} does not hear rank {who}, whose message arrives before the deadline", cause)

    def _kept(self, found: list, later: list, r: int, place: int, keys: list) -> None:
        """Check that what a rank has heard is the same after later calls; its own value is the caller's, who may change it."""
        for key, heard, after in zip(keys, found, later, strict=False):
            if not isinstance(heard, dict):
                continue
            same = isinstance(after, dict) and heard.keys() == after.keys()
            if not same or any(not _equal(heard[k], after[k]) for k in heard if k != place):
                cause = "a dict that all calls share: make a new one in each call"
                self.fail(f"what rank {r} has heard in round {key} is something else after later calls", cause)

    def _value(self, got: object, want: object, name: str, rank: int, cause: str, stale: dict | None = None) -> None:
        """Check a value of a round."""
        if isinstance(want, np.ndarray):
            self.array(got, want, name=name, rank=rank, cause=cause, instead=stale, signed_zeros=True)
        elif not _equal(got, want):
            values = f" is {got!r}, expected {want!r}" if self.show else " is another one"
            self.fail(f"{name} on rank {rank}{values}", cause)

    def _plan(self, rank: int, seconds: float, after: int, rounds: list[tuple[int, int]]) -> None:
        """Plan a silence after so many messages in these rounds; with real ranks, roughly then."""
        if isolated := self.ranks.isolated:
            number, through = last_round(rank, after)
            isolated.broker.coordinator.network.plan_silence(rank, seconds, round=rounds[number], through=through)
        else:
            self.ranks.silence(rank, seconds, after + 2)  # the check's messenger, and its group

    def _clock(self, seconds: float | None, waits: float) -> None:
        now = self.ranks.isolated.broker.coordinator.network.now
        if seconds is not None and now > seconds:
            self.fail("ranks wait although all have been heard", "a loop over listen without a break: it ends when the time is over")
        if now < waits:
            self.fail("ranks do not wait until enough are there", "a loop that ends at the deadline")

    def _took(self, seconds: float, found: list, r: int, silent: float, deadline: float, patience: float) -> None:
        """Check how long the first round took on a rank, by the real clock."""
        heard, waited, most = found[0] if found else None, seconds - silent, deadline + patience
        if heard == "TimeoutError" and waited < most - CLOCK:
            cause = "a patience that is counted from the start: it begins after the deadline"
            self.fail(f"rank {r} raises TimeoutError after {waited:.2f} s; deadline and patience are {most:g} s together", cause)
        if isinstance(heard, dict) and r in heard and len(heard) < len(ALL):
            if waited < deadline - CLOCK:
                cause = "a wait that ends as soon as enough are heard, or when a message of a later round comes"
                self.fail(f"rank {r} ends a round {deadline - waited:.2f} s before the deadline, and has not heard all", cause)
            if not silent and waited > most - CLOCK:  # far from the deadline, as the machine may be slow
                self.fail(f"rank {r} goes on waiting after the deadline, although it has heard enough", NOT_AT_ONCE)

    def _in_time(self, ranks: set[int], most: float, limit: str, cause: str) -> None:
        """Check that ranks wait no longer than they must, by the virtual clock."""
        for now, what, r, *_ in self.ranks.isolated.broker.coordinator.network.log:
            if what == "replies" and r in ranks and now > most:
                self.fail(f"rank {r} waits longer than {limit}", cause)

    def _heard(self, found: object, r: int, place: int, keys: list, values: list, enough: int, stuck: set[int], silent: set[int]) -> None:
        """Check what one rank has heard in all rounds."""
        if r in stuck:
            if found != ["TimeoutError"]:
                cause = "too few ranks that are taken for enough, or a wait that never ends"
                self.fail(f"rank {r} cannot hear enough ranks, and does not raise TimeoutError", cause)
            return
        for number, key in enumerate(keys):
            heard = found[number] if number < len(found) else None
            if heard == "TimeoutError" and (r in silent or stuck):
                return
            if heard == "TimeoutError":
                cause = "a later round's message that is thrown away; a value that is not sent to all; no patience after the deadline"
                cause += f"; or {NOT_AT_ONCE}"
                self.fail(f"in round {key}, hear raises TimeoutError on rank {r}, although enough ranks send", cause)
            if not isinstance(heard, dict):
                self.fail(f"in round {key}, hear returns {heard!r} on rank {r}", "a missing return")
            if not set(heard) <= set(range(len(values))) or place not in heard or len(heard) < enough:
                cause = "a round that ends at the deadline with too few, or that counts messages of other rounds"
                if place not in heard:
                    cause = "the own value, which counts, too"
                self.fail(f"in round {key}, rank {r} hears {sorted(heard)}; {enough} are enough, with itself", cause)
            for source, value in heard.items():
                arrays = {k: values[source][i] for i, k in enumerate(keys) if k != key and isinstance(values[source][i], np.ndarray)}
                stale = {f"its value of round {k}": array for k, array in arrays.items()} if self.show else None
                cause = "a message of another round, of which the key tells; or a value that is changed, or left out as it is not true"
                self._value(value, values[source][number], f"what is heard of rank {source} in round {key}", r, cause, stale)

    # Of `agree`.

    def agree_on(self, steps: int) -> AgreementCheck:
        """Check some steps with all ranks there: one in which all agree at once, one in which two propose something else, drawn ones."""
        proposals = [[B] * 4, [A, C, C, A], *([[A, B][int(self.random.integers(2))] for _ in ALL] for _ in range(steps - 2))]
        return self._agree("all ranks there", proposals)

    def agree_late(self, rank: int, slow: int) -> AgreementCheck:
        """Check that a rank learns what the others have decided without it: a slow rank's message reaches the others, but not this one."""
        after = rank if rank < slow else rank - 1  # messages of the slow rank to those before
        proposals = [[A if r == rank else B for r in ALL]]
        case = f"rank {rank} late, and rank {slow} silent before its message to it"
        return self._agree(case, proposals, {rank: [(0.5, 0, 1)], slow: [(1.0, after, 1)]}, home=set(ALL))

    def agree_split(self, rank: int, slow: int) -> AgreementCheck:
        """Check that two of the three votes that a rank hears do not decide: it and the others hear other votes of the same round."""
        after = rank if rank < slow else rank - 1
        proposals = [[A if r in (slow, min(set(ALL) - {rank, slow})) else B for r in ALL]]
        case = f"two proposals, rank {rank} late, and rank {slow} silent before its message to it"
        return self._agree(case, proposals, {rank: [(0.5, 0, 1)], slow: [(1.0, after, 1)]}, home=set(ALL))

    def agree_without(self, rank: int) -> AgreementCheck:
        """Check steps without a rank, which is silent for longer than the patience; the others have three different proposals."""
        others = iter((C, A, B))
        first = [B if r == rank else next(others) for r in ALL]
        return self._agree(f"rank {rank} silent", [first, [B] * 4], {rank: [(2.0, 0, 1)]}, smallest=True, patience=1.5)

    def agree_among_three(self, rank: int) -> AgreementCheck:
        """Check that two of three ranks are not enough."""
        silent, three = {rank: [(1.5, 0, 1)]}, {0, 1, 2}
        case = f"three ranks, rank {rank} silent for longer than the patience"
        return self._agree(case, [[A] * 4], silent, three=three, stuck=three - {rank}, patience=0.4)

    def agreements(self) -> AgreementCheck:
        """Check agreements with silences and held-up messages of all kinds."""
        self._agree_among_many()
        self._agree_with_late_messages()
        for size in (4, 3, 2, 1):
            self._agree_in_groups(size)
        for first in (A, B):
            self._agree("all ranks there, one proposal", [[first] * 4, [C] * 4], seconds=0.0, most=int(contract.AGREE_MESSAGES.number))
        for _ in range(3):
            self._agree("four proposals", [[(r,) for r in self.random.permutation(4).tolist()]])
        for r in ALL:  # three ranks hear three proposals once each
            left = iter((C, A, B) if r % 2 else (B, C, A))
            proposals = [[B if k == r else next(left) for k in ALL]]
            self._agree(f"three proposals, rank {r} silent", proposals, {r: [(LONG, 0, 1)]}, smallest=True)
        for pair in itertools.permutations(ALL, 2):  # they do not hear each other, and begin with different proposals
            third, fourth = [r for r in ALL if r not in pair]
            for split in ({pair[0], third}, {pair[0], fourth}, {pair[0]}, {pair[0], third, fourth}):
                proposals = [[A if r in split else C for r in ALL], [B] * 4]
                self._agree(f"no messages between ranks {pair[0]} and {pair[1]}", proposals, cut=([{pair[0]}, {pair[1]}], LONG))
        for r in ALL:
            for after in range(11):
                proposals = [[B if k in (r, (r + 1) % 4) else A for k in ALL], [A if k == r else C for k in ALL], [B] * 4]
                self._agree(f"rank {r} silent after {after} messages", proposals, {r: [(3.5, after, 1)]}, seconds=0.0)
            # Rank r is back while the others cannot go on without it.
            for other in set(ALL) - {r}:
                plan = {r: [(2.5, 1, 1)], other: [(5.5, 0, 2)]}
                self._agree(f"first rank {r} silent, then rank {other}", [[A if k == r else B for k in ALL], [A, B, A, B], [C] * 4], plan)
        for pair in itertools.combinations(ALL, 2):
            others, mixed = set(ALL) - set(pair), [[B if r in pair else A for r in ALL], [A] * 4]
            self._agree(f"ranks {pair} silent", mixed, {r: [(5.5, 1, 1)] for r in pair})
            self._agree(f"ranks {pair} cut off for a while", mixed, cut=([set(pair), others], 5.5))
            self._agree(f"ranks {pair} cut off", mixed, cut=([set(pair), others], LONG), stuck=set(ALL))
        for r in ALL:
            self._agree(f"rank {r} cut off", [[A] * 4, [A, B, A, B]], cut=([{r}, set(ALL) - {r}], LONG), stuck={r})
        for order in itertools.permutations((0, 1, 2)):  # of three ranks, all are needed
            ends = {order[0], order[2]}
            proposals = [[C if r == order[2] else A for r in ALL]], [[A if r == order[2] else C for r in ALL]]
            for proposal, late in itertools.product(proposals, ({}, {order[0]: [(0.5, 0, 1)]})):
                case, cut = "three ranks, two of them cut off from each other", ([{order[0]}, {order[2]}], LONG)
                self._agree(case, proposal, late, cut=cut, three=ends)
        self.covers("special values", "sizes", "repetition", "same ranks twice")
        return self

    def _agree_among_many(self) -> None:
        """Check virtual ranks, with as many silent ones as the others can do without, and with one more."""
        drawn = []
        for size in (5, 6, 7, 17):
            names, most = next(self._proposals), size - (2 * size // 3 + 1)
            for away in (most, most + 1):
                proposals = [names[int(i)] for i in self.random.integers(3, size=size)]
                drawn.append(dict(proposals=proposals, silent=self.random.permutation(size)[:away].tolist()))
        arguments = [dict(cases=drawn[i : i + 2], seed=int(self.random.integers(1 << 30)), patience=PATIENCE) for i in (0, 2, 4, 6)]
        answers = self.call(agree_virtually, arguments, explain={"TimeLimit": ENDLESS["agree"]}, show=self.show, limit=LIMIT)
        for number, (case, found) in enumerate(zip(drawn, itertools.chain(*answers), strict=True)):
            size, silent = len(case["proposals"]), sorted(case["silent"])
            self.case = f"{size} ranks, ranks {silent} silent"
            there = {r: found[r] for r in range(size) if r not in silent}
            if number % 2:
                self._without_enough({r for r, answer in there.items() if answer != "TimeoutError"}, 0)
                continue
            for r, answer in there.items():
                if answer == "TimeoutError":
                    cause = "more ranks than enough: more than 2n/3 are needed, with any n"
                    self.fail(f"rank {r} gets no answer in step 0, although enough ranks are there", cause)
            self._same(there, case["proposals"], 0)
        self.covers("many ranks")

    def _agree_with_late_messages(self) -> None:
        """Check virtual ranks of which each hears, in each round, exactly those that it must."""
        names = next(self._proposals)
        cases = late_cases(self.random, names[A], names[C])
        given = [[dict(proposals=case.proposals, late=case.late)] for case in cases]
        given += [[] for _ in range(len(ALL) - len(given))]
        seeds = self.random.integers(1 << 30, size=len(ALL)).tolist()
        answers = self.call(
            agree_virtually,
            [dict(cases=given[r], seed=seeds[r], patience=PATIENCE) for r in ALL],
            explain={"TimeLimit": ENDLESS["agree"]},
            show=self.show,
            limit=LIMIT,
        )
        for case, found in zip(cases, itertools.chain(*answers), strict=True):
            self.case = case.case
            for r, answer in enumerate(found):
                if answer == "TimeoutError":
                    problem = f"rank {r} gets no answer in step 0, although enough ranks are there"
                    self.fail(problem, case.no_answer)
            self._same(dict(enumerate(found)), case.proposals, 0, case.differ)

    def _agree_in_groups(self, size: int) -> None:
        """Check two steps in groups of `size`, of which one begins with a single proposal."""
        groups = self.groups(size)
        self.case = self.describe_groups(groups, int).rpartition(",")[0]
        names, places = next(self._proposals), self.colors_and_keys(groups)
        proposals = [[names[int(i)] for i in self.random.integers(3, size=4)], [names[place % 3] for place, _ in places]]
        arguments = [dict(place=places[r], proposals=[step[r] for step in proposals], patience=PATIENCE) for r in ALL]
        self.ranks.isolated.broker.coordinator.network.plan_rounds_only()
        answered = self.call(agree_often, arguments, explain={"TimeLimit": ENDLESS["agree"]}, show=self.show, limit=LIMIT)
        for group, (step, proposed) in itertools.product(groups, enumerate(proposals)):
            answers = {r: answered[r][0][step] if step < len(answered[r][0]) else None for r in group}
            self._same(answers, [proposed[r] for r in group], step)
        Rounds(self.ranks.isolated.broker.coordinator.network).check(self, set())
        self.covers("group order", "group sizes")

    def _agree(
        self,
        case: str,
        proposals: list[list[int | tuple]],
        silent: dict[int, list[tuple[float, int, int]]] | None = None,
        *,
        most: int | None = None,
        cut: Cut | None = None,
        stuck: set[int] | None = None,
        seconds: float = math.inf,
        three: set[int] | None = None,
        smallest: bool = False,
        home: set[int] | None = None,
        patience: float = 5.0,
    ) -> AgreementCheck:
        """Check `agree` for some steps.

        Parameters
        ----------
        proposals : list of list of (int or tuple)
            By step and rank; A, B and C stand for three that are drawn.
        most : int
            How many messages a rank may send to each other one in a step.
        silent : dict of int to list of (float, int, int)
            By rank, silences: seconds, after how many messages, of which step, from 1.
        cut : (list of set of int, float), optional
            Ranks between which no messages arrive, and until when.
        stuck : set of int
            Ranks that must get a TimeoutError, or no answer.
        seconds : float
            What the virtual clock may show at most when a rank that is never silent has all answers.
        three : set of int
            Only ranks 0 to 2 take part; these two must not get an answer unless it is the third's.
        smallest : bool
            Whether the answer of the first step must be the smallest proposal.
        home : set of int
            Ranks that must get all answers, even if they are silent for a while.
        patience : float
            In seconds, with real silences: within it, the ranks that are never silent must have their first answer.
        """
        self.case, silent, stuck, isolated = case, silent or {}, stuck or set(), self.ranks.isolated
        names = next(self._proposals)
        proposals = [[names[p] if isinstance(p, int) else p for p in step] for step in proposals]
        for r, plan in silent.items():
            for length, after, turn in plan:
                self._plan(r, length, after, [(turn - 1, number) for number in range(2, 7)])
        if isolated:
            isolated.broker.coordinator.network.plan_rounds_only()
        if cut:
            isolated.broker.coordinator.network.plan_partition(*cut)
        place = [(0, 0), (0, 1), (0, 2), (1, 0)] if three else [(0, r) for r in ALL]
        common = dict(patience=PATIENCE if isolated else patience)
        arguments = [dict(place=place[r], proposals=[step[r] for step in proposals], **common) for r in ALL]
        answered = self.call(agree_often, arguments, explain={"TimeLimit": ENDLESS["agree"]}, show=self.show, limit=LIMIT)
        found, took, last = zip(*answered, strict=True)
        members = [0, 1, 2] if three else list(ALL)
        for step, proposed in enumerate(proposals):
            answers = {r: found[r][step] for r in members if step < len(found[r]) and found[r][step] not in (None, "TimeoutError")}
            self._same(answers, [proposed[r] for r in members], step)
            if smallest and not step:
                self._is_smallest(answers, proposed)
            for r in (set(members) - set(silent) - stuck - (three or set())) | (home or set()):
                if r not in answers and not three:
                    self._no_answer(r, step, answers, last[r], set(silent))
                if not isolated and silent and r not in silent and took[r] > patience:
                    self.fail(f"rank {r} waits although enough are there", "a deadline where there should be none")
            self._without_enough(stuck & answers.keys(), step)
        if isolated:
            self._broker_saw(Rounds(isolated.broker.coordinator.network), set(silent), seconds, most, len(proposals))
        return self

    def _is_smallest(self, answers: dict, proposed: list) -> None:
        """Check that the answers of the first step are the smallest proposal."""
        if any(answer != min(proposed) for answer in answers.values()):
            cause = "min and max mixed up, or another way to choose"
            self.fail("of equally frequent proposals in step 0, the smaller one is not taken over", cause)

    def _no_answer(self, r: int, step: int, answers: dict, last: object, silent: set[int]) -> None:
        """Fail because a rank has no answer; `last` is what it proposed last."""
        cause = "a rank that has decided and sends nothing more in the next round; or keys without the round"
        if len(answers) > 1 and isinstance(last, tuple) and last not in answers.values():
            cause = "a rank that takes over another proposal than the most frequent; the smaller one counts of equals only"
        elif silent and r not in silent:
            cause = "a wait for all ranks, where enough are there; or a rank that keeps its own of equally frequent proposals"
        self.fail(f"rank {r} gets no answer in step {step}, although enough ranks are there", cause)

    def _broker_saw(self, rounds: Rounds, silent: set[int], seconds: float, most: int | None, steps: int) -> None:
        """Check when ranks have their answers, and what they send; see `_agree`."""
        for event in rounds.log:
            if event.what == "replies" and event.time > seconds and event.rank not in silent:
                self.fail(f"rank {event.rank} waits although enough are there", "a deadline where there should be none")
        rounds.check(self, silent)
        for step in range(steps if most else 0):
            for (r, other), count in rounds.messages(step).items():
                if count > most:
                    cause = "messages of more rounds than the one after the decision"
                    problem = f"rank {r} sends rank {other} {count} messages in step {step}"
                    self.fail(problem, cause, limit=contract.AGREE_MESSAGES)

    def _without_enough(self, ranks: set[int], step: int) -> None:
        """Fail if there are any of these ranks, which have an answer."""
        if ranks:
            cause = "fewer ranks than enough, taken for enough; more than 2n/3 are needed, with any n"
            self.fail(f"rank {min(ranks)} gets an answer in step {step}, without enough ranks", cause)

    def _same(
        self,
        answers: dict[int, object],
        proposed: list[tuple],
        step: int,
        differ: str = FEW_VOTES,
    ) -> None:
        """Check that these ranks have the same answer, and that it was proposed.

        `differ` is the usual cause if they have several.
        """
        for r, answer in answers.items():
            if not isinstance(answer, tuple):
                problem = f"agree returns {answer!r} on rank {r} in step {step}; expected a tuple"
                self.fail(problem, "a missing return, a loop that ends after some rounds, or a list")
            if answer not in proposed:
                self.fail(
                    f"agree returns {answer!r} on rank {r} in step {step}, which no rank has proposed",
                    "a vote of another step, or of round 0 or 1",
                )
        if len(set(answers.values())) > 1:
            said = "; ".join(f"rank {r}: {answer}" for r, answer in answers.items()) if self.show else "they differ"
            self.fail(f"the ranks do not agree in step {step}: {said}", differ)


def _equal(got: object, want: object) -> bool:
    """Compare what ranks send each other: arrays element by element, all else by type and text, as NaN differs from itself."""
    if isinstance(got, np.ndarray) and isinstance(want, np.ndarray):
        return got.dtype == want.dtype and got.shape == want.shape and np.array_equal(got, want, equal_nan=want.dtype.kind == "f")
    return type(got) is type(want) and repr(got) == repr(want)
