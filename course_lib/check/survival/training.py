"""Check of part 37's `FaultTolerantDiLoCo`: each rank's turns against the same training in one process.

What ranks return is checked turn by turn: a turn that counted must end where the mean of exactly the agreed differences leads to, each of
which is computed here from that rank's state at the start of its turn; and a rank that copied must have a peer's state, bit for bit. Which
differences may and must count is what the broker has delivered.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np

from course_lib.autograd import SGD
from course_lib.check.groups import GroupCheck
from course_lib.check.survival import contract
from course_lib.check.survival.on_ranks import Weights, build_replica, snapshot, train_on, train_virtually
from course_lib.check.survival.rounds import NEVER, Rounds, last_round
from course_lib.replica import Replica

ALL = (0, 1, 2, 3)
LONG = 1e4  # virtual seconds
TIMES = dict(deadline=1.0, patience=20.0, linger=30.0)  # virtual seconds
# By rank that runs them all: numbers of virtual ranks, and how many of these are silent.
MANY_RANKS = ((1, 0), (2, 0), (5, 1), (5, 2)), ((3, 0), (6, 1), (6, 2)), ((7, 2), (7, 3)), ((17, 5),)
RTOL = {"float64": 1e-12, "float32": 1e-6}
MANY_INPUTS = 100  # times as many where bytes are counted, next to which other messages are short
ENDLESS = "outer_step goes on without an end", "a rank that asks for a state again and again, although nobody answers; or a loop in agree"
NOT_TRAINED = "a rank that copies a state and goes on in the same call, or sends a difference of an earlier step"
NOT_LOOKED = "a rank that does not look whether the others are in a later step already"
LIMIT = 10.0  # seconds of a run, which takes a tenth of one
Silences = dict[int, list[tuple[float, int, int]]]  # by rank: seconds, after how many messages (see `last_round`), in which step


class SurvivalCheck(GroupCheck):
    """A `Check` of `FaultTolerantDiLoCo`."""

    # Visible, with real silences.

    def undisturbed(self) -> SurvivalCheck:
        """Check a run in which nobody is silent."""
        return self._run("all ranks there", {}, steps=4, seconds=0.0)

    def many_inputs(self) -> SurvivalCheck:
        """Check what ranks send when nobody is silent, for a model next to which other messages are short."""
        return self._run("all ranks there, a large model", {}, steps=3, seconds=0.0, inputs=MANY_INPUTS)

    def shuffled(self) -> SurvivalCheck:
        """Check ranks in another order, with float32 and a matrix of one column."""
        case = "all ranks there, in another order, float32, one hidden unit"
        return self._run(case, {}, steps=3, seconds=0.0, dtype="float32", hidden=1, order=self.groups(4)[0])

    def many_ranks(self) -> SurvivalCheck:
        """Check other numbers of virtual ranks, with as many silent ones as the others can do without, and with one more."""
        drawn, arguments = [], []
        for cases in MANY_RANKS:
            given = []
            for size, away in cases:
                self._draw(size=size)
                silent = sorted(self.random.permutation(size)[:away].tolist())
                drawn.append((silent, self._settings, self._seeds, self._all))
                given.append(dict(silent=silent, settings=self._settings, seeds=self._seeds))
            arguments.append(dict(cases=given, steps=2, seed=int(self.random.integers(1 << 30)), **TIMES))
        answers = self.call(train_virtually, arguments, explain={"TimeLimit": ENDLESS}, show=self.show, limit=LIMIT)
        for (silent, *model), found in zip(drawn, itertools.chain(*answers), strict=True):
            self._settings, self._seeds, self._all = model
            size, others = len(self._all), sorted(set(self._all) - set(silent))
            self.case, self._nobody = f"{size} ranks, ranks {silent} silent" if silent else f"{size} ranks", False
            stuck = len(others) < 2 * size // 3 + 1
            self._check(found, 2, [] if stuck else others)
            for r in others:
                self._ends(r, found[r][-1][3] if len(found[r][-1]) > 2 else found[r][-1][0], 2, stuck, not stuck)
        self.covers("many ranks", "group sizes")
        return self

    def silent(self, rank: int) -> SurvivalCheck:
        """Check a run in which one rank is silent for several steps."""
        home = set(ALL) if self.ranks.isolated else None
        return self._run(f"rank {rank} silent for a while", {rank: [(0.9, 2, 2)]}, steps=10, home=home, without=rank)

    def different_sets(self, first: int, second: int) -> SurvivalCheck:
        """Check a step in which one rank alone hears a smaller set of another one, which then lacks a difference that counts."""
        plan = {first: [(0.6, 4, 0)], second: [(0.6, 2, 0)]}
        return self._run(f"rank {second} silent in the exchange, and rank {first} after it", plan, steps=2, deadline=0.4)

    def half(self, *pair: int) -> SurvivalCheck:
        """Check that two ranks do not go on while two are silent."""
        plan = {r: [(1.5, 0, 0)] for r in pair}
        return self._run(f"ranks {pair} silent for longer than the patience", plan, steps=2, stuck=set(ALL), patience=0.5)

    # Hidden.

    def survivors(self) -> SurvivalCheck:
        """Check those who are never silent, whatever happens to the others."""
        self.undisturbed().many_inputs().shuffled().many_ranks()
        for pair in ((0, 1), (2, 3)) if self.ranks.isolated else ():  # each rank lacks a difference, and all hear all sets
            self.ranks.isolated.broker.coordinator.network.plan_partition([{pair[0]}, {pair[1]}], 1.5)
        self._run("differences of which each is missing on a rank", {r: [(1.0, 3, 0)] for r in ALL}, steps=2, home=set(ALL), nobody=True)
        case = "rank 0 with all differences, and a set without one that counts"
        self._run(case, {1: [(0.3, 4, 0)]}, steps=3, cut=([{1}, {2}], 1.2), stays={0})
        case = "ranks 0 and 3 in round 1 of step 1 when rank 1 comes back to it"
        self._run(case, {1: [(1.3, 9, 0)], 2: [(LONG, 3, 1)]}, steps=3, home={0, 1, 3})
        for r in ALL:
            self._run(f"rank {r} silent from step 1 on", {r: [(LONG, 0, 1)]}, steps=3)
            for after in self._places(r) + ((1, 2) if r % 2 == 0 else ()):
                self._run(f"rank {r} silent in step 1, after {after} messages", {r: [(2.5, after, 1)]}, steps=4)
        for pair, after in zip(itertools.combinations(ALL, 2), (1, 4, 8, 2, 5, 0), strict=True):
            self._run(f"ranks {pair} silent in step 1", {r: [(5.5, after, 1)] for r in pair}, steps=3)
            sides = [set(pair), set(ALL) - set(pair)]
            self._run(f"ranks {pair} cut off", {}, steps=2, cut=(sides, LONG), stuck=set(ALL))
            self._run(f"ranks {pair} cut off for a while", {}, steps=3, cut=(sides, 5.5))
            self._run(
                f"no messages between ranks {pair[0]} and {pair[1]}",
                {},
                steps=3,
                cut=([{pair[0]}, {pair[1]}], LONG),
                home=set(ALL) - set(pair),
            )
        self.covers("dtypes", "sizes", "group order", "repetition", "same ranks twice")
        return self

    def returns(self) -> SurvivalCheck:
        """Check those who come back: from each place in a step, twice, right after joining, and while another rank falls silent."""
        for r in ALL:
            for after in self._places(r):
                self._run(f"rank {r} silent, after {after} messages", {r: [(3.7, after, 1)]}, steps=7, home=set(ALL), copies={r})
            self._run(f"rank {r} silent twice", {r: [(3.7, 1, 1), (4.3, 2, 7)]}, steps=13, home=set(ALL))
            plan = {r: [(3.7, 0, 1), (4.3, r, 2)]}  # the first round in which it takes part again
            self._run(f"rank {r} silent again right after it has joined", plan, steps=11, home=set(ALL))
            late = [{r}, set(ALL) - {r}], 4.2, 3.7
            self._run(f"rank {r} back, and its answers half a deadline late", {r: [(3.7, 1, 1)]}, steps=8, home=set(ALL), cut=late)
            for other in set(ALL) - {r}:  # each: it may be the one that is asked for its state
                plan, case = {r: [(3.7, 1, 1)]}, f"rank {other} silent when rank {r} comes back"
                if r % 2:
                    self._run(case, plan, steps=9, home=set(ALL), later={other: (6.3, 3.7)})
                else:
                    self._run(case, plan | {other: [(6.3, r, 4)]}, steps=9, home=set(ALL))
        for r, other, steps in ((0, 2, 4), (3, 1, 1)):
            case = f"rank {r} without the difference of rank {other}, which counts"
            self._run(case, {r: [(0.3, 3, 0)]}, steps=steps, home=set(ALL), cut=([{r}, {other}], 1.2))
        for asked in (0, 2, 3):
            plan, pair = {1: [(1.5, 9, 0)]}, {0, 2, 3} - {asked}
            case = f"rank 1 behind, and rank {asked} still in the same step"
            plan |= {r: [(0.2, 6, 1)] for r in pair}
            self._run(case, plan, steps=6, home=set(ALL), cut=([{asked}, pair], 3.0, 1.1))
        late = [{2}, {0, 1, 3}], 7.2, 3.7
        self._run("rank 2 back, and all answers 3.5 deadlines late", {2: [(3.7, 1, 1)]}, steps=12, home=set(ALL), cut=late)
        self._run("rank 2 back, and no answers", {2: [(3.7, 1, 1)]}, steps=8, cut=(late[0], LONG, 3.7))
        for pair in ((0, 1), (2, 0), (3, 2), (1, 3)):
            plan = {pair[0]: [(5.5, 2, 1)], pair[1]: [(7.5, 1, 2)]}
            self._run(f"ranks {pair} silent, one after the other", plan, steps=8, home=set(ALL))
        return self

    @staticmethod
    def _places(rank: int) -> tuple[int, ...]:
        """Return after how many messages of a step a rank falls silent: in the exchange, in each round, or after it has decided."""
        return (0, 4, 9) if rank % 2 else (1, 7, 10)

    # One run.

    def _run(
        self,
        case: str,
        silent: Silences,
        *,
        steps: int,
        home: set[int] | None = None,
        cut: tuple | None = None,
        stuck: set[int] | None = None,
        copies: set[int] | None = None,
        seconds: float | None = None,
        without: int | None = None,
        patience: float = 5.0,
        deadline: float = 0.2,
        stays: set[int] | None = None,
        nobody: bool = False,
        later: dict[int, tuple[float, float]] | None = None,
        order: Sequence[int] = ALL,
        **model: object,
    ) -> SurvivalCheck:
        """Train on the ranks, and check every turn.

        Parameters
        ----------
        home : set of int
            Ranks that must have completed all steps in the end; by default, those that are never silent.
        cut : (list of set of int, float, float), optional
            Ranks between which no messages arrive, until when, and, if not 0, from when on.
        stuck : set of int
            Ranks that must not complete a step.
        copies : set of int
            Ranks that must copy a state, and ask one peer after the other for it.
        seconds : float, optional
            What the virtual clock must show before ranks wait for late ones.
        without : int, optional
            A rank without which the others must complete a step.
        patience, deadline : float
            In seconds, with real silences.
        stays : set of int
            Ranks that must copy nothing.
        nobody : bool
            Whether no difference counts in step 0.
        later : dict of int to (float, float)
            Ranks that fall silent for so many seconds, with what they send first after a time.
        order : sequence of int
            The ranks, in the order in which they are numbered; only without silences.
        """
        self.case, self._nobody, isolated, later = case, nobody, self.ranks.isolated, later or {}
        self._draw(**model)
        self._plan(silent, later)
        if cut:
            isolated.broker.coordinator.network.plan_partition(*cut)
        times = TIMES if isolated else dict(deadline=deadline, patience=patience, linger=0.7)
        found, began = self._train(list(order), steps, times), set(silent)
        silent = silent | {r: [(seconds, 0, 0)] for r, (seconds, _) in later.items()}
        if isolated and not cut:
            self._ends_in_time(silent, times["linger"], steps, seconds)
        copied = {r for r, turns in enumerate(found) if any(len(turn) > 2 and turn[2] is None for turn in turns)}
        self._check(found, steps, ALL if home == set(ALL) or not isolated else sorted(set(ALL) - set(silent) - copied))
        self._stays(copied & (stays or set()))
        if isolated:
            self._copies_ahead(copied, found)
            rounds = Rounds(isolated.broker.coordinator.network, list(order))
            self._broker_saw(rounds, found, steps if model.get("inputs", 1) > 1 else 0)
            rounds.check(self, began)
            self._asks_in_turn(rounds, copies or set())
        if without is not None:
            self._goes_on(without, found)
        self._places_in_the_end(found, steps, silent, (home, stuck or set(), copies or set()), alone=not cut)
        return self

    def _train(self, order: list[int], steps: int, times: dict) -> list:
        """Train on the ranks; return what each has done, in this order of the ranks."""
        given = []
        for r in ALL:
            place = order.index(r)
            settings = self._settings | dict(seed=self._seeds[place])
            given.append(dict(key=place, settings=settings, steps=steps, **times))
        answers = self.call(train_on, given, explain={"TimeLimit": ENDLESS}, show=self.show, limit=LIMIT)
        return [answers[r] for r in order]

    def _ends_in_time(self, silent: Silences, linger: float, steps: int, seconds: float | None) -> None:
        """Check that ranks that are never silent end when they may; see `_run`."""
        most = steps + _longest(silent) if seconds is None else seconds
        self._in_time(set(ALL) - set(silent), linger + most)

    def _stays(self, copied: set[int]) -> None:
        """Fail if there are any of these ranks, which have copied a state although they need none."""
        if copied:
            cause = "a comparison with what it has proposed, instead of the differences that it has"
            self.fail(f"rank {min(copied)} has all differences that count, and copies a state", cause)

    def _copies_ahead(self, copied: set[int], found: list) -> None:
        """Check each turn in which one of these ranks has copied a state."""
        for r in copied:
            for turn in found[r]:
                if len(turn) > 2 and turn[2] is None:
                    self._ahead(r, turn)

    def _places_in_the_end(self, found: list, steps: int, silent: Silences, how: tuple, *, alone: bool) -> None:
        """Check how far each rank has come; `how`: see `home`, `stuck` and `copies` of `_run`."""
        (home, stuck, copies), isolated = how, self.ranks.isolated
        for r in copies:
            if all(who is not None for _, _, who, *_ in (turn for turn in found[r] if len(turn) > 2)):
                self.fail(f"rank {r} is away for several steps, and then takes each by itself instead of copying a state", NOT_LOOKED)
        for r in ALL:
            last = found[r][-1][3] if len(found[r][-1]) > 2 else found[r][-1][0]
            self._ends(r, last, steps, r in stuck, r in (set(ALL) - set(silent) - stuck if home is None else home))
            if isolated and r not in silent and alone and len(silent) < 2:  # with two, a rank may have to copy a difference that counts
                self._in_all(r, found[r])

    def _draw(self, *, inputs: int = 1, hidden: int | None = None, dtype: str = "float64", size: int = 4) -> None:
        """Draw a model and samples for `size` ranks; `inputs`: how many times as many there are."""
        few, columns, classes = self.sizes(3, 3, 7)
        features, columns = inputs * few, hidden or columns
        shapes = (features, columns), (columns,), (columns, classes), (classes,)
        count = self.sizes(1, 50, 70)[0]
        self._settings = dict(
            weights=[self.random.standard_normal(shape).astype(dtype) for shape in shapes],
            x=self.random.standard_normal((count, features)).astype(dtype),
            y=self.random.integers(classes, size=count),
            every=2,
            batch=3,
        )
        self._rtol, self._all = RTOL[dtype], tuple(range(size))
        self._seeds = [int(seed) for seed in self.random.integers(1 << 62, size=size)]  # no rank knows another one's

    def _plan(self, silent: Silences, later: dict[int, tuple[float, float]]) -> None:
        """Plan the silences, and that only messages of rounds arrive, and answers to a "join"."""
        isolated = self.ranks.isolated
        for r, plan in silent.items():
            for seconds, after, step in plan:
                number, through = last_round(r, after)
                if isolated:
                    isolated.broker.coordinator.network.plan_silence(r, seconds, round=(step, number), through=through)
                else:
                    self.ranks.silence(r, seconds, 2 + 12 * step + after)  # the check's messenger, and its group
        for r, (seconds, since) in later.items():
            isolated.broker.coordinator.network.plan_silence(r, seconds, since=since)
        if isolated:
            isolated.broker.coordinator.network.plan_rounds_only("join")

    def _broker_saw(self, rounds: Rounds, found: list, steps: int) -> None:
        """Check by the broker's log which differences may and must count, who has asked for a state, and what so many steps send."""
        nbytes = sum(w.nbytes for w in self._settings["weights"])
        for r, turns in enumerate(found):
            done = [turn for turn in turns if len(turn) > 2]
            for step, _, who, *_ in done:
                arrived = rounds.received(r, (step, 0))
                ends = rounds.next_place(r, (step, NEVER))
                for k in who if isinstance(who, tuple) else ():
                    if k != r and (k not in arrived or arrived[k][0] > ends or arrived[k][1].nbytes < nbytes):
                        cause = "differences that are sent otherwise than in round (step, 0), or not all of them"
                        self.fail(f"rank {k} counts in step {step} on rank {r}, to which its differences have not come", cause)
                if isinstance(who, tuple) and (left_out := self._must_count(rounds, step) - set(who)):
                    cause = "a proposal that is not all that is in every set that is heard, or a set without a rank that was heard"
                    self.fail(f"the differences of rank {min(left_out)} come to all in step {step}, and do not count", cause)
            asks = any(event.what == "sends" and event.rank == r and event.topic == "join" for event in rounds.log)
            if asks and len(done) == len(turns) and all(who is not None for _, _, who, *_ in done):
                self.fail(f"rank {r} asks for a state, and copies none", "a question in every step", limit=contract.REQUESTS)
            if steps:
                others = len(ALL) - 1
                most = steps * (others * nbytes + contract.STEP_BYTES.number) + rounds.bytes_to_itself(r)
                cause = "differences that are sent more than once, or states that nobody has asked for"
                self.sent(rounds.traffic(self.ranks, r), most, name=f"{steps} steps", rank=r, cause=cause, limit=contract.STEP_BYTES)

    def _asks_in_turn(self, rounds: Rounds, copies: set[int]) -> None:
        """Check that ranks ask a second peer only after the first has answered, or its time."""
        seconds = TIMES["deadline"]
        for r in sorted(copies):
            pair = rounds.asked_too_early(r, seconds)
            if pair is not None:
                problem = f'rank {r} sends rank {pair[1]} a "join" although rank {pair[0]}, asked'
                problem += f" before, has not answered, and its deadline of {seconds:g} s is not over"
                cause = "a question to all at once: each sends a whole state, although one is enough"
                self.fail(problem, cause, limit=contract.ONE_BY_ONE)

    @staticmethod
    def _must_count(rounds: Rounds, step: int) -> set[int]:
        """Return whose differences in a step have come to all ranks before they send the set of those that they have."""
        sets = {r: rounds.sends(r, (step, 1)) for r in ALL}
        heard = {r: rounds.received(r, (step, 0)) for r in ALL}
        begins = {r: sent[0][0] for r, sent in sets.items() if sent}
        return {k for k in ALL if all(r == k or (k in heard[r] and heard[r][k][0] < place) for r, place in begins.items())}

    def _goes_on(self, silent: int, found: list) -> None:
        """Check that the others complete steps without a silent rank, by who counted."""
        if not any(silent not in turn[2] for r, turns in enumerate(found) if r != silent for turn in turns if len(turn) > 2 and turn[2]):
            cause = "a collective, or a wait for all ranks: round (step, 0) ends after the deadline as soon as enough are heard"
            self.fail(f"rank {silent} is silent for several deadlines, and the others complete no step without it", cause)
        counted = {turn[0] for turns in found for turn in turns if len(turn) > 2 and turn[2] and silent in turn[2]}
        for r, turn in ((r, turn) for r, turns in enumerate(found) if r != silent for turn in turns if len(turn) > 2):
            if not self.ranks.isolated and turn[2] is None and turn[0] in counted:
                cause = "a proposal with a rank that is not in every set that is heard, as a union, or the rank's own set"
                self.fail(f"the difference of rank {silent} counts in step {turn[0]}, and rank {r}, which lacks it, copies a state", cause)
        if sum(1 for turn in found[silent] if len(turn) > 2 and turn[2] and silent not in turn[2]) > 2:
            self.fail(f"rank {silent} is away for several steps, and then takes each by itself instead of copying a state", NOT_LOOKED)
        if not self.ranks.isolated and len(found[silent][-1]) == 2:
            cause = 'nobody answers: mail.on("join", ...) belongs into __init__; or an answer that comes is not waited for'
            self.fail(f"rank {silent} is back, and gets a TimeoutError, while the others still train", cause)

    def _in_time(self, ranks: set[int], most: float) -> None:
        """Check that ranks do not wait longer than they must, by the virtual clock."""
        for now, what, r, *_ in self.ranks.isolated.broker.coordinator.network.log:
            if what == "replies" and r in ranks and now > most:
                cause = "a deadline where there should be none, or a call that waits for all ranks, as a collective does"
                self.fail(f"rank {r}, which is never silent, waits longer than it must", cause)

    def _ends(self, r: int, last: int, steps: int, stuck: bool, home: bool) -> None:
        if stuck and last:
            self.fail(f"rank {r} goes on without a majority", "half of the ranks, taken for enough")
        if home and last < steps:
            cause = "a rank that waits for one that waits for it; a message that was thrown away; or a joining rank that gets no answer"
            self.fail(f"rank {r} has completed {last} of {steps} steps", cause)

    def _in_all(self, r: int, turns: list) -> None:
        """Check that a rank that was never silent was in each of its steps."""
        for step, _, who, *_ in (turn for turn in turns if len(turn) > 2):
            if who is None or r not in who:
                cause = "a difference that was thrown away, or a rank that takes itself for one that is behind"
                self.fail(f"rank {r}, which is never silent, is not in step {step}", cause)

    def _check(self, found: list, steps: int, checked: Sequence[int]) -> None:
        """Check all turns of the `checked` ranks."""
        self._checked = checked
        self._starts: list[dict[int, dict]] = [{} for _ in self._all]  # by rank and step: the state
        self._after: dict[tuple[int, int], tuple] = {}  # by rank and step: the difference, and the replica after its own steps
        self._old: dict[tuple[int, int], list] = {}  # by rank and step: the weights before it copied the state of this step
        decided: dict[int, tuple] = {}
        for r, turns in enumerate(found):
            before = snapshot(self._replica(r))
            for turn in turns:
                name = f"the state at the start of turn {turn[0]}"
                if r in checked:
                    self._equal(turn[1], before, name, r, "a change of the replica outside of outer_step")
                self._starts[r][turn[0]] = turn[1]
                before = turn[4] if len(turn) > 2 else None
                if len(turn) > 2 and turn[2] is None:
                    self._old[r, turn[3]] = turn[1]["weights"]
        for r in checked:
            for step, _, who, next_step, _ in (turn for turn in found[r] if len(turn) > 2):
                if who is None:
                    continue
                who = self._who(who, r, step)
                if next_step != step + 1:
                    self.fail(f"after step {step}, the step on rank {r} is {next_step}", "a step that was not counted, or counted twice")
                if decided.setdefault(step, who) != who:
                    self.fail(f"the ranks do not agree who was in step {step}", "two ways to decide, or an answer from another step")
        for r in sorted(checked, key=lambda r: all(turn[2] is not None for turn in found[r] if len(turn) > 2)):  # first those that copied
            for turn in (turn for turn in found[r] if len(turn) > 2):
                if turn[2] is None:
                    self._ahead(r, turn)
                    self._copied(r, turn, found, steps)
                else:
                    self._counted(r, turn, decided[turn[0]])

    def _replica(self, r: int) -> Replica:
        """Return a rank's replica as it was at the beginning."""
        return build_replica(r, len(self._all), seed=self._seeds[r], **self._settings)

    def _who(self, who: object, r: int, step: int) -> tuple[int, ...]:
        fits = isinstance(who, tuple) and all(type(k) is int and k in self._all for k in who)
        if not fits or list(who) != sorted(set(who)) or (not who and not (self._nobody and step == 0)):
            said = f"outer_step returns {who!r} on rank {r} in step {step}; expected a tuple of ranks in ascending order, or None"
            self.fail(said, "another value after a copy, or a list")
        return who

    def _trained(self, r: int, step: int) -> tuple[list[np.ndarray], dict]:
        """Return a rank's differences in a step, and its state after the inner steps."""
        if (r, step) not in self._after:
            if step not in self._starts[r]:
                self.fail(f"rank {r} is in step {step}, which it has not trained", NOT_TRAINED)
            start = self._starts[r][step]
            replica = self._replica(r)
            for p, weight in zip(replica.model.parameters(), start["weights"], strict=True):
                p.data[...] = weight
            replica.inner.state = {int(i): (t, m.copy(), v.copy()) for i, (t, m, v) in start["inner"].items()}
            replica.position = step * len(self._all) * replica.every * replica.batch
            replica.random.bit_generator.state = ast.literal_eval(start["random"][:1000])
            replica.inner_steps()
            state = snapshot(replica)
            self._after[r, step] = [a - b for a, b in zip(start["weights"], state["weights"], strict=True)], state
        return self._after[r, step]

    def _counted(self, r: int, turn: list, who: tuple[int, ...]) -> None:
        """Check a turn that ended with an outer step."""
        step, start, _, _, after = turn
        model = Weights([w.copy() for w in start["weights"]])
        outer = SGD(model.parameters(), 0.7, momentum=0.9, nesterov=True)
        outer.velocity = {int(i): v.copy() for i, v in start["outer"].items()}
        differences = [self._trained(k, step)[0] for k in who]
        for i, p in enumerate(model.parameters()):
            p.grad = _mean([d[i] for d in differences], p.data)
        outer.step()
        cause = f"not the mean of the differences of {list(who)}, a difference of another step, or samples that were trained before"
        for i, p in enumerate(model.parameters()):
            name = f"parameter {i} after step {step}"
            known = partial(self._known, (r, step), i, who, start)
            self.array(after["weights"][i], p.data, name=name, rank=r, rtol=self._rtol, scale=4.0, cause=cause, instead=known)
            want = outer.velocity[i]
            velocity = after["outer"].get(str(i))
            if velocity is None:
                cause = "a turn without an outer step; with no differences, too, it is due, with a gradient of zero"
                self.fail(f"the outer optimizer has no velocity after step {step} on rank {r}", cause)
            name = f"velocity {i} after step {step}"
            self.array(velocity, want, name=name, rank=r, rtol=self._rtol, scale=4.0, cause="an outer optimizer")
        own = self._trained(r, step)[1]
        if after["position"] != own["position"]:
            cause = "a rank that has come back and goes on from its own old position: samples are trained twice"
            self.fail(f"after step {step}, the position on rank {r} is {after['position']}, expected {own['position']}", cause)
        for name in ("inner", "random"):
            self._equal({name: after[name]}, {name: own[name]}, f"the rank's own state after step {step}", r, "a copy where none is needed")
        peers = [k for k in self._checked if step + 1 in self._starts[k] and self._starts[k][step + 1]["position"] == after["position"]]
        for k in peers:
            shared = {name: self._starts[k][step + 1][name] for name in ("weights", "outer")}
            name = f"the state after step {step} (compared with rank {k})"
            self._equal({name: after[name] for name in shared}, shared, name, r, "a sum in another order on each rank")

    def _known(self, turn: tuple[int, int], i: int, who: tuple[int, ...], start: dict) -> dict[str, np.ndarray]:
        """Parameter i after an outer step, as known mistakes make it."""
        (own, mine), begin, step = self._trained(*turn), start["weights"][i], turn[1]
        differences = [self._trained(k, step)[0] for k in who]
        mean, ended = _mean([d[i] for d in differences], begin), mine["weights"][i]

        def outer(weights: np.ndarray, grad: np.ndarray) -> np.ndarray:
            model = Weights([weights.copy()])
            optimizer = SGD(model.parameters(), 0.7, momentum=0.9, nesterov=True)
            optimizer.velocity = {0: start["outer"][str(i)].copy()} if str(i) in start["outer"] else {}
            model.parameters()[0].grad = grad
            optimizer.step()
            return model.parameters()[0].data

        known = {
            "what the rank's own steps have made, with differences of 0, as those to weights that are not a copy": outer(ended, 0 * mean),
            "the result of an outer step from the rank's own weights, not those after the last outer step": outer(ended, mean),
            "the result for the sum of the differences, not their mean": outer(begin, len(differences) * mean),
            "the result for the rank's own difference alone": outer(begin, own[i]),
            "the result for differences of the wrong sign": outer(begin, -mean),
        }
        if any((k, step) in self._old for k in (*who, turn[0])):
            old = [self._old.get((k, step), start["weights"])[i] - self._trained(k, step)[1]["weights"][i] for k in who]
            result = outer(self._old.get(turn, start["weights"])[i], _mean(old, begin))
            known["the result if a rank that has copied a state takes its difference to the weights that it had before"] = result
        if 0 < len(differences) < len(self._all):
            divided = outer(begin, len(differences) / len(self._all) * mean)
            known["the sum of the differences that count, divided by the number of all ranks"] = divided
        return known

    def _ahead(self, r: int, turn: list) -> None:
        """Check that a rank that copied a state is further than before."""
        if turn[3] <= turn[0]:
            cause = "a peer that is no further, or a difference that is missing and no state copied for it"
            self.fail(f"rank {r} copies the state of step {turn[3]} in step {turn[0]}", cause)

    def _copied(self, r: int, turn: list, found: list, steps: int) -> None:
        """Check a turn in which the rank copied a state."""
        next_step, after = turn[3:]
        choices = [self._starts[k][next_step] for k in self._all if k != r and next_step in self._starts[k]]
        if next_step == steps:
            choices += [turns[-1][4] for k, turns in enumerate(found) if k != r and len(turns[-1]) > 2 and turns[-1][3] == steps]
        if not choices:
            self.fail(f"rank {r} goes on with step {next_step}, in which no rank has been", "a step that is not the peer's")
        for step in {step for k in self._all if k != r for step in self._starts[k]} - {next_step}:
            if any(not _difference(after, self._starts[k][step]) for k in self._all if k != r and step in self._starts[k]):
                self.fail(
                    f"rank {r} has copied the state of step {step}, and goes on with step {next_step}", "a step that is not the peer's"
                )
        problems = [_difference(after, choice) for choice in choices]
        if all(problems):
            name = max(problems, key=list(after).index)  # of the peer whose state is most like this one
            said = {"weights": "model", "inner": "inner optimizer", "outer": "outer optimizer", "random": "random state"}.get(name, name)
            cause = "not copied, copied as it was in the middle of the peer's step, or shared instead of copied"
            self.fail(f"rank {r} has copied a peer's state before step {next_step}, but its {said} is not the peer's", cause)

    def _equal(self, got: object, want: dict | None, name: str, rank: int, cause: str) -> None:
        if want is not None and (different := _difference(got, want)):
            self.fail(f"{name} on rank {rank} is not what it should be ({different})", cause)


def _mean(arrays: list[np.ndarray], like: np.ndarray) -> np.ndarray:
    return np.mean(arrays, axis=0) if arrays else np.zeros_like(like)


def _difference(got: object, want: dict) -> str:
    """Return the name of the first part of a state that is not equal bit for bit; empty if there is none."""
    return next((name for name in want if not _same(got[name], want[name])), "")


def _same(a: object, b: object) -> bool:
    if isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=True)
    if isinstance(b, dict):
        return isinstance(a, dict) and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in b)
    if isinstance(b, (list, tuple)):
        return isinstance(a, (list, tuple)) and len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _longest(silent: Silences) -> float:
    """Return the seconds of the longest silence of several ranks; 0 if at most one is silent."""
    if len(silent) < 2:
        return 0.0
    return max((seconds for plan in silent.values() for seconds, *_ in plan), default=0.0)
