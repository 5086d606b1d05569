"""Time of an exchange against its size: measured on the ranks, fitted with a latency and a bandwidth, drawn, and compared.

The model is ``T(n) = alpha + n / beta`` for an array of n bytes (Hockney, 1994, "The communication challenge for MPP"). Here beta is a
bandwidth, in bytes per second; many papers write ``n beta`` and mean the time of one byte. Both numbers are those of the whole
collective on its group, not those of a single link.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from course_lib.plots.figures import INK, Picture, new_figure
from course_lib.utils import wording

ITEM_BYTES = 8  # of the float64 numbers that are added up
WARM_UP = 2  # repetitions that are not counted
SHADES = (("#222222", "o"), ("#777777", "s"), ("#AAAAAA", "^"))  # color and marker of a series; not the ranks' colors


def measure(comm, sizes: Sequence[int], repeats: int = 15, call: Callable | None = None) -> list[float]:
    """Measure on the ranks of a group how long an exchange takes; collective.

    Parameters
    ----------
    comm : Communicator
        The ranks that take part.
    sizes : sequence of int
        Bytes of the array, rounded down to whole float64 numbers, at least one.
    repeats : int
        Repetitions for each size, after two that are not counted: the first ones also pay for memory that is used for the first time.
    call : callable, optional
        Is given two arrays of a size, the second one to be overwritten; by default an all-reduce.

    Returns
    -------
    list of float
        Seconds for each size, the same on all ranks: the time of the slowest rank, and of all repetitions the median, which a few
        disturbed ones do not change.
    """
    call = call or comm.Allreduce
    arrays = [np.zeros((2, max(1, nbytes // ITEM_BYTES))) for nbytes in sizes]
    taken = np.empty((repeats + WARM_UP, len(sizes)))
    # All sizes in turn, so that what disturbs the machine for a moment hits a repetition of each and not all of one.
    for turn in taken:
        for i, (before, after) in enumerate(arrays):
            for _ in range(2):  # the second one counts: its arrays are in the caches, whatever came before
                comm.Barrier()
                began = time.perf_counter()
                call(before, after)
                turn[i] = time.perf_counter() - began
    everyone = np.empty((comm.Get_size(), *taken.shape))
    comm.Allgather(taken, everyone)
    return np.median(everyone.max(axis=0)[WARM_UP:], axis=0).tolist()


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit ``alpha + n / beta`` to times by least squares of the relative error, so that small sizes count as much as large ones.

    Parameters
    ----------
    sizes : sequence of float
        Bytes.
    seconds : sequence of float
        Their times.

    Returns
    -------
    alpha, beta : float
        Seconds, and bytes per second. Neither is negative: times that do not grow with the size give an infinite beta.

    Raises
    ------
    ValueError
        There are fewer than two different sizes, or a time is not positive.
    """
    nbytes, times = np.asarray(sizes, float), np.asarray(seconds, float)
    if nbytes.shape != times.shape or len(set(nbytes.tolist())) < 2:
        raise ValueError(f"fit: two numbers need times of at least two different sizes; got sizes {sizes} and {len(times)} times.")
    if not np.all((times > 0) & np.isfinite(times)):
        raise ValueError(f"fit: times must be greater than 0; got {seconds}.")
    unit = nbytes.max()  # so that both unknowns are seconds, of similar size
    ones, slopes = 1 / times, nbytes / unit / times
    alpha, slope = np.linalg.lstsq(np.stack([ones, slopes], axis=1), np.ones(len(times)), rcond=None)[0]
    if alpha < 0:  # noise at the small sizes: the best fit that goes through zero
        alpha, slope = 0.0, slopes.sum() / (slopes**2).sum()
    elif slope <= 0:  # noise at the large sizes: the best constant
        alpha, slope = ones.sum() / (ones**2).sum(), 0.0
    return float(alpha), float(unit / slope) if slope else np.inf


def draw(
    sizes: Sequence[float],
    seconds: Sequence[float],
    alpha: float,
    beta: float,
    title: str,
    tried: tuple[float, float] | None = None,
) -> Picture:
    """Draw measured times and ``alpha + n / beta``, both axes logarithmic.

    Parameters
    ----------
    sizes, seconds : sequence of float
        Bytes, and their times.
    alpha, beta : float
        As `fit` returns them.
    title : str
    tried : (float, float), optional
        A size that was not used for the fit, and its time.
    """
    figure, (axes,) = new_figure(7.2, 3.8, title)
    extra = [tried[0]] if tried else []
    near = np.geomspace(min([*sizes, *extra]), max([*sizes, *extra]), 100)
    axes.plot(near, alpha + near / beta, color="#BBBBBB", linewidth=4, label="alpha + n / beta")
    axes.axhline(alpha, color="#777777", linewidth=1, linestyle=":", label=f"alpha = {_short(alpha)}")
    slope = near[near >= 0.3 * alpha * beta] if np.isfinite(beta) else near[:0]
    speed = f"{beta / 1e9:.2g} GB/s" if np.isfinite(beta) else "infinite"
    axes.plot(slope, slope / beta, color="#777777", linewidth=1, linestyle="--", label=f"n / beta, beta = {speed}")
    axes.plot(sizes, seconds, "o", color=INK, label="measured")
    said = f"alpha {_short(alpha)}, beta {speed}"
    if tried:
        nbytes, took = tried
        axes.plot([nbytes], [alpha + nbytes / beta], "D", markersize=8, markerfacecolor="white", markeredgecolor=INK, label="predicted")
        axes.plot([nbytes], [took], "*", markersize=11, color=INK, label="measured afterwards")
        said += f"; {wording.size(nbytes)} predicted {_short(alpha + nbytes / beta)}, measured {_short(took)}"
    everything = [*seconds, *(alpha + near / beta), *([tried[1]] if tried else [])]
    axes.set_ylim(min(everything) / 3, max(everything) * 2)
    axes.set(xscale="log", yscale="log", xlabel="bytes of the array, n")
    _label_ticks(axes.xaxis, near[[0, -1]], wording.size)
    _label_ticks(axes.yaxis, [min(everything), max(everything)], wording.seconds)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Picture(figure, f"{title}: {said}")


