"""Expected results of the steps of parts 25 and 35: the model on one process, the order of the work, concurrent work, and memory."""

from __future__ import annotations

import gc

import numpy as np

from course_lib import memory
from course_lib.autograd import Module, Parameter, Tensor
from course_lib.autograd.operations import linear
from course_lib.gpt.model.block import ParallelLinear
from course_lib.gpt.model.decoder import Sizes, layers
from course_lib.gpt.model.stage import Stage

ONE_FORWARD_ONE_BACKWARD = "one_forward_one_backward_step"


class ReferencePipeline:
    """Model of a group, whole and split into stages, and its micro-batches.

    Parameters
    ----------
    sizes : Sizes
    n : int
        Stages.
    random : numpy.random.Generator
    counts : list of int
        How many micro-batches each list of them has.
    shape : (int, int)
        Texts and positions of a micro-batch.
    dtype : type

    Attributes
    ----------
    lists : list of list of (numpy.ndarray, numpy.ndarray)
        Tokens and labels; `batches` is the first list.
    message : int
        Bytes of an activation.
    """

    def __init__(
        self,
        sizes: Sizes,
        n: int,
        random: np.random.Generator,
        counts: list[int],
        shape: tuple[int, int],
        dtype: type,
    ):
        self.sizes, self.n = sizes, n
        self.numbers = (sizes.vocabulary, sizes.width, sizes.heads, sizes.depth, sizes.length)
        self.stages = [Stage(layers(sizes, n, i, dtype=dtype), sizes.width, dtype) for i in range(n)]
        self.layers = [layer for stage in self.stages for layer in stage.layers]
        for stage in self.stages:
            for _, p in stage.named_parameters():
                p.data = (p.data + 0.2 * random.standard_normal(p.shape)).astype(dtype)
        self.values = [[p.data.copy() for _, p in stage.named_parameters()] for stage in self.stages]
        self.lists = [[tuple(random.integers(0, sizes.vocabulary, shape) for _ in "xy") for _ in range(count)] for count in counts]
        self.batches = self.lists[0]
        self.message = shape[0] * shape[1] * sizes.width * np.dtype(dtype).itemsize

    def given(self, i: int) -> list[list[tuple[np.ndarray, np.ndarray]]]:
        """Micro-batches as a rank receives them: tokens for the first, labels for the last, zeros instead of what it must not see."""
        return [[(t * (i == 0), y * (i == self.n - 1)) for t, y in batches] for batches in self.lists]

    def expected(self, turns: tuple[int, ...]) -> tuple[list[float], list[list[np.ndarray]]]:
        """Return the loss of each step, and the gradients that it adds, by parameter.

        Parameters
        ----------
        turns : tuple of int
            For each step, which list of micro-batches.
        """
        whole = Stage(self.layers, self.sizes.width, self.stages[0].dtype)
        losses, gradients = [], []
        for turn in turns:
            for _, p in whole.named_parameters():
                p.grad = None
            losses.append(whole.forward(0, *map(np.concatenate, zip(*self.lists[turn], strict=True))))
            whole.backward(0, 1.0)
            gradients.append([p.grad for _, p in whole.named_parameters()])
        return losses, gradients


def work_order(function: str, n: int, i: int, count: int) -> list[tuple[str, int]]:
    """Order of the work of rank i of n in one step: "F" or "B", and the micro-batch.

    >>> work_order(ONE_FORWARD_ONE_BACKWARD, 2, 0, 2)
    [('F', 0), ('F', 1), ('B', 0), ('B', 1)]
    """
    ahead = _warmup_forwards(function, n, i, count)
    order = [("F", k) for k in range(ahead)]
    for k in range(count):
        order += [("F", k + ahead)] * (k + ahead < count) + [("B", k)]
    return order


