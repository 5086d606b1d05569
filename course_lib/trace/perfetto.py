"""Export of a trace for Perfetto and Chrome's viewer: Trace Event Format, JSON (https://ui.perfetto.dev opens it)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from course_lib.trace.timeline import WAITING, Trace

MICROSECONDS = 1e6


def events(trace: Trace) -> list[dict]:
    """Return the events: a process per machine, a thread per rank, calls and spans as slices, and messages as flows."""
    hosts = sorted({r.host for r in trace.ranks})
    pids = {r.rank: hosts.index(r.host) for r in trace.ranks}
    found = [
        {"ph": "M", "name": "process_name", "pid": p, "tid": 0, "args": {"name": host or "this machine"}} for p, host in enumerate(hosts)
    ]
    for r in trace.ranks:
        place = {"pid": pids[r.rank], "tid": r.rank}
        found.append({"ph": "M", "name": "thread_name", **place, "args": {"name": f"rank {r.rank}"}})
        for e in r.events:
            if e.kind in ("span", "operation"):
                found.append(_slice(e.name, e.kind, e.begin, e.end, place, {"labels": e.of} if e.of else {}))
        for s in trace.segments[r.rank]:
            if s.event is not None:
                waits = {"waits for": f"rank {s.culprit}"} if s.state == WAITING and s.culprit is not None else {}
                found.append(_slice(f"{s.event.name}: {s.state}", s.state, s.begin, s.end, place, _details(s.event) | waits))
        for i, f in enumerate(trace.flights[r.rank]):
            common = {"cat": "in flight", "id": f"{r.rank}.{i}", "name": f.event.name, **place}
            found.append({"ph": "b", "ts": f.begin * MICROSECONDS, "args": _details(f.event), **common})
            found.append({"ph": "e", "ts": f.end * MICROSECONDS, **common})
    for i, a in enumerate(trace.arrows()):
        flow = {"cat": "message", "name": "message", "id": i}
        found.append({"ph": "s", "ts": a.sent * MICROSECONDS, "pid": pids[a.source], "tid": a.source, **flow})
        found.append({"ph": "f", "bp": "e", "ts": a.received * MICROSECONDS, "pid": pids[a.dest], "tid": a.dest, **flow})
    return found


def _slice(name: str, category: str, begin: float, end: float, place: dict, arguments: dict) -> dict:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": begin * MICROSECONDS,
        "dur": (end - begin) * MICROSECONDS,
        "args": arguments,
        **place,
    }


def _details(event) -> dict:
    told = {"group": list(event.ranks), "number": event.number}
    if event.nbytes:
        told["bytes"] = event.nbytes
    return told | ({"peer": event.peer, "tag": event.tag} if event.peer >= 0 else {})


def write(trace: Trace, path: Path) -> None:
    """Write a trace as a file that Perfetto opens; a folder that is missing is created.

    If that is not possible, print a message: it must not hide an error of what was traced.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"traceEvents": events(trace), "displayTimeUnit": "ms", "otherData": {"title": trace.title}}))
    except OSError as error:
        print(f"The trace was not written to {path}: {error.strerror or error}.", file=sys.stderr, flush=True)
