"""Tokens on their way to their experts and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from course_lib.plots.animation import Animation
from course_lib.plots.figures import INK, PALE, color
from course_lib.plots.moving.scene import Frame, animate, box, only, span_text
from course_lib.trace.recorder import Event
from course_lib.trace.timeline import Trace
from course_lib.utils import wording

PLACE = 0.55  # width of a token or a slot
Found = Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]


def all_to_alls(trace: Trace) -> list[list[Event]]:
    """Return the all-to-alls of dispatch and combine, with the event of each rank.

    Raises
    ------
    ValueError
        There are not two.
    """
    found = [[e for e in r.events if e.kind.endswith("collective") and e.name.startswith("Alltoall")] for r in trace.ranks]
    if any(len(events) != 2 for events in found):
        counts = ", ".join(f"{len(events)} on rank {r.rank}" for events, r in zip(found, trace.ranks, strict=True))
        raise ValueError(
            f"moving.experts draws one dispatch and one combine, forward only, with an all-to-all each; the trace has {counts} of these."
        )
    return [list(events) for events in zip(*found, strict=True)]


def token_counts(found: Found) -> np.ndarray:
    """Count the tokens that went from each rank to each expert, ``(ranks, experts)``, in the arrays of `plots.experts.round_trip`."""
    n = len(found)
    slots = np.concatenate([there for _, there, _ in found])  # (experts, n * capacity)
    parts = slots.reshape(len(slots), n, -1)  # a rank's slots are side by side
    return np.count_nonzero(parts, axis=2).T


def experts(traces: Trace | Sequence[Trace], found: Found, title: str) -> Animation:
    """Animate tokens from their ranks to their experts and back (Lepikhin et al., 2021, "GShard", section 2.2).

    Exchanges, bytes and times are those of the trace. It has no contents: which token went where comes from the ranks' arrays.

    Parameters
    ----------
    traces : Trace, or sequence with one
        One `dispatch` and one `combine`, forward.
    found : sequence of (numpy.ndarray, numpy.ndarray, numpy.ndarray)
        For each rank: its tokens before `dispatch`, ``(tokens,)``, numbered ``100 r + 1`` and so on; the slots after it,
        ``(experts / n, n * capacity)``, with 0 in empty ones; and its tokens after `combine`, with 0 for dropped ones.
    title : str
        Title of the figure.

    Raises
    ------
    ValueError
        The trace does not have two all-to-alls.
    """
    trace = only(traces, "moving.experts")
    there, back = all_to_alls(trace)
    start, slots, home = ([np.asarray(each[i]) for each in found] for i in range(3))
    counts, width = token_counts(found), slots[0].shape[1]
    dropped = [int(np.count_nonzero(after == 0)) for after in home]
    lost = (
        f"{sum(dropped)} found no slot, on {wording.ranks(r for r, d in enumerate(dropped) if d)} (×)"
        if any(dropped)
        else "none is missing"
    )
    sizes = f"{width // len(found)} slots for each of {counts.shape[1]} experts, full or not"
    per_expert = ", ".join(f"{count} to expert {e}" for e, count in enumerate(counts.sum(axis=0)))
    tokens = ", ".join(f"{len(mine)} on rank {r}" for r, mine in enumerate(start))
    went = ", ".join(f"{c} of rank {r}" for r, c in enumerate(counts.sum(axis=1)))
    left = PLACE * max(map(len, start))
    right = left + 8.7
    busy, idle = int(counts.sum(axis=0).argmax()), int(counts.sum(axis=0).argmin())
    frames = [
        Frame("at home", f"Tokens: {tokens}."),
        Frame("dispatch", f"Tokens leave: {per_expert}. {_exchange(there, len(found))}: {sizes}."),
        Frame(
            "at the experts",
            f"Expert {busy} has most, {counts.sum(axis=0)[busy]} of {width} slots; expert {idle} has {counts.sum(axis=0)[idle]}.",
        ),
        Frame("combine", f"Outputs go back: {went}. {_exchange(back, len(found))}."),
        Frame("home again", f"Back: {', '.join(f'{np.count_nonzero(h)} of {len(h)} on rank {r}' for r, h in enumerate(home))}; {lost}."),
    ]

    def paint(figure, number: int) -> None:
        axes = figure.subplots()
        _sources(
            axes, start if number < 2 else home if number > 3 else [np.zeros_like(s) for s in start], start, number > 3, counts.shape[1]
        )
        _experts(axes, slots if 0 < number < 4 else [np.zeros_like(s) for s in slots], counts if 0 < number < 4 else None, right)
        if number in (1, 3):
            _flows(axes, counts, (left + 0.2, right - 3.8), back=number == 3)
        axes.set(xlim=(-1.8, right + 1 + PLACE * width), ylim=(counts.shape[1] + 0.2, -1.1))
        axes.axis("off")

    total = sum(e.nbytes for e in (*there, *back))
    summary = f"{counts.sum()} of {sum(map(len, start))} tokens go to {counts.shape[1]} experts and back in {wording.size(total)} of slots."
    return animate(title, frames, paint, (9.2, 0.32 * counts.shape[1] + 0.6), (1, 4), summary)


def _exchange(events: Sequence[Event], n: int) -> str:
    """Describe an all-to-all: bytes, time, and the last rank to call it."""
    last = max(range(n), key=lambda i: events[i].begin)
    sizes = " or ".join(wording.size(size) for size in sorted({e.nbytes for e in events}))
    return (
        f"Each rank gives the all-to-all {sizes}, {span_text(min(e.begin for e in events), max(e.end for e in events))} after the start "
        f"(rank {last} called it last)"
    )


def _row(r: int, ranks: int, experts: int) -> float:
    return (r + 0.5) * experts / ranks - 0.5


def _sources(axes, tokens: Sequence[np.ndarray], all_tokens: Sequence[np.ndarray], again: bool, experts: int) -> None:
    """Draw each rank's tokens on the left: empty where they are away, and crossed where they were dropped."""
    axes.text(0, -0.6, "tokens by rank", ha="left", va="center", fontsize=9, color=INK)
    for r, mine in enumerate(tokens):
        y = _row(r, len(tokens), experts)
        axes.text(-0.3, y + 0.5, f"rank {r}", ha="right", va="center", fontsize=9, color=INK)
        for t, number in enumerate(mine):
            if number:
                box(axes, PLACE * t, y + 0.06, PLACE, 0.88, color(r), str(t), 8)
            elif again:
                box(axes, PLACE * t, y + 0.06, PLACE, 0.88, "white", "×", 9, edge=INK, linewidth=0.8, zorder=3)
            else:
                box(axes, PLACE * t, y + 0.06, PLACE, 0.88, PALE)