def due_messages(order: list[tuple[str, int]], group: list[int], i: int) -> list[tuple[int, dict[int, int]]]:
    """Messages that rank i of a group sends in this order: the receiver, and the messages that must have arrived by then, by sender.

    >>> due_messages([("F", 0), ("F", 1), ("B", 0)], [7, 8, 9], 1)
    [(9, {7: 1, 9: 0}), (9, {7: 2, 9: 0}), (7, {7: 2, 9: 1})]
    """
    above, below = group[i - 1] if i else None, group[i + 1] if i < len(group) - 1 else None
    needs, found = {r: 0 for r in (above, below) if r is not None}, []
    for kind, _ in order:
        source, to = (above, below) if kind == "F" else (below, above)
        if source is not None:
            needs[source] += 1
        if to is not None:
            found.append((to, dict(needs)))
    return found


def concurrent_work(function: str, n: int, i: int, count: int) -> list[list[tuple[int, int]]]:
    """Ranks that can work at the same time, for each piece of work of rank i of n, if all pieces take equally long.

    In GPipe, a rank's forward runs with the next rank's forward of the previous micro-batch, and likewise backward; in 1F1B, once the
    pipeline is full, a rank's forward runs with the next rank's backward, and vice versa. In GPipe, and at both ends of 1F1B, it also runs
    with the one that the previous micro-batch needs two ranks on: a rank that waits for its next input before it sends holds that up.

    Returns
    -------
    list of list of (int, int)
        The other rank, and the position of that piece in its order.
    """
    pairs = set()  # rank, its piece of work, another rank, and that one's piece
    for r in range(n - 1):
        ahead, following = _warmup_forwards(function, n, r, count), _warmup_forwards(function, n, r + 1, count)
        for k in range(count):
            if function != ONE_FORWARD_ONE_BACKWARD:
                pairs |= {(r, ("F", k), r + 1, ("F", k - 1)), (r, ("B", k - 1), r + 1, ("B", k))} if k else set()
            elif ahead == following + 1:
                pairs |= {(r, ("F", k + ahead), r + 1, ("B", k)), (r, ("B", k), r + 1, ("F", k + 1 + following))}
    for r in range(n - 2):  # what is sent at once goes on beyond the next rank while the one before that still works
        for k in range(1, count):
            if function != ONE_FORWARD_ONE_BACKWARD:
                pairs |= {(r, ("F", k), r + 2, ("F", k - 1)), (r, ("B", k - 1), r + 2, ("B", k))}
            else:
                ahead = _warmup_forwards(function, n, r, count)
                pairs |= {(r, ("F", k), r + 2, ("F", k - 1))} if k < ahead else set()
                pairs |= {(r, ("B", k - 1), r + 2, ("B", k))} if k - 1 >= count - ahead else set()
    pairs = {pair for pair in pairs if pair[1][1] < count and pair[3][1] < count}
    orders = [work_order(function, n, r, count) for r in range(n)]
    found = []
    for work in orders[i]:
        met = [(r, orders[r].index(mine)) for r, mine, other, theirs in pairs if (other, theirs) == (i, work)]
        met += [(other, orders[other].index(theirs)) for r, mine, other, theirs in pairs if (r, mine) == (i, work)]
        found.append(sorted(met))
    return found


def _warmup_forwards(function: str, n: int, i: int, count: int) -> int:
    return min(n - 1 - i, count) if function == ONE_FORWARD_ONE_BACKWARD else count


def stage_memory(stage: Stage, batches: list, flying: int) -> tuple[int, int]:
    """Peak bytes of a stage with `flying` micro-batches in flight, and the bytes that one keeps."""

    def forward(k: int) -> np.ndarray:
        tokens, labels = batches[k]
        out = stage.forward(k, tokens if stage.first else np.ones((*tokens.shape, stage.width), stage.dtype), labels)
        return np.asarray(out)

    def work() -> None:
        for k in range(flying):
            out = forward(k)
        for k in range(flying):
            stage.backward(k, np.ones(out.shape, stage.dtype))
            if k == 0 and flying < len(batches):
                forward(flying)
        if flying < len(batches):
            stage.backward(flying, np.ones(out.shape, stage.dtype))

    gc.collect()  # garbage would be freed while memory is watched
    work()
    with memory.watch() as peak:
        work()
    with memory.watch() as one:
        forward(0)
    stage.backward(0, np.ones(() if stage.last else (*batches[0][0].shape, stage.width), stage.dtype))
    return peak.true_peak, one.true_now


