"""Keys and values on their way round the ring of ring attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

from course_lib.plots.animation import Animation
from course_lib.plots.attention import draw_mask, owners_of
from course_lib.plots.figures import INK, color, ink_on
from course_lib.plots.moving.scene import Frame, animate, arrow, box, only, span_text
from course_lib.trace.timeline import COMPUTING, Arrow, Trace
from course_lib.utils import wording


def hops(trace: Trace) -> list[list[Arrow]]:
    """Return the messages of a forward pass by hop: those with which all ranks pass on K and V for the first time, and so on.

    Raises
    ------
    ValueError
        The messages are not those of n ranks that each send equally much n - 1 times.
    """
    n = len(trace.ranks)
    sent: dict[int, list[Arrow]] = {r.rank: [] for r in trace.ranks}
    for message in sorted(trace.arrows(), key=lambda a: a.sent):
        sent[message.source].append(message)
    found: list[list[Arrow]] = [[] for _ in range(n - 1)]
    for source, messages in sent.items():
        total, before = sum(m.nbytes for m in messages), 0
        for m in messages:
            hop = before * (n - 1) // total if total else n
            before += m.nbytes
            if hop >= n - 1 or before * (n - 1) > (hop + 1) * total:
                hop = None
                break
            found[hop].append(m)
        if n > 1 and (not messages or hop is None or len({m.dest for m in messages}) > 1):
            kinds = ", ".join(f"{wording.size(m.nbytes)} to rank {m.dest}" for m in messages) or "nothing"
            raise ValueError(
                f"moving.ring_attention draws one forward pass, in which each rank sends K and V to the next rank {n - 1} times; "
                f"rank {source} sent {kinds}. Trace a single call of ring_attention, without its backward pass."
            )
    return found


def holders(trace: Trace) -> list[list[int]]:
    """Return, for each step and rank, the rank whose K and V it has: its own first, then what the last message's sender had before."""
    held = [[r.rank for r in trace.ranks]]
    for messages in hops(trace):
        came = {m.dest: held[-1][m.source] for m in messages}
        held.append([came.get(r.rank, held[-1][i]) for i, r in enumerate(trace.ranks)])
    return held


def ring_attention(traces: Trace | Sequence[Trace], chunks: Sequence[Sequence[int]], title: str) -> Animation:
    """Animate the forward pass of ring attention (Liu et al., 2023, "Ring attention with blockwise transformers", section 3).

    Messages, bytes and times are those of the trace. That a rank passes on what it received last is the algorithm's rule: a trace has no
    contents.

    Parameters
    ----------
    traces : Trace, or sequence with one
        One call on n ranks, without its backward pass.
    chunks : sequence of sequence of int
        Chunks of the sequence that each rank holds; the trace does not know them.
    title : str
        Title of the figure.

    Raises
    ------
    ValueError
        The messages are not those of such a pass.
    """
    trace = only(traces, "moving.ring_attention")
    held, moved, n = holders(trace), hops(trace), len(trace.ranks)
    owners = owners_of(chunks)
    steps = [[places.index(owners[key]) for places in zip(*held, strict=True)] for key in sorted(owners)]
    pairs = {(query, key): steps[key][owners[query]] for query in owners for key in range(query + 1)}
    frames, moments = [], []
    for step in range(n):
        count = sum(when == step for when in pairs.values())
        said = f"{_who(held[step])}. They compute {count} of the {len(pairs)} visible pairs of chunks."
        frames.append(Frame(f"step {step}, compute", said))
        moments.append((step, False))
        if step < n - 1:
            frames.append(Frame(f"step {step}, pass on", _moves(trace, moved[step], held[step])))
            moments.append((step, True))

    def paint(figure, number: int) -> None:
        step, moving = moments[number]
        mask, ring = figure.subplots(1, 2, width_ratios=[1.1, 1])
        now = {pair for pair, when in pairs.items() if when == step and not moving}
        draw_mask(mask, chunks, lambda q, k: 1.0 if (q, k) in now else 0.3 if pairs[q, k] <= step - (not moving) else 0.0)
        for (query, key), when in pairs.items():
            if when <= step:
                place = (key + 0.5, query + 0.5) if key < query else (key + 0.33, query + 0.68)
                ink = ink_on(color(owners[query])) if (query, key) in now else INK
                mask.text(*place, when, ha="center", va="center", fontsize=8, color=ink, in_layout=False)
        for query, owner in owners.items():
            mask.text(-0.65, query + 0.5, owner, ha="center", va="center", fontsize=8, color=ink_on(color(owner)), in_layout=False)
        mask.set_title("bar: the queries' rank; numbers: step", fontsize=9, color=INK)
        _ring(ring, held[step], moved[step] if moving else [])

    keys = sorted({0, min(1, len(frames) - 1), min(2, len(frames) - 1), len(frames) - 1})
    total = sum(m.nbytes for hop in moved for m in hop)
    summary = f"K and V go round {n} ranks in {wording.size(total)} of messages; the queries stay."
    return animate(title, frames, paint, (6.8, 2.9), keys, summary)


