# ---
# jupyter:
#   course:
#     ranks: 4
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 14 Your own DistributedDataParallel
#
# **You will build** `MyDP`: a wrapper that makes any model train on several ranks, with collectives that run while `backward` does.
#
# *20 points. About 50 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots
from course_lib.check import Check
from course_lib.plots import timings

ranks = cluster.start(4)

# %% Set up the ranks tags=["given"]
# %%px
import numpy as np
from mpi4py import MPI

from course_lib import traffic
from course_lib.autograd import SGD, Linear, Module, Sequential, Tanh, Tensor, cross_entropy, operations
from course_lib.collectives import Communicator
from course_lib.ddp import DistributedDataParallel
from course_lib.plots import timings

comm = everyone = Communicator()

# %% [markdown]
# Four ranks have drawn four models. Data parallel training must begin with one: rank 0's.

# %% Four models
# %%px
model = Linear(4, 1, bias=False, random=np.random.default_rng(comm.Get_rank()))
before = model.weight.data.ravel().round(1)
comm.Bcast(model.weight.data, root=0)
after = model.weight.data.ravel().round(1)

# %% Draw the models tags=["given"]
plots.exchange(ranks.pull("before"), ranks.pull("after"), "The weights of four models, before and after a broadcast")

# %% [markdown]
# ## A worked example: hooks
#
# `parameter.register_hook(function)` has `function(grad)` called in `backward`, as soon as that parameter's gradient is final. If the function
# returns an array, that becomes the gradient. In which order do you expect the names? When does the first come, before or after the last layer's
# gradient has gone on to the layer below?

# %% The order of hooks
# %%px --targets 0
model = Sequential(Linear(3, 4), Tanh(), Linear(4, 4), Tanh(), Linear(4, 2))
for name, p in model.named_parameters():
    p.register_hook(lambda grad, name=name: print(f"{name}: the gradient is final, shape {grad.shape}"))
cross_entropy(model(np.ones((1, 3), np.float32)), np.zeros(1, int)).backward()

# %% [markdown]
# ## Your turn
#
# A rank that waits until `backward` has ended, and exchanges then, has left the network idle all that time. With hooks, the last layer's
# gradient travels while the layers below still compute. All ranks have the same model, so their hooks fire in the same order: each collective
# finds its partners.


# %% Exercise: MyDP tags=["exercise"]
# %%px
class MyDP(Module):
    """A model that trains on all ranks of `comm` as one does on all their samples.

    Parameters
    ----------
    model : Module
        The same on all ranks, up to its parameters' values; in ``p.data`` for each p in ``model.parameters()``. Those become rank 0's.

    Notes
    -----
    Each gradient is averaged over the ranks by one all-reduce, in a hook of its parameter. A parameter that the output does not depend on has no
    gradient: its hook is never called.
    """

    def __init__(self, model):
        ### BEGIN SOLUTION
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.average)

    def average(self, grad):
        """The mean over the ranks."""
        mean = np.empty_like(grad)
        comm.Allreduce(grad, mean)
        mean /= comm.Get_size()
        return mean
        ### END SOLUTION

    def forward(self, x):
        """The model's output for this rank's samples."""
        ### BEGIN SOLUTION
        return self.model(x)
        ### END SOLUTION


# %% [markdown]
# ## Does it work?
#
# The model under test has a probe between two layers, which looks at what has been exchanged when the gradient passes, and a layer that is never
# used.


# %% A model to test with tags=["given"]
# %%px
class Probe(Module):
    """Lets all through, and notes how many bytes have been put into collectives when the gradient passes."""

    def __init__(self, seen):
        self.seen = seen

    def forward(self, x):
        def backward(grad):
            self.seen.append(sum(e.payload for e in traffic.entries()))
            return (grad,)

        return Tensor.from_operation(x.data, (x,), backward)


