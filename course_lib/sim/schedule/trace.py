"""A run as a trace, like those of real ranks; and its export as a Chrome trace, for Perfetto (ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from course_lib.sim.schedule import stats
from course_lib.trace.recorder import Event
from course_lib.trace.timeline import RankTrace, Trace

TRACE_ROWS = ("compute", "communication", "waiting")


class _Call(NamedTuple):
    """A communication on a rank: its kind and group, its number in the group or with this peer, its times, and when the rank waited."""

    kind: str
    name: str
    ranks: tuple[int, ...]
    number: int
    peer: int
    called: float
    exchange: object
    waited: tuple[float, float]


def as_trace(models: Sequence, title: str, batches: Sequence[Sequence[int]] | None = None, until: float = math.inf) -> Trace:
    """Return a run as a trace of its ranks, in virtual seconds.

    Parameters
    ----------
    models : sequence of Model
    title : str
    batches : sequence of sequence of int, optional
        Micro-batches that number the work; by default those that the ranks worked on.
    until : float
        Virtual seconds; the trace ends there, without the work that ends later.
    """
    models = sorted(models, key=lambda m: m.rank)
    numbers = stats.batch_numbers(models, batches)
    calls = {model.rank: _calls(model) for model in models}
    begins = _begins(calls)
    ranks = []
    for model in models:
        events = []
        for kind, start, end, mask in boxes(model):
            if end <= until:
                events.append(Event("span", kind, start, end, of=f"micro batch {numbers[mask]}" if mask in numbers else ""))
        inputs = (e for e in stats.events(model) if e.kind == "input" and e.start < min(e.end, until))
        events += [Event("wait", "input from the host", e.start, min(e.end, until)) for e in inputs]
        for call in calls[model.rank]:
            begin, end, place = begins[model.rank, call], call.exchange.end, (call.ranks, call.number, 0, call.peer)
            if begin < until:
                events.append(Event(f"started {call.kind}", call.name, begin, min(end, until), *place))
            if call.waited[0] < min(call.waited[1], until):
                events.append(Event("wait", call.name, call.waited[0], min(call.waited[1], until), *place, of=call.kind))
        ranks.append(RankTrace(model.rank, 0.0, min(model.time, until), events))
    return Trace(ranks, title)


def boxes(model) -> list[tuple[str, float, float, int]]:
    """List the activities of a rank as (kind, start, end, samples as bits), merging neighbours of one kind and micro-batch."""
    found: list[list] = []
    for event in stats.events(model):
        if event.kind not in stats.COMPUTE_KINDS:
            continue
        before = found[-1] if found else None
        if before and before[0] == event.kind and before[3] == event.mask and event.start - before[2] <= 1e-9 * event.end:
            before[2] = event.end
        else:
            found.append([event.kind, event.start, event.end, event.mask])
    return [tuple(box) for box in found]


def _calls(model) -> list[_Call]:
    """List the communications that a rank has awaited, numbered in the order of their calls."""
    counts: Counter[tuple] = Counter()
    called: dict[int, tuple] = {}
    everyone = tuple(range(model.world_size))
    found = []
    for row in model.rows:
        if row[0] == "call":
            name, extra = row[6]
            message = name in ("send", "receive")
            ranks, peer = (everyone, extra[0]) if message else (extra or everyone, -1)
            what = (name, peer) if message else (ranks,)
            called[row[5][0]] = name if message else "collective", name, tuple(ranks), counts[what], peer, row[2]
            counts[what] += 1
        elif row[0] in stats.COMMUNICATION_KINDS:
            found.append(_Call(*called[row[5][0]], row[6], (row[2], row[3])))
    return found


def _begins(calls: dict[int, list[_Call]]) -> dict[tuple[int, _Call], float]:
    """Return from when each call counts: data move from the last of these moments on, later than the calls if a link is busy.

    A send does not wait for its receive.
    """
    last: dict[int, tuple[float, int]] = {}
    sent: dict[tuple[int, int, int], float] = {}
    for rank, some in calls.items():
        for call in some:
            last[id(call.exchange)] = max(last.get(id(call.exchange), (0.0, rank)), (call.called, rank))
            if call.kind == "send":
                sent[rank, call.peer, call.number] = call.exchange.start
    found = {}
    for rank, some in calls.items():
        for call in some:
            begin = call.called
            if call.kind == "receive":
                begin = min(begin, sent.get((call.peer, rank, call.number), begin))
            elif call.kind == "send" or last[id(call.exchange)][1] == rank:
                begin = call.exchange.start
            found[rank, call] = begin
    return found


def write_chrome_trace(models: Sequence, path: str | Path, global_batch_list: Sequence[Sequence[int]] | None = None) -> None:
    """Write the timeline of all ranks, with their memory as counters.

    Parameters
    ----------
    models : sequence of Model
    path : str or Path
        Missing folders are created.
    global_batch_list : sequence of sequence of int, optional
        Micro-batches that name the samples; by default those that the ranks worked on.
    """
    numbers = stats.batch_numbers(models, global_batch_list)
    found = []
    for model in sorted(models, key=lambda m: m.rank):
        rank = model.rank
        found.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
        found.append({"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}})
        found += [{"ph": "M", "name": "thread_name", "pid": rank, "tid": i, "args": {"name": name}} for i, name in enumerate(TRACE_ROWS)]
        for event in stats.events(model):
            found += _slices(event, numbers)
        for time, nbytes in zip(*stats.memory_profile(model), strict=True):
            found.append({"ph": "C", "name": "memory", "pid": rank, "tid": 0, "ts": float(time) * 1e6, "args": {"bytes": float(nbytes)}})
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps({"traceEvents": found, "displayTimeUnit": "ms"}))


def _slices(event: stats.RankEvent, numbers: dict[int, int]) -> list[dict]:
    """Slices of an event: on its row, and on the third row the time in which the rank was blocked by it."""
    batch = f", batch {numbers[event.mask]}" if event.mask in numbers else ""
    name = f"{event.kind} {event.layer}{batch}"
    slices = []
    if event.kind != "receive":  # it takes place on the sender's row
        slices.append((1 if event.waited else 0, name, event.start, event.end))
    if event.waited and event.waited[1] > event.waited[0]:
        slices.append((2, f"wait for {name}", *event.waited))
    args = {"layer": event.layer, "samples": event.mask.bit_count()}
    return [
        {
            "ph": "X",
            "name": label,
            "cat": event.kind,
            "pid": event.rank,
            "tid": row,
            "ts": start * 1e6,
            "dur": (end - start) * 1e6,
            "args": args,
        }
        for row, label, start, end in slices
    ]
