"""The ready-made wrapper trains as one process does on all samples: buckets, unused parameters, accumulation, interruption."""

import numpy as np
import pytest

from course_lib import traffic
from course_lib.autograd import SGD, Linear, Module, cross_entropy, operations
from course_lib.ddp import pytorch


class Net(Module):
    """Four layers with parameters of uneven shapes; the last three are left out for some inputs, one always."""

    def __init__(self, seed, dtype):
        random = np.random.default_rng(seed)
        self.first, self.second = (Linear(a, b, random=random, dtype=dtype) for a, b in ((5, 7), (7, 7)))
        self.head, self.never = (Linear(7, b, random=random, dtype=dtype) for b in (3, 2))

    def forward(self, x):
        h = operations.tanh(self.first(x))
        return self.head(h if x.data[0, 0] > 100 else operations.tanh(self.second(h)))


def train(source, size, dtype, xs, ys, accumulate, bucket_bytes, overlap, shared):
    """Runs on the ranks: steps on this rank's rows; parameters and gradients after each."""
    import numpy as np

    from course_lib import traffic
    from course_lib.autograd import SGD, Linear, Module, cross_entropy, operations
    from course_lib.ddp import DistributedDataParallel

    part = comm.Split(color=int(rank >= size), key=rank)
    if rank >= size:
        return None
    names = dict(Module=Module, Linear=Linear, operations=operations, np=np)
    exec(source, names)
    model = DistributedDataParallel(names["Net"](rank, dtype), part, bucket_bytes, overlap, shared)
    optimizer, found = SGD(model.parameters(), 0.1), []
    for step, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if step % accumulate == 0:
            optimizer.zero_grad()
        traffic.reset()
        cross_entropy(model(x[rank::size]), y[rank::size]).backward()
        moved = [(e.operation, e.calls, e.payload) for e in traffic.entries()]
        grads = [None if p.grad is None else p.grad.copy() for p in model.parameters()]
        found.append(([p.data.copy() for p in model.parameters()], grads, moved))
        if step % accumulate == accumulate - 1:
            optimizer.step()
    return found


def alone(dtype, xs, ys, accumulate, size):
    """The same in one process: the gradient of the mean over the ranks' parts."""
    model = Net(0, dtype)
    optimizer, found = SGD(model.parameters(), 0.1), []
    for step, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if step % accumulate == 0:
            optimizer.zero_grad()
        for r in range(size):
            (cross_entropy(model(x[r::size]), y[r::size]) * (1 / size)).backward()
        found.append(([p.data.copy() for p in model.parameters()], [None if p.grad is None else p.grad.copy() for p in model.parameters()]))
        if step % accumulate == accumulate - 1:
            optimizer.step()
    return found


def data(dtype, steps=4, samples=24):
    random = np.random.default_rng(3)
    return random.standard_normal((steps, samples, 5)).astype(dtype), random.integers(0, 3, (steps, samples))


def source():
    import inspect

    return inspect.getsource(Net)


def examine(eight, size, dtype="float64", accumulate=1, bucket_bytes=16 << 20, overlap=True, skip=(), shared=True, when=slice(None)):
    xs, ys = data(dtype)
    for r in skip:
        xs[when, r::size, 0] = 200  # this rank's forward leaves out the second layer
    common = dict(source=source(), size=size, dtype=dtype, accumulate=accumulate, bucket_bytes=bucket_bytes, overlap=overlap, shared=shared)
    answers = eight.call(train, dict(xs=xs, ys=ys, **common))[:size]
    want, rtol = alone(dtype, xs, ys, accumulate, size), 1e-9 if dtype == "float64" else 1e-4
    for steps in answers:
        for (params, grads, _), (params_alone, grads_alone) in zip(steps, want, strict=True):
            for got, expected in zip(params, params_alone, strict=True):
                assert got.dtype == dtype and np.allclose(got, expected, rtol=rtol, atol=rtol)
            for got, expected in zip(grads, grads_alone, strict=True):
                assert (got is None) == (expected is None)
                assert got is None or (got.dtype == dtype and np.allclose(got, expected, rtol=rtol, atol=rtol))
    return answers


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_steps_are_those_of_one_process(eight, size):
    examine(eight, size)


