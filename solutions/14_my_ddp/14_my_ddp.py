# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 14 Your own DistributedDataParallel
#
# **You will build** `MyDP`: a wrapper that lets any model train on several ranks, with collectives that run while `backward` is still
# computing.
#
# *{points} points. About 50 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots
from course_lib.check.data.ddp import DdpCheck
from course_lib.plots import timings

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np
from mpi4py import MPI

from course_lib.autograd import SGD, Linear, Module, Sequential, Tanh, Tensor, cross_entropy, operations
from course_lib.collectives import Communicator
from course_lib.ddp import DistributedDataParallel
from course_lib.plots import timings

comm = everyone = Communicator()

# %% [markdown] tags=["slide"]
# Four ranks have initialized their models at random, all differently. Data parallel training must start from a single model: rank 0's.

# %% Four models
# %%px
drawn = Linear(4, 1, bias=False, random=np.random.default_rng(comm.Get_rank()))
before = drawn.weight.data.ravel().round(1)
comm.Bcast(drawn.weight.data, root=0)
after = drawn.weight.data.ravel().round(1)

# %% Draw the models tags=["folded", "slide"]
plots.exchange(ranks.pull("before"), ranks.pull("after"), "The weights of four models, before and after a broadcast")

# %% [markdown] tags=["slide"]
# ## A worked example: hooks
#
# After `parameter.register_hook(function)`, `backward` calls `function(grad)` as soon as that parameter's gradient is final. If the
# function returns an array, that becomes the gradient. Which layer's name do you expect to see first: the first layer's or the last
# layer's?


# %% The order of hooks
# %%px --targets 0
def tell(name, grad):
    print(f"{name}: the gradient is final, shape {grad.shape}")


net = Sequential(Linear(3, 4), Tanh(), Linear(4, 4), Tanh(), Linear(4, 2))
for name, p in net.named_parameters():
    p.register_hook(lambda grad, name=name: tell(name, grad))
cross_entropy(net(np.ones((1, 3), np.float32)), np.zeros(1, int)).backward()

# %% [markdown] tags=["slide-50"]
# ## Your turn
#
# If a rank waits for `backward` to end and only then communicates, the connections between the ranks are idle all that time. With hooks,
# the last layer's gradient travels while the layers below are still computing. All ranks have the same model, so their hooks fire in the
# same order, and each collective is matched with the right one on the other ranks.


# %% Exercise: MyDP tags=["exercise", "slide-50"]
# %%px
class MyDP(Module):
    """A model that trains on all ranks of `comm` as it would on a single rank with all
    the samples.

    Parameters
    ----------
    model : Module
        The same on all ranks, except for the values of its parameters: ``p.data`` for
        each p in ``model.parameters()``. All ranks get rank 0's values.

    Notes
    -----
    Each gradient is averaged over the ranks by one all-reduce, in a hook on its
    parameter. A parameter that the output does not depend on has no gradient, and its
    hook is never called.
    """

    def __init__(self, model):
        ### BEGIN SOLUTION
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.average)

    def average(self, grad):
        """Return the mean over the ranks."""
        mean = np.empty_like(grad)
        comm.Allreduce(grad, mean)
        mean /= comm.Get_size()
        return mean
        ### END SOLUTION

    def forward(self, x):
        """Return the model's output for this rank's samples."""
        ### BEGIN SOLUTION
        return self.model(x)
        ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?
#
# The model under test has a gate between two layers, which lets a gradient through only once the gradients above it have been averaged. It
# also has a layer that is never used.

# %% Check tags=["given"]
check = DdpCheck("MyDP", ranks)
check.train()
check.train(layers=1)
check.exchanges()
check.passed()

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# How long does a step take? The next cell measures it on two ranks, in four ways:
#
# 1. Your wrapper, with one all-reduce per parameter.
# 2. The ready-made wrapper. It copies several gradients into one larger array, a *bucket*, and all-reduces the buckets when `backward` is
#    done.
# 3. Buckets of half the size, each all-reduced as soon as it is full, while `backward` continues. This takes non-blocking collectives: the
#    call returns at once, and the rank waits for the result only at the end.
# 4. Buckets in memory that both ranks can see. Then nothing is sent: each rank adds up one half of the numbers, and writes the mean for
#    both.

# %% Time four ways tags=["slide-50"]
# %%px
pair = everyone.Split(color=everyone.Get_rank() // 2)  # ranks 0 and 1, ranks 2 and 3
comm = recorder = timings.Recorder(pair)
DDP = DistributedDataParallel
ways = {
    "one per parameter": MyDP,
    "buckets": lambda net: DDP(net, recorder, 8 << 20, overlap=False, shared=False),
    "buckets, overlapped": lambda net: DDP(net, recorder, 4 << 20, shared=False),
    "in shared memory": lambda net: DDP(net, recorder, 4 << 20),
}
x, y, steps = np.ones((16, 1024), np.float32), np.zeros(16, int), {}
everyone.Barrier()
for name, way in ways.items() if everyone.Get_rank() < 2 else ():
    layers, marks = [Linear(1024, 1024) for _ in range(4)], []
    pieces = ((layer, timings.GradientTimer(marks), Tanh()) for layer in layers)
    parts = (part for piece in pieces for part in piece)
    net = way(Sequential(*parts))
    steps[name] = timings.median_step(net, marks, x, y, recorder)
comm = everyone

# %% Draw the steps tags=["folded", "slide-50"]
first, second = ranks.pull("steps")[:2]
timings.draw({name: (first[name], second[name]) for name in first}, "A step on two ranks: four layers of 1024 units, 16 samples per rank")

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. The all-reduces that start early hardly finish any earlier here: each dark bar lasts until the rank has its result, and this MPI
#    library moves data only while a rank is inside one of its calls. What would change with a network card, or a GPU, that moves data by
#    itself?
# 2. Rank 1 uses a layer that rank 0 does not use in this step. What happens with `MyDP`? What could a wrapper do about it?
#
# The last cell stops the ranks.

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other shapes and other numbers of layers, and also fewer ranks.

# %% Test: all start as rank 0 tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = DdpCheck("the start", ranks, show=False)
for size in (4, 3, 2, 1):
    check.train(size, layers=int(check.random.integers(2, 5)), steps=0)
### END HIDDEN TESTS

# %% Test: steps as on the whole batch tags=["test"] points=10
### BEGIN HIDDEN TESTS
check = DdpCheck("the steps", ranks, show=False)
for size in (4, 3, 2, 1):
    check.train(size, layers=int(check.random.integers(2, 5)), steps=4)
check.train(4, 3, 2, np.float32)
### END HIDDEN TESTS

# %% Test: exchanged during backward tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = DdpCheck("the exchanges", ranks, show=False)
for size, layers in ((4, 5), (3, 3), (2, 4)):
    check.exchanges(size, layers)
check.exchanges(4, 3, np.float32)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