class RowScaled(Module):
    """Matrix product whose weight has the gradient that it would have if the rows of x had been scaled by `factors`."""

    def __init__(self, weight: Parameter):
        self.weight, self.factors = weight, np.ones(1)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.data.reshape(-1, x.shape[-1]) * self.factors[:, None].astype(x.dtype)
        scaled = linear(Tensor(rows.reshape(x.shape)), self.weight)
        return linear(x, Tensor(self.weight.data)) + (scaled - scaled.data)


def scaled_products(stage: Stage) -> list[RowScaled]:
    """Replace the matrix products of a stage's layers, and return the replacements."""
    found = []
    for layer in stage.layers:
        for name, child in list(layer.children()):
            if isinstance(child, ParallelLinear):
                found.append(RowScaled(child.weight))
                setattr(layer, name, found[-1])
    return found


def product_bytes(stage: Stage, batches: list) -> int:
    """Bytes of what a micro-batch's weight gradients need: the input of each matrix product of a stage, and its result's gradient."""
    numbers = sum(sum(p.shape) for layer in stage.layers for _, p in _matrices(layer))
    return numbers * batches[0][0].size * stage.dtype.itemsize


def _matrices(layer: Module) -> list[tuple[str, Parameter]]:
    return [(name, child.weight) for name, child in layer.children() if isinstance(child, ParallelLinear)]


def ticks(orders: list[list[tuple[str, int]]]) -> list[list[int]]:
    """Return when each piece of work of a group begins, if "F", "B" and "W" take one tick each and messages none.

    Raises
    ------
    ValueError
        In this order, the ranks wait for each other.

    Examples
    --------
    >>> ticks([[("F", 0), ("B", 0), ("W", 0)], [("F", 0), ("B", 0), ("W", 0)]])
    [[0, 3, 4], [1, 2, 3]]
    """
    ended: dict[tuple[str, int, int], int] = {}
    found: list[list[int]] = [[] for _ in orders]
    moved = True
    while moved:
        moved = False
        for r, order in enumerate(orders):
            while len(found[r]) < len(order):
                kind, k = order[len(found[r])]
                needed = {"F": ("F", r - 1, k), "B": ("B", r + 1, k), "W": ("B", r, k)}[kind]
                if needed[1] in range(len(orders)) and needed not in ended:
                    break
                found[r].append(max(found[r][-1] + 1 if found[r] else 0, ended.get(needed, 0)))
                ended[kind, r, k] = found[r][-1] + 1
                moved = True
    if any(len(begins) < len(order) for begins, order in zip(found, orders, strict=True)):
        raise ValueError("in this order the ranks wait for each other.")
    return found


def h1_ticks(n: int, count: int) -> int:
    """Duration of a step of ZB-H1 in ticks.

    With T_F = T_B = T_W, the idle time of each rank is (n - 1)(T_F + T_B - T_W) for n micro-batches or more (Qi et al., 2023, "Zero
    Bubble Pipeline Parallelism", section 2).

    >>> h1_ticks(4, 8) - 3 * 8
    3
    """
    return 2 * (n - 1 + count) + max(1, count - n + 1)


def most_held(order: list[tuple[str, int]], after_backward: float = 1.0) -> float:
    """Largest number of micro-batches that have begun with F and not ended with W; those after B count as `after_backward`.

    >>> most_held([("F", 0), ("F", 1), ("B", 0), ("B", 1), ("W", 0), ("W", 1)])
    2.0
    """
    change = {"F": 1.0, "B": after_backward - 1.0, "W": -after_backward}
    return float(np.max(np.cumsum([change[kind] for kind, _ in order]), initial=0.0))
