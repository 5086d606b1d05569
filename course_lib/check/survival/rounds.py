"""Rounds of isolated ranks as the broker has seen them: who has sent and received which message, and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from course_lib.check.groups import GroupCheck
from course_lib.check.survival import contract
from course_lib.collectives.coordination.virtual_network import Event, Round, VirtualNetwork

if TYPE_CHECKING:
    from course_lib.cluster import Ranks

NEVER = 1 << 60
CLOCK_ERROR = 1e-6  # virtual seconds
Link = tuple[int, int]


def last_round(rank: int, after: int) -> tuple[int, frozenset[int]]:
    """Return the round in which one of four ranks falls silent after so many messages, and who still gets its message of that round.

    >>> last_round(1, 3 + 2)
    (1, frozenset({0, 2}))
    """
    others = [r for r in range(4) if r != rank]
    return after // 3, frozenset(others[: after % 3])


class Rounds:
    """Messages about rounds in the last request; places in the log say what came first.

    Parameters
    ----------
    network : VirtualNetwork
    order : sequence of int
        The ranks in the order in which they are numbered.

    Attributes
    ----------
    log : list of Event
    """

    def __init__(self, network: VirtualNetwork, order: Sequence[int] = range(4)):
        self.order = list(order)
        numbers = {-1: -1} | {r: number for number, r in enumerate(self.order)}
        self.log = [event._replace(rank=numbers[event.rank], other=numbers[event.other]) for event in network.log]
        self._sent: dict[int, list[tuple[int, Event]]] = defaultdict(list)  # by sender
        self._received: dict[int, list[tuple[int, Event]]] = defaultdict(list)  # by receiver
        for place, event in enumerate(self.log):
            if event.round is not None and event.rank != event.other:
                by_rank = {"sends": self._sent, "receives": self._received}[event.what]
                by_rank[event.rank].append((place, event))

    def sends(self, rank: int, number: Round) -> list[tuple[int, Event]]:
        """Return a rank's messages of a round, with their places in the log."""
        return [(place, event) for place, event in self._sent[rank] if event.round == number]

    def received(self, rank: int, number: Round) -> dict[int, tuple[int, Event]]:
        """Return the messages of a round that a rank has received, by sender, with their places in the log."""
        return {event.other: (place, event) for place, event in reversed(self._received[rank]) if event.round == number}

    def next_place(self, rank: int, number: Round) -> int:
        """Return where in the log a rank sends the first message of a later round, or ends its request."""
        for place, event in self._sent[rank]:
            if event.round > number:
                return place
        return next((place for place, event in enumerate(self.log) if (event.what, event.rank) == ("replies", rank)), NEVER)

    def messages(self, step: int) -> dict[Link, int]:
        """Count the messages in all rounds of a step, by sender and receiver."""
        counts: defaultdict[Link, int] = defaultdict(int)
        for rank, sent in self._sent.items():
            for _, event in sent:
                counts[rank, event.other] += event.round[:1] == (step,)
        return counts

    def asked_too_early(self, rank: int, deadline: float) -> tuple[int, int] | None:
        """Return two peers of which a rank asks the second too early.

        It has sent it a "join" before the first has answered its own, or had its time for it.
        """
        asked = None
        for event in self.log:
            if event.rank != rank or event.other in (rank, -1):
                continue
            of_asked = asked is not None and event.other == asked.other
            if event.what == "receives" and of_asked and event.round is None:
                asked = None
            if event.what != "sends" or event.topic != "join":
                continue
            early = asked is not None and event.time < asked.time + deadline - CLOCK_ERROR
            if early and not of_asked:
                return asked.other, event.other
            asked = event
        return None

    def traffic(self, ranks: Ranks, rank: int) -> list[tuple]:
        """Return the messages that a rank has sent in the last request, as `Ranks.traffic` counts them."""
        return [entry for entry in ranks.traffic[self.order[rank]] if entry[0] == "Send"]

    def bytes_to_itself(self, rank: int) -> int:
        """Count the bytes that a rank has sent to itself, which no wire carries."""
        return sum(event.nbytes for event in self.log if event.what == "sends" and event.rank == event.other == rank)

    def check(self, check: GroupCheck, silent: set[int]) -> None:
        """Check what must hold in every run: one message a round, no collective, and that planned silences have begun."""
        latest: dict[Link, Round] = {}
        for rank, sent in self._sent.items():
            for _, event in sent:
                link = rank, event.other
                if latest.get(link, ()) >= event.round:
                    cause = "a message that is sent twice, or one of an earlier round"
                    problem = f"rank {rank} sends rank {event.other} a message of round {event.round} after one of {latest[link]}"
                    check.fail(problem, cause, limit=contract.ROUND_MESSAGES)
                latest[link] = event.round
        for rank, moved in enumerate(check.ranks.traffic):
            most = {"Send": NEVER, "Allreduce": 1}  # the check's own messenger makes one
            cause = "a Barrier or another collective: it waits for ranks that are silent"
            everybody = list(range(len(check.ranks.traffic)))
            check.calls(moved, most, group=everybody, name=check.exercise, rank=rank, limit=contract.NO_COLLECTIVE, cause=cause)
        begun = {event.rank for event in self.log if event.what == "silent"}
        if silent - begun:
            cause = 'messages about another topic than "round", or keys that are not those of the rounds'
            topics = contract.ANSWERS_ONLY if check.exercise == "FaultTolerantDiLoCo" else contract.ROUNDS_ONLY
            problem = f"rank {min(silent - begun)} never sends the messages of the round in which it was to fall silent"
            check.fail(problem, cause, limit=topics)
