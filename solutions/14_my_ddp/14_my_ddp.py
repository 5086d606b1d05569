# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 14 Your own DistributedDataParallel
#
# **You will build** `MyDP`: a wrapper that lets any model train on several ranks. Gradients are exchanged while `backward` is still
# computing: first each by itself, then in buckets. It works as PyTorch's wrapper does (Li et al., 2020, "PyTorch distributed: experiences
# on accelerating data parallel training", section 3.2).
#
# *{points} points. About 75 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np

from course_lib import cluster, plots
from course_lib.check.data.ddp.check import DdpCheck

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np
from mpi4py import MPI

from course_lib.autograd import SGD, Linear, Module, Sequential, Tanh, Tensor, after_backward, cross_entropy, operations
from course_lib.check.data.ddp.device import Device, OpenRequests
from course_lib.collectives import Communicator
from course_lib.ddp import DistributedDataParallel
from course_lib.trace import span

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
# function returns an array, that becomes the gradient. `after_backward(function)`, called in a hook, has `function()` called once, when all
# gradients are there. Which layer's name do you expect to see first: the first layer's or the last layer's?


# %% The order of hooks
# %%px --targets 0
def tell(name, grad):
    print(f"{name}: the gradient is final, shape {grad.shape}")
    if name == "modules.4.weight":
        after_backward(lambda: print("backward has ended"))


net = Sequential(Linear(3, 4), Tanh(), Linear(4, 4), Tanh(), Linear(4, 2))
for name, p in net.named_parameters():
    p.register_hook(lambda grad, name=name: tell(name, grad))
cross_entropy(net(np.ones((1, 3), np.float32)), np.zeros(1, int)).backward()

# %% [markdown] tags=["slide-50"]
# ## Start now, wait later
#
# `request = comm.Iallreduce(mine, total)` starts an all-reduce and returns at once. `request.Wait()` returns when `total` holds the sum;
# `request.Test()` tells whether it does. Until then, the rank may compute, but must not write into `mine`, and must neither read nor write
# `total`. A rank that uses `Allreduce` in a hook waits there for all other ranks.

# %% Start and wait
# %%px
mine, total = np.full(3, 1.0 + comm.Get_rank()), np.zeros(3)
request = comm.Iallreduce(mine, total)
complete = request.Test()
request.Wait()
print(f"complete after the start: {complete}; the sum: {total}")

# %% [markdown] tags=["slide-50"]
# ## Your turn
#
# *First half.* Start an all-reduce in each parameter's hook, and wait for all of them when `backward` has ended. While the last layer's
# gradient travels, the layers below are computed. Collectives are matched by their order, so all ranks must start them in the same order.
#
# *Second half.* One all-reduce per parameter is too many: each has a latency. Put several gradients into one array, a *bucket*, and
# all-reduce that once it is full. Hooks need not fire in the same order on all ranks (two ranks may use layers in a different order), so a
# bucket is launched only after all the buckets before it. A bucket may lack a gradient at the end. It must be launched all the same.


# %% Exercise: MyDP tags=["exercise", "slide-50"]
# %%px
class MyDP(Module):
    """A model that trains on all ranks of `comm` as on one rank with all the samples.

    Parameters
    ----------
    model : Module
        The same on all ranks, except for the values of its parameters: ``p.data`` for
        each p in ``model.parameters()``. All ranks get rank 0's values.
    bucket_bytes : int
        0: each gradient is all-reduced by itself (first half). Otherwise, gradients are
        put into buckets, in the order of ``reversed(model.parameters())``. A bucket is
        closed once its gradients have this many bytes or more. Each bucket is one
        all-reduce, and all ranks start the first bucket's first, then the second's ...

    Notes
    -----
    After ``backward``, each ``p.grad`` is the mean over the ranks. All-reduces start in
    hooks; no hook waits, not even the last one. A parameter that the output does not
    depend on has no gradient: its hook is never called, and its ``p.grad`` stays as it
    is. In its bucket, zeros take its place, and that bucket starts when ``backward``
    has ended. Several models may be wrapped, and share a ``backward``.

    A step sends what all-reduces of the gradients send, at most 32 bytes besides, and
    calls no Barrier. The ready-made wrapper's own code counts as no answer.
    """

    def __init__(self, model, bucket_bytes=0):
        ### BEGIN SOLUTION
        self.model, self.buckets, self.final, self.started = model, [], {}, []
        held = bucket_bytes
        for p in reversed(model.parameters()):
            comm.Bcast(p.data, root=0)
            p.register_hook(lambda grad, p=p: self.ready(p, grad))
            if held >= bucket_bytes:
                self.buckets.append([])
                held = 0
            self.buckets[-1].append(p)
            held += p.data.nbytes

    def ready(self, p, grad):
        """Hook: this parameter's gradient is final."""
        if not self.final:
            after_backward(self.finish)
        self.final[p] = grad
        while len(self.started) < len(self.buckets):
            bucket = self.buckets[len(self.started)]
            if not all(q in self.final for q in bucket):
                break
            self.start(bucket)

    def start(self, bucket):
        """Start the all-reduce of a bucket."""
        parts = []
        for p in bucket:
            grad = self.final.get(p, np.zeros_like(p.data))
            parts.append(grad.ravel())
        flat = np.concatenate(parts)
        self.started.append((bucket, flat, comm.Iallreduce(MPI.IN_PLACE, flat)))

    def finish(self):
        """Start what is left, and wait for everything."""
        for bucket in self.buckets[len(self.started) :]:
            self.start(bucket)
        for bucket, flat, request in self.started:
            request.Wait()
            flat /= comm.Get_size()
            for p in bucket:
                mean, flat = flat[: p.data.size], flat[p.data.size :]
                if p in self.final:
                    p.grad = mean.reshape(p.shape)
        self.final, self.started = {}, []
        ### END SOLUTION

    def forward(self, x):
        """Return the model's output for this rank's samples."""
        ### BEGIN SOLUTION
        return self.model(x)
        ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?
