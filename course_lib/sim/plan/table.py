"""Table of steps to look things up in: for each batch, length and grid the best of the rest, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from course_lib.sim.core.hardware import GIB
from course_lib.sim.llm import pictures
from course_lib.sim.llm.analytic import estimate
from course_lib.sim.llm.cluster import Cluster
from course_lib.sim.llm.configuration import Configuration, PlanError, problems
from course_lib.sim.llm.costs.stage import StageCosts
from course_lib.sim.llm.events import Step, simulate
from course_lib.sim.llm.transformer import Transformer
from course_lib.sim.plan import report, search
from course_lib.sim.plan.search import Candidate
from course_lib.sim.plan.space import MIN_POSITIONS, configurations_of_grid, divisors
from course_lib.utils import wording

COMPUTING, WITHIN_LAYERS, MESSAGES, WAITING, REPLICAS, OPTIMIZER, OUTSIDE = PARTS = (
    "computing",
    "exchanges within layers",
    "messages between stages",
    "waiting for other stages",
    "exchanges among replicas",
    "optimizer",
    "outside the layers",
)
GRID = ("tensor", "context", "pipeline", "data")
AXES = ("batch", "sequence", *GRID, "expert", "rest")
CHOSEN, PLAIN = "chosen", "plain"  # the rest: as the search chooses it, or nothing recomputed, ZeRO 1, micro-batches of one text
# Batches and lengths relative to the model's own: the first ones that do not take too long.
QUARTERS = (((2, 4, 8), (2, 4, 8, 16)), ((2, 4, 8), (2, 4, 8)), ((2, 4), (4, 8)))
MAX_EVENTS = 3_000_000  # forwards and backwards of the whole table, roughly: about a minute, for all but the last ones
COUNT, MAX_SIMULATED = 5, 12  # fastest configurations of a batch and length: kept, and simulated, whatever their grids
SLOW, MAX_EVENTS_IF_SLOW = 1.5, 50_000  # relative to the best step, by closed forms; what is slower and has more events is not simulated
TRIES = 5  # configurations simulated for a grid, until one fits

Key = tuple  # a size for each of AXES; the last one is CHOSEN or PLAIN


@dataclass(frozen=True)
class Entry:
    """Step of one configuration of a grid: the fastest that fits, or the one that takes the least memory if none does; or the plain one.

    Attributes
    ----------
    configuration : Configuration
    row : tuple of str
        Its results in words, as `report.HEADINGS` names them.
    seconds, tokens : float
        Of a step; per second.
    parts : dict of str to float
        Seconds of the step by kind, `PARTS`.
    memory : dict of str to float
        Bytes of the fullest device by kind.
    fits : bool
    """

    configuration: Configuration
    row: tuple[str, ...]
    seconds: float
    tokens: float
    parts: dict[str, float]
    memory: dict[str, float]
    fits: bool

    @classmethod
    def of(cls, step: Step) -> Entry:
        """Make the entry of a step that was simulated with its events."""
        return cls(
            step.configuration, report.table_row(step), step.seconds, step.tokens, parts(step), pictures.memory_by_kind(step), step.fits
        )


@dataclass(frozen=True)
class Table:
    """Steps of a model on a cluster, by batch, length and grid.

    Attributes
    ----------
    model : Transformer
    cluster : Cluster
    axes : dict of str to list
        The sizes along each of `AXES`.
    entries : dict of tuple to Entry
        By the sizes along the axes.
    impossible : dict of tuple to str
        Why there is no entry, by the sizes along the axes; by those of `GRID`, or of all but the last, where the others do not matter.
    """

    model: Transformer
    cluster: Cluster
    axes: dict[str, list[int]]
    entries: dict[Key, Entry]
    impossible: dict[Key, str]

    def best(self) -> dict[tuple[int, int], Key]:
        """Find the fastest entry of each batch and length for which anything fits."""
        found: dict[tuple[int, int], Key] = {}
        for key, one in self.entries.items():
            if one.fits and (key[:2] not in found or one.seconds < self.entries[found[key[:2]]].seconds):
                found[key[:2]] = key
        return found

    def reason(self, key: Key) -> str:
        """Say why there is no entry."""
        return self.impossible.get(key[2:6]) or self.impossible.get(key[:-1]) or self.impossible[key]

    def limits(self, key: Key, best: Key | None) -> str:
        """Say what limits an entry: memory, or what takes time besides computing, also compared with the best of its batch and length."""
        one, device = self.entries[key], self.cluster.device.memory / GIB
        held, kind = sum(one.memory.values()) / GIB, max(one.memory, key=one.memory.__getitem__)
        digits = 1 if abs(held - device) > 0.1 else 3
        largest = f"{kind} {'is' if kind == 'optimizer state' else 'are'} the largest part"
        of = f"{held:.{digits}f} of {device:.{digits}f} GiB on the fullest device"
        if not one.fits:
            least, still = ("at least ", ", whatever the rest is") if key[-1] == CHOSEN else ("", "")
            return f"Does not fit: {least}{of}{still}; {largest}."
        rest = max((name for name in PARTS if name != COMPUTING), key=one.parts.__getitem__)
        shares = {name: one.parts[name] / one.seconds for name in (COMPUTING, rest)}
        time = f"Computing takes {shares[COMPUTING]:.0%} of the step; of all else, “{rest}” takes the most ({shares[rest]:.1%})."
        slower = one.seconds / self.entries[best].seconds - 1
        beside = f"{slower:.1%} slower than the best for this batch and length." if slower else "The best for this batch and length."
        return f"Fits: {of}; {largest}. {time} {beside}"

    def summary(self) -> list[tuple[str, ...]]:
        """Return the best of each batch and length in words, with headings."""
        rows, best = [("batch", "length", *report.HEADINGS)], self.best()
        for batch, sequence in product(self.axes["batch"], self.axes["sequence"]):
            key = batch, sequence
            found = self.entries[best[key]].row if key in best else ("–",) * (len(report.HEADINGS) - 1) + ("nothing fits",)
            rows.append((f"{batch:,}", f"{sequence:,}", *found))
        return rows


def parts(step: Step) -> dict[str, float]:
    """Divide the seconds of a step, which was simulated with its events, by kind: the mean over the pipeline's stages.

    Recomputation is computing. Exchanges of tensor and context parallel ranks and of experts are within layers, and so is what ZeRO 2 and 3
    exchange during a layer, as far as it is not hidden. Of the exchanges among replicas, what is hidden behind computation is left out.
    """
    c, costs = step.configuration, StageCosts(step.model, step.cluster, step.configuration)
    found, ends = dict.fromkeys(PARTS, 0.0), [0.0] * c.pipeline
    for e in step.events:  # each rank's in order
        took = e.end - e.start
        if e.kind in ("forward", "backward"):
            found[COMPUTING] += took
        elif e.kind == "message" and not step.cluster.software.hidden_messages:
            found[MESSAGES] += took
        elif e.kind == "update":
            found[REPLICAS] += e.start - ends[e.rank]
            found[OPTIMIZER] += took
        elif e.kind == "weights":
            found[REPLICAS] += took
        else:
            continue
        ends[e.rank] = e.end
    stages = (costs.stage(stage) for stage in range(c.pipeline * c.interleave))
    found[WITHIN_LAYERS] = c.micro_batches(step.model) * sum(stage.exchanged for stage in stages)
    found[WITHIN_LAYERS] = max(found[WITHIN_LAYERS], 0.0)  # rounding
    found[COMPUTING] -= found[WITHIN_LAYERS]
    found = {name: seconds / c.pipeline for name, seconds in found.items()} | {OUTSIDE: step.cluster.overhead}
    return found | {WAITING: max(step.seconds - sum(found.values()), 0.0)}


def build(
    model: Transformer,
    cluster: Cluster,
    batches: Sequence[int] = (),
    sequences: Sequence[int] = (),
    precision: str = "bf16",
    searched: Callable[[int, int], object] | None = None,
) -> Table:
    """Search the grids of each batch and length: closed forms select, the event simulation decides.

    Parameters
    ----------
    model : Transformer
    cluster : Cluster
    batches, sequences : sequence of int, optional
        Texts per step, tokens per text; by default the model's own, and multiples.
    precision : str
        Of matrix products.
    searched : callable, optional
        Called with the number of pairs of a batch and a length that have been searched, and how many there are: at the start, after each.

    Raises
    ------
    PlanError
        Nothing fits, whatever the batch, the length and the grid.
    """
    axes = {"batch": [*batches], "sequence": [*sequences]}
    for some, others in QUARTERS:
        if batches or sequences:
            axes = {name: values or [getattr(model, name)] for name, values in axes.items()}
        else:
            axes = {name: _multiples(getattr(model, name), n) for name, n in (("batch", some), ("sequence", others))}
        axes |= _grid_axes(model, cluster, max(axes["sequence"]))
        if batches or sequences or _events(cluster, axes) <= MAX_EVENTS:
            break
    table = Table(model, cluster, axes, {}, {})
    for sizes in product(*(axes[name] for name in GRID)):
        if math.prod(sizes) != cluster.gpus:
            table.impossible[sizes] = _why_not(model, cluster, Configuration(**dict(zip(GRID, sizes, strict=True))))
    pairs = [*product(axes["batch"], axes["sequence"])]
    searched = searched or (lambda done, of: None)
    searched(0, len(pairs))
    for done, (batch, sequence) in enumerate(pairs, 1):
        _search(table, replace(model, batch=batch, sequence=sequence), precision)
        searched(done, len(pairs))
    if not any(one.fits for one in table.entries.values()):
        least = min((sum(one.memory.values()) for one in table.entries.values()), default=0.0) / GIB
        device = f"{cluster.device.name} has {cluster.device.memory / GIB:.1f} GiB"
        raise PlanError(f"{model.name} does not fit: all grids take at least {least:.1f} GiB on a device, but {device}.")
    return table


def _multiples(whole: int, quarters: Iterable[int]) -> list[int]:
    return [whole * n // 4 for n in quarters if whole * n % 4 == 0]


def _grid_axes(model: Transformer, cluster: Cluster, sequence: int) -> dict[str, list[int]]:
    return {
        "tensor": divisors(cluster.gpus, cluster.node),
        "context": divisors(cluster.gpus, max(sequence // MIN_POSITIONS, 1)) if model.fused else [1],
        "pipeline": divisors(cluster.gpus, model.layers),
        "data": divisors(cluster.gpus, cluster.gpus),
        "expert": [n for n in divisors(cluster.gpus, cluster.gpus) if model.experts % n == 0] if model.experts else [1],
        "rest": [CHOSEN, PLAIN],
    }


def _events(cluster: Cluster, axes: dict[str, list[int]]) -> float:
    """Forwards and backwards to simulate, roughly: as if all grids were possible, with micro-batches of four texts."""
    pipelines = [(grid[2], grid[3]) for grid in product(*(axes[name] for name in GRID)) if math.prod(grid) == cluster.gpus]
    each = sum(max(2 * pipeline / data / 4 * batch, 2) for pipeline, data in pipelines for batch in axes["batch"])
    return each * len(axes["sequence"]) * len(axes["expert"])


def _search(table: Table, model: Transformer, precision: str) -> None:
    """Fill in one batch and length: the best of each grid."""
    by_grid: dict[Key, list[Candidate]] = {}
    for grid in product(*(table.axes[name] for name in GRID)):
        if grid not in table.impossible:
            for expert in table.axes["expert"]:
                by_grid[*grid, expert] = []
            for c in configurations_of_grid(model, table.cluster, dict(zip(GRID, grid, strict=True)), precision):
                if (*grid, c.expert) in by_grid:
                    by_grid[*grid, c.expert].append((*estimate(model, table.cluster, c, True), c))
    allowed = search.MEMORY_ESTIMATE_SLACK * table.cluster.device.memory
    fitting = sorted((one for some in by_grid.values() for one in some if one[1] <= allowed), key=lambda one: one[0])
    best = {}  # the fastest simulated are not always the fastest by closed forms
    if fitting:
        for step in reversed(_simulated(model, table.cluster, fitting)):
            best[_grid(step.configuration)] = step
    for grid, some in by_grid.items():
        key, plain, found = (model.batch, model.sequence, *grid), _plain(model, grid, precision), {}
        if not some:
            table.impossible[key] = _why_not(model, table.cluster, plain)
            continue
        tried = _tries(some, allowed, best.get(grid))
        for rest, c in ((CHOSEN, tried[0]), (PLAIN, plain)):
            if fitting and (why := _too_slow(model, table.cluster, c, fitting[0][0])):
                table.impossible[*key, rest] = why
            else:
                found[rest] = _first_that_fits(model, table.cluster, tried if rest == CHOSEN else [plain], best.get(grid))
        if len(found) == 2 and found[PLAIN].fits and found[PLAIN].seconds < found[CHOSEN].seconds:
            found[CHOSEN] = found[PLAIN]
        table.entries.update({(*key, rest): Entry.of(step) for rest, step in found.items()})


def _simulated(model: Transformer, cluster: Cluster, fitting: list[Candidate]) -> list[Step]:
    try:
        return search.simulated(model, cluster, fitting, COUNT, MAX_SIMULATED, search.MAX_EVENTS)
    except PlanError:
        return []


def _grid(c: Configuration) -> Key:
    return c.tensor, c.context, c.pipeline, c.data, c.expert


def _tries(some: list[Candidate], allowed: float, known: Step | None) -> list[Configuration]:
    """Configurations of a grid to simulate until one fits: the fastest first, then the one that takes the least memory."""
    fitting = sorted((one for one in some if one[1] <= allowed), key=lambda one: one[0])[:TRIES]
    least = [known.configuration] if known else [min(some, key=lambda one: one[1])[2]]
    return [c for *_, c in fitting] + least


def _first_that_fits(model: Transformer, cluster: Cluster, tried: list[Configuration], known: Step | None) -> Step:
    """Simulate configurations until one fits, or the last one."""
    for c in tried:
        step = simulate(model, cluster, c)
        if step.fits:
            break
    slower = known and len(tried) > 1 and known.seconds < step.seconds
    return simulate(model, cluster, known.configuration) if slower else step


def _too_slow(model: Transformer, cluster: Cluster, c: Configuration, best: float) -> str:
    """Say why a configuration is not simulated; empty if it is."""
    events, (seconds, _) = 2 * c.pipeline * c.interleave * c.micro_batches(model), estimate(model, cluster, c, True)
    if events <= MAX_EVENTS_IF_SLOW or seconds <= SLOW * best:
        return ""
    about = (
        f"about {wording.seconds(float(f'{seconds:.2g}'))} by closed forms, {seconds / best:.1f} times the best for this batch and length"
    )
    return f"Not simulated: {events:,} forwards and backwards, and a step of {about}."


def _why_not(model: Transformer, cluster: Cluster, c: Configuration) -> str:
    return f"Not possible: {problems(model, cluster, c)[0]}"


def _plain(model: Transformer, grid: Key, precision: str) -> Configuration:
    """Return the simplest configuration of a grid: if it is impossible, then so are all others."""
    sizes = dict(zip((*GRID, "expert"), grid, strict=True))
    tensor, context, pipeline, data, _ = grid
    more = dict(sequence_parallel=tensor > 1, uneven=model.layers % pipeline > 0, zero=int(context * data > 1), precision=precision)
    return Configuration(**sizes, **more)


def columns(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Format rows as lines with columns; the last one is not padded."""
    rows = [*rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for *cells, last in rows:
        yield "  ".join([*(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)), last])