@pytest.mark.parametrize(("overlap", "shared"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize(("bucket_bytes", "buckets"), [(0, 8), (300, 3), (16 << 20, 1)])
def test_all_buckets_give_the_same(eight, bucket_bytes, buckets, overlap, shared):
    (_, _, moved), *_ = examine(eight, 4, bucket_bytes=bucket_bytes, overlap=overlap, shared=shared)[0]
    values = 5 * 7 + 7 + 7 * 7 + 7 + 7 * 3 + 3 + 7 * 2 + 2
    operation = "Allreduce in shared memory" if shared else "Allreduce"
    assert moved == [(operation, buckets, 8 * (values + 8))]  # and a mark for each parameter


def test_float32_stays(eight):
    examine(eight, 4, "float32")


@pytest.mark.parametrize("bucket_bytes", [0, 16 << 20])
def test_two_backwards_add_up(eight, bucket_bytes):
    for shared in (True, False):
        examine(eight, 2, accumulate=2, bucket_bytes=bucket_bytes, shared=shared)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("skip", [(0,), (1, 2), (0, 1, 2, 3)])
def test_a_layer_that_some_ranks_do_not_use(eight, skip, overlap):
    examine(eight, 4, bucket_bytes=0, skip=skip, overlap=overlap)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("skip", [(0,), (0, 1, 2, 3)])
@pytest.mark.parametrize("first", [0, 1])
def test_a_layer_that_one_of_two_backwards_does_not_use(eight, first, skip, shared):
    for bucket_bytes in (0, 16 << 20):
        examine(eight, 4, accumulate=2, bucket_bytes=bucket_bytes, skip=skip, shared=shared, when=slice(first, None, 2))


def interrupted(source, shared):
    """Runs on the ranks: a backward that fails half way, and the next one; gradients of that."""
    import numpy as np

    from course_lib.autograd import Linear, Module, cross_entropy, operations
    from course_lib.ddp import DistributedDataParallel

    names = dict(Module=Module, Linear=Linear, operations=operations, np=np)
    exec(source, names)
    model = DistributedDataParallel(names["Net"](0, "float64"), comm, bucket_bytes=0, shared=shared)

    def fail(grad):
        raise KeyboardInterrupt

    remove = model.module.first.weight.register_hook(fail)
    x, y = np.full((2, 5), float(rank)), np.zeros(2, int)
    try:
        cross_entropy(model(x), y).backward()
    except KeyboardInterrupt:
        remove()
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("shared", [True, False])
def test_after_an_interrupted_backward_the_next_one_is_right(eight, shared):
    answers = eight.call(interrupted, dict(source=source(), shared=shared))
    model = Net(0, "float64")
    for r in range(8):
        (cross_entropy(model(np.full((2, 5), float(r))), np.zeros(2, int)) * (1 / 8)).backward()
    for grads in answers:
        for got, p in zip(grads, model.parameters(), strict=True):
            assert got is p.grad is None or np.allclose(got, p.grad, rtol=1e-9, atol=1e-12)


def order(bucket_bytes, overlap):
    """Runs on the ranks: exchanges so far, each time that the gradient passes between two layers."""
    import numpy as np

    from course_lib import traffic
    from course_lib.autograd import Linear, Sequential, Tensor, cross_entropy
    from course_lib.autograd.modules import Module
    from course_lib.ddp import DistributedDataParallel

    seen = []

    class Probe(Module):
        def forward(self, x):
            return Tensor.from_operation(x.data, (x,), lambda g: (seen.append(sum(e.calls for e in traffic.entries())), g)[1:])

    model = DistributedDataParallel(Sequential(Linear(3, 3), Probe(), Linear(3, 3), Probe(), Linear(3, 3)), comm, bucket_bytes, overlap)
    traffic.reset()
    cross_entropy(model(np.ones((2, 3), np.float32)), np.zeros(2, int)).backward()
    return seen


def test_buckets_travel_while_backward_runs(eight):
    assert eight.call(order, dict(bucket_bytes=1, overlap=True)) == [[2, 4]] * 8
    assert eight.call(order, dict(bucket_bytes=1, overlap=False)) == [[0, 0]] * 8


def beside_torch(dims, xs, ys):
    """Runs on the ranks: 20 steps of both on the first two."""
    from itertools import pairwise

    import numpy as np

    from course_lib.autograd import SGD, Linear, Sequential, Tanh, cross_entropy
    from course_lib.ddp import DistributedDataParallel, pytorch

    pair = comm.Split(color=int(rank >= 2), key=rank)
    if rank >= 2:
        return None
    layers = [Linear(a, b, bias=False, random=np.random.default_rng(rank)) for a, b in pairwise(dims)]
    model = DistributedDataParallel(Sequential(layers[0], Tanh(), layers[1], Tanh(), layers[2]), pair)
    start, optimizer = [p.data.copy() for p in model.parameters()], SGD(model.parameters(), 0.1)
    batches = [(x[rank::2], y[rank::2]) for x, y in zip(xs, ys, strict=True)]
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return start, [p.data for p in model.parameters()], pytorch.train(start, batches, 0.1, pair)


if pytorch.available():  # where it is not, conftest.py says so

    def test_weights_agree_with_torch_after_20_steps(eight):
        random = np.random.default_rng(0)
        xs, ys = random.standard_normal((20, 16, 12)).astype(np.float32), random.integers(0, 4, (20, 16))
        for start, ours, theirs in eight.call(beside_torch, dict(dims=[12, 16, 16, 4], xs=xs, ys=ys), limit=120)[:2]:
            for before, a, b in zip(start, ours, theirs, strict=True):
                assert np.abs(a - b).max() <= 1e-4 < np.abs(a - before).max()


def mean_of(kind, count, dtype):
    """Runs on the ranks: two means of an array that is averaged by messages or in shared memory; and what lies in /dev/shm."""
    import os
    import types

    import numpy as np

    from course_lib import traffic
    from course_lib.collectives import shared_memory

    part, before = comm.Split(color=rank % 2), shared_memory._create
    if kind == "no room" and rank < 2:

        def full(*_):
            raise OSError("no space left on device")

        shared_memory._create = full
    if kind == "cannot be opened" and rank == 5:
        real = shared_memory.os
        shared_memory.os = types.SimpleNamespace(**{**vars(real), "open": lambda *words: real.open("/nowhere", 0)})
    try:
        one = part.averaged(np.empty(0, dtype), count)
    finally:
        shared_memory._create = before
        shared_memory.os = os
    found = []
    for turn in (0, 1):
        one.array[:] = np.arange(count) * (turn + 1) + rank
        traffic.reset()
        one.start()
        one.wait()
        found.append((one.array.copy(), [(e.operation, e.calls, e.payload) for e in traffic.entries()]))
    mine = f"course-shared-{os.getpid()}-"
    files = [name for name in os.listdir("/dev/shm") if name.startswith(mine)] if os.path.isdir("/dev/shm") else []
    return type(one).__name__, found, files


@pytest.mark.parametrize("count", [1, 5, 100_000])
@pytest.mark.parametrize(
    ("kind", "by"),
    [
        ("as usual", ["SharedAveragedBuffer"] * 8),
        ("no room", ["AveragedBuffer"] * 8),
        ("cannot be opened", ["SharedAveragedBuffer", "AveragedBuffer"] * 4),
    ],
)
def test_means_are_the_same_in_shared_memory_and_by_messages(eight, kind, by, count):
    for dtype in ("float32", "float64"):
        answers = eight.call(mean_of, dict(kind=kind, count=count, dtype=dtype))
        assert [name for name, *_ in answers] == by
        for r, (name, found, files) in enumerate(answers):
            operation = "Allreduce in shared memory" if name == "SharedAveragedBuffer" else "Allreduce"
            shift = 3 + r % 2  # the mean of the ranks in the group
            for turn, (array, moved) in enumerate(found):
                assert array.dtype == dtype and np.allclose(array, np.arange(count) * (turn + 1) + shift, rtol=1e-6)
                assert moved == [(operation, 1, count * np.dtype(dtype).itemsize)]
                assert (traffic.wire_bytes(operation, 8, 100) == 0) == (name == "SharedAveragedBuffer")
            assert files == []


def test_a_rank_that_does_not_come_to_a_mean_is_named(eight):
    source = "import numpy as np\none = comm.averaged(np.empty(0), 4)\nif rank != 6:\n    one.start()\n    one.wait()"
    said = [reply["error"]["message"] for _, reply in eight.run(source) if reply["error"]]
    assert len(said) == 7 and all("rank 6 has finished the cell without it" in message for message in said)
    assert [reply["error"] for _, reply in eight.run("total = np.empty(1)\ncomm.Allreduce(np.ones(1), total)\nassert total[0] == 8")] == [
        None
    ] * 8


def test_what_is_wrong_in_the_wrapper_points_to_the_students_cell(eight):
    begin = "from course_lib import autograd, ddp\ncomm = Communicator()\nrank = comm.Get_rank()\nm = autograd.Linear(3, 2)\n"
    cases = {
        "w = ddp.DistributedDataParallel(m, 'comm')": ("comm must be a Communicator; got str", 5),
        "w = ddp.DistributedDataParallel(lambda x: x)": ("module must be a Module, such as a Linear; got function", 5),
        "w = ddp.DistributedDataParallel(m, comm)\nif rank:\n    w(np.ones((2, 3))).sum().backward()": (
            "(cell [9], line 7); rank 0 has",
            7,
        ),
    }
    for source, (said, line) in cases.items():
        error = eight.run(begin + source, label="cell [9]")[1][1]["error"]
        assert said in error["message"] and error["lines"][0] == f"cell [9], line {line}" and len(error["lines"]) == 2
