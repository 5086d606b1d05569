"""Checks of part 37's `DiLoCo`, `hear` and `agree`; for `FaultTolerantDiLoCo` see `survival.training`.

With isolated ranks, silences and deadlines are in virtual time (`cluster.isolated.virtual_time`), and every run of a right answer is the
same whatever the machine does. With a student's ranks, both are real, and short: there, only what must hold at any speed is checked.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from course_lib import traffic
from course_lib.check.groups import GroupCheck
from course_lib.check.survival.on_ranks import Weights, agree_often, hear_rounds, make_optimizer, run_diloco
from course_lib.check.survival.training import LIMIT, SurvivalCheck

__all__ = ["AgreementCheck", "DiLoCoCheck", "SurvivalCheck"]

NESTEROV = "SGD", dict(lr=0.7, momentum=0.9, nesterov=True)
PATIENCE, LONG = 20.0, 1e4  # virtual seconds
OTHER_BYTES = 4096  # of the groups that the check makes
ALL = (0, 1, 2, 3)
ENDLESS = {
    "hear": ("hear goes on without an end", "a deadline that begins anew with each message, or a wait for a rank that is not there"),
    "agree": (
        "agree goes on without an end",
        "a rank that keeps its own proposal: all take over the most frequent one, the smallest of equally frequent ones",
    ),
}
A, B, C = (0, 1, 2), (0, 1, 2, 3), (1, 2, 3)  # proposals, in ascending order
NOT_AT_ONCE = "a look at `enough` only where a message comes: when the deadline is over, look at once"
CLOCK = 0.05  # seconds by which a real time may differ
Cut = tuple[list[set[int]], float]


class DiLoCoCheck(GroupCheck):
    """A `Check` of `DiLoCo`."""

    def as_data_parallel(self) -> DiLoCoCheck:
        """Check that with H = 1 and plain gradient descent it is data parallel training."""
        return self.train(4, every=1, inner=("SGD", dict(lr=0.1)), outer=("SGD", dict(lr=1.0)))

    def everything(self) -> DiLoCoCheck:
        """Check all groups, dtypes and optimizers that a right answer must be able to deal with."""
        self.as_data_parallel().traffic(2).traffic(5)
        for size, every, dtype in ((4, 3, "float64"), (3, 2, "float32"), (2, 4, "float64"), (1, 2, "float64")):
            self.train(size, every=every, dtype=dtype)
            self.train(size, every=every, dtype=dtype, inner=("SGD", dict(lr=0.1, momentum=0.5)), outer=("SGD", dict(lr=0.5)))
        return self

    def train(
        self, size: int, *, every: int, dtype: str = "float64", inner: tuple = ("Adam", dict(lr=0.05)), outer: tuple = NESTEROV
    ) -> DiLoCoCheck:
        """Check the parameters after each of some steps, in groups of `size`."""
        groups, steps = self.groups(size), 3 * every + (every > 1)
        found, given = self._run(groups, steps, every, dtype, inner, outer)
        for group in groups:
            self._compare([found[r] for r in group], [given[r] for r in group], group, every, inner, outer)
        return self

    def traffic(self, every: int) -> DiLoCoCheck:
        """Check the bytes that each rank sends in four outer steps."""
        _, given = self._run([list(ALL)], 4 * every, every, "float64", ("SGD", dict(lr=0.1)), NESTEROV, factor=40)
        nbytes = sum(w.nbytes for w in given[0][0])
        most = nbytes + 4 * traffic.wire_bytes("Allreduce", 4, nbytes) + OTHER_BYTES
        for r, moved in enumerate(self.ranks.traffic):
            self.sent(moved, most, name=f"DiLoCo with H = {every}", rank=r, cause="an exchange in every inner step")
        return self

    def _run(self, groups: list, steps: int, every: int, dtype: str, inner: tuple, outer: tuple, factor: int = 1) -> tuple[list, list]:
        """Train on the ranks; return the results, and each rank's first parameters and gradients."""
        rows, columns, length = self.sizes(3, 3, 9)
        shapes = [(factor * rows, columns), (length,), (1,)]
        self.case = f"H = {every}, inner {inner[0]}, outer learning rate {outer[1]['lr']:g}, {self.describe_groups(groups, dtype)}"
        given = [[[np.asarray(self.random.standard_normal(shape), dtype) for shape in shapes] for _ in range(steps + 1)] for _ in range(4)]
        given = [(arrays[0], arrays[1:]) for arrays in given]
        settings = dict(every=every, inner=inner, outer=outer)
        places = self.colors_and_keys(groups)
        arguments = [dict(place=places[r], weights=given[r][0], grads=given[r][1], **settings) for r in range(4)]
        return self.ranks.call(run_diloco, arguments, show=self.show), given

    def _compare(self, found: list, given: list, group: list[int], every: int, inner: tuple, outer: tuple) -> None:
        models = [Weights([w.copy() for w in given[0][0]]) for _ in group]
        optimizers = [make_optimizer(inner[0], model.parameters(), inner[1]) for model in models]
        last = Weights([w.copy() for w in given[0][0]])
        outermost = make_optimizer(outer[0], last.parameters(), outer[1])
        for step in range(len(given[0][1])):
            for model, optimizer, (_, grads) in zip(models, optimizers, given, strict=True):
                for p, grad in zip(model.parameters(), grads[step], strict=True):
                    p.grad = grad.copy()
                optimizer.step()
            exchanged, starts = (step + 1) % every == 0, [weights for weights, _ in given]
            known = partial(_known_weights, copy.deepcopy((models, last, outermost)), starts, step // every if exchanged else None)
            if exchanged:
                for i, p in enumerate(last.parameters()):
                    p.grad = np.mean([p.data - model.parameters()[i].data for model in models], axis=0, dtype=p.data.dtype)
                outermost.step()
                for p, q in itertools.product(range(len(models)), range(len(last.parameters()))):
                    models[p].parameters()[q].data[...] = last.parameters()[q].data
            for i, r in enumerate(group):
                self._compare_step(found[i][step], models[i], (r, i), step, known, found[0][step] if exchanged else None)

    def _compare_step(self, got: list, model: Weights, who: tuple[int, int], step: int, known: Callable, first: list | None) -> None:
        cause, (r, place) = "a difference to other weights than those after the last outer step, or another gradient of the outer step", who
        if first is None:
            cause = "weights that did not start as rank 0's, or an inner optimizer that is not as the rank itself had left it"
        for i, p in enumerate(model.parameters()):
            name = f"parameter {i} after step {step + 1}"
            rtol = 1e-4 if p.data.dtype == np.float32 else 1e-10
            self.array(got[i], p.data, name=name, rank=r, rtol=rtol, scale=4.0, cause=cause, instead=partial(known, place, i))
            if first is not None:
                self.array(got[i], first[i], name=f"{name} (compared with the group's first rank)", rank=r, cause="a mean of its own")


def _known_weights(state: tuple, starts: list, exchange: int | None, place: int, i: int) -> dict[str, np.ndarray]:
    """Parameter i of a rank after an exchange (None: after another step), as known mistakes make it; `starts`: all ranks' first weights."""
    models, last, outermost = state
    own, before = models[place].parameters()[i].data, last.parameters()[i].data
    ways = [before - model.parameters()[i].data for model in models]
    mean = np.mean(ways, axis=0)

    def outer(begin: np.ndarray, grad: np.ndarray) -> np.ndarray:
        fresh_last, fresh = copy.deepcopy((last, outermost))
        p = fresh_last.parameters()[i]
        for q in fresh_last.parameters():
            q.grad = np.zeros_like(q.data)
        p.data, p.grad = begin.copy(), grad.astype(begin.dtype)
        fresh.step()
        return p.data

    if exchange is None:
        return {"the result of an outer step, which is due only after every H inner steps": outer(before, mean)}
    known = {
        "the rank's own weights: there was no outer step, or all differences were 0, as those to weights that are not a copy are": own,
        "the result for this rank's difference alone": outer(before, ways[place]),
        "the result for the sum of the differences instead of their mean": outer(before, len(models) * mean),
        "the result for differences of the wrong sign": outer(before, -mean),
        "the result of an outer step that starts from the rank's own weights, not those after the last outer step": outer(own, mean),
        "the mean of the ranks' weights: an outer step without the outer optimizer": before - mean,
        "what it was after the last outer step": before,
    }
    if exchange:
        first = starts[0][i]
        known["the result of an outer step from the very first weights: after an outer step, keep the new ones"] = outer(
            first, first - before + mean
        )
    else:  # the gradients of plain inner steps do not depend on the weights
        shifted = [start[i] - starts[0][i] for start in starts]
        known["the result without the broadcast: each rank began with weights of its own"] = outer(before, mean) + shifted[place]
    return known


class AgreementCheck(GroupCheck):
    """A `Check` of `hear` and `agree`."""

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
        for size in (3, 2, 1):
            self._hear(f"groups of {size}", keys, size=size, everyone=True, seconds=0.0)
        return self

    def _hear(
        self,
        case: str,
        keys: list[tuple[int, int]],
        silent: dict[int, tuple[float, int]] | None = None,
        *,
        size: int = 4,
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
        patience : float
            In seconds, with real silences.
        home : set of int
            Ranks that fall silent, and must yet hear enough in each round.
        """
        groups, isolated = [list(ALL)] if size == 4 else self.groups(size), self.ranks.isolated
        self.case = case
        for r, (length, after) in (silent or {}).items():
            self._plan(r, length, after)
        values = [[self.random.standard_normal(3) for _ in keys] for _ in ALL]
        places, enough = self.colors_and_keys(groups), {r: 2 * len(group) // 3 + 1 for group in groups for r in group}
        common = dict(keys=keys, deadline=deadline, patience=PATIENCE if isolated else patience)
        arguments = [dict(place=places[r], values=values[r], enough=enough[r], **common) for r in ALL]
        began = time.monotonic()
        answered = self.call(hear_rounds, arguments, explain={"TimeLimit": ENDLESS["hear"]}, show=self.show, limit=LIMIT)
        (found, each), took = zip(*answered, strict=True), time.monotonic() - began
        for r in () if isolated else ALL:
            self._took(each[r], found[r], r, (silent or {}).get(r, (0.0,))[0], deadline, patience)
        for group in groups:
            for i, r in enumerate(group):
                away = (silent or {}).keys() - (home or set())
                self._heard(found[r], r, i, keys, [values[k] for k in group], enough[r], stuck or set(), away)
                for key, heard in zip(keys, found[r], strict=False) if isolated or everyone else ():
                    wanted = list(range(len(group))) if everyone else (exact or {}).get(r)
                    if wanted is not None and sorted(heard) != wanted:
                        cause = "a round that ends with enough ranks, before the deadline; or a later round's message that is thrown away"
                        self.fail(f"in round {key}, rank {r} hears {sorted(heard)}, expected {wanted}", cause)
        if isolated:
            self._clock(seconds, waits)
        elif seconds is not None and took > seconds:
            self.fail("ranks wait although all have been heard", "a loop over listen without a break: it ends when the time is over")
        return self

    def _plan(self, rank: int, seconds: float, after: int, mark: int = 1) -> None:
        """Plan a silence: instead of message number `after` of a turn of the check's loop; with real ranks, roughly then."""
        if self.ranks.isolated:
            self.ranks.isolated.broker.coordinator.network.plan_silence(rank, seconds, after, mark)
        else:
            self.ranks.silence(rank, seconds, after + 4)  # the check's two messengers, their group, and the mark

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
                stale = {f"its value of round {k}": values[source][i] for i, k in enumerate(keys) if k != key}
                name = f"what is heard of rank {source} in round {key}"
                cause = "a message of another round: compare its key"
                self.array(value, values[source][number], name=name, rank=r, cause=cause, instead=stale if self.show else None)

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
        self._agree("all ranks there, one proposal", [[B] * 4, [A] * 4], seconds=0.0)
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
        return self

    def _agree(
        self,
        case: str,
        proposals: list[list[tuple]],
        silent: dict[int, list[tuple[float, int, int]]] | None = None,
        *,
        cut: Cut | None = None,
        stuck: set[int] | None = None,
        seconds: float = math.inf,
        three: set[int] | None = None,
        smallest: bool = False,
        home: set[int] | None = None,
        patience: float = 5.0,
    ) -> AgreementCheck:
        """Check `agree` for some steps: `proposals` by step and rank.

        Parameters
        ----------
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
        for r, plan in silent.items():
            for length, after, mark in plan:
                self._plan(r, length, after, mark)
        if cut:
            isolated.broker.coordinator.network.plan_partition(*cut)
        place = [(0, 0), (0, 1), (0, 2), (1, 0)] if three else [(0, r) for r in ALL]
        patience = PATIENCE if isolated else patience
        arguments = [dict(place=place[r], proposals=[step[r] for step in proposals], patience=patience) for r in ALL]
        answered = self.call(agree_often, arguments, explain={"TimeLimit": ENDLESS["agree"]}, show=self.show, limit=LIMIT)
        found, took, last = zip(*answered, strict=True)
        members = [0, 1, 2] if three else list(ALL)
        for step, proposed in enumerate(proposals):
            answers = {r: found[r][step] for r in members if step < len(found[r]) and found[r][step] not in (None, "TimeoutError")}
            self._same(answers, [proposed[r] for r in members], step)
            if smallest and not step and any(answer != min(proposed) for answer in answers.values()):
                cause = "min and max mixed up, or another way to choose"
                self.fail(f"of equally frequent proposals in step {step}, the smaller one is not taken over", cause)
            for r in (set(members) - set(silent) - stuck - (three or set())) | (home or set()):
                if r not in answers and not three:
                    cause = "a rank that has decided and sends nothing more in the next round; or keys without the round"
                    if len(answers) > 1 and isinstance(last[r], tuple) and last[r] not in answers.values():
                        cause = "a rank that takes over another proposal than the most frequent; the smaller one counts of equals only"
                    elif silent and r not in silent:
                        cause = "a wait for all ranks, where enough are there; or a rank that keeps its own of equally frequent proposals"
                    self.fail(f"rank {r} gets no answer in step {step}, although enough ranks are there", cause)
                if not isolated and silent and r not in silent and took[r] > patience:
                    self.fail(f"rank {r} waits although enough are there", "a deadline where there should be none")
            if wrong := stuck & answers.keys():
                cause = "fewer ranks than enough, taken for enough; more than 2n/3 are needed, with any n"
                self.fail(f"rank {min(wrong)} gets an answer in step {step}, without enough ranks", cause)
        for now, what, r, *_ in isolated.broker.coordinator.network.log if isolated else ():
            if what == "replies" and now > seconds and r not in silent:
                self.fail(f"rank {r} waits although enough are there", "a deadline where there should be none")
        return self

    def _same(self, answers: dict[int, object], proposed: list[tuple], step: int) -> None:
        for r, answer in answers.items():
            if not isinstance(answer, tuple):
                self.fail(f"agree returns {answer!r} on rank {r} in step {step}; expected a tuple", "a missing return, or a list")
            if answer not in proposed:
                self.fail(
                    f"agree returns {answer!r} on rank {r} in step {step}, which no rank has proposed",
                    "a vote of another step, or of round 0 or 1",
                )
        if len(set(answers.values())) > 1:
            said = "; ".join(f"rank {r}: {answer}" for r, answer in answers.items()) if self.show else "they differ"
            cause = "a decision after too few equal votes, or a rank that does not take over the most frequent one"
            self.fail(f"the ranks do not agree in step {step}: {said}", cause)
