"""Figures of a mixture of experts: token preferences and expert loads.

`round_trip` and `exchange_step` run on the ranks and call the student's functions there.
"""
# ruff: noqa: F821

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from course_lib import placement
from course_lib.autograd.tensor import Tensor
from course_lib.plots.figures import INK, MISSING, RED, Picture, color, ink_on, new_figure
from course_lib.plots.placements import kinds


def routing_preferences(logits: Sequence[np.ndarray], title: str) -> Picture:
    """Draw a line from each token to its preferred expert.

    Parameters
    ----------
    logits : sequence of numpy.ndarray
        Logits of each rank, ``(tokens, experts)``. Each rank holds an equal share of the experts.
    title : str
        Title of the figure.
    """
    n, experts, expert = len(logits), logits[0].shape[1], [each.argmax(axis=1) for each in logits]
    wanted = np.bincount(np.concatenate(expert), minlength=experts)
    figure, (axes,) = new_figure(7.2, 3.4, title)
    places = [(r, t) for r in range(n) for t in range(len(expert[r]))]
    across, step = len(places) + n - 1, (len(places) + n - 1) / experts
    axes.set(xlim=(-0.7, across + 0.2), ylim=(4.6, -0.9))
    axes.axis("off")
    for i, (r, t) in enumerate(places):
        x, e = i + r + 0.5, int(expert[r][t])
        axes.plot([x, (e + 0.5) * step], [1, 2.9], color=color(r), linewidth=1.4, zorder=1)
        _box(axes, x - 0.5, 0, 1, color(r), str(t))
    for r in range(n):
        first = sum(len(each) + 1 for each in expert[:r])
        axes.text(first + len(expert[r]) / 2, -0.25, f"tokens of rank {r}", ha="center", va="bottom", fontsize=9, color=INK)
    for e in range(experts):
        owner = color(e * n // experts)
        _box(axes, (e + 0.08) * step, 2.9, 0.84 * step, owner, f"expert {e}")
        axes.text(
            (e + 0.5) * step, 4.25, f"{wanted[e]} token{'' if wanted[e] == 1 else 's'}", ha="center", va="center", fontsize=9, color=INK
        )
    return Picture(figure, f"{title}: experts 0 to {experts - 1} are preferred by {', '.join(map(str, wanted))} tokens.")


def _box(axes, x: float, y: float, width: float, fill: str, text: str, edge: str = "white", line: float = 1.2) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle((x, y), width, 1, facecolor=fill, edgecolor=edge, linewidth=line, zorder=2 if edge == "white" else 3, in_layout=False)
    )
    axes.text(x + width / 2, y + 0.5, text, ha="center", va="center", fontsize=8, color=ink_on(fill), zorder=4, in_layout=False)


def expert_loads(routes: Sequence[Mapping[str, tuple]], experts: int, slots: int, title: str) -> Picture:
    """Draw the tokens each expert receives and is asked to take, and the fraction dropped for other numbers of slots.

    Parameters
    ----------
    routes : sequence of mapping of str to (numpy.ndarray, numpy.ndarray)
        For each rank and run: the expert of each of its tokens, and the slot there.
    experts, slots : int
        Number of experts, and slots per rank for each expert.
    title : str
        Title of the figure.
    """
    names, n, numbers, said = list(routes[0]), len(routes), np.arange(experts), []
    figure, (*panels, last) = new_figure(10.5, 3.0, title, len(names) + 1)
    tokens = len(routes[0][names[0]][0])
    factors = np.linspace(0.5, 4, 29)
    for axes, name, style in zip(panels, names, ("--", "-"), strict=True):
        asked, kept = np.zeros((n, experts), int), np.zeros((n, experts), int)
        for r, (expert, place) in enumerate(run[name] for run in routes):
            asked[r], kept[r] = (np.bincount(each, minlength=experts) for each in (expert, expert[place >= 0]))
        got, more = kept.sum(axis=0), (asked - kept).sum(axis=0)
        axes.bar(numbers, got, color=[color(int(e) * n // experts) for e in numbers])
        some = more > 0  # a bar of no height would be a red line
        axes.bar(numbers[some], more[some], bottom=got[some], facecolor="white", edgecolor=RED, hatch=MISSING, linewidth=0.8)
        axes.axhline(n * slots, color=INK, linestyle="--", linewidth=1)
        share = more.sum() / asked.sum()
        axes.set_title(f"{name}: {share:.0%} dropped", fontsize=10, color=INK)
        axes.set(xticks=numbers, xlabel=f"expert (dashed: {n} × {slots} slots)")
        said.append(f"{name}: {', '.join(f'{g} of {g + m}' for g, m in zip(got, more, strict=True))}, {share:.0%} dropped")
        lost = [np.maximum(asked - np.ceil(tokens * factor / experts), 0).sum() / asked.sum() for factor in factors]
        last.plot(factors, lost, style, color=INK, label=name)
    panels[0].set_ylabel("tokens: kept, dropped (hatched)")
    last.set_title("dropped, by capacity factor", fontsize=10, color=INK)
    last.set(xlabel="capacity factor", ylabel="share of the tokens", ylim=(0, None))
    last.legend(fontsize=8, frameon=False)
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(0, top)
    for axes in (*panels, last):
        axes.spines[["top", "right"]].set_visible(False)
    return Picture(figure, f"{title}, with {n * slots} slots for each expert. {'; '.join(said)}.")


def array_placements(ranks: int, title: str) -> Picture:
    """Draw the placements of the arrays over the ranks that share the experts."""
    rows = placement.sharded(0)
    arrays = {"tokens, logits": rows, "the router": placement.replicated, "its gradient": placement.partial}
    arrays |= {"experts": rows, "their gradients": rows}
    return kinds({name: {"ep": kind} for name, kind in arrays.items()}, {"ep": ranks}, title)


def round_trip():
    """Send this rank's eight tokens to their experts and back, for `plots.moving.experts`; the experts do nothing. Runs on a rank."""
    here, way = Tensor(np.arange(8.0)[:, None] + 100 * rank + 1), route(Tensor(logits), 1, 2)
    way.weight = Tensor(np.ones((8, 1)))
    there = dispatch(here, way, comm)
    return here.data[:, 0], there.data[..., 0], combine(there, way, comm).data[:, 0]


def exchange_step(sparse, tokens, width, experts, factor):
    """Do the exchanges of a step, with all-to-alls or with all tokens everywhere. Runs on a rank."""
    mine, every = np.ones((tokens, width), np.float32), np.ones((comm.Get_size() * tokens, width), np.float32)
    if sparse:
        logits = np.random.default_rng(rank).standard_normal((tokens, experts)).astype(np.float32)
        way = route(Tensor(logits), 1, math.ceil(tokens * factor / experts))
        combine(dispatch(Tensor(mine, True), way, comm), way, comm).backward(mine)
    else:
        for _ in "forward", "backward":
            comm.Allgather(mine, every)
            comm.Reduce_scatter(every, mine)
