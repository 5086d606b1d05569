"""Figures of training steps: measured and predicted times, a map of all configurations, memory by kind, a timeline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from course_lib.plots.figures import (
    INK,
    MEMORY_STYLES,
    MISSING,
    PALE,
    Picture,
    ink_on,
    min_font_size,
    new_figure,
    slide_width,
    tone,
)
from course_lib.plots.trace.lanes import Lanes
from course_lib.plots.trace.still import add_legend
from course_lib.sim.llm.events import Step
from course_lib.trace.recorder import Event
from course_lib.trace.timeline import RankTrace, Trace
from course_lib.utils import wording


def scatter(found: Sequence[tuple[str, float, float, bool]], title: str) -> Picture:
    """Draw predicted against measured times, with the diagonal of equality.

    Parameters
    ----------
    found : sequence of (str, float, float, bool)
        Name, measured and predicted seconds, and whether the prediction was fitted to this measurement.
    title : str
    """
    figure, (axes,) = new_figure(6.6, 4.6, title)
    low, high = (edge([t for _, *times, _ in found for t in times]) for edge in (min, max))
    axes.plot([low / 1.3, high * 1.3], [low / 1.3, high * 1.3], color="#AAAAAA", linewidth=1)
    for fitted, marker, label in ((True, "o", "fitted"), (False, "D", "predicted")):
        some = [(measured, ours) for _, measured, ours, was in found if was == fitted]
        if some:
            fill = INK if fitted else "white"
            axes.scatter(*zip(*some, strict=True), marker=marker, s=42, facecolor=fill, edgecolor=INK, label=label, zorder=3)
    for name, measured, ours, _ in found:
        axes.annotate(f"{name}: {ours / measured - 1:+.1%}", (measured, ours), (8, -4), textcoords="offset points", fontsize=8, color=INK)
    axes.set(xscale="log", yscale="log", xlabel="measured, seconds", ylabel="simulated, seconds", xlim=(low / 1.3, high * 4))
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100) if low / 1.3 <= t <= high * 1.3]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, labels=[str(t) for t in ticks])
        axis.set_ticks([], minor=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    said = "; ".join(f"{name}: measured {measured:g} s, simulated {ours:.2f} s" for name, measured, ours, _ in found)
    return Picture(figure, f"{title}. {said}")


def roofline(points: Mapping[str, float], roofs: Mapping[str, float], title: str) -> Picture:
    """Draw the peak fraction that a device can reach for its FLOP per byte sent (Williams et al., 2009).

    Parameters
    ----------
    points : mapping of str to float
        FLOP per byte, by what is sent.
    roofs : mapping of str to float
        FLOP that a device can do while a link carries one byte, by link.
    title : str
    """
    figure, (axes,) = new_figure(7.6, 3.6, title)
    low, high = 0.3 * min(*points.values(), *roofs.values()), 3 * max(*points.values(), *roofs.values())
    for (name, edge), style in zip(roofs.items(), ("-", "--", ":"), strict=False):
        axes.plot([low, edge, high], [low / edge, 1, 1], color=INK, linestyle=style, linewidth=1.2, label=name)
    for name, flop in points.items():
        axes.axvline(flop, color="#777777", linewidth=1.6)
        axes.annotate(name, (flop, 1.0), (4, 8), textcoords="offset points", fontsize=8, color=INK)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low / max(roofs.values()), 2.2))
    axes.set(xlabel="FLOP per byte sent", ylabel="fraction of the peak, at most")
    axes.set_yticks([0.1, 1.0], labels=["10 %", "100 %"])
    axes.yaxis.set_ticks([], minor=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=True, edgecolor="white", framealpha=1.0, loc="lower right")
    said = "; ".join(f"{name} {flop:,.0f}" for some in (points, roofs) for name, flop in some.items())
    return Picture(figure, f"{title}. FLOP per byte: {said}")


def grids(times: Mapping[tuple[int, int, int], float], title: str) -> Picture:
    """Draw the fastest step of each grid, as a map of tensor by pipeline; configurations that exceed the memory are hatched.

    Parameters
    ----------
    times : mapping of (int, int, int) to float
        Seconds for each (tensor, pipeline, data); infinity if no such configuration fits into memory. Missing grids have sizes that do not
        divide.
    title : str
    """
    from matplotlib.patches import Rectangle

    tensors, pipelines = (sorted({grid[i] for grid in times}) for i in (0, 1))
    figure, (axes,) = new_figure(1.6 + 0.95 * len(pipelines), 1.6 + 0.62 * len(tensors), title)
    finite = [t for t in times.values() if t < math.inf]
    best = min(finite, default=0.0)
    for (tensor, pipeline, data), seconds in times.items():
        x, y = pipelines.index(pipeline), tensors.index(tensor)
        if seconds == math.inf:
            axes.add_patch(Rectangle((x, y), 1, 1, facecolor="white", hatch=MISSING, edgecolor="#999999"))
            continue
        fill = tone(1 - 0.8 * min((seconds / best - 1) / 0.6, 1))  # the fastest has the strongest tone
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=fill, edgecolor="white"))
        ink = ink_on(fill)
        axes.text(x + 0.5, y + 0.4, wording.seconds(seconds), ha="center", va="center", fontsize=8, color=ink)
        axes.text(x + 0.5, y + 0.75, f"d {data}", ha="center", va="center", fontsize=7, color=ink)
    axes.set(xlim=(0, len(pipelines)), ylim=(len(tensors), 0), xlabel="pipeline", ylabel="tensor", facecolor=PALE)
    axes.set_xticks([i + 0.5 for i in range(len(pipelines))], labels=[str(p) for p in pipelines])
    axes.set_yticks([i + 0.5 for i in range(len(tensors))], labels=[str(t) for t in tensors])
    axes.tick_params(length=0)
    told = min(times, key=times.get) if finite else None
    said = f"the fastest is t {told[0]} × p {told[1]} × d {told[2]}, {wording.seconds(best)}" if told else "none fits"
    return Picture(figure, f"{title}: {said}; hatched: too much memory; faint: sizes that do not divide")


def memory_by_kind(step: Step) -> dict[str, float]:
    """Memory of the rank that holds most, at its peak, in bytes by kind."""
    rank = int(np.argmax(step.peaks))
    return step.state[rank] | {"activations": step.peaks[rank] - sum(step.state[rank].values())}


def memory(steps: Mapping[str, Step], title: str) -> Picture:
    """Draw the memory of each step's fullest rank by kind, stacked, against the device's memory."""
    figure, (axes,) = new_figure(7.6, 1.1 + 0.38 * len(steps), title)
    left, held = np.zeros(len(steps)), [memory_by_kind(step) for step in steps.values()]
    for kind in ("weights", "gradients", "optimizer state", "activations"):
        fill, hatch = MEMORY_STYLES[kind]
        sizes = np.array([found[kind] for found in held]) / 2**30
        axes.barh(list(steps), sizes, left=left, color=fill, hatch=hatch, edgecolor="white", label=kind)
        left += sizes
    device = max(step.cluster.device.memory for step in steps.values()) / 2**30
    axes.axvline(device, color=INK, linestyle=":", linewidth=1.2, label=f"device, {device:.0f} GiB")
    for i, total in enumerate(left):
        axes.text(total, i, f" {total:.1f}", va="center", fontsize=9, color=INK, bbox=dict(facecolor="white", edgecolor="none", pad=0.5))
    axes.invert_yaxis()
    axes.set(xlim=(0, max(left.max(), device) * 1.15), xlabel="GiB")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Picture(figure, f"{title}: " + "; ".join(f"{name} {total:.1f} GiB" for name, total in zip(steps, left, strict=True)))


def as_trace(step: Step) -> Trace:
    """Return a step as a trace of the pipeline's ranks; the group of a stage's replicas is written as that stage alone."""
    n = step.configuration.pipeline
    everyone, ranks, sent = tuple(range(n)), [], {}
    events = [sorted((e for e in step.events if e.rank == rank), key=lambda e: e.start) for rank in range(n)]
    for done in events:
        for work, message in pairwise(done):
            if message.kind == "message":
                sent[work.kind, work.chunk * n + work.rank + (1 if work.kind == "forward" else -1), work.micro_batch] = message
    for rank, done in enumerate(events):
        found, free = [], 0.0
        for before, e in zip([None, *done], done, strict=False):
            stage = e.chunk * n + rank
            if e.kind in ("forward", "backward"):
                if message := sent.get((e.kind, stage, e.micro_batch)):
                    key = everyone, e.micro_batch, 0, message.rank, 2 * stage + (e.kind == "backward")
                    found.append(Event("started receive", "receive", min(free, message.start), message.end, *key))
                    found.append(Event("wait", "receive", free, max(e.start, free), *key, of="receive"))
                found.append(Event("span", e.kind, e.start, e.end, of=f"micro batch {e.micro_batch}"))
            elif e.kind == "message":
                dest = stage + (1 if before.kind == "forward" else -1)
                key = everyone, e.micro_batch, 0, dest % n, 2 * dest + (before.kind == "backward")
                found.append(Event("started send", "send", e.start, e.end, *key))
                found.append(Event("wait", "send", e.start, e.end, *key, of="send"))
            elif e.kind == "update":
                found.append(Event("wait", "gradients", free, e.start, (rank,)))
                found.append(Event("span", e.kind, e.start, e.end))
            else:
                found.append(Event("started collective", e.kind, e.start, e.end, (rank,), len(found)))
                found += [Event("wait", e.kind, e.start, e.end, (rank,))] if e.kind == "weights" else []
            free = free if e.kind == "gradients" else e.end
        ranks.append(RankTrace(rank, 0.0, free, found))
    return Trace(ranks)


def timeline(step: Step, title: str) -> Picture:
    """Draw the pipeline's ranks over time, and the memory of the first and the last."""
    from matplotlib.figure import Figure

    n = step.configuration.pipeline
    row = max(0.1, min(0.5, 5 / n))
    height = row * n + 2.4
    figure = Figure(figsize=(slide_width(9.6, height), height), layout="constrained")
    figure.suptitle(f"{title}: {wording.seconds(step.seconds)}, MFU {step.utilisation:.1%}", fontsize=12, color=INK)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[row * n, 1.2])
    names = {(rank,): "between replicas" for rank in range(n)} | {tuple(range(n)): "between stages"}
    lanes = Lanes([as_trace(step)], max(8.0, min_font_size(figure)), "seconds", "stage", names)
    lanes.draw(axes, lanes.traces[0], 1 + n // 17 + int(1.2 * min_font_size(figure) > 72 * row * (1 + n // 17)))
    add_legend(figure, lanes)
    axes.set_xlim(0, step.seconds)
    for rank, dash in dict.fromkeys([(0, "-"), (n - 1, "--")] if n > 1 else [(0, "-")]):
        times, held = step.memory[rank]
        below.step(
            [*times, step.seconds],
            [*(held / 2**30), held[-1] / 2**30],
            where="post",
            color=INK,
            linestyle=dash,
            linewidth=1,
            label=f"stage {rank}",
        )
    device = step.cluster.device.memory / 2**30
    below.axhline(device, color=INK, linestyle=":", linewidth=1, label=f"device, {device:.0f} GiB")
    below.set(ylim=(0, 1.15 * max(device, step.peak / 2**30)), xlabel="seconds", ylabel="GiB")
    below.spines[["top", "right"]].set_visible(False)
    below.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    over = "" if step.fits else ", more than the device has"
    return Picture(
        figure, f"{title}: {wording.seconds(step.seconds)}, MFU {step.utilisation:.1%}, at most {step.peak / 2**30:.1f} GiB{over}"
    )
