"""Blocks of a fully sharded model: gathered, computed, freed, reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from course_lib.plots.animation import Animation
from course_lib.plots.figures import INK, PALE, color
from course_lib.plots.moving.scene import Frame, animate, box, label, only, span_text
from course_lib.trace.recorder import Event
from course_lib.trace.timeline import Trace
from course_lib.utils import wording

Moment = tuple[str, bool, int, Sequence[bool], int]
PASSES = {False: "forward", True: "backward"}
ABSENT, COMING, WHOLE = "absent", "coming", "whole"


class Turn(NamedTuple):
    """A block's turn: its pass, its number, and on each rank its span, the all-gathers started for it, and the reduce-scatters after it."""

    back: bool
    block: int
    spans: list[Event]
    gathers: list[list[Event]]
    reduces: list[list[Event]]


def turns(trace: Trace) -> list[Turn]:
    """Return the turns of a step's blocks, with what the ranks exchange before and after each.

    Raises
    ------
    ValueError
        The trace has no spans "forward" and "backward" with a block, or not the same ones on all ranks.
    """
    runs = [sorted((e for e in r.events if e.kind == "span" and "block" in e.of), key=lambda e: e.begin) for r in trace.ranks]
    orders = {tuple((e.name, label(e, "block")) for e in run) for run in runs}
    if len(orders) != 1 or not runs[0]:
        raise ValueError(
            "moving.fully_sharded draws a step in which all ranks run the same blocks, in spans forward and backward with a block."
        )
    found = []
    for i, (name, block) in enumerate(*orders):
        gathers, reduces = [], []
        for run, r in zip(runs, trace.ranks, strict=True):
            before, after = run[i - 1].end if i else r.begin, run[i + 1].begin if i + 1 < len(run) else r.end
            calls = [e for e in r.events if e.kind.endswith("collective")]
            gathers.append([e for e in calls if e.name == "Allgather" and before <= e.begin < run[i].end])
            reduces.append([e for e in calls if e.name == "Reduce_scatter" and run[i].end <= e.begin < after])
        found.append(Turn(name == PASSES[True], block, [run[i] for run in runs], gathers, reduces))
    return found