def _short(seconds: float) -> str:
    """Format a time with two digits."""
    return wording.seconds(float(f"{seconds:.2g}"))


def _label_ticks(axis, limits: Sequence[float], words) -> None:
    """Label decades in words, such as 1 kB or 10 ms, every second or third where there are many."""
    from matplotlib.ticker import NullFormatter

    low, high = (int(np.floor(np.log10(value))) for value in limits)
    view = tuple(axis.get_view_interval())
    axis.set_ticks([10.0**i for i in range(low, high + 2, max(1, (high - low) // 3))])
    axis.set_view_interval(*view, ignore=True)  # ticks beyond it have widened it
    axis.set_major_formatter(lambda value, _: words(value))
    axis.set_minor_formatter(NullFormatter())


def compare(
    sizes: Sequence[float],
    measured: Mapping[str, Sequence[float]],
    title: str,
    alpha: float,
    beta: float,
    steps: Mapping[str, tuple[int, float]],
) -> Picture:
    """Draw the times of several algorithms over the same sizes, both axes logarithmic, and what their messages alone would take.

    Parameters
    ----------
    sizes : sequence of float
        Bytes.
    measured : mapping of str to sequence of float
        For each algorithm its seconds, one for each size.
    title : str
    alpha, beta : float
        Of one message, in seconds and bytes per second.
    steps : mapping of str to (int, float)
        Of algorithms with a line for the model: the number of messages one after the other, and the share of the array in each.
    """
    figure, (axes,) = new_figure(7.2, 3.8, title)
    near = np.geomspace(min(sizes), max(sizes), 100)
    predicted = {name: many * (alpha + share * near / beta) for name, (many, share) in steps.items()}
    everything = [t for times in (*measured.values(), *predicted.values()) for t in times]
    for (name, times), (shade, marker) in zip(measured.items(), SHADES * len(measured), strict=False):
        axes.plot(sizes, times, marker + (":" if name in steps else "-"), color=shade, linewidth=1, markersize=5, label=name)
        if name in steps:
            axes.plot(near, predicted[name], color=shade, linewidth=2, label=f"{name}, model: messages only")
    axes.set(xscale="log", yscale="log", xlabel="bytes of the array", ylim=(min(everything) / 2, max(everything) * 2))
    _label_ticks(axes.xaxis, [min(sizes), max(sizes)], wording.size)
    _label_ticks(axes.yaxis, [min(everything), max(everything)], wording.seconds)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    first, last = wording.size(sizes[0]), wording.size(sizes[-1])
    said = "; ".join(f"{name} {_short(times[0])} for {first}, {_short(times[-1])} for {last}" for name, times in measured.items())
    return Picture(figure, f"{title}: {said}.")


def draw_roofline(
    ridges: Mapping[str, float],
    samples: Sequence[float],
    reached: Mapping[str, Sequence[float]],
    title: str,
    top: float = 100.0,
) -> Picture:
    """Draw how much of a device's peak a training step can reach: its roof, and points that were measured or simulated.

    Up to the ridge, where computing and communicating take equally long, the network is the roof, and the slope is one; beyond it, the
    device itself (Williams et al., 2009, "Roofline").

    Parameters
    ----------
    ridges : dict of str to float
        For each configuration, the samples per rank at its ridge.
    samples : sequence of float
        Samples per rank of the points.
    reached : dict of str to sequence of float
        For each configuration, the per cent of the peak reached with these samples.
    title : str
    top : float
        Per cent of the peak that a rank reaches when it never waits.
    """
    figure, (axes,) = new_figure(7.2, 3.8, title)
    low, high = min([*samples, *ridges.values()]) / 2, max([*samples, *ridges.values()]) * 2
    near = np.geomspace(low, high, 200)
    for (name, ridge), (shade, marker) in zip(ridges.items(), SHADES * len(ridges), strict=False):
        axes.plot(near, top * np.minimum(1, near / ridge), color=shade, linewidth=1.6, label=f"{name}, roof")
        axes.plot(samples, reached[name], marker, color=shade, linestyle=":", linewidth=1, label=f"{name}, reached")
        axes.plot([ridge], [top], "|", color=shade, markersize=16)
    axes.set(xscale="log", yscale="log", xlabel="samples per rank between two all-reduces", ylabel="MFU, %")
    for axis, ticks in ((axes.xaxis, samples), (axes.yaxis, [1, 3, 10, 30, 100])):
        axis.set_ticks(ticks)
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(lambda value, _: "")
    least = min(min(points) for points in reached.values())
    axes.set(xlim=(low, high), ylim=(min(least, top * low / max(ridges.values())) / 1.2, 130))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = "; ".join(f"{name}: ridge at {ridge:.1f} samples, reached {max(reached[name]):.0f}%" for name, ridge in ridges.items())
    return Picture(figure, f"{title}: {said}")
