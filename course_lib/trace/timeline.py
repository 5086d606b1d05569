"""A trace of several ranks on one clock: when each rank computed, waited for others and transferred data, and for whom it waited.

A collective can begin once its last rank has called it, and a message once both sides have: until then a rank waits, from then on data is
transferred. These moments follow from the ranks' own records, so the ranks need not observe each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from course_lib import traffic
from course_lib.trace.recorder import Event

COMPUTING, WAITING, TRANSFERRING = "computing", "waiting", "transferring"
STATES = COMPUTING, WAITING, TRANSFERRING
MATCHED_KINDS = ("send", "receive", "started send", "started receive")


class Segment(NamedTuple):
    """A stretch of a rank's time; `event` is the call that it was in, and `culprit` the world rank that it waited for."""

    state: str
    begin: float
    end: float
    event: Event | None = None
    culprit: int | None = None


class Flight(NamedTuple):
    """A nonblocking call of a rank, from the moment at which data could move to its end."""

    begin: float
    end: float
    event: Event


class Arrow(NamedTuple):
    """A message: its source and the moment of its send, its destination and the end of its receive, bytes, and the group."""

    source: int
    sent: float
    dest: int
    received: float
    nbytes: int
    ranks: tuple[int, ...]


@dataclass
class RankTrace:
    """The record of one rank, in seconds since the start of the trace.

    Attributes
    ----------
    rank : int
        World rank.
    begin, end : float
    events : list of Event
        As recorded: nonblocking calls at their start, all others at their end.
    dropped : int
        Number of earlier events that are missing.
    host : str
    uncertainty : float
        Seconds by which its times may be wrong, as other machines have other clocks.
    """

    rank: int
    begin: float
    end: float
    events: list[Event]
    dropped: int = 0
    host: str = ""
    uncertainty: float = 0.0


@dataclass
class RankSummary:
    """The time of one rank, by state.

    Attributes
    ----------
    seconds : dict of str to float
        By state.
    waited_for : dict of int to float
        Seconds by the rank that came last.
    nbytes : dict of str to int
        Bytes by operation, as counted by `traffic`: the payload.
    sent : float
        Bytes that the rank sends if its collectives run as rings, see `traffic.wire_bytes`.
    overlap : float or None
        Share of the possible overlap that was achieved: the time in which the rank computed while one of its nonblocking calls transferred
        data, divided by the smaller of its computing and its transfers. None without nonblocking calls.
    """

    rank: int
    seconds: dict[str, float]
    waited_for: dict[int, float] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)
    sent: float = 0.0
    overlap: float | None = None


