"""Check of part 26's `FlatShard`: the memory and values after each call, and the reduced gradients.

Functions with a lower-case name and no underscore run on the ranks, `FlatShardCheck` in the notebook's kernel; `flat_parts` is for both.
"""

from __future__ import annotations

import time

import numpy as np

from course_lib import memory
from course_lib.autograd import Parameter
from course_lib.check.cases.layouts import LAYOUTS, arrange
from course_lib.check.fsdp import contract
from course_lib.check.fsdp.reference import flat_parts
from course_lib.check.groups import GroupCheck
from course_lib.cluster.replies import RanksError
from course_lib.collectives.progress import operations
from course_lib.engine import traffic_gates
from course_lib.engine.namespace import get_ipython, student
from course_lib.utils import wording

TURNS, ANEW = 5, (3, 4)  # of `call_reduce`; the turns before which the shard's gradient is set to None
RTOL_BY_DTYPE = {np.dtype(np.float64): 1e-9, np.dtype(np.float32): 2e-3}


def trace_lifecycle(arrays, place, twice, layout, twin_values):
    """Make a FlatShard of these parameters on a rank, and record what it holds after each call.

    With `twice`, there are two more: one on an overlapping group, and a twin on a second
    communicator with the same ranks.
    """
    everyone, FlatShard = student("everyone"), student("FlatShard")
    comm = everyone.Split(color=place[0], key=place[1])
    given = [arrange(array, layout) for array in arrays]
    parameters = [Parameter(array) for array in given]
    shard = FlatShard(parameters, comm)
    if not isinstance(shard.shard, Parameter):
        raise TypeError(f"FlatShard.shard must be a Parameter, so that an optimizer can change it; got {type(shard.shard).__name__}.")
    shard_values = shard.shard.data
    others = []
    if twice:
        overlapping = everyone if comm.Get_size() < 4 else comm.Split(color=comm.Get_rank() // 2)
        others.append(FlatShard([Parameter(np.ones(3))], overlapping))
        twin_parameter = Parameter(twin_values.copy())
        others.append(FlatShard([twin_parameter], everyone.Split(color=place[0], key=place[1])))

    notes = []
    before = operations.progress_state.open_requests

    def note():
        data = [p.data.copy() if isinstance(p.data, np.ndarray) else p.data for p in parameters]
        within = isinstance(shard.whole, np.ndarray) and all(np.shares_memory(p.data, shard.whole) for p in parameters)
        base = shard.shard.data.base
        view = isinstance(base, np.ndarray) and base.size > shard.shard.data.size
        left = operations.progress_state.open_requests - before
        notes.append((shard.shard.data.copy(), shard.whole is None, data, within, left, view))

    note()
    fill_freed(arrays[0].dtype, comm.Get_size() * shard_values.size)
    if twice:
        if place[1] == 0:
            time.sleep(0.1)  # who does not wait reads what has not come yet
        # In opposite order on every second rank, so that start must not wait.
        for one in [shard, others[0]][:: 1 if comm.Get_rank() % 2 else -1]:
            one.start()
        others[0].gather()
    shard.start()
    traffic_gates.pass_gate()  # the gate requires a request in flight
    begun = shard.whole is not None
    if twice:
        others[1].start()
    for call in (shard.start, shard.gather, shard.start, shard.gather):
        call()
    if twice:
        others[1].gather()
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
    twin = twin_parameter.data.copy() if twice else None
    if twice and place[1]:
        time.sleep(0.1)  # rank 0 of the group then has to wait for the gather in flight
    for call in (shard.free, shard.start, shard.free):  # started but not needed after all
        call()
    note()
    for other in others:
        other.free()
    return notes, begun, operations.progress_state.open_requests - before, twin, [array.copy() for array in given]


def fill_freed(dtype, length):
    """Leave NaN in freed memory, where np.empty finds it, for arrays of up to this length."""
    junk = [np.full(size, np.nan, dtype) for size in range(1, 1 + length) for _ in range(2)]
    del junk


def copied(value):
    """Return a copy of an array, and anything else as it is."""
    return value.copy() if isinstance(value, np.ndarray) else value


def call_reduce(arrays, turns, twin_turns, place, layout):
    """Reduce gradients with a FlatShard, turn by turn, and each time with a twin on a second communicator with the same ranks.

    Returns
    -------
    list of tuple
        For each turn: the gradient of the shard; whether each parameter's gradient is None;
        whether ``p.data`` is as before; the gradients' arrays after the call; and the twin's
        gradient.
    old : list of numpy.ndarray
        Gradients that the caller has kept before it set them to None, at the end.
    """
    FlatShard, everyone = student("FlatShard"), student("everyone")
    parameters = [Parameter(a.copy()) for a in arrays]
    shard = FlatShard(parameters, everyone.Split(color=place[0], key=place[1]))
    FlatShard([Parameter(np.ones(3))], everyone)  # one of another group
    twin_parameter = Parameter(np.ones_like(twin_turns[0]))
    twin = FlatShard([twin_parameter], everyone.Split(color=place[0], key=place[1]))
    results, old = [], []
    for number, (turn, twin_grad) in enumerate(zip(turns, twin_turns, strict=True)):
        if number in ANEW:
            old = [shard.shard.grad, twin.shard.grad]
            shard.shard.grad = twin.shard.grad = None
        shard.gather()
        if number:  # the first time, the parameters are still there
            shard.free()
        given = [None if grad is None else arrange(grad, layout) for grad in turn]
        for p, grad in zip(parameters, given, strict=True):
            p.grad = grad
        twin_parameter.grad = twin_grad
        fill_freed(arrays[0].dtype, 4 * shard.shard.data.size)
        shard.reduce()
        grad = copied(shard.shard.grad)
        twin.reduce()
        same = number > 0 or all(np.array_equal(p.data, a) for p, a in zip(parameters, arrays, strict=True))
        results.append((grad, [p.grad is None for p in parameters], same, [copied(g) for g in given], copied(twin.shard.grad)))
        shard.free()
    return results, old


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

    def shards(self, *sizes: int, dtype: type = np.float64) -> FlatShardCheck:
        """Check making, gathering, freeing, gathering again and reducing in groups of these sizes, with one parameter and with three."""
        for size in sizes:
            self._shards(size, dtype)
        self.covers("dtypes", "layouts", "sizes", "group order", "group sizes", "repetition")
        self.covers("same ranks twice", "arguments", "results")
        return self

    def _shards(self, size: int, dtype: type) -> None:
        groups = self.groups(size)
        self.case = self.describe_groups(groups, dtype)
        for count in (1, 3):
            drawn = [[self._draw(dtype, axes) for axes in self._axes(count)] for _ in groups]
            if count == 1 and size == 4:  # the last rank has padding only, and the one before it has some
                drawn = [[self.random.standard_normal((1, 5)).astype(dtype)] for _ in groups]
            if count == 1 and size == 2:
                drawn = [[self.random.standard_normal(1).astype(dtype)] for _ in groups]
            self._lifecycle(groups, drawn, twice=count == 3)
            self._reduces(groups, drawn)

    def _layout(self) -> str:
        return str(self.random.choice(LAYOUTS[1:]))

    def _lifecycle(self, groups: list[list[int]], drawn: list[list[np.ndarray]], twice: bool) -> None:
        """Check what a shard of these parameters of each group holds after each call."""
        places = self.colors_and_keys(groups)
        other_dtype = np.float32 if drawn[0][0].dtype == np.float64 else np.float64
        twins = [self.special(int(self.sizes(1, 5, 12)[0]), dtype=other_dtype) for _ in groups]
        given = [
            {
                "arrays": drawn[color],
                "place": (color, key),
                "twice": twice,
                "layout": self._layout(),
                "twin_values": twins[color],
            }
            for color, key in places
        ]
        sizes = [(len(groups[color]), flat_parts(drawn[color], len(groups[color]))[0].nbytes) for color, _ in places]
        started = [[(n * nbytes * (n > 1), 1.0)] for n, nbytes in sizes]
        try:
            answers = self.ranks.call(trace_lifecycle, given, show=self.show, gates=started)
        except RanksError as error:
            if "TooEarly" in error.short:
                cause = "a start that only allocates the array; it must call Iallgather, too"
                self.fail(f"start does not start a gather ({error.short})", cause)
            if "Deadlock" not in error.short or not twice:
                raise
            cause = "a blocking collective in start: call Iallgather there, and the request's Wait in gather"
            self.fail(f"start waits for other ranks ({error.short})", cause)
        for r, (color, key) in enumerate(places):
            notes, begun, left, twin, arguments = answers[r]
            n = len(groups[color])
            if not begun:
                cause = "an array under another name; it must be `whole` while the gather is in flight, too"
                self.fail(f"after start, `whole` is None on rank {r}", cause)
            self._check_lifecycle(notes, drawn[color], flat_parts(drawn[color], n)[key], r)
            left = max(left, self.ranks.unended[r])
            if left > 0:
                cause = "a free that does not wait for the gather in flight"
                self.fail(f"rank {r} has started {left} more gathers than it has waited for", cause)
            for array, argument in zip(drawn[color], arguments, strict=True):
                name = "the array that a parameter had at first, in the end,"
                self.array(argument, array, name=name, rank=r, cause="a shard that is a view of it")
            if twice:
                name = "p.data of a shard on a second communicator with the same ranks"
                cause = "a buffer or a request that shards share"
                self.array(twin, twins[color], name=name, rank=r, cause=cause, signed_zeros=True)
            self._check_gather_traffic(r, groups[color], sizes[r][1], flat_parts([twins[color]], n)[0].nbytes if twice else 0)

    def _check_gather_traffic(self, r: int, group: list[int], shard_bytes: int, twin_bytes: int) -> None:
        """Check what `trace_lifecycle` sent: three gathers, with a twin also one of it and one of three numbers."""
        n = len(group)
        others = 2 if twin_bytes else 0
        most = (n - 1) * (3 * shard_bytes + twin_bytes) + 24 * bool(others)
        name = f"a run of {3 + others} gathers"
        cause = "a start that gathers again although `whole` is there"
        self.sent(self.ranks.traffic[r], most, name=name, rank=r, cause=cause, limit=contract.GATHER)
        self.calls(
            self.ranks.traffic[r],
            3 + others,
            group=list(range(4)) if others else group,
            name=name,
            rank=r,
            cause="a barrier, or an exchange of lengths",
            limit=contract.NO_OTHER_CALLS,
        )

    def _reduces(self, groups: list[list[int]], drawn: list[list[np.ndarray]]) -> None:
        """Check reduced gradients in five turns; before two of them, the caller sets the shard's gradient to None."""
        dtype = drawn[0][0].dtype
        twin_sizes = [int(self.sizes(1, 5, 12)[0]) for _ in groups]
        given = []
        for color, key in self.colors_and_keys(groups):
            turns = [[self.random.standard_normal(a.shape).astype(dtype) for a in drawn[color]] for _ in range(TURNS)]
            turns[1][0] = None  # the gradients after it keep their places
            if key == 0:
                turns[2] = [None] * len(drawn[color])
            given.append(
                {
                    "arrays": drawn[color],
                    "turns": turns,
                    "twin_turns": [self.random.standard_normal(twin_sizes[color]).astype(dtype) for _ in range(TURNS)],
                    "place": (color, key),
                    "layout": self._layout(),
                }
            )
        answers = self.ranks.call(call_reduce, given, show=self.show)
        for color, group in enumerate(groups):
            turns = [given[r]["turns"] for r in group]
            results = [answers[r][0] for r in group]
            self._check_reduced([[turn[:4] for turn in own] for own in results], turns, drawn[color], group)
            twin_turns = [[[grad] for grad in given[r]["twin_turns"]] for r in group]
            twins = [
                [(turn[4], [True], True, [grad]) for turn, (grad,) in zip(*both, strict=True)]
                for both in zip(results, twin_turns, strict=True)
            ]
            self._check_reduced(twins, twin_turns, [twin_turns[0][0][0]], group, " of a shard on a second communicator with the same ranks")
            self._check_kept(group, answers)
            parts = [flat_parts(drawn[color], len(group))[0].nbytes, flat_parts(twin_turns[0][0], len(group))[0].nbytes]
            for r in group:
                # In each turn, a gather and a reduce of the shard, and a reduce of its twin.
                most = TURNS * (len(group) - 1) * (2 * parts[0] + parts[1])
                self.sent(self.ranks.traffic[r], most + 1, name="a run of five gathers and ten reduces", rank=r, limit=contract.REDUCE)
                self.calls(
                    self.ranks.traffic[r],
                    3 * TURNS,
                    group=group,
                    name="a run of five gathers and ten reduces",
                    rank=r,
                    limit=contract.NO_OTHER_CALLS,
                )

    def _check_kept(self, group: list[int], answers: list) -> None:
        """Check that gradients which the caller has kept are those of the last but one turn."""
        for r in group:
            results, old = answers[r]
            for kept, before in zip(old, (results[-2][0], results[-2][4]), strict=True):
                if not np.array_equal(kept, before):
                    problem = f"after a later reduce, an earlier shard.grad, which the caller has set to None, has other values on rank {r}"
                    self.fail(problem, "a buffer that is kept for the result: each reduce needs an array of its own")

    def peak_memory(self, size: int = 4) -> FlatShardCheck:
        """Check the memory of a large parameter: a rank holds its part, and the whole array once, only between gather and free."""
        memory.keep_freed()  # in this process
        groups = self.groups(size)
        self.case, places = f"{self.describe_groups(groups, np.float32)}, a large parameter", self.colors_and_keys(groups)
        array, noted = self.random.standard_normal((4096, 2048), np.float32), []
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
                more = now - before[r]
                if more > part + whole + contract.SPARE.number * array.nbytes:
                    problem = f"{when}, rank {r} holds {wording.size(more)}; {wording.size(part + whole)} are enough"
                    cause = "the parameters' own arrays, a shard that is a view, or a p.data that is a copy"
                    self.fail(problem, cause, limit=contract.SPARE)
        return self

    def _axes(self, count: int) -> list[int]:
        """Number of axes of each parameter: of three, one has none and one has many."""
        few, many = int(self.random.integers(1, 3)), int(self.random.integers(3, 5))
        return [2] if count == 1 else self.random.permutation([0, few, many]).tolist()

    def _draw(self, dtype: type, axes: int) -> np.ndarray:
        return np.asarray(self.random.standard_normal(self.sizes(axes, 1, 6))).astype(dtype)

    def _check_lifecycle(self, found: list, arrays: list[np.ndarray], want: np.ndarray, r: int) -> None:
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

    def _check_reduced(self, answers: list, grads: list, arrays: list[np.ndarray], group: list[int], whose: str = "") -> None:
        """Compare the gradients of a group's shards after each turn with the means; those of `ANEW` start from None."""
        n, before = len(group), 0.0
        for turn in range(len(grads[0])):
            if turn in ANEW:
                before = 0.0
            filled = [[np.zeros_like(a) if g is None else g for a, g in zip(arrays, own[turn], strict=True)] for own in grads]
            mean = np.mean([flat_parts(each, n) for each in filled], axis=0)
            for i, r in enumerate(group):
                got, gone, same, given = answers[i][turn]
                want = (before + mean)[i].astype(arrays[0].dtype)
                known = {"the sum over the ranks, not the mean": (before + n * mean)[i]} if n > 1 else {}
                known |= {"this mean alone, not added to the previous gradient": mean[i]} if turn else {}
                name, scale = f"shard.grad after reduce number {turn + 1}{whose}", max(1.0, float(np.abs(want).max(initial=0)))
                cause = "a gradient in the wrong place in the flat array; or a second gradient that is None"
                self.array(got, want, name=name, rank=r, rtol=RTOL_BY_DTYPE[want.dtype], scale=scale, instead=known, cause=cause)
                if not same:
                    self.fail(f"reduce changes p.data on rank {r}", "a reduce that uses `whole` for the gradients")
                if not all(gone):
                    self.fail(f"after reduce, a p.grad is not None on rank {r}", "gradients that are kept, and so reduced a second time")
                for array, grad in zip(given, grads[i][turn], strict=True):
                    if grad is not None:
                        cause = "an operation in place, such as p.grad /= n: autograd may still need this array"
                        self.array(array, grad, name="the array that p.grad was before reduce", rank=r, cause=cause)
            before = before + mean