def fully_sharded(traces: Trace | Sequence[Trace], held: Sequence[tuple[Sequence[Moment], Sequence[str]]], title: str) -> Animation:
    """Animate a step of fully sharded data parallelism: for each block gather, compute, free, and in backward reduce.

    Exchanges, bytes and times are those of the trace. Which blocks are whole, and how much memory a rank holds, comes from the ranks.

    Parameters
    ----------
    traces : Trace, or sequence with one
        One step of `gpt.fsdp.profile.held_in_step`.
    held : sequence of (list, list of str)
        For each rank, what that returned.
    title : str
        Title of the figure.

    Raises
    ------
    ValueError
        The trace has no such step, or another one than `held`.
    """
    trace = only(traces, "moving.fully_sharded")
    plan, (moments, names) = turns(trace), held[0]
    order = [(turn.back, turn.block) for turn in plan for _ in range(3)]
    if any([(back, block) for _, back, block, *_ in mine] != order for mine, _ in held):
        raise ValueError(
            "moving.fully_sharded: the trace and the measurement are not of the same step. Pass what the traced call returned."
        )
    resident = [[nbytes for *_, nbytes in mine] for mine, _ in held]
    frames = [
        Frame(f"{PASSES[back]}, {_name(kind, back)}", _said(kind, plan[i // 3], moments[i], names, [mine[i] for mine in resident]))
        for i, (kind, back, *_) in enumerate(moments)
    ]

    def paint(figure, number: int) -> None:
        blocks, bytes_held = figure.subplots(1, 2, width_ratios=[1.7, 1])
        _blocks(blocks, moments[number], names, [f"{mine[number] / scale:.3g}" for mine in resident], unit)
        _memory(bytes_held, [max(frame) / scale for frame in zip(*resident, strict=True)], number, unit)

    scale, unit = (1e6, "MB") if max(map(max, resident)) >= 1e6 else (1e3, "kB")
    top = max(range(len(moments)), key=lambda i: max(mine[i] for mine in resident))
    keys = sorted({0, 1, top, len(moments) - 1})
    total = max(sum(e.nbytes for turn in plan for events in (turn.gathers[i], turn.reduces[i]) for e in events) for i in range(len(held)))
    summary = (
        f"Each block is gathered twice; a rank takes part in exchanges of {wording.size(total)}, and holds at most "
        f"{wording.size(max(map(max, resident)))}, as measured."
    )
    return animate(title, frames, paint, (7.4, 0.55 * len(names) + 1.3), keys, summary)


def _name(kind: str, back: bool) -> str:
    return "reduce" if back and kind == "free" else kind


def _said(kind: str, turn: Turn, moment: Moment, names: Sequence[str], resident: Sequence[int]) -> str:
    _, back, block, whole, _ = moment
    name = f"{names[block]} ({block})"
    if kind == "gather":
        coming = [f"{names[i]} ({i})" for i, here in enumerate(whole[: len(names)]) if here and i != block]
        started = [wording.size(e.nbytes) for e in turn.gathers[0]]
        said = f"{name} is whole on every rank" + (f", {' and '.join(coming)} is on its way" if coming else "")
        said += f"; all-gathers started: {', '.join(started)}" if started else "; it was gathered in time"
    elif kind == "compute":
        begin, end = min(e.begin for e in turn.spans), max(e.end for e in turn.spans)
        again = " its forward again, then its backward" if back else ""
        said = f"{name} runs{again} on every rank, {span_text(begin, end)} after the start"
    else:
        said = f"{name} is freed" + (" again, a rank keeps its own part" if not turn.reduces[0] else "")
        for e in turn.reduces[0]:
            said += f"; a reduce-scatter of {wording.size(e.nbytes)} leaves each rank the gradients of its own part"
    low, high = min(resident), max(resident)
    sizes = wording.size(low) if f"{wording.size(low)}" == wording.size(high) else f"{wording.size(low)} to {wording.size(high)}"
    return f"{said}. Held by each rank: {sizes}."


def _blocks(axes, moment: Moment, names: Sequence[str], sizes: Sequence[str], unit: str) -> None:
    """Draw a row per block and a column per rank: the parts that the rank has, each with its owner's number and colour."""
    kind, back, block, whole, _ = moment
    part, gap, n = 0.5, 0.45, len(sizes)
    for i, name in enumerate(names):
        now = {"gather": "gather", "compute": PASSES[back], "free": _name(kind, back)}[kind] if i == block else ""
        state = WHOLE if whole[i] and i == block else COMING if whole[i] else ABSENT
        axes.text(-0.2, i + 0.4, f"{name} ({i})", ha="right", va="center", fontsize=9, color=INK, weight="bold" if i == block else "normal")
        for r in range(n):
            x = r * (n * part + gap)
            for p in range(n):
                if p == r or state == WHOLE:
                    box(axes, x + p * part, i, part, 0.8, color(p), str(p), 7)
                elif state == COMING:
                    box(axes, x + p * part, i, part, 0.8, "white", edge="#999999", linewidth=0.7)
                else:
                    box(axes, x + p * part, i, part, 0.8, PALE)
            if i == block and kind == "compute":
                box(axes, x - 0.05, i - 0.05, n * part + 0.1, 0.9, "none", edge=INK, linewidth=2.0, zorder=5)
        said = now if i == block else "on its way" if state == COMING else ""
        axes.text(n * (n * part + gap) - gap + 0.2, i + 0.4, said, ha="left", va="center", fontsize=9, color=INK)
    axes.text(-0.2, -0.3, f"{unit} held", ha="right", va="bottom", fontsize=9, color=INK)
    for r in range(n):
        axes.text(r * (n * part + gap) + n * part / 2, -0.3, f"rank {r}\n{sizes[r]}", ha="center", va="bottom", fontsize=9, color=INK)
    axes.set(xlim=(-2.1, n * (n * part + gap) + 1.9), ylim=(len(names) + 0.1, -1.3))
    axes.axis("off")


def _memory(axes, values: Sequence[float], number: int, unit: str) -> None:
    """Draw what the rank holds that holds most, over the frames up to this one; the rest is pale."""
    steps = range(1, len(values) + 1)
    axes.plot(steps, values, color="#CCCCCC", linewidth=1, zorder=1)
    axes.plot(steps[: number + 1], values[: number + 1], color=INK, linewidth=1.6, zorder=2)
    axes.plot(number + 1, values[number], "o", color=INK, markersize=5, zorder=3)
    axes.set(ylim=(0, None), xlim=(0.5, len(steps) + 0.5))
    axes.set_xlabel("frame", fontsize=9, color=INK)
    axes.set_title(f"a rank holds, {unit} (measured)", fontsize=9, color=INK)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