class Trace:
    """Records of several ranks.

    Parameters
    ----------
    ranks : sequence of RankTrace
        By world rank, on one clock.
    title : str
    """

    def __init__(self, ranks: Sequence[RankTrace], title: str = "Trace"):
        ranks = list(ranks)
        self._set_up(ranks, title, _arrivals(ranks), _other_sides(ranks))

    def _set_up(self, ranks: list[RankTrace], title: str, arrivals: dict, other_sides: dict) -> None:
        self.ranks, self.title, self._arrivals, self._other_sides = ranks, title, arrivals, other_sides
        self._by_rank = {r.rank: r for r in self.ranks}
        self.segments = {r.rank: self._segments(r) for r in self.ranks}
        self.flights = {r.rank: self._flights(r) for r in self.ranks}

    @classmethod
    def from_replies(cls, replies: dict[int, dict], title: str = "Trace", hosts: Sequence[str] | dict[int, str] = ()) -> Trace:
        """Make a trace of what the ranks' recorders returned, by world rank.

        Parameters
        ----------
        replies : dict of int to dict
            See `Recorder.as_dict`; "offset", if it is there, is added to the rank's clock; "uncertainty" says how wrong it may be.
        title : str
        hosts : sequence or dict of str
            By world rank.
        """
        begins = {rank: _begin(reply) + reply.get("offset", 0.0) for rank, reply in replies.items()}
        begin = min(begins.values(), default=0.0)
        ranks = []
        for rank, reply in sorted(replies.items()):
            shift = reply.get("offset", 0.0) - begin
            events = [_shifted(event, shift) for event in reply["events"]]
            host = hosts[rank] if hosts else ""
            uncertainty = reply.get("uncertainty", 0.0)
            ranks.append(RankTrace(rank, begins[rank] - begin, reply["ended"] + shift, events, reply["dropped"], host, uncertainty))
        return cls(ranks, title)

    def parts(self, name: str) -> list[Trace]:
        """Return a trace for each time that the ranks were inside a span of this name: the first span of each rank, the second, and so on.

        A part begins with its first rank. Calls that are only partly inside a rank's span are left out.
        """
        spans = {r.rank: sorted((e.begin, e.end) for e in r.events if e.kind == "span" and e.name == name) for r in self.ranks}
        found = []
        for i in range(max(map(len, spans.values()), default=0)):
            inside = {rank: some[i] for rank, some in spans.items() if i < len(some)}
            shift, ranks = -min(begin for begin, _ in inside.values()), []
            for rank, (begin, end) in inside.items():
                r = self._by_rank[rank]
                events = [e for e in r.events if begin <= e.begin and e.end <= end and (e.kind, e.name) != ("span", name)]
                events = [_shifted(event, shift) for event in events]
                ranks.append(replace(r, begin=begin + shift, end=end + shift, events=events))
            arrivals = {key: {rank: at + shift for rank, at in some.items()} for key, some in self._arrivals.items()}
            other_sides = {key: _shifted(event, shift) for key, event in self._other_sides.items()}
            found.append(Trace.__new__(Trace))
            found[-1]._set_up(ranks, name, arrivals, other_sides)  # ranks outside of the span have come to its calls, too
        return found

    def fastest(self, name: str) -> Trace:
        """Return the shortest part, the one that other programs disturbed least; see `parts`."""
        parts = self.parts(name)
        if not parts:
            there = sorted({e.name for r in self.ranks for e in r.events if e.kind == "span"})
            raise ValueError(f"the trace has no span {name!r}; it has {', '.join(map(repr, there)) or 'no spans'}.")
        return min(parts, key=lambda part: part.seconds)

    @property
    def seconds(self) -> float:
        """Duration from the first rank's start to the last rank's end."""
        return max((r.end for r in self.ranks), default=0.0) - min((r.begin for r in self.ranks), default=0.0)

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The groups with calls, in the order of their first one."""
        found: dict[tuple[int, ...], float] = {}
        for event in (e for r in self.ranks for e in r.events if e.ranks):
            found[event.ranks] = min(found.get(event.ranks, event.begin), event.begin)
        return sorted(found, key=found.__getitem__)

    @property
    def dropped(self) -> int:
        """Number of events that are missing."""
        return sum(r.dropped for r in self.ranks)

    def arrows(self) -> list[Arrow]:
        """Return the messages of which both sides are known."""
        sends = ((r.rank, e) for r in self.ranks for e in r.events if e.kind in ("send", "started send"))
        pairs = ((rank, e, self._other_sides.get(("send", *_message_key("send", rank, e)))) for rank, e in sends)
        return [Arrow(rank, s.begin, s.peer, r.end, s.nbytes, s.ranks) for rank, s, r in pairs if r and s.peer in self._by_rank]

    def summaries(self) -> list[RankSummary]:
        """Return each rank's time by state, its waits and its bytes."""
        return [self._summary(r) for r in self.ranks]

    @property
    def computing(self) -> float:
        """Share of the ranks' time in which they computed, 0 to 1; a rank that has ended waits for the last one."""
        total = self.seconds * len(self.ranks)
        return sum(s.end - s.begin for some in self.segments.values() for s in some if s.state == COMPUTING) / total if total else 0.0

    def straggler(self) -> tuple[int, float] | None:
        """Return the rank that held the others up longest, and these seconds, summed over the others; None if nobody waited.

        Where a rank that is waited for waits itself, the time goes to the rank at the end of that chain: in a pipeline, the slow stage.
        """
        waits = [(s, rank) for rank, some in self.segments.items() for s in some if s.culprit is not None and s.end > s.begin]
        changes = [(s.begin, True, rank, s.culprit) for s, rank in waits] + [(s.end, False, rank, s.culprit) for s, rank in waits]
        held_up, now, last = Counter(), {}, 0.0
        for moment, begins, rank, culprit in sorted(changes):
            if moment > last:
                for end in _chain_ends(now):
                    held_up[end] += moment - last
            last = moment
            if begins:
                now[rank] = culprit
            else:
                del now[rank]
        return held_up.most_common(1)[0] if held_up else None

    def _ready(self, rank: int, event: Event) -> tuple[float, int | None]:
        """Return the moment from which a call of a rank could proceed, and the rank that came last then; the begin if it is unknown."""
        kind = event.of if event.kind == "wait" else event.kind.removeprefix("started ")
        if kind == "collective":
            arrived = self._arrivals.get((event.ranks, event.number), {rank: event.begin})
            if missing := [r for r in event.ranks if r not in arrived and not (r in self._by_rank and self._by_rank[r].dropped)]:
                return event.end, missing[0]  # it never began, or was not asked to run the cell
            last = max(arrived, key=arrived.__getitem__)
            return (arrived[last], last) if last != rank else (event.begin, None)
        if kind == "receive" and event.number < 0:  # nothing came
            return event.end, event.peer if event.peer >= 0 else None
        other = self._other_sides.get((kind, *_message_key(kind, rank, event)))
        # A send that ended before its receive began was buffered, and waited for nobody.
        if other is None or (kind == "send" and other.begin >= event.end):
            return event.begin, None
        return other.begin, event.peer

    def _segments(self, trace: RankTrace) -> list[Segment]:
        """Return a rank's time without gaps: what is no call is computing."""
        found, now = [], trace.begin
        calls: dict[tuple[float, float], list[Event]] = {}
        for event in trace.events:
            if event.kind in ("collective", "send", "receive", "wait"):
                calls.setdefault((event.begin, event.end), []).append(event)  # both messages of a Sendrecv have the same times
        for (begin, end), events in sorted(calls.items(), key=lambda item: item[0]):
            begin, end = max(begin, now), min(end, trace.end)
            if end <= begin:
                continue  # inside another call
            if begin > now:
                found.append(Segment(COMPUTING, now, begin))
            ready, culprit, event = max(((*self._ready(trace.rank, e), e) for e in events), key=lambda item: item[0])
            ready = min(max(ready, begin), end)
            if ready > begin:
                found.append(Segment(WAITING, begin, ready, event, culprit))
            if end > ready:
                found.append(Segment(TRANSFERRING, ready, end, event))
            now = end
        if trace.end > now:
            found.append(Segment(COMPUTING, now, trace.end))
        return found

    def _flights(self, trace: RankTrace) -> list[Flight]:
        started = sorted((event for event in trace.events if event.kind.startswith("started ")), key=lambda e: e.begin)
        return [self._flight(trace.rank, event) for event in started]

    def _flight(self, rank: int, event: Event) -> Flight:
        """Return a call in flight; a message has arrived when its receive has ended, even if its sender waits for it later."""
        begin, end = max(self._ready(rank, event)[0], event.begin), event.end
        if event.kind == "started send" and (other := self._other_sides.get(("send", *_message_key("send", rank, event)))):
            end = min(end, max(other.end, event.begin))
        return Flight(min(begin, end), end, event)

    def _summary(self, trace: RankTrace) -> RankSummary:
        seconds: dict[str, float] = dict.fromkeys(STATES, 0.0)
        waited: Counter[int] = Counter()
        nbytes: Counter[str] = Counter()
        sent = 0.0
        for segment in self.segments[trace.rank]:
            seconds[segment.state] += segment.end - segment.begin
            if segment.state == WAITING and segment.culprit is not None:
                waited[segment.culprit] += segment.end - segment.begin
        for event in trace.events:
            if event.nbytes:
                operation = "Send" if "send" in event.kind else event.name
                nbytes[operation] += event.nbytes
                sent += traffic.wire_bytes(operation, len(event.ranks), event.nbytes)
        flights = union((f.begin, f.end) for f in self.flights[trace.rank])
        transfers = sum(end - begin for begin, end in flights)
        possible = min(transfers, seconds[COMPUTING])
        hidden = common([(s.begin, s.end) for s in self.segments[trace.rank] if s.state == COMPUTING], flights)
        return RankSummary(trace.rank, seconds, dict(waited), dict(nbytes), sent, hidden / possible if possible > 0 else None)


