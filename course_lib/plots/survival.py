"""Figure of part 37: which ranks' differences counted in each outer step, who copied a state, and the loss."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.plots.figures import INK, MISSING, PALE, SPAN_COLOR, Picture, color, new_figure, slide_width
from course_lib.utils import wording

Turn = tuple[int, Sequence[int] | None, int, float, float]


def membership(turns: Sequence[Sequence[Turn]], title: str) -> Picture:
    """Draw who was in each outer step; below, the loss of each rank, and how long each step took.

    Parameters
    ----------
    turns : sequence of sequence of (int, sequence of int or None, int, float, float)
        By rank, for each turn: the step, whose differences counted (None if the rank copied a peer's state), the next step, the loss, and
        the time at the end in seconds.
    title : str
    """
    who = {step: set(counted) for mine in turns for step, counted, *_ in mine if counted is not None}
    steps = max(who, default=0) + 1
    figure, (top, middle, bottom) = new_figure(slide_width(9.0, 5.4), 5.4, title, rows=3, height_ratios=[1.2, 1.3, 0.7], sharex=True)
    out = {r: [step for step in range(steps) if r not in who.get(step, ())] for r in range(len(turns))}
    for r, mine in enumerate(turns):
        copied = sorted({after for _, counted, after, *_ in mine if counted is None})
        top.bar(range(steps), 0.8, 0.92, r - 0.4, color=[PALE if step in out[r] else color(r) for step in range(steps)])
        top.bar(out[r], 0.8, 0.92, r - 0.4, color="none", edgecolor=SPAN_COLOR, hatch=MISSING, linewidth=0.5)
        top.plot(copied, [r] * len(copied), "v", color=INK, markersize=7)
        middle.plot([turn[0] for turn in mine], [turn[3] for turn in mine], color=color(r), linewidth=1.4, marker=".", label=f"rank {r}")
    ends = {step: min(turn[4] for mine in turns for turn in mine if turn[0] == step and turn[1] is not None) for step in who}
    seconds = {step: ends[step] - ends[step - 1] for step in ends if step - 1 in ends}
    bottom.bar(list(seconds), list(seconds.values()), 0.92, color=SPAN_COLOR)
    top.set(yticks=range(len(turns)), yticklabels=[f"rank {r}" for r in range(len(turns))], ylim=(len(turns) - 0.4, -0.6))
    top.set_title("in color: its difference counts; hatched: it does not; triangle: starts with a copied state", fontsize=9, color=INK)
    middle.set(ylabel="loss", ylim=(0, None))
    middle.legend(fontsize=8, frameon=False, ncols=4)
    bottom.set_title("seconds of a step: until the deadline if a rank is missing, longer if too few are there", fontsize=9, color=INK)
    bottom.set(xlabel="outer step", xlim=(-0.6, steps - 0.4))
    for axes in (top, middle, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    said = "; ".join(f"rank {r} is not in {wording.spans(steps)}" for r, steps in out.items() if steps)
    return Picture(figure, f"{title}: {said or 'all ranks in all steps'}; the longest step takes {max(seconds.values(), default=0):.2f} s")