def _experts(axes, slots: Sequence[np.ndarray], counts: np.ndarray | None, x: float) -> None:
    """Draw the slots of each expert, with a frame round those of each rank, and the number of its tokens."""
    n, (local, width) = len(slots), slots[0].shape
    axes.text(x, -0.6, "slots by expert", ha="left", va="center", fontsize=9, color=INK)
    for r, e in ((r, e) for r in range(n) for e in range(local)):
        y = r * local + e
        axes.text(x - 0.2, y + 0.5, f"expert {y} (rank {r})", ha="right", va="center", fontsize=8, color=INK)
        for s, token in enumerate(slots[r][e]):
            owner = int(token) // 100
            box(axes, x + PLACE * s, y + 0.06, PLACE, 0.88, color(owner) if token else PALE, str(int(token) % 100 - 1) if token else "", 8)
        for source in range(n):
            box(axes, x + PLACE * source * width / n, y + 0.06, PLACE * width / n, 0.88, "none", edge=INK, linewidth=0.7, zorder=3)
        if counts is not None:
            axes.text(x + 0.2 + PLACE * width, y + 0.5, f"{counts[:, y].sum()}", ha="left", va="center", fontsize=9, color=INK)


def _flows(axes, counts: np.ndarray, ends: tuple[float, float], back: bool) -> None:
    """Draw a line per rank and expert, as wide as it has tokens."""
    n, experts = counts.shape
    for r, e in ((r, e) for r in range(n) for e in range(experts) if counts[r, e]):
        home, away = (ends[0], _row(r, n, experts) + 0.5), (ends[1], e + 0.5)
        places = {"xy": home, "xytext": away} if back else {"xy": away, "xytext": home}
        style = {"arrowstyle": "-|>", "color": color(r), "linewidth": 0.9 * counts[r, e], "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", **places, arrowprops=style)
