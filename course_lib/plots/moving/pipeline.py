"""Micro-batches on their way through the stages of a pipeline, and the activations that the stages hold."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from course_lib.plots.animation import Animation
from course_lib.plots.figures import INK, PALE, WORK_COLORS
from course_lib.plots.moving.scene import Frame, animate, arrow, box, label, only
from course_lib.trace.recorder import Event
from course_lib.trace.timeline import Trace
from course_lib.utils import wording

FORWARD, BACKWARD = "forward", "backward"
LETTERS = {FORWARD: "F", BACKWARD: "B"}


class Work(NamedTuple):
    """A micro-batch's forward or backward in a stage.

    Attributes
    ----------
    kind : str
        "forward" or "backward".
    micro_batch : int
    step : int
        Number of pieces of work before it that depend on each other, in its own stage or through messages.
    source : int or None
        World rank whose message it needed, and its bytes in `nbytes`.
    held : tuple of int
        Micro-batches of which the stage holds activations while it works on this one.
    """

    kind: str
    micro_batch: int
    step: int
    source: int | None
    nbytes: int
    held: tuple[int, ...]


def schedule(trace: Trace) -> list[list[Work]]:
    """Return each rank's work, in its order, of the spans "forward" and "backward" of a trace.

    A piece of work begins one step after what it needs: the rank's previous piece, and the piece after which its input was sent. So the
    steps are those of a machine on which all pieces take equally long and messages no time.

    Raises
    ------
    ValueError
        The trace has no such spans, or a backward without its forward.
    """
    rows = {r.rank: i for i, r in enumerate(trace.ranks)}
    spans = [
        sorted((e for e in r.events if e.kind == "span" and e.name in LETTERS and "micro batch" in e.of), key=lambda e: e.begin)
        for r in trace.ranks
    ]
    if not all(spans):
        without = wording.ranks(r.rank for r, found in zip(trace.ranks, spans, strict=True) if not found)
        raise ValueError(f"moving.pipeline draws spans named forward and backward with a micro-batch; the trace has none of {without}.")
    needs: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # by row and index: row and index of the sender, bytes
    for message in trace.arrows():
        source, dest = rows[message.source], rows[message.dest]
        before = bisect_right([e.end for e in spans[source]], message.sent) - 1
        after = bisect_left([e.begin for e in spans[dest]], message.received)
        if before >= 0 and after < len(spans[dest]):
            needs.setdefault((dest, after), []).append((source, before, message.nbytes))

    @cache
    def step(row: int, index: int) -> int:
        before = [step(row, index - 1)] if index else []
        return 1 + max([*before, *(step(source, k) for source, k, _ in needs.get((row, index), ()))], default=-1)

    return [_work(trace, i, found, step, needs) for i, found in enumerate(spans)]


def _work(trace: Trace, row: int, spans: Sequence[Event], step: Callable[[int, int], int], needs: Mapping) -> list[Work]:
    held: list[int] = []
    found = []
    for index, event in enumerate(spans):
        k = label(event, "micro_batch")
        if event.name == FORWARD:
            held.append(k)
        elif k not in held:
            raise ValueError(f"moving.pipeline: on rank {trace.ranks[row].rank}, micro-batch {k} goes backward before it went forward.")
        sources = needs.get((row, index), ())
        source = trace.ranks[sources[-1][0]].rank if sources else None
        found.append(Work(event.name, k, step(row, index), source, sum(nbytes for *_, nbytes in sources), tuple(held)))
        if event.name == BACKWARD:
            held.remove(k)
    return found


def pipeline(traces: Mapping[str, Trace | Sequence[Trace]], title: str) -> Animation:
    """Animate steps of a pipeline, one under the other: who works on which micro-batch, and the activations each stage holds.

    Order, messages and bytes are those of the traces; a frame is a step of `schedule`, which shows the order rather than the time.

    Parameters
    ----------
    traces : mapping of str to Trace, or to a sequence with one
        By schedule: one training step each, on the same number of ranks.
    title : str
        Title of the figure.

    Raises
    ------
    ValueError
        A trace has no pieces of work.
    """
    runs = {name: only(trace, "moving.pipeline") for name, trace in traces.items()}
    plans = {name: schedule(trace) for name, trace in runs.items()}
    n, count = max(map(len, plans.values())), 1 + max(work.step for plan in plans.values() for works in plan for work in works)
    frames = [Frame("", " ".join(_said(name, plan, step) for name, plan in plans.items())) for step in range(count)]

    def paint(figure, step: int) -> None:
        for axes, (name, plan) in zip(figure.subplots(len(plans), 1, squeeze=False)[:, 0], plans.items(), strict=True):
            _stages(axes, plan, step, name)

    keys = sorted({round(part * (count - 1)) for part in (0.2, 0.5, 0.8)})
    most = [f"{name}: stages hold at most {_list(max(len(w.held) for w in works) for works in plan)}" for name, plan in plans.items()]
    summary = f"Activations of micro-batches, by rank. {'; '.join(most)}."
    return animate(title, frames, paint, (2.1 * n + 0.6, 1.45 * len(plans)), keys, summary)


def _at(works: Sequence[Work], step: int) -> Work | None:
    return next((work for work in works if work.step == step), None)


def _held(works: Sequence[Work], step: int) -> tuple[int, ...]:
    """Return the micro-batches whose activations a stage holds in a step, also while it waits."""
    before = [work for work in works if work.step <= step]
    if not before:
        return ()
    last = before[-1]
    return tuple(k for k in last.held if last.step == step or last.kind == FORWARD or k != last.micro_batch)


def _said(name: str, plan: Sequence[Sequence[Work]], step: int) -> str:
    if step > max(work.step for works in plan for work in works):
        return f"{name}: the step is over."
    now = [(r, _at(works, step)) for r, works in enumerate(plan)]
    kinds = [
        f"{kind} of {', '.join(f'{work.micro_batch} on rank {r}' for r, work in now if work and work.kind == kind)}"
        for kind in LETTERS
        if any(work and work.kind == kind for _, work in now)
    ]
    idle = [r for r, work in now if work is None]
    waits = f"; idle: {wording.ranks(idle)}" if idle else ""
    return f"{name}: {'; '.join(kinds)}{waits}; held: {_list(len(_held(works, step)) for works in plan)}."


def _list(numbers) -> str:
    return ", ".join(map(str, numbers))


def _stages(axes, plan: Sequence[Sequence[Work]], step: int, name: str) -> None:
    """Draw a box per stage with what it works on, arrows for the messages that this needed, and the activations it holds below."""
    wide, gap = 1.5, 0.6
    for r, works in enumerate(plan):
        x, work, held = r * (wide + gap), _at(works, step), _held(works, step)
        if work:
            box(axes, x, 0, wide, 0.7, WORK_COLORS[work.kind], f"{work.kind} {work.micro_batch}", 10)
        else:
            box(axes, x, 0, wide, 0.7, PALE, "idle", 9)
        axes.text(x + wide / 2, -0.08, f"rank {r}", ha="center", va="bottom", fontsize=9, color=INK)
        if work and work.source is not None:
            back = work.source > r
            ends = ((x + wide + gap, x + wide) if back else (x - gap, x)), (0.5 if back else 0.2)
            arrow(axes, (ends[0][0], ends[1]), (ends[0][1], ends[1]), INK, 1.6)
            middle = sum(ends[0]) / 2
            said, where, align = ("grad", 0.56, "top") if back else ("act", 0.14, "bottom")
            axes.text(middle, where, said, ha="center", va=align, fontsize=7, color=INK, in_layout=False)
        small = min(0.25, wide / max(len(held), 1))
        for i, k in enumerate(held):
            box(axes, x + i * small, 0.82, small, 0.32, "white", str(k), 8, edge=INK, linewidth=0.8)
        axes.text(x, 1.2, f"{len(held)} held", ha="left", va="top", fontsize=8, color=INK)
    axes.set(xlim=(-0.1, len(plan) * (wide + gap)), ylim=(1.5, -0.4))
    axes.axis("off")
    axes.set_title(name, fontsize=10, color=INK, loc="left")