#
# The model under test has a gate between two layers, which lets a gradient through only once the gradients above it have been sent. It also
# has a layer that is never used. In the second check, one rank begins its backward when the others have almost ended theirs: whoever waits
# for it in a hook never returns. In the third, each block is two layers side by side, which half of the ranks use in another order.

# %% Check: the first half tags=["given"]
check = DdpCheck("MyDP", ranks)
check.train()
check.train(layers=1)
check.exchanges()
check.passed()

# %% Check: nobody waits in a hook tags=["given"]
check = DdpCheck("hooks that do not wait", ranks)
check.exchanges(late=True)
check.passed()

# %% Check: the second half tags=["given"]
check = DdpCheck("buckets", ranks)
check.buckets(count=1)
check.buckets(count=3)
check.buckets(count=0)
check.passed()

# %% [markdown] tags=["slide-50"]
# ## What it costs
#
# How long does a step take on two ranks? To see the overlap on a laptop, each layer's backward also pauses for some milliseconds, as if a
# device such as a GPU computed it. The process is free meanwhile. Your wrapper runs in three ways:
#
# 1. It waits in the hook: `Iallreduce` is replaced by `Allreduce`.
# 2. It waits at the end of backward, and the process sleeps while the device computes.
# 3. It waits at the end, and the process calls `request.Test()` again and again while the device computes.
#
# In which of them is the step shorter? This MPI library moves data only while a rank is inside one of its calls, such as `Wait` or `Test`
# (this is called *progress*). Other libraries have a thread, a network card or a GPU that moves data by itself.

