"""Figures of causal attention with the sequence split over the ranks: each rank's work, and the steps of the ring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from course_lib.plots.animation import Animation
from course_lib.plots.figures import INK, PALE, Picture, color, new_figure

ChunksByRank = Sequence[Sequence[int]]  # chunks of each rank


def owners_of(held: ChunksByRank) -> dict[int, int]:
    """Return the rank that holds each chunk."""
    return {int(chunk): r for r, mine in enumerate(held) for chunk in mine}


def draw_mask(axes, held: ChunksByRank, strength: Callable[[int, int], float], title: str = "") -> None:
    """Draw the mask, a square per pair of chunks: in the colour of the query's rank, with the opacity that `strength` returns."""
    from matplotlib.patches import Polygon, Rectangle

    owners = owners_of(held)
    n = len(owners)
    for query in range(n):
        fill = color(owners[query])
        axes.add_patch(Rectangle((-0.95, query + 0.08), 0.6, 0.84, facecolor=fill, edgecolor="none"))
        for key in range(query + 1):
            corners = [(key, query), (key + 1, query), (key + 1, query + 1), (key, query + 1)]
            corners = corners if key < query else [corners[i] for i in (0, 2, 3)]
            axes.add_patch(Polygon(corners, facecolor=PALE, edgecolor="white", linewidth=0.8))
            axes.add_patch(Polygon(corners, facecolor=fill, alpha=strength(query, key), edgecolor="white", linewidth=0.8))
    axes.set(xlim=(-1.1, n), ylim=(n, -0.1), aspect="equal", xticks=[], yticks=[])
    axes.set_xlabel("chunks of keys, first to last", fontsize=9)
    axes.set_ylabel("chunks of queries", fontsize=9)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.set_title(title, fontsize=10, color=INK)


def work_shares(orders: Mapping[str, ChunksByRank], title: str) -> Picture:
    """Draw the chunks that each rank holds, the part of the causal mask it computes for them, and the share of that work.

    Parameters
    ----------
    orders : mapping of str to sequence of sequence of int
        For each order, the chunks of each rank; together, all chunks from 0.
    title : str
        Title of the figure.
    """
    figure, panels = new_figure(4.9 * len(orders), 2.5, title, 2 * len(orders), width_ratios=[1.25, 1] * len(orders))
    said = []
    for (name, held), mask, bars in zip(orders.items(), panels[::2], panels[1::2], strict=True):
        draw_mask(mask, held, lambda query, key: 1.0, name)
        total = sum(map(len, held)) ** 2 / 2
        shares = [100 * sum(chunk + 0.5 for chunk in mine) / total for mine in held]
        ranks = [f"rank {r}" for r in range(len(held))]
        bars.barh(ranks, shares, color=[color(r) for r in range(len(held))])
        for r, share in enumerate(shares):
            bars.text(share, r, f" {share:.0f}%", va="center", fontsize=9, color=INK)
        bars.invert_yaxis()
        bars.set(xlim=(0, 1.3 * max(shares)), xticks=[])
        bars.set_xlabel("share of the visible pairs", fontsize=9)
        bars.spines[["top", "right", "bottom"]].set_visible(False)
        what = ", ".join(
            f"rank {r} has chunks {' and '.join(map(str, mine))} and {s:.0f}%" for r, (mine, s) in enumerate(zip(held, shares, strict=True))
        )
        said.append(f"{name}: {what}")
    return Picture(figure, f"{title}. {'; '.join(said)}.")


def ring_steps(held: ChunksByRank, whose: Sequence[Sequence[int]], title: str) -> Animation:
    """Animate keys and values on their way around the ring, with the part of the mask that is computed at each step.

    Parameters
    ----------
    held : sequence of sequence of int
        Chunks of each rank.
    whose : sequence of sequence of int
        For each rank, the rank whose keys and values it has at each step.
    title : str
        Title of the figure.

    Returns
    -------
    Animation
    """
    owners, steps = owners_of(held), len(whose[0])

    def strength(now: int) -> Callable[[int, int], float]:
        def of(query: int, key: int) -> float:
            when = list(whose[owners[query]]).index(owners[key]) if owners[key] in whose[owners[query]] else steps
            return 1.0 if when == now else 0.3 if when < now else 0.0

        return of

    def draw(step: int) -> Picture:
        figure, (mask, ring) = new_figure(6.4, 2.9, f"{title}\nstep {step} of {steps - 1}", 2, width_ratios=[1.2, 1])
        draw_mask(mask, held, strength(step), "strong: computed now")
        _ring(ring, [int(places[step]) for places in whose])
        said = ", ".join(f"rank {r} has those of rank {places[step]}" for r, places in enumerate(whose))
        return Picture(figure, f"{title}, step {step} of {steps - 1}: {said}.")

    still = draw(min(1, steps - 1))
    return Animation(draw, steps, Picture(still.figure, f"{title}: in each step, each rank passes its K and V to the next. {still.text}"))


def _ring(axes, whose: Sequence[int]) -> None:
    """Draw a row per rank: its colour, and the colour of the rank whose keys and values it has."""
    from matplotlib.patches import Rectangle

    n = len(whose)
    for r, other in enumerate(whose):
        axes.text(-0.15, r + 0.45, f"rank {r} has", ha="right", va="center", fontsize=9, color=INK)
        axes.add_patch(Rectangle((0, r), 0.9, 0.9, facecolor=color(other), edgecolor="white"))
        axes.text(1.05, r + 0.45, f"K, V of rank {other}", ha="left", va="center", fontsize=9, color=INK)
    axes.set(xlim=(-2.4, 4.6), ylim=(n + 0.1, -0.2), aspect="equal")
    axes.axis("off")