class Net(Module):
    """Linear layers, with tanh and a probe between two; and a spare one."""

    def __init__(self, values, seen):
        self.layers = [Linear(*w.shape, dtype=w.dtype) for w in values[::2]]
        self.probes = [Probe(seen) for _ in self.layers]
        for p, v in zip(self.parameters(), values, strict=True):
            p.data = v.copy()

    def forward(self, x):
        for layer, probe in zip(self.layers[:-2], self.probes[1:], strict=False):
            x = probe(operations.tanh(layer(x)))
        return self.layers[-2](x)


def train(values, xs, targets, lr, size):
    """On the first ranks: train; all parameters at first and after each step, the last step's gradients, and what the probes have seen."""
    global comm
    comm, seen = everyone.Split(color=int(everyone.Get_rank() >= size)), []
    begin = DistributedDataParallel.__init__
    code, begin.__code__ = begin.__code__, not_here.__code__  # also for those who have kept hold of it
    try:
        if everyone.Get_rank() >= size:
            return None
        model = Net(values, seen)
        wrapped = MyDP(model)
        after, optimizer = [[p.data.copy() for p in model.parameters()]], SGD(wrapped.parameters(), lr)
        for x, target in zip(xs, targets, strict=True):
            seen.clear()
            traffic.reset()
            optimizer.zero_grad()
            ((wrapped(x) * target).sum() * (1 / len(x))).backward()
            optimizer.step()
            after.append([p.data.copy() for p in model.parameters()])
        return after, [p.grad for p in model.parameters()], seen
    finally:
        comm, begin.__code__ = everyone, code


def not_here(*_, **__):
    raise TypeError("The ready-made DistributedDataParallel is part 13's. MyDP is to be your own, with hooks and all-reduces.")


