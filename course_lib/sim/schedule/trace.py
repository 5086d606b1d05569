"""Export of a run as a Chrome trace: JSON in the Trace Event Format, for Perfetto (ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from course_lib.sim.schedule import stats

TRACE_ROWS = ("compute", "communication", "waiting")


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