def _who(places: Sequence[int]) -> str:
    if all(r == place for r, place in enumerate(places)):
        return "Each rank has its own K and V"
    return "K and V: " + ", ".join(f"rank {r} has rank {place}'s" for r, place in enumerate(places))


def _moves(trace: Trace, messages: Sequence[Arrow], places: Sequence[int]) -> str:
    nbytes = {sum(m.nbytes for m in messages if m.source == source) for source in {m.source for m in messages}}
    begin, end = min(m.sent for m in messages), max(m.received for m in messages)
    pairs = sorted({(m.source, m.dest) for m in messages})
    said = ", ".join(f"rank {places[a]}'s from {a} to {b}" for a, b in pairs)
    sizes = " or ".join(wording.size(size) for size in sorted(nbytes))
    return f"K and V move: {said}; {sizes} each, {span_text(begin, end)} after the start.{_hidden(trace, messages)}"


def _hidden(trace: Trace, messages: Sequence[Arrow]) -> str:
    """Return the share of the transfers' time in which their receivers computed."""
    total = computed = 0.0
    for m in messages:
        total += m.received - m.sent
        for s in trace.segments[m.dest]:
            if s.state == COMPUTING:
                computed += max(0.0, min(s.end, m.received) - max(s.begin, m.sent))
    return f" Receivers computed {computed / total:.0%} of that time." if total > 0 else ""


def _ring(axes, places: Sequence[int], messages: Sequence[Arrow]) -> None:
    """Draw the ranks in a circle, each with the K and V that it has, and those on their way on arrows."""
    n = len(places)
    angles = [math.pi / 2 - 2 * math.pi * r / n for r in range(n)]
    at = [(1.75 * math.cos(a), 1.35 * math.sin(a)) for a in angles] if n > 1 else [(0.0, 0.0)]
    for r, ((x, y), owner) in enumerate(zip(at, places, strict=True)):
        box(axes, x - 0.6, y - 0.4, 1.2, 0.8, color(owner), f"rank {r}:\nK, V {owner}", 8)
    for source, dest in sorted({(m.source, m.dest) for m in messages}):
        (x0, y0), (x1, y1) = at[source], at[dest]
        between = [(x0 + (x1 - x0) * t, y0 + (y1 - y0) * t) for t in (0.28, 0.74)]
        arrow(axes, *between, INK, 1.6)
        x, y = (0.66 * (a + b) for a, b in zip(at[source], at[dest], strict=True)) if n > 2 else (0.0, 0.0)
        box(axes, x - 0.44, y - 0.19, 0.88, 0.38, color(places[source]), f"K, V {places[source]}", 7, edge=INK, linewidth=0.8, zorder=4)
    axes.set(xlim=(-2.4, 2.4), ylim=(-1.8, 1.8), aspect="equal")
    axes.axis("off")