# %% The same on the whole batch tags=["given"]
def whole_batch(values, x, target):
    """The gradients of one process."""
    outputs, grads, n = [x], [np.zeros_like(v) for v in values], len(values) - 2
    for i in range(0, n, 2):
        out = outputs[-1] @ values[i] + values[i + 1]
        outputs.append(np.tanh(out) if i < n - 2 else out)
    grad = target / len(x)
    for i in reversed(range(0, n, 2)):
        grads[i], grads[i + 1] = outputs[i // 2].T @ grad, grad.sum(axis=0)
        grad = grad @ values[i].T * (1 - outputs[i // 2] ** 2)
    return grads


def examine(check, size=4, layers=3, steps=3, dtype=np.float64, what=("start", "steps", "backward")):
    dims, samples = check.random.integers(1, 8, layers + 1), int(check.random.integers(1, 5))
    check.case = f"{size} ranks with {samples} samples each, layers {' x '.join(map(str, dims))}, {np.dtype(dtype)}"
    shapes = [shape for a, b in zip([*dims[:-1], 2], [*dims[1:], 3], strict=True) for shape in ((a, b), (b,))]
    values = [[check.random.standard_normal(s).astype(dtype) for s in shapes] for _ in range(4)]
    xs = check.random.standard_normal((steps, samples * size, dims[0])).astype(dtype)
    targets = check.random.standard_normal((steps, samples * size, dims[-1])).astype(dtype)
    own = [slice(r * samples, (r + 1) * samples) for r in range(4)]
    given = [dict(values=values[r], xs=xs[:, own[r]], targets=targets[:, own[r]], lr=0.1, size=size) for r in range(4)]
    answers = ranks.call("train", given, show=check.show)[:size]
    want = values[0]
    for step in range(steps + 1 if "steps" in what else "start" in what):
        for r, (after, *_) in enumerate(answers):
            for i, (got, expected) in enumerate(zip(after[step], want, strict=True)):
                name, cause = f"parameter {i} at the start", "a parameter that is not broadcast, or a root that is not rank 0"
                if step:
                    name, cause = f"parameter {i} after step {step}", "a sum instead of the mean, or the gradient of the own samples"
                check.array(got, expected, name=name, rank=r, rtol=1e-9 if dtype is np.float64 else 1e-3, scale=3.0, cause=cause)
        if step < steps:
            grads = whole_batch(want, xs[step], targets[step])
            want = [w - dtype(0.1) * g for w, g in zip(want, grads, strict=True)]
    if "backward" not in what:
        return
    sizes = [v.nbytes for v in want[:-2]]
    for r, (_, grads, seen) in enumerate(answers):
        for j, bytes_seen in enumerate(seen):
            if bytes_seen < sum(sizes[-2 * (j + 1) :]):
                check.fail(
                    f"rank {r} goes on to layer {layers - 2 - j} before the gradients above are exchanged", "collectives after backward"
                )
        if any(g.dtype != dtype for g in grads[:-2]) or any(g is not None for g in grads[-2:]):
            check.fail(f"rank {r} has gradients of another dtype, or some of the unused layer", "np.empty without dtype=")
        check.sent(ranks.traffic[r], 2 * (size - 1) / size * sum(sizes), name="a step", rank=r, cause="gradients that are exchanged twice")


# %% Check tags=["given"]
check = Check("MyDP")
examine(check)
examine(check, layers=1)
check.passed()

# %% [markdown]
# Hidden tests run when your notebook is graded. They draw other shapes and numbers of layers, and also take fewer ranks.

# %% Test: all start as rank 0 tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = Check("the start", show=False)
for size in (4, 3, 2, 1):
    examine(check, size, layers=int(check.random.integers(2, 5)), steps=0, what=("start",))
### END HIDDEN TESTS

# %% Test: steps as on the whole batch tags=["test"] points=10
### BEGIN HIDDEN TESTS
check = Check("the steps", show=False)
for size in (4, 3, 2, 1):
    examine(check, size, layers=int(check.random.integers(2, 5)), steps=4, what=("start", "steps"))
examine(check, 4, 3, 2, np.float32, what=("start", "steps"))
### END HIDDEN TESTS

# %% Test: exchanged during backward tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = Check("the exchanges", show=False)
for size, layers in ((4, 5), (3, 3), (2, 4)):
    examine(check, size, layers, steps=1, what=("backward",))
examine(check, 4, 3, 1, np.float32, what=("backward",))
### END HIDDEN TESTS

# %% [markdown]
# ## What it costs
#
# A step on two ranks, measured: your wrapper with one collective a parameter; the ready-made one, which puts gradients into *buckets* and
# exchanges those after `backward`; the same with buckets that travel beside it (non-blocking collectives: start, go on, wait at the end); and with
# buckets in memory that both ranks see. There nothing is sent: each rank sums its half, and writes the mean into both buckets.

# %% Time four ways
# %%px
comm = recorder = timings.Recorder(everyone.Split(color=everyone.Get_rank() // 2))  # two pairs of ranks
ways = {
    "one a parameter": MyDP,
    "buckets": lambda net: DistributedDataParallel(net, recorder, 8 << 20, overlap=False, shared=False),
    "buckets, beside": lambda net: DistributedDataParallel(net, recorder, 4 << 20, shared=False),
    "in shared memory": lambda net: DistributedDataParallel(net, recorder, 4 << 20),
}
x, y, steps = np.ones((16, 1024), np.float32), np.zeros(16, int), {}
everyone.Barrier()
for name, way in ways.items() if everyone.Get_rank() < 2 else ():
    layers, marks = [Linear(1024, 1024) for _ in range(4)], []
    net = way(Sequential(*(part for layer in layers for part in (layer, timings.Mark(marks), Tanh()))))
    steps[name] = timings.median_step(net, marks, x, y, recorder)
comm = everyone

# %% Draw the steps tags=["given"]
first, second = ranks.pull("steps")[:2]
timings.draw({name: (first[name], second[name]) for name in first}, "A step on two ranks, four layers of 1024, 16 samples each")

# %% [markdown]
# ## Questions worth arguing about
#
# 1. The exchanges that begin early end no earlier here: this MPI moves data only while a rank is in one of its calls. What would change with a
#    network card, or a GPU, that moves data by itself?
# 2. Rank 1 uses a layer that rank 0 does not use in this step. What happens with `MyDP`? What could a wrapper do about it?
#
# The last cell stops the ranks.

# %% Stop the ranks tags=["given"]
ranks.stop()
