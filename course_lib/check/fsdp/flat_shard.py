"""Check of part 26's `FlatShard`: the memory and values after each call, and the reduced gradients.

Functions with a lower-case name and no underscore run on the ranks, `FlatShardCheck` in the notebook's kernel; `flat_parts` is for both.
"""

from __future__ import annotations

import time

import numpy as np

from course_lib import memory
from course_lib.autograd import Parameter
from course_lib.check.fsdp.reference import flat_parts
from course_lib.check.groups import GroupCheck
from course_lib.cluster.replies import RanksError
from course_lib.collectives.progress import operations
from course_lib.engine import traffic_gates
from course_lib.engine.namespace import get_ipython, student
from course_lib.utils import wording

RTOL_BY_DTYPE = {np.dtype(np.float64): 1e-9, np.dtype(np.float32): 2e-3}


def trace_lifecycle(arrays, place, twice):
    """Make a FlatShard of these parameters on a rank, and record what it holds after each call."""
    everyone, FlatShard = student("everyone"), student("FlatShard")
    comm, found = everyone.Split(color=place[0], key=place[1]), []
    parameters = [Parameter(a.copy()) for a in arrays]
    shard = FlatShard(parameters, comm)
    if not isinstance(shard.shard, Parameter):
        raise TypeError(f"FlatShard.shard must be a Parameter, so that an optimizer can change it; got {type(shard.shard).__name__}.")

    before = operations.progress_state.open_requests

    def note():
        data = [p.data.copy() if isinstance(p.data, np.ndarray) else p.data for p in parameters]
        within = isinstance(shard.whole, np.ndarray) and all(np.shares_memory(p.data, shard.whole) for p in parameters)
        base = shard.shard.data.base
        view = isinstance(base, np.ndarray) and base.size > shard.shard.data.size
        found.append((shard.shard.data.copy(), shard.whole is None, data, within, operations.progress_state.open_requests - before, view))

    note()
    if twice:  # on two overlapping groups, in opposite order on every second rank
        other = everyone if comm.Get_size() < 4 else comm.Split(color=comm.Get_rank() // 2)
        pair = [shard, FlatShard([Parameter(np.ones(3))], other)]
        for one in pair[:: 1 if comm.Get_rank() % 2 else -1]:
            one.start()
        pair[1].gather()
    shard.start()
    traffic_gates.pass_gate()  # the gate requires a request in flight
    begun = shard.whole is not None
    for call in (shard.start, shard.gather, shard.start, shard.gather):
        call()
    note()
    shard.free()
    shard.free()
    note()
    if twice:
        shard.shard.data = shard.shard.data * shard.shard.dtype.type(3)  # a new array
    else:
        shard.shard.data *= shard.shard.dtype.type(3)  # in place, as an optimizer's step does
    shard.gather()
    note()
    if twice and place[1]:
        time.sleep(0.1)  # rank 0 of the group then has to wait for the gather in flight
    for call in (shard.free, shard.start, shard.free):  # started but not needed after all
        call()
    note()
    if twice:
        pair[1].free()
    return found, begun, operations.progress_state.open_requests - before


def call_reduce(arrays, grads, place):
    """Reduce gradients with a FlatShard, turn by turn; return the results, and whether each parameter's gradient is then None."""
    FlatShard, everyone = student("FlatShard"), student("everyone")
    parameters, found = [Parameter(a.copy()) for a in arrays], []
    shard = FlatShard(parameters, everyone.Split(color=place[0], key=place[1]))
    FlatShard([Parameter(np.ones(3))], everyone)  # one of another group
    for turn in grads:
        shard.gather()
        if found:  # the first time, the parameters are still there
            shard.free()
        for p, grad in zip(parameters, turn, strict=True):
            p.grad = None if grad is None else grad.copy()
        junk = [np.full(size, np.nan, arrays[0].dtype) for size in range(1, 1 + 4 * shard.shard.data.size)]
        del junk  # np.empty then finds this memory
        shard.reduce()
        grad = shard.shard.grad
        same = bool(found) or all(np.array_equal(p.data, a) for p, a in zip(parameters, arrays, strict=True))
        found.append((grad.copy() if isinstance(grad, np.ndarray) else grad, [p.grad is None for p in parameters], same))
        shard.free()
    return found


def make_large_shard(array, place):
    """Make a FlatShard of one large parameter."""
    FlatShard, everyone = student("FlatShard"), student("everyone")
    parameters = [Parameter(array)]
    get_ipython().user_ns["trial"] = FlatShard(parameters, everyone.Split(color=place[0], key=place[1])), parameters


def gather_large_shard():
    """Gather the large parameter."""
    trial = student("trial")
    trial[0].start()
    trial[0].gather()


def free_large_shard(rows):
    """Free the large parameter, and return some rows of its former value."""
    trial = student("trial")
    found = trial[1][0].data[rows].copy()
    trial[0].free()
    return found


def begin_measurement():
    """Drop what earlier tests left, and release freed memory to the system at once."""
    get_ipython().user_ns.pop("trial", None)
    memory.release_freed_at_once(True)


def end_measurement():
    """Undo `begin_measurement`."""
    memory.release_freed_at_once(False)
    get_ipython().user_ns.pop("trial", None)


class FlatShardCheck(GroupCheck):
    """A `Check` of `FlatShard`, in groups of the four ranks."""

    def shards(self, size: int = 4, dtype: type = np.float64) -> FlatShardCheck:
        """Check making, gathering, freeing, gathering again and reducing, with one parameter and with three."""
        groups = self.groups(size)
        self.case, places = self.describe_groups(groups, dtype), self.colors_and_keys(groups)
        for count in (1, 3):
            drawn = [[self._draw(dtype, axes) for axes in self._axes(count)] for _ in groups]
            if count == 1 and size == 4:  # the last rank has padding only, and the one before it has some
                drawn = [[self.random.standard_normal((1, 5)).astype(dtype)] for _ in groups]
            given = [dict(arrays=drawn[color], place=(color, key), twice=count == 3) for color, key in places]
            sizes = [(len(groups[color]), flat_parts(drawn[color], len(groups[color]))[0].nbytes) for color, _ in places]
            started = [[(n * nbytes * (n > 1), 1.0)] for n, nbytes in sizes]
            try:
                answers = self.ranks.call(trace_lifecycle, given, show=self.show, gates=started)
            except RanksError as error:
                if "TooEarly" in error.short:
                    self.fail(
                        f"start does not start a gather ({error.short})",
                        "a start that only allocates the array; it must call Iallgather, too",
                    )
                if "Deadlock" not in error.short or count != 3:
                    raise
                cause = "a blocking collective in start: call Iallgather there, and the request's Wait in gather"
                self.fail(f"start waits for other ranks ({error.short})", cause)
            for r, (color, key) in enumerate(places):
                found, begun, left = answers[r]
                if not begun:
                    self.fail(
                        f"after start, `whole` is None on rank {r}",
                        "an array under another name; it must be `whole` while the gather is in flight, too",
                    )
                self._check_lifecycle(found, drawn[color], flat_parts(drawn[color], len(groups[color]))[key], len(groups[color]), r)
                if (left := max(left, self.ranks.unended[r])) > 0:
                    self.fail(
                        f"rank {r} has started {left} more gathers than it has waited for",
                        "a free that does not wait for the gather in flight",
                    )
            given = []
            for color, key in places:
                grads = [[self.random.standard_normal(a.shape).astype(dtype) for a in drawn[color]] for _ in range(3)]
                grads[1][0] = None  # the gradients after it keep their places
                if key == 0:
                    grads[2] = [None] * count
                given.append(dict(arrays=drawn[color], grads=grads, place=(color, key)))
            answers = self.ranks.call(call_reduce, given, show=self.show)
            for group in groups:
                self._reduced([answers[r] for r in group], [given[r]["grads"] for r in group], given[group[0]]["arrays"], group)
        return self

    def peak_memory(self, size: int = 4) -> FlatShardCheck:
        """Check the memory of a large parameter: a rank holds its part, and the whole array once, only between gather and free."""
        memory.keep_freed()  # in this process
        groups = self.groups(size)
        self.case, places = f"{self.describe_groups(groups, np.float32)}, a large parameter", self.colors_and_keys(groups)
        array, noted = self.random.standard_normal((2048, 1024), np.float32), []
        self.ranks.call(begin_measurement)
        before = self.baseline_memory("a FlatShard")
        rows = np.sort(self.random.permutation(len(array))[:20])
        for function, arguments in (
            (make_large_shard, [dict(array=array, place=place) for place in places]),
            (gather_large_shard, None),
            (free_large_shard, dict(rows=rows)),
        ):
            answers = self.ranks.call(function, arguments, show=self.show)
            noted.append(self.ranks.held())
        self.ranks.call(end_measurement)
        for r, (held, got) in enumerate(zip(zip(*noted, strict=True), answers, strict=True)):
            self.array(got, array[rows], name="rows of p.data, after gather,", rank=r)
            part = array.nbytes // len(groups[places[r][0]])
            for now, whole, when in zip(held, (0, array.nbytes, 0), ("after __init__", "after gather", "after free"), strict=True):
                if (more := now - before[r]) > part + whole + array.nbytes // 8:
                    said = f"{when}, rank {r} holds {wording.size(more)}; {wording.size(part + whole)} are enough"
                    self.fail(said, "the parameters' own arrays, a shard that is a view, or a p.data that is a copy")
        return self

    def _axes(self, count: int) -> list[int]:
        """Number of axes of each parameter: of three, one has none and one has many."""
        few, many = int(self.random.integers(1, 3)), int(self.random.integers(3, 5))
        return [2] if count == 1 else self.random.permutation([0, few, many]).tolist()

    def _draw(self, dtype: type, axes: int) -> np.ndarray:
        return np.asarray(self.random.standard_normal(self.sizes(axes, 1, 6))).astype(dtype)

    def _check_lifecycle(self, found: list, arrays: list[np.ndarray], want: np.ndarray, n: int, r: int) -> None:
        """Check what a FlatShard held on rank r after each call; `want` is its part."""
        made, gathered, freed, changed, last = found
        cause = "parts of different lengths, padding in the middle, or the part of another rank"
        self.array(made[0], want, name="shard.data", rank=r, cause=cause)
        if made[5]:
            self.fail(f"shard.data on rank {r} is a view, which keeps the whole array in memory", "a slice that is not copied")
        for (_, gone, data, *_), when in ((made, "at first"), (freed, "after free"), (last, "after start and free")):
            if not gone or any(np.size(array) for array in data):
                what = "a p.data is not empty" if gone else "`whole` is not None"
                cause = (
                    "the parameters' original arrays, which must be freed once the flat array has been split" if when == "at first" else ""
                )
                self.fail(f"{when}, {what} on rank {r}", cause or "an incomplete free")
        if gathered[1]:
            self.fail(f"after gather, `whole` is None on rank {r}", "a local variable instead of the attribute")
        if gathered[4] > 0:
            self.fail(f"after gather, rank {r} has not waited for the gather it started", "a gather without its request's Wait")
        for (_, _, data, within, *_), factor, when in (
            (gathered, 1, "after gather"),
            (changed, 3, "gathered after a step that multiplied everything by 3"),
        ):
            for k, (got, array) in enumerate(zip(data, arrays, strict=True)):
                instead = {"what was gathered before the step": array} if factor == 3 else None
                cause = "a forgotten shape, or another parameter's place in the flat array"
                wanted = array * array.dtype.type(factor)
                self.array(got, wanted, name=f"p.data of parameter {k}, {when},", rank=r, cause=cause, instead=instead)
            if not within:
                self.fail(f"{when}, a p.data is not a view of `whole` on rank {r}", "a copy, which takes the same memory again")
        self.array(last[0], 3 * want, name="shard.data, in the end,", rank=r, cause="a gather or a free that writes to the shard")
        most = 3 * (n - 1) * want.nbytes + 24 * (len(arrays) == 3)  # the other group's gather, in `trace_lifecycle`
        self.sent(self.ranks.traffic[r], most, name="three gathers", rank=r, cause="a start that gathers again although `whole` is there")

    def _reduced(self, answers: list, grads: list, arrays: list[np.ndarray], group: list[int]) -> None:
        n, before = len(group), 0.0
        for turn in range(len(grads[0])):
            filled = [[np.zeros_like(a) if g is None else g for a, g in zip(arrays, own[turn], strict=True)] for own in grads]
            mean = np.mean([flat_parts(each, n) for each in filled], axis=0)
            for i, r in enumerate(group):
                got, gone, same = answers[i][turn]
                want = (before + mean)[i].astype(arrays[0].dtype)
                known = {"the sum over the ranks, not the mean": (before + n * mean)[i]} if n > 1 else {}
                known |= {"this mean alone, not added to the previous gradient": mean[i]} if turn else {}
                name, scale = f"shard.grad after reduce number {turn + 1}", max(1.0, float(np.abs(want).max(initial=0)))
                cause = "a gradient in the wrong place in the flat array; or a second gradient that is None"
                self.array(got, want, name=name, rank=r, rtol=RTOL_BY_DTYPE[want.dtype], scale=scale, instead=known, cause=cause)
                if not same:
                    self.fail(f"reduce changes p.data on rank {r}", "a reduce that uses `whole` for the gradients")
                if not all(gone):
                    self.fail(f"after reduce, a p.grad is not None on rank {r}", "gradients that are kept, and so reduced a second time")
            before = before + mean