# %% Three ways to take a step tags=["experiment", "slide-50"]
# %%px
units, samples, layer_ms = 1024, 16, 4.0  # try 1.0: too short to hide an all-reduce
pair = everyone.Split(color=everyone.Get_rank() // 2)  # ranks 0 and 1, ranks 2 and 3
ways = {  # whether Iallreduce waits at once; whether Test is called meanwhile
    "wait in the hook": (True, False),
    "wait at the end": (False, False),
    "and call Test": (False, True),
}
x, y = np.ones((samples, units), np.float32), np.zeros(samples, int)


def take_steps(count=5):
    global comm
    for name, (at_once, tests) in ways.items() if everyone.Get_rank() < 2 else ():
        comm, parts = OpenRequests(pair, at_once), []
        for _ in range(4):
            device = Device(layer_ms / 1000, comm.test if tests else None)
            parts += [Linear(units, units, bias=False), device, Tanh()]
        model = MyDP(Sequential(*parts))
        for _ in range(count):
            for p in model.parameters():
                p.grad = None
            comm.Barrier()
            with span(name):
                with span("forward"):
                    loss = cross_entropy(model(x), y)
                with span("backward"):
                    loss.backward()
    comm = everyone


# %% Draw the steps tags=["folded", "slide-50"]
with ranks.trace(show=False) as traces:
    ranks.call("take_steps")
fastest = {name: traces[0].fastest(name) for name in ranks.pull("ways")[0]}
plots.timeline(fastest, "A step on two ranks: four layers, an all-reduce for each; the fastest of five")

# %% [markdown] tags=["slide-50"]
# How large should a bucket be? Small ones pay an all-reduce's latency more often. A large one starts late, when little is left to overlap it
# with. Between two processes of a laptop, latency hardly matters. So the next cell computes the time of a backward with the numbers of a
# cluster: one tensor's gradient after the other is final, and the buckets are sent one after the other. Change the numbers.

# %% Draw the bucket sizes tags=["folded", "slide-50"]
tensors, tensor_mb, tensor_ms = 400, 1.0, 0.05  # gradients: how many, size, time until the next one is final
latency_ms, bandwidth = 0.05, 50.0  # of an all-reduce; in GB/s, of a rank's link
bucket_mb = [0, 2, 5, 10, 25, 50, 100, 200, 400]  # PyTorch's default is 25


def backward_ms(bucket):
    """Time until the last bucket has arrived; a ring sends each byte about twice."""
    final = arrived = held = 0.0
    for i in range(tensors):
        final, held = final + tensor_ms, held + tensor_mb
        if held >= bucket or i == tensors - 1:
            arrived = max(arrived, final) + latency_ms + 2 * held / bandwidth
            held = 0.0
    return arrived


times = {f"{mb} MB" if mb else "no buckets": backward_ms(mb) for mb in bucket_mb}
plots.bars(times, f"Backward by size of the buckets; computing alone takes {tensors * tensor_ms:g} ms", "ms")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch: `DistributedDataParallel`. Its `Reducer` (`torch/csrc/distributed/c10d/reducer.cpp`) launches in the order of the buckets
#   (`mark_bucket_ready`), and `queue_callback` is our `after_backward`. One bucket is small (1 MB). After the first step, buckets are
#   rebuilt in the order in which gradients came. `no_sync()` skips the exchange, to accumulate gradients.
# - Megatron-LM: buckets of `megatron/core/distributed/param_and_grad_buffer.py`, with `overlap_grad_reduce`: `register_grad_ready` starts
#   a full one, `finish_grad_sync` waits. DeepSpeed without ZeRO reduces after backward (`allreduce_gradients`).
# - JAX: XLA orders and combines collectives (`--xla_gpu_all_reduce_combine_threshold_bytes`, the latency hiding scheduler).
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. With `Test`, the last all-reduce still ends after backward. Which one is that, and how would buckets change it?
# 2. Rank 1 uses a layer that rank 0 does not use in this step. What happens with `MyDP`, with and without buckets?
#
# The last cell stops the ranks.

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other shapes and other numbers of layers, and also fewer ranks.

# %% Test: all start as rank 0 tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = DdpCheck("MyDP, the start", ranks, show=False)
for size in (4, 3, 2, 1):
    check.train(size, layers=int(check.random.integers(2, 5)), steps=0)
### END HIDDEN TESTS

# %% Test: steps as on the whole batch tags=["test"] points=10
### BEGIN HIDDEN TESTS
check = DdpCheck("MyDP, the steps", ranks, show=False)
for size in (4, 3, 2, 1):
    check.train(size, layers=int(check.random.integers(2, 5)), steps=4)
check.train(4, 3, 2, np.float32)
### END HIDDEN TESTS

# %% Test: exchanged during backward tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = DdpCheck("MyDP, the exchanges", ranks, show=False)
for size, layers in ((4, 5), (3, 3), (2, 4)):
    check.exchanges(size, layers)
check.exchanges(4, 3, np.float32)
### END HIDDEN TESTS

# %% Test: nobody waits in a hook tags=["test"] points=1
### BEGIN HIDDEN TESTS
check = DdpCheck("MyDP, hooks that do not wait", ranks, show=False)
for size, layers in ((4, 6), (3, 3), (2, 4)):
    check.exchanges(size, layers, late=True)
    check.exchanges(size, layers, late=True, bucket_bytes=1)
### END HIDDEN TESTS

# %% Test: buckets tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = DdpCheck("MyDP, buckets", ranks, show=False)
for size, blocks, count in ((4, 3, 1), (3, 3, 3), (2, 2, 5), (4, 2, 0), (1, 2, 3)):
    check.buckets(size, blocks, count)
check.buckets(4, 3, 3, np.float32)
check.buckets(4, 3, 3, exact=True)
for size, blocks in ((4, 2), (3, 3), (2, 2)):
    check.skips(size, blocks)
check.skips(4, 2, one_bucket=False)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