def _chain_ends(waits: dict[int, int]) -> Iterable[int]:
    """Return, for each rank that waits, the last one of its chain; in a circle, the rank that it waits for itself.

    >>> list(_chain_ends({3: 2, 2: 1}))
    [1, 1]
    """
    ends: dict[int, int] = {}
    for rank in waits:
        chain: list[int] = []
        while rank in waits and rank not in ends and rank not in chain:
            chain.append(rank)
            rank = waits[rank]
        ends |= {r: waits[r] for r in chain} if rank in chain else dict.fromkeys(chain, ends.get(rank, rank))
    return ends.values()


def _begin(reply: dict) -> float:
    """Return the moment from which a record is complete: where events were dropped, the begin of the oldest that is left."""
    return reply["events"][0][2] if reply["dropped"] and reply["events"] else reply["began"]


def _shifted(event: Sequence, shift: float) -> Event:
    kind, name, begin, end, *rest = event
    if rest:
        rest[0] = tuple(rest[0])
    return Event(kind, name, begin + shift, end + shift, *rest)


def _arrivals(ranks: Iterable[RankTrace]) -> dict[tuple, dict[int, float]]:
    """Return the moments at which the ranks of a group called each collective."""
    found: dict[tuple, dict[int, float]] = {}
    for trace in ranks:
        for event in trace.events:
            if event.kind in ("collective", "started collective"):
                found.setdefault((event.ranks, event.number), {})[trace.rank] = event.begin
    return found


def _message_key(kind: str, rank: int, event: Event) -> tuple:
    source, dest = (rank, event.peer) if kind == "send" else (event.peer, rank)
    return source, dest, event.ranks, event.tag, event.number


def _other_sides(ranks: Iterable[RankTrace]) -> dict[tuple, Event]:
    """Return the receive of each send, and the send of each receive.

    A receive that ends before its send begins took a message from before the trace: the receives after it count one less then. Between
    machines, whose clocks are not known exactly, it has to end by more than their uncertainty before.
    """
    uncertain = {trace.rank: trace.uncertainty for trace in ranks}
    sides: dict[str, dict[tuple, dict[int, Event]]] = {"send": {}, "receive": {}}
    for trace in ranks:
        for event in trace.events:
            if event.kind in MATCHED_KINDS and event.number >= 0:
                kind = event.kind.removeprefix("started ")
                *key, number = _message_key(kind, trace.rank, event)
                sides[kind].setdefault(tuple(key), {})[number] = event
    found: dict[tuple, Event] = {}
    for key, sends in sides["send"].items():
        receives, earlier = sides["receive"].get(key, {}), 0
        source, dest = key[:2]
        spare = uncertain.get(source, 0.0) + uncertain.get(dest, 0.0)
        while any(r.end + spare < sends[n - earlier].begin for n, r in receives.items() if n - earlier in sends):
            earlier += 1
        for number, receive in receives.items():
            if send := sends.get(number - earlier):
                found["receive", *key, number], found["send", *key, number - earlier] = send, receive
    return found


def union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of intervals as intervals that do not overlap, in order."""
    found: list[list[float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return [(begin, end) for begin, end in found]


def common(these: Sequence[tuple[float, float]], those: Sequence[tuple[float, float]]) -> float:
    """Return the seconds that two lists of intervals have in common; those of a list are in order and do not overlap."""
    total, i, j = 0.0, 0, 0
    while i < len(these) and j < len(those):
        (begin, end), (other, other_end) = these[i], those[j]
        total += max(0.0, min(end, other_end) - max(begin, other))
        i, j = (i + 1, j) if end <= other_end else (i, j + 1)
    return total
